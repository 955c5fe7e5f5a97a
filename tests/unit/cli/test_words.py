"""The words of the command line: no Python in its sentences, and no command that does not exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from ares_celery.cli.apps import Session
from ares_celery.cli.main import cli
from ares_celery.cli.words import in_cli_words
from ares_celery.errors import (
    AgentAlreadyRegisteredError,
    AgentFailedError,
    AgentNotRunningError,
    AresError,
    ChaosDisabledError,
    GroupNotFoundError,
    OperationNotSupportedError,
    ProcessTimeoutError,
    RuntimeStoppedError,
)
from tests.unit.cli.calling import RecordingManager, run

ROOT = Path(__file__).parents[3]
#: What a sentence for a caller in Python may have, and one for a terminal may not.
PYTHON = re.compile(r"\w=|\w\(\)|\b\w+_\w+\b")

ASKED = ProcessTimeoutError(agent_id="a", message_id="m1", timeout=30)
CO_TENANTS = OperationNotSupportedError(operation="kill agent 'a'", reason="its process also hosts b; pass force=True")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AgentAlreadyRegisteredError(agent_id="a", desired="running", state="running"), "--if-exists return, restart"),
        (ASKED, "ask again with the same --message-id"),
        (RuntimeStoppedError(namespace="n", state="stopped"), "`ares runtime start` lets it run"),
        (AgentNotRunningError(agent_id="a", state="stopped", operation="send"), "`ares agents start a` starts it"),
        (CO_TENANTS, "pass --force"),
        (GroupNotFoundError(name="g"), "`ares groups define NAME` defines one"),
        (ChaosDisabledError(operation="kill_agent", namespace="n"), "kill is refused"),
        (ChaosDisabledError(operation="slow_agent", namespace="n"), "slow is refused"),
        (ChaosDisabledError(operation="tool_timeout", namespace="n"), "tool-timeout is refused"),
        (ChaosDisabledError(operation="partition_network", namespace="n"), "partition is refused"),
        (ChaosDisabledError(operation="corrupt_memory", namespace="n"), "corrupt-memory is refused"),
        (ChaosDisabledError(operation="disconnect_mcp", namespace="n"), "disconnect-mcp is refused"),
        (ChaosDisabledError(operation="inject_llm_failure", namespace="n"), "llm-failure is refused"),
    ],
    ids=lambda value: value.code if isinstance(value, AresError) else None,
)
def test_an_error_speaks_of_options_and_commands(monkeypatch: pytest.MonkeyPatch, error: AresError, words: str) -> None:
    """What a person at a terminal can type, instead of a method's arguments."""
    monkeypatch.setattr(Session, "manager", RecordingManager(error=error))

    said = run("agents", "ask", "a", "{}").stderr

    assert words in said
    assert PYTHON.findall(said.replace("ARES_CHAOS=true", "")) == []


def test_who_asks_is_not_told_of_a_send() -> None:
    """`ask` puts a message into the inbox, which is not what was typed."""
    error = AgentNotRunningError(agent_id="a", state="stopped", operation="send")

    assert "send" not in in_cli_words(error)


def test_an_agent_s_own_words_stay_as_they_are() -> None:
    """What its code raised is not ours to translate."""
    error = AgentFailedError(agent_id="a", type="ValueError", error="pass force=True, message_id=3")

    assert in_cli_words(error) == str(error)


# -- the commands that texts name --------------------------------------------------------------------------------------

#: A command in backticks, at a prompt, or at the start of a line that is printed; ends where its arguments begin.
NAMED = re.compile(r"""(?:`|\$ |^ +|say\(f?"[ ]+|bin/)ares((?: +[a-z][a-z-]*)+)""", re.MULTILINE)


def texts() -> Iterator[tuple[str, str]]:
    """Yield name and text of everything that tells people what to type."""
    for folder, pattern in (("ares_celery", "*.py"), ("ares_celery", "*.lua"), ("docs", "*.md"), (".", "*.md")):
        paths = (ROOT / folder).glob(pattern) if folder == "." else (ROOT / folder).rglob(pattern)
        for path in sorted(paths):
            yield path.relative_to(ROOT).as_posix(), path.read_text()
    yield "Makefile", (ROOT / "Makefile").read_text()


def unknown_in(words: list[str]) -> str | None:
    """The first word that is no command where it stands; arguments of a command are not looked at."""
    group: click.Command = cli
    for word in words:
        if not isinstance(group, click.Group):
            return None
        if word not in group.commands:
            return word
        group = group.commands[word]
    return None


def test_every_command_that_a_text_names_exists() -> None:
    """Advice that cannot be followed is worse than none."""
    found = [
        f"{name}: ares{match[1]}"
        for name, text in texts()
        for match in NAMED.finditer(text)
        if unknown_in(match[1].split()) is not None
    ]

    assert found == []


@pytest.mark.parametrize(
    "text", ["see `ares config frob chaos true`", "$ ares doctor", '    say("  ares agents frob")']
)
def test_a_command_that_does_not_exist_would_be_found(text: str) -> None:
    """In backticks, at a prompt, printed by a command."""
    (match,) = NAMED.finditer(text)

    assert unknown_in(match[1].split()) is not None


def test_the_commands_of_the_pages_are_found() -> None:
    """Else the test above would look at nothing."""
    named = {match[1].strip() for _, text in texts() for match in NAMED.finditer(text)}

    assert {"up", "agents ls", "agents restart", "runtime start", "config get"} <= {
        " ".join(name.split()[:2]) for name in named
    }
