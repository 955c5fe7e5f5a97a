"""Calls about events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ares_celery.errors import AgentForkingError, VersionConflictError
from ares_celery.ids import Version
from ares_celery.model.event import Event
from ares_celery.model.fork import ForkOrigin
from ares_celery.store.redis import feed_calls
from ares_celery.store.redis.call import Call, Word
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import as_texts, fenced, rolled_back, unknown_reply
from ares_celery.store.redis.stored_events import EncodedEvent, decode_entry

__all__ = [
    "FEED_LENGTH",
    "Append",
    "append_batch",
    "append_one",
    "append_outside",
    "list_streams",
    "read_events",
    "read_version",
]

#: Pointers kept in a shard's feed, about (60 bytes each): a subscriber further behind reads the streams themselves.
FEED_LENGTH: Final = 10_000


class Append(msgspec.Struct, frozen=True):
    """What an incarnation wants to append: the same whichever script does it."""

    agent_id: str
    fence: str
    events: Sequence[EncodedEvent]
    op: str
    expected: Version


def append_one(keys: Keys, *, append: Append) -> Call[tuple[Event, ...] | None]:
    """Appends one event right behind the expected version; None when the stream is not there."""
    (event,) = append.events
    version = Version(append.expected + 1)
    return Call(
        lambda reply: _parse_one(append, reply),
        script="append_one",
        keys=keys.appended(append.agent_id),
        args=(
            append.fence,
            append.expected,
            version,
            event.data,
            f"{append.agent_id}|{version}|{event.type}",
            FEED_LENGTH,
            f"{version}|{version}|{append.op}",
        ),
    )


def _parse_one(append: Append, reply: bytes | Sequence[bytes]) -> tuple[Event, ...] | None:
    if isinstance(reply, bytes):
        (event,) = append.events
        return (event.stored(append.agent_id, Version(append.expected + 1), int(reply)),)
    match reply:
        case [b"moved"]:
            return None
        case [b"fenced"]:
            raise fenced(append.agent_id, append.fence)
        case _:
            raise unknown_reply("append_one", reply)


def append_batch(keys: Keys, *, append: Append) -> Call[tuple[Event, ...]]:
    """Appends events above the newest one; knows a repeat and a store that came back older."""
    return Call(
        lambda reply: _parse_batch(append, reply),
        script="append_batch",
        keys=keys.appended(append.agent_id),
        args=(append.agent_id, append.fence, append.expected, append.op, FEED_LENGTH, *_pairs(append.events)),
    )


def _parse_batch(append: Append, reply: Sequence[Any]) -> tuple[Event, ...]:
    match reply:
        case [b"done", now, first]:
            return _stored(append.agent_id, append.events, int(first), int(now))
        case [b"repeated", entries]:
            return tuple(decode_entry(append.agent_id, entry) for entry in entries)
        case [b"fenced"]:
            raise fenced(append.agent_id, append.fence)
        case [b"rolled back", version]:
            raise rolled_back(append.agent_id, actual=int(version), expected=append.expected)
        case _:
            raise unknown_reply("append_batch", reply)


def append_outside(
    keys: Keys, *, stream_id: str, events: Sequence[EncodedEvent], expected: Version | None
) -> Call[tuple[Event, ...]]:
    """Appends events of no incarnation; ``expected`` None means whatever the stream holds."""
    shard = keys.shard_of(stream_id)
    return Call(
        lambda reply: _parse_outside(stream_id, events, expected, reply),
        script="append_outside",
        keys=(keys.agent(stream_id), keys.streams(shard), keys.events(stream_id), keys.feed(shard)),
        args=(
            stream_id,
            "" if expected is None else expected,
            FEED_LENGTH,
            feed_calls.pointer_name(stream_id),
            *_pairs(events),
        ),
    )


def _parse_outside(
    stream_id: str, events: Sequence[EncodedEvent], expected: Version | None, reply: Sequence[Any]
) -> tuple[Event, ...]:
    match reply:
        case [b"done", now, first]:
            return _stored(stream_id, events, int(first), int(now))
        case [b"conflict", version]:
            raise VersionConflictError(
                subject=f"stream {stream_id!r}", actual=int(version), expected=expected, stream_id=stream_id
            )
        case [b"forking", text]:
            origin = ForkOrigin.parse(text.decode())
            raise AgentForkingError(agent_id=stream_id, source=origin.source, at=origin.at, operation="append")
        case _:
            raise unknown_reply("append_outside", reply)


def _pairs(events: Sequence[EncodedEvent]) -> list[Word]:
    return [word for event in events for word in (event.data, event.type)]


def _stored(stream_id: str, events: Sequence[EncodedEvent], first: int, micros: int) -> tuple[Event, ...]:
    return tuple(event.stored(stream_id, Version(first + number), micros) for number, event in enumerate(events))


def read_events(
    keys: Keys, *, stream_id: str, first: str, last: str, limit: int, newest_first: bool
) -> Call[list[Event]]:
    """Reads a page of a stream; ``first`` and ``last`` are bounds as XRANGE takes them, first ≤ last."""
    bounds = (
        ("XREVRANGE", keys.events(stream_id), last, first)
        if newest_first
        else ("XRANGE", keys.events(stream_id), first, last)
    )
    return Call(lambda reply: [decode_entry(stream_id, entry) for entry in reply], args=(*bounds, "COUNT", limit))


def read_version(keys: Keys, *, stream_id: str) -> tuple[Call[int], Call[int]]:
    """Reads the newest version: of a stream with record, and of one without; one of the two is 0."""
    return (
        Call(_parse_version, args=("HGET", keys.agent(stream_id), "version")),
        Call(_parse_version, args=("HGET", keys.streams(keys.shard_of(stream_id)), stream_id)),
    )


def _parse_version(reply: bytes | None) -> int:
    return int(reply or 0)


def list_streams(keys: Keys, *, shard: int) -> Call[list[str]]:
    """Reads the ids of one shard's streams that have no record."""
    return Call(as_texts, args=("HKEYS", keys.streams(shard)))
