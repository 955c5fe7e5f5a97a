"""Streams of events in Redis, for readers and for writers outside an incarnation."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import Final, cast
from weakref import WeakSet

from ares_celery.errors import InvalidSettingError
from ares_celery.ids import Version
from ares_celery.model.arguments import as_shown
from ares_celery.model.event import ANY, EMPTY, Event, EventFilter, ExpectedVersion, NewEvent, ReadOptions
from ares_celery.store.redis import event_calls, feed_calls
from ares_celery.store.redis.bound import Bound
from ares_celery.store.redis.cursors import CursorState, read_cursor
from ares_celery.store.redis.following import Following, behind_all, shards_of
from ares_celery.store.redis.stored_events import encode_events
from ares_celery.store.redis.subscription import RedisSubscription
from ares_celery.store.redis.summary_store import RedisSummaryStore

__all__ = ["RedisEventStore"]

#: Events of one round trip when one stream is read.
PAGE: Final = 1_000
#: Events of one round trip when all streams are read: each stream keeps one page in memory.
MERGED_PAGE: Final = 100


class RedisEventStore(RedisSummaryStore):
    """Implements :class:`~ares_celery.store.base.EventStore`."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(bound)
        self._lock = threading.Lock()
        self._subscriptions: WeakSet[RedisSubscription] = WeakSet()

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
        """Reads part of a stream; an unknown stream is empty, one that was all trimmed gives its summaries."""
        self._demand(stream_id)
        wanted = options or ReadOptions()
        found = tuple(_limited(self._pages(stream_id, wanted, PAGE), options))
        if found or not wanted.summaries:
            return found
        return tuple(_limited(self._summary_events(stream_id, wanted), options))

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
        self.end_subscriptions()

    def subscribe(self, wanted: EventFilter | None = None, *, cursor: str | None = None) -> RedisSubscription:
        """Follows events from a cursor on; None = from now."""
        self._demand("*")
        keys, wanted = self._bound.keys, wanted or EventFilter()
        state = self._now(wanted) if cursor is None else read_cursor(cursor, keys.namespace, wanted)
        following = Following(keys, wanted, state)
        subscription = RedisSubscription(
            following, self._bound.listening(), namespace=keys.namespace, clock=self._bound.clock
        )
        with self._lock:
            self._subscriptions.add(subscription)
        return subscription

    def end_subscriptions(self) -> None:
        """Closes those that are open."""
        with self._lock:
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.close()

    def _now(self, wanted: EventFilter) -> CursorState:
        """The cursor behind everything that was appended so far."""
        shards = shards_of(self._bound.keys, wanted)
        ends = self._bound.client.run_many([feed_calls.read_feed(self._bound.keys, shard=shard) for shard in shards])
        return behind_all(shards, ends)

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


def _demanded(expected: ExpectedVersion) -> Version | None:
    """The version that the stream must have; None = any, as zero and negatives mean."""
    if not isinstance(cast("object", expected), int):
        problem = "give a version, EMPTY or ANY"
        raise InvalidSettingError(field="expected_version", value=as_shown(expected), problem=problem)
    if expected == EMPTY:
        return Version(0)
    return Version(expected) if expected > 0 else None


def _limited(events: Iterable[Event], options: ReadOptions | None) -> Iterator[Event]:
    return islice(events, options.limit if options and options.limit > 0 else None)


def _moment(event: Event) -> tuple[object, int, str]:
    return event.time, event.version, event.stream_id
