"""Calls about the feed, the bounded stream of each shard that points to its new events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote

from ares_celery.errors import EventIntegrityError
from ares_celery.ids import Instant
from ares_celery.model.event import Event
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import entry_fields, instant
from ares_celery.store.redis.stored_events import decode_entry

__all__ = [
    "FIRST_ID",
    "Entry",
    "FeedEnds",
    "FeedId",
    "Pointer",
    "await_feeds",
    "parse_feed_id",
    "pointer_name",
    "read_entries",
    "read_feed",
    "read_last_pointers",
    "read_newest",
    "read_pointers",
    "show_feed_id",
]

#: Milliseconds and a number: how Redis names the entries of a stream.
FeedId = tuple[int, int]
#: Before every entry that a feed can have.
FIRST_ID: Final[FeedId] = (0, 0)


@dataclass(frozen=True, slots=True)
class Pointer:
    """One entry of a feed: this event was appended, or (version 0) this stream deleted; without a stream: damaged."""

    id: FeedId
    stream_id: str
    version: int
    type: str


@dataclass(frozen=True, slots=True)
class FeedEnds:
    """The oldest and the newest pointer of a feed at a time; None when it has none."""

    now: Instant
    oldest: FeedId | None
    newest: FeedId | None


@dataclass(frozen=True, slots=True)
class Entry:
    """What a stream holds at a version: an event, or the error that reading it gave; and when it was stored."""

    version: int
    time: Instant
    event: Event | EventIntegrityError


def pointer_name(stream_id: str) -> str:
    """A stream's id as the feed has it: without bars. Ids of agents stay as they are.

    Example:
        >>> pointer_name("tenant:counter-1"), pointer_name("a|b")
        ('tenant:counter-1', 'a%7Cb')
    """
    return quote(stream_id, safe=":")


def show_feed_id(feed_id: FeedId) -> str:
    """The id as Redis writes it."""
    return f"{feed_id[0]}-{feed_id[1]}"


def parse_feed_id(text: str) -> FeedId:
    """Reads an id.

    Raises:
        ValueError: It is none.
    """
    millis, bar, number = text.partition("-")
    if not bar or not millis.isdecimal() or not number.isdecimal():
        raise ValueError(f"{text[:50]!r} is no id of a feed's entry")
    return int(millis), int(number)


def await_feeds(keys: Keys, *, after: dict[int, FeedId], limit: int, block_ms: int) -> Call[dict[int, list[Pointer]]]:
    """Waits on the server for pointers behind the given ones, of several shards; needs a connection of its own.

    Args:
        keys: Of the namespace.
        after: For each shard the last pointer that is known.
        limit: Most pointers of each shard.
        block_ms: Longest wait.
    """
    names = {keys.feed(shard): shard for shard in after}
    return Call(
        lambda reply: {
            names[name.decode()]: [_parse_pointer(entry) for entry in entries] for name, entries in reply or ()
        },
        args=(
            *("XREAD", "COUNT", limit, "BLOCK", block_ms, "STREAMS"),
            *names,
            *(show_feed_id(feed_id) for feed_id in after.values()),
        ),
    )


def read_pointers(keys: Keys, *, shard: int, after: FeedId, limit: int) -> Call[list[Pointer]]:
    """Reads the pointers behind the given one, without waiting."""
    return Call(
        lambda reply: [_parse_pointer(entry) for entry in reply],
        args=("XRANGE", keys.feed(shard), f"({show_feed_id(after)}", "+", "COUNT", limit),
    )


def read_last_pointers(keys: Keys, *, shard: int, limit: int) -> Call[list[Pointer]]:
    """Reads the newest pointers of a shard, newest first."""
    return Call(
        lambda reply: [_parse_pointer(entry) for entry in reply],
        args=("XREVRANGE", keys.feed(shard), "+", "-", "COUNT", limit),
    )


def _parse_pointer(entry: Sequence[Any]) -> Pointer:
    feed_id, fields = entry
    place = parse_feed_id(feed_id.decode())
    try:
        name, version, kind = entry_fields(fields)[b"e"].decode().split("|", 2)
        return Pointer(place, unquote(name), int(version), kind)
    except (KeyError, ValueError):
        return Pointer(place, "", 0, "")


def read_feed(keys: Keys, *, shard: int) -> Call[FeedEnds]:
    """Says where a shard's feed begins and ends."""
    return Call(_parse_ends, script="read_feed", keys=(keys.feed(shard),), args=())


def _parse_ends(reply: Sequence[bytes]) -> FeedEnds:
    now, oldest, newest = reply
    return FeedEnds(
        instant(now),
        parse_feed_id(oldest.decode()) if oldest else None,
        parse_feed_id(newest.decode()) if newest else None,
    )


def read_entries(keys: Keys, *, stream_id: str, first: int, last: int, limit: int) -> Call[list[Entry]]:
    """Reads a part of a stream, bounds inclusive; a damaged event comes back as the error that it is."""
    return Call(
        lambda reply: [_parse_entry(stream_id, entry) for entry in reply],
        args=("XRANGE", keys.events(stream_id), first, last, "COUNT", limit),
    )


def read_newest(keys: Keys, *, stream_id: str) -> Call[Entry | None]:
    """Reads the newest event that a stream holds; None when it holds none."""
    return Call(
        lambda reply: _parse_entry(stream_id, reply[0]) if reply else None,
        args=("XREVRANGE", keys.events(stream_id), "+", "-", "COUNT", 1),
    )


def _parse_entry(stream_id: str, entry: Sequence[Any]) -> Entry:
    name, fields = entry
    version = int(name.partition(b"-")[0])
    stored = entry_fields(fields).get(b"t", b"")
    time = Instant(int(stored) if stored.isdigit() else 0)
    try:
        return Entry(version, time, decode_entry(stream_id, entry))
    except EventIntegrityError as error:
        return Entry(version, time, error)
