"""Calls about summaries, and about removing what they cover."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from ares_celery.clock import micros
from ares_celery.errors import StreamNotFoundError, VersionConflictError
from ares_celery.ids import Instant
from ares_celery.model.summary import Summary
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import instant, unknown_reply
from ares_celery.store.redis.stored_summaries import encode_summary

__all__ = ["count_events", "prune_summaries", "read_summaries", "save_summary", "trim_events"]


def save_summary(keys: Keys, *, stream_id: str, summary: Summary, after: int, kept: int) -> Call[Instant]:
    """Stores a summary, if the stream was summarised up to ``after`` so far; gives when that was."""
    shard = keys.shard_of(stream_id)
    return Call(
        lambda reply: _parse_save(stream_id, after, reply),
        script="save_summary",
        keys=(keys.agent(stream_id), keys.streams(shard), keys.summaries(stream_id), keys.counters(shard)),
        args=(
            stream_id,
            after,
            summary.start_version,
            summary.end_version,
            encode_summary(summary),
            kept,
            int("summariser_error" in summary.metadata),
        ),
    )


def _parse_save(stream_id: str, after: int, reply: Sequence[bytes]) -> Instant:
    match reply:
        case [b"done", now]:
            return instant(now)
        case [b"conflict", version]:
            raise VersionConflictError(
                subject=f"the summary of stream {stream_id!r}", actual=int(version), expected=after, stream_id=stream_id
            )
        case [b"gone"]:
            raise StreamNotFoundError(stream_id=stream_id)
        case _:
            raise unknown_reply("save_summary", reply)


def prune_summaries(keys: Keys, *, stream_id: str, ttl: timedelta) -> Call[int]:
    """Drops summaries that are older; gives how many."""
    return Call(int, script="prune_summaries", keys=(keys.summaries(stream_id),), args=(micros(ttl),))


def trim_events(keys: Keys, *, stream_id: str, version: int) -> Call[int]:
    """Removes events up to a version, as far as nobody may need them; gives how many."""
    shard = keys.shard_of(stream_id)
    return Call(
        int,
        script="trim_events",
        keys=(keys.agent(stream_id), keys.events(stream_id), keys.snapshots(stream_id), keys.counters(shard)),
        args=(version,),
    )


def read_summaries(keys: Keys, *, stream_id: str) -> Call[list[bytes]]:
    """Reads all kept summaries, oldest first, as they are stored."""
    return Call(list[bytes], args=("LRANGE", keys.summaries(stream_id), 0, -1))


def count_events(keys: Keys, *, stream_id: str) -> Call[Any]:
    """Counts the events that a stream holds."""
    return Call(int, args=("XLEN", keys.events(stream_id)))
