"""Calls that copy one agent's history to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ares_celery.errors import VersionConflictError
from ares_celery.ids import AgentId, Version
from ares_celery.model.fork import ForkMark
from ares_celery.model.snapshot import Snapshot, type_digest
from ares_celery.store.forks import ForkCopy
from ares_celery.store.redis.call import Call, Word
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import entry_fields, unknown_reply

__all__ = ["Entry", "ForkPage", "fork_page", "read_first_version", "read_history", "read_stored_snapshots"]

_TYPE = len(type_digest(""))


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored event as it is; ``problem`` says why its place in the stream is none of ours."""

    version: int
    words: tuple[bytes, ...]
    raw: Any
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ForkPage:
    """What one write gives to a fork.

    Attributes:
        before: How far the copying was.
        copied: How far it is then.
        first: The oldest version that the source still has.
        entries: In order.
        snapshot: Its bytes, and what it is.
    """

    before: ForkMark
    copied: Version
    first: Version = Version(0)
    entries: Sequence[Entry] = ()
    snapshot: tuple[bytes, Snapshot] | None = None


def read_first_version(keys: Keys, *, agent_id: AgentId) -> Call[Version]:
    """Reads the version of the oldest event that is kept; 0 when none is."""
    return Call(
        lambda reply: Version(_read(reply[0]).version if reply else 0),
        args=("XRANGE", keys.events(agent_id), "-", "+", "COUNT", 1),
    )


def read_history(keys: Keys, *, agent_id: AgentId, first: int, last: int, limit: int) -> Call[list[Entry]]:
    """Reads a page of a stream as it is stored."""
    return Call(
        lambda reply: [_read(entry) for entry in reply],
        args=("XRANGE", keys.events(agent_id), first, last, "COUNT", limit),
    )


def _read(entry: Sequence[Any]) -> Entry:
    name, fields = entry
    version, _, rest = name.partition(b"-")
    words = tuple(word for pair in entry_fields(fields).items() for word in pair)
    problem = "" if rest == b"0" else f"it is stored as {name.decode()}, which no event is"
    return Entry(int(version), words, entry, problem)


def read_stored_snapshots(keys: Keys, *, agent_id: AgentId) -> Call[list[bytes]]:
    """Reads all kept snapshots as they are stored, newest first."""
    return Call(list[bytes], args=("LRANGE", keys.snapshots(agent_id), 0, -1))


def fork_page(keys: Keys, *, copy: ForkCopy, page: ForkPage) -> Call[ForkMark]:
    """Writes a page of a fork's history, if the copying is where it is thought to be; gives where it is."""
    target, after = copy.target, ForkMark(page.before.at, page.copied)
    blob, about = page.snapshot if page.snapshot is not None else (b"", None)
    entries: list[Word] = []
    for entry in page.entries:
        entries += (entry.version, len(entry.words), *entry.words)
    return Call(
        lambda reply: _parse_page(copy, after, reply),
        script="fork_page",
        keys=(keys.agent(target), keys.events(target), keys.snapshots(target)),
        args=(
            copy.epoch,
            str(page.before),
            page.before.copied,
            str(after),
            after.copied,
            page.first,
            blob,
            about.origin[:_TYPE] if about else "",
            about.schema if about else 0,
            # With the fork's epoch nothing that lies there under its id, of an earlier agent, is taken for it.
            f"{copy.elsewhere}|{copy.epoch}" if copy.elsewhere else "",
            *entries,
        ),
    )


def _parse_page(copy: ForkCopy, after: ForkMark, reply: Sequence[bytes]) -> ForkMark:
    match reply:
        case [b"done"]:
            return after
        case [b"moved", mark]:
            return ForkMark.parse(mark.decode())
        case [b"over"]:
            raise VersionConflictError(
                subject=f"agent {copy.target!r}",
                actual="none",
                expected=after.at,
                agent_id=copy.target,
                message=f"agent {copy.target!r} is not the fork any more that it was: it is whole, or was deleted",
            )
        case [b"foreign", version]:
            raise VersionConflictError(
                subject=f"stream {copy.target!r}",
                actual=int(version),
                expected=after.copied,
                agent_id=copy.target,
                message=f"stream {copy.target!r} holds events of its own, so it cannot become a fork; choose another "
                "id for the fork",
            )
        case _:
            raise unknown_reply("fork_page", reply)
