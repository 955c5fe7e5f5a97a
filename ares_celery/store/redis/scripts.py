"""The Lua scripts: their text as the server gets it, and its SHA-1."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

__all__ = ["SCRIPT_NAMES", "Scripts"]

_FOLDER: Final = files("ares_celery.store.redis") / "lua"

#: All scripts, by the name of their file.
SCRIPT_NAMES: Final = tuple(sorted(file.name[:-4] for file in _FOLDER.iterdir() if file.name.endswith(".lua")))

#: Scripts by which data grows: at maxmemory the server refuses them. All others must work then too: leases are renewed,
#: incarnations end and verdicts fall, whatever the memory.
_GROWING: Final = frozenset(
    {
        "add_message",
        "adopt",
        "append_one",
        "append_batch",
        "append_outside",
        "fork_page",
        "inject_fault",
        "move_execution",
        "open_interrupt",
        "open_namespace",
        "open_session",
        "put_dag",
        "record_intent",
        "record_step",
        "reply",
        "save_snapshot",
        "save_summary",
        "send",
        "write_chunks",
    }
)
_WORKS_AT_MAXMEMORY: Final = "#!lua flags=allow-oom\n"
#: Scripts that write nothing: a server that takes no writes, as its disk is full, answers them all the same.
_READING: Final = frozenset(
    {
        "due",
        "open_execution",
        "read_agent",
        "read_chaos",
        "read_clock",
        "read_config",
        "read_execution",
        "read_faults",
        "read_feed",
        "read_group",
        "read_hosts",
        "read_messages",
        "read_runtime",
        "sweep_age",
    }
)
_READS: Final = "#!lua flags=no-writes,allow-oom\n"


@cache
def _file(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


class Scripts:
    """The scripts as one kind of server takes them."""

    def __init__(self, *, flags: bool) -> None:
        """Chooses the text.

        Args:
            flags: The server knows script flags (Redis 7, Valkey). Redis 6.2 and fakeredis refuse such a line.
        """
        self._texts: dict[str, str] = {}
        self._shas: dict[str, str] = {}
        for name in SCRIPT_NAMES:
            text = _flagged(name) if flags else _file(name)
            self._texts[name] = text
            self._shas[name] = sha1(text.encode(), usedforsecurity=False).hexdigest()

    def text(self, name: str) -> str:
        """What the server is to load."""
        return self._texts[name]

    def sha(self, name: str) -> str:
        """What a loaded script is called by."""
        return self._shas[name]


def _flagged(name: str) -> str:
    """A script with the line that tells the server when it may run."""
    if name in _READING:
        return _READS + _file(name)
    return _file(name) if name in _GROWING else _WORKS_AT_MAXMEMORY + _file(name)
