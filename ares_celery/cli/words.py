"""The words of the command line instead of Python's, in the sentences of errors."""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from ares_celery.errors import AresError

__all__ = ["in_cli_words"]

#: What an error says to a caller in Python, and what a person at a terminal can type instead; in this order.
_WORDS: Final = (
    (re.compile(r"\bif_exists='(\w+)', '(\w+)' or '(\w+)'"), r"--if-exists \1, \2 or \3"),
    (re.compile(r"\bif_exists="), "--if-exists "),
    (re.compile(r"\bcall again with the same message_id\b"), "ask again with the same --message-id"),
    (re.compile(r"\bthe same message_id\b"), "the same --message-id"),
    (re.compile(r"\bmessage_id="), "--message-id "),
    (re.compile(r"\bcall start\(\) or `ares runtime start` first"), "`ares runtime start` lets it run"),
    (re.compile(r"\bforce=True\b"), "--force"),
    (re.compile(r"\bkill_agent\b"), "kill"),
    (re.compile(r"\bkill_worker\b"), "kill-worker"),
    (re.compile(r"\bslow_agent\b"), "slow"),
    (re.compile(r"\btool_timeout\b"), "tool-timeout"),
    (re.compile(r"\bpartition_network\b"), "partition"),
    (re.compile(r"\bcorrupt_memory\b"), "corrupt-memory"),
    (re.compile(r"\bdisconnect_mcp\b"), "disconnect-mcp"),
    (re.compile(r"\binject_llm_failure\b"), "llm-failure"),
    (re.compile(r"\bretry_after="), "--retry-after "),
    # What `ask` does is a send, too: neither verb may be named for the other.
    (re.compile(r"\bso send is not possible\b"), "so it takes no messages"),
    (
        re.compile(r"\bcall define_group\(.*?\) first, or leave `group` out"),
        "`ares groups define NAME` defines one, `ares groups ls` lists those that are",
    ),
    (re.compile(r"\bstart_agent starts it\b"), "`ares agents start {agent_id}` starts it"),
    (re.compile(r"; stop it first\b"), "; stop it first (`ares agents stop {agent_id}`)"),
)


def in_cli_words(error: AresError) -> str:
    """The error's sentence, with options and commands where it names arguments and methods.

    Example:
        >>> from ares_celery.errors import AgentAlreadyRegisteredError
        >>> in_cli_words(AgentAlreadyRegisteredError(agent_id="a", desired="running", state="running"))
        "agent 'a' exists and is meant to be running (state running); pass --if-exists return, restart or update, or ...
    """
    text = str(error)
    if error.code == "agent_failed":
        # What follows are the agent's own words.
        return text
    agent_id = str(error.fields.get("agent_id", "ID"))
    for pattern, words in _WORDS:
        text = pattern.sub(partial(_replaced, words, agent_id), text)
    return text


def _replaced(words: str, agent_id: str, found: re.Match[str]) -> str:
    return found.expand(words).replace("{agent_id}", agent_id)
