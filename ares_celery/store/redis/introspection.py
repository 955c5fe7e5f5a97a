"""What is known of a namespace as a whole, in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from heapq import nlargest
from typing import Any, Final

from ares_celery.clock import micros, to_datetime
from ares_celery.errors import DagRefusedError
from ares_celery.ids import Instant
from ares_celery.model.audit import AuditNote
from ares_celery.model.introspection import Activity
from ares_celery.store.redis import feed_calls, introspection_calls
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.feed_calls import FeedId, Pointer
from ares_celery.store.redis.json_values import exact_json, unserialisable

__all__ = ["RedisIntrospection"]

#: Characters of a DAG's key.
_LONGEST_KEY: Final = 200
#: Feeds of one round trip.
_SHARDS_PER_TRIP: Final = 32
_MILLISECOND: Final = micros(timedelta(milliseconds=1))


class RedisIntrospection(Part):
    """Implements :class:`~ares_celery.store.introspection.Introspection`."""

    def put_dag(self, key: str, value: object, *, note: AuditNote) -> None:
        """Stores a JSON value under a key, in place of what was there."""
        _demand_key(key)
        exact = exact_json(value)
        if exact is None:
            problem = f"it is not plain JSON, {unserialisable(value, what='it', agent_id='').problem}"
            raise DagRefusedError(key=key, problem=f"{problem}; use dict, list, str, int, float, bool and None")
        data, limit = exact[0], self._bound.config.max_event_bytes
        if len(data) > limit:
            raise DagRefusedError(key=key, problem=f"it has {len(data)} bytes, the limit is {limit} (max_event_bytes)")
        self._bound.client.run(introspection_calls.put_dag(self._bound.keys, key=key, data=data, note=note))

    def dag(self, key: str) -> Any:  # noqa: ANN401 - JSON
        """The value under a key; None when there is none."""
        return self._bound.client.run(introspection_calls.read_dag(self._bound.keys, key=key))

    def dag_keys(self) -> Sequence[str]:
        """The keys that have a DAG, sorted."""
        keys: list[str] = self._bound.client.run(introspection_calls.list_dags(self._bound.keys))
        return sorted(keys)

    def number_snapshot(self) -> tuple[int, Instant]:
        """The number of the next snapshot of the runtime, and Redis TIME."""
        return self._bound.client.run(introspection_calls.number_snapshot(self._bound.keys))

    def activity(self, *, limit: int) -> Sequence[Activity]:
        """The last events of all agents, newest first."""
        client, keys = self._bound.client, self._bound.keys
        newest: list[Pointer] = []
        for start in range(0, keys.shards, _SHARDS_PER_TRIP):
            shards = range(start, min(start + _SHARDS_PER_TRIP, keys.shards))
            found = client.run_many(feed_calls.read_last_pointers(keys, shard=shard, limit=limit) for shard in shards)
            # Version 0 says that a stream was deleted.
            candidates = (pointer for some in (newest, *found) for pointer in some if pointer.version)
            newest = nlargest(limit, candidates, key=_moment)
        return [
            Activity(
                time=to_datetime(pointer.id[0] * _MILLISECOND),
                agent_id=pointer.stream_id,
                version=pointer.version,
                type=pointer.type,
            )
            for pointer in newest
        ]


def _moment(pointer: Pointer) -> tuple[FeedId, str]:
    """Orders the pointers of several feeds."""
    return pointer.id, pointer.stream_id


def _demand_key(key: object) -> None:
    if not isinstance(key, str) or not key or not key.isprintable() or len(key) > _LONGEST_KEY:
        problem = f"a key is 1 to {_LONGEST_KEY} printable characters"
        raise DagRefusedError(key=key if isinstance(key, str) else repr(key)[:_LONGEST_KEY], problem=problem)
