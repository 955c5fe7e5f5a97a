"""Streams of events in Redis, for readers and for writers outside an incarnation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final

from ares_celery.errors import EventStoreClosedError, StreamNotFoundError
from ares_celery.ids import Version
from ares_celery.model.agent import AgentState
from ares_celery.model.event import ANY, EMPTY, Event, ExpectedVersion, NewEvent, ReadOptions
from ares_celery.store.redis import agent_calls, event_calls
from ares_celery.store.redis.bound import Bound, Part
from ares_celery.store.redis.stored_events import encode_events

__all__ = ["RedisEventStore"]

#: Events of one round trip when one stream is read.
PAGE: Final = 1_000
#: Events of one round trip when all streams are read: each stream keeps one page in memory.
MERGED_PAGE: Final = 100


class RedisEventStore(Part):
    """Implements :class:`~ares_celery.store.base.EventStore`."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(bound)
        self._closed = False

    def append(
        self, stream_id: str, events: Sequence[NewEvent], expected_version: ExpectedVersion = ANY
    ) -> tuple[Event, ...]:
        """Appends from outside an incarnation, all or none; an empty list has no effect."""
        self._demand(stream_id)
        if not events:
            return ()
        encoded = encode_events(stream_id, events, epoch=0, limit=self._bound.config.max_event_bytes)
        call = event_calls.append_outside(
            self._bound.keys, stream_id=stream_id, events=encoded, expected=_demanded(expected_version)
        )
        return self._bound.client.run(call)

    def read(self, stream_id: str, options: ReadOptions | None = None) -> tuple[Event, ...]:
        """Reads part of a stream; an unknown stream is empty."""
        self._demand(stream_id)
        return tuple(_limited(self._pages(stream_id, options or ReadOptions(), PAGE), options))

    def read_all(self, options: ReadOptions | None = None) -> tuple[Event, ...]:
        """Reads all streams, ordered by (time, version); bounds of versions hold for each stream."""
        self._demand("*")
        wanted = options or ReadOptions()
        newest_first = wanted.direction == "descending"
        streams = (self._pages(stream_id, wanted, MERGED_PAGE) for stream_id in self._stream_ids())
        merged = merge(*streams, key=_moment, reverse=newest_first)
        # Inside a stream time may run backwards where the server's clock did: sort what the merge let through.
        return tuple(sorted(_limited(merged, options), key=_moment, reverse=newest_first))

    def stream_version(self, stream_id: str) -> Version:
        """The last version; 0 for an unknown stream."""
        self._demand(stream_id)
        return Version(
            max(self._bound.client.run_many(event_calls.read_version(self._bound.keys, stream_id=stream_id)))
        )

    def close(self) -> None:
        """Every later call raises EventStoreClosedError, this one included."""
        self._demand("*")
        self._closed = True

    def _demand(self, stream_id: str) -> None:
        if self._closed:
            raise EventStoreClosedError
        if not stream_id:
            raise StreamNotFoundError(stream_id=stream_id)

    def _pages(self, stream_id: str, options: ReadOptions, page: int) -> Iterator[Event]:
        """Yields the events of one stream that the options ask for, page by page; their limit is the caller's."""
        newest_first = options.direction == "descending"
        first = str(options.from_version) if options.from_version > 0 else "-"
        last = str(options.to_version) if options.to_version > 0 else "+"
        size = min(page, options.limit) if options.limit > 0 and options.since is None else page
        while True:
            call = event_calls.read_events(
                self._bound.keys, stream_id=stream_id, first=first, last=last, limit=size, newest_first=newest_first
            )
            events = self._bound.client.run(call)
            yield from (event for event in events if options.since is None or event.time >= options.since)
            if len(events) < size:
                return
            if newest_first:
                last = f"({events[-1].version}-0"
            else:
                first = f"({events[-1].version}-0"

    def _stream_ids(self) -> list[str]:
        keys = self._bound.keys
        calls = [event_calls.list_streams(keys, shard=shard) for shard in range(keys.shards)]
        calls += [
            agent_calls.list_state(keys, shard=shard, state=state)
            for shard in range(keys.shards)
            for state in AgentState
        ]
        return sorted({stream_id for some in self._bound.client.run_many(calls) for stream_id in some})


def _demanded(expected: ExpectedVersion) -> Version | None:
    """The version that the stream must have; None = any, as zero and negatives mean."""
    if expected == EMPTY:
        return Version(0)
    return Version(expected) if expected > 0 else None


def _limited(events: Iterable[Event], options: ReadOptions | None) -> Iterator[Event]:
    return islice(events, options.limit if options and options.limit > 0 else None)


def _moment(event: Event) -> tuple[object, int, str]:
    return event.time, event.version, event.stream_id
