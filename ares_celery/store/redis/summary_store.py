"""Summaries in Redis, and trimming: the half of the event store that shortens streams."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from ares_celery.clock import to_datetime
from ares_celery.errors import EventStoreClosedError, StreamNotFoundError, VersionConflictError
from ares_celery.ids import Version
from ares_celery.model.agent import AgentState
from ares_celery.model.event import Event, ReadOptions
from ares_celery.model.summary import Summary
from ares_celery.store.redis import event_calls, index_calls, summary_calls
from ares_celery.store.redis.bound import Bound, Part
from ares_celery.store.redis.stored_summaries import decode_summary, last_summarised, summary_event

__all__ = ["RedisSummaryStore"]

_log: Final = logging.getLogger(__name__)

#: Characters of what is no stream's id, in errors.
_LONGEST_SHOWN: Final = 100

#: Streams asked about in one round trip.
STREAMS: Final = 500


def is_stream_id(value: object) -> bool:
    """It can be part of a key: a text that is not empty, and no half of a surrogate pair in it."""
    return isinstance(value, str) and value != "" and value == value.encode("utf-8", "ignore").decode()


class RedisSummaryStore(Part):
    """Implements :class:`~ares_celery.store.summaries.SummaryStore`."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(bound)
        self._closed = False

    def summaries(self, stream_id: str) -> tuple[Summary, ...]:
        """The kept summaries of a stream, oldest first."""
        self._demand(stream_id)
        return self._decode(stream_id, self._stored(stream_id))

    def summarised_version(self, stream_id: str) -> Version:
        """The last version that a summary covers; 0 when there is none."""
        self._demand(stream_id)
        stored = self._stored(stream_id)
        return Version(last_summarised(stored[-1]) if stored else 0)

    def save_summary(self, summary: Summary, *, after: Version) -> Summary:
        """Stores a summary and drops the oldest beyond ``summaries_kept``."""
        self._demand(summary.stream_id)
        keys, stream_id = self._bound.keys, summary.stream_id
        kept = self._bound.config.summaries_kept
        call = summary_calls.save_summary(keys, stream_id=stream_id, summary=summary, after=after, kept=kept)
        try:
            now = self._bound.client.run(call)
        except VersionConflictError:
            # The answer to the same call may have been lost.
            newest = next(reversed(self.summaries(stream_id)), None)
            if newest is None or newest.id != summary.id:
                raise
            return newest
        return dataclasses.replace(summary, created_at=to_datetime(now))

    def prune_summaries(self, stream_id: str) -> int:
        """Drops summaries older than ``summary_ttl``, but never the newest."""
        self._demand(stream_id)
        ttl = self._bound.config.summary_ttl
        if ttl <= timedelta(0):
            return 0
        return self._bound.client.run(summary_calls.prune_summaries(self._bound.keys, stream_id=stream_id, ttl=ttl))

    def trim_before(self, stream_id: str, version: int) -> int:
        """Removes the events up to a version, as far as recovery cannot need them."""
        self._demand(stream_id)
        return self._bound.client.run(summary_calls.trim_events(self._bound.keys, stream_id=stream_id, version=version))

    def streams(self) -> Mapping[str, Version]:
        """All streams with their last versions, sorted by id."""
        self._demand("*")
        found: dict[str, Version] = {}
        stream_ids = self._stream_ids()
        for start in range(0, len(stream_ids), STREAMS):
            some = stream_ids[start : start + STREAMS]
            pairs = [event_calls.read_version(self._bound.keys, stream_id=stream_id) for stream_id in some]
            versions = self._bound.client.run_many([call for pair in pairs for call in pair])
            for stream_id, recorded, other in zip(some, versions[::2], versions[1::2], strict=True):
                found[stream_id] = Version(max(recorded, other))
        return found

    def _summary_events(self, stream_id: str, options: ReadOptions) -> list[Event]:
        """The summaries in place of the events, when all of them were trimmed; nothing otherwise."""
        if self._bound.client.run(summary_calls.count_events(self._bound.keys, stream_id=stream_id)):
            return []
        events = [summary_event(summary) for summary in self._decode(stream_id, self._stored(stream_id))]
        wanted = [
            event
            for event in events
            if event.version >= options.from_version
            and (options.to_version <= 0 or event.version <= options.to_version)
            and (options.since is None or event.time >= options.since)
        ]
        return wanted[::-1] if options.direction == "descending" else wanted

    def _stored(self, stream_id: str) -> list[bytes]:
        return self._bound.client.run(summary_calls.read_summaries(self._bound.keys, stream_id=stream_id))

    def _decode(self, stream_id: str, stored: list[bytes]) -> tuple[Summary, ...]:
        found = [decode_summary(blob) for blob in stored]
        if None in found:
            _log.warning("stream %s: %d of its summaries are damaged and left out", stream_id, found.count(None))
        return tuple(summary for summary in found if summary is not None)

    def _stream_ids(self) -> list[str]:
        keys = self._bound.keys
        calls = [event_calls.list_streams(keys, shard=shard) for shard in range(keys.shards)]
        calls += [
            index_calls.list_state(keys, shard=shard, state=state)
            for shard in range(keys.shards)
            for state in AgentState
        ]
        return sorted({stream_id for some in self._bound.client.run_many(calls) for stream_id in some})

    def _demand(self, stream_id: str) -> None:
        if self._closed:
            raise EventStoreClosedError
        if not is_stream_id(stream_id):
            raise StreamNotFoundError(stream_id=repr(stream_id)[:_LONGEST_SHOWN] if stream_id else stream_id)
