"""Limits that the whole fleet shares, in Redis: for threads and for an event loop."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ares_celery.ids import AgentId
from ares_celery.model.fault import Fault
from ares_celery.model.limits import Admission, FleetLimit, LimitAsk
from ares_celery.store.redis import limit_calls, state_calls
from ares_celery.store.redis.bound import Bound, Part
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.client import AsyncRedisClient
from ares_celery.store.redis.replies import epoch_of

__all__ = ["AsyncRedisLimits", "RedisLimits"]


def _enter(bound: Bound, limit: FleetLimit, member: str, ask: LimitAsk) -> Call[Admission]:
    lease = bound.config.lease_ttl
    return limit_calls.enter_limit(bound.keys, limit=limit, member=member, ask=ask, lease=lease)


def _note(bound: Bound, agent_id: AgentId, fence: str, name: str) -> Call[None]:
    epoch_of(agent_id, fence)
    return state_calls.note_limited(bound.keys, agent_id=agent_id, fence=fence, name=name)


class RedisLimits(Part):
    """Implements :class:`~ares_celery.store.limits.LimitStore`."""

    def enter_limit(self, limit: FleetLimit, member: str, ask: LimitAsk) -> Admission:
        """Asks for a turn."""
        return self._bound.client.run(_enter(self._bound, limit, member, ask))

    def close_limit(self, name: str, delay: timedelta, *, op: str, by: Fault | None = None) -> timedelta:
        """Lets nobody through for a time."""
        return self._bound.client.run(limit_calls.close_limit(self._bound.keys, name=name, delay=delay, op=op, by=by))

    def leave_limit(self, name: str, member: str) -> None:
        """Gives a place back, or leaves the queue."""
        self._bound.client.run(limit_calls.leave_limit(self._bound.keys, name=name, member=member))

    def note_limited(self, agent_id: AgentId, fence: str, name: str) -> None:
        """Notes which limit an incarnation waits for; empty: none."""
        self._bound.client.run(_note(self._bound, agent_id, fence, name))

    def keep_limit(self, name: str, members: Sequence[str]) -> int:
        """Keeps places for another lease_ttl."""
        lease = self._bound.config.lease_ttl
        call = limit_calls.keep_limit(self._bound.keys, name=name, members=members, lease=lease)
        return self._bound.client.run(call)


class AsyncRedisLimits:
    """Implements :class:`~ares_celery.store.limits.AsyncLimitStore`."""

    _bound: Bound
    _client: AsyncRedisClient

    async def enter_limit(self, limit: FleetLimit, member: str, ask: LimitAsk) -> Admission:
        """Asks for a turn."""
        return await self._client.run(_enter(self._bound, limit, member, ask))

    async def close_limit(self, name: str, delay: timedelta, *, op: str, by: Fault | None = None) -> timedelta:
        """Lets nobody through for a time."""
        return await self._client.run(limit_calls.close_limit(self._bound.keys, name=name, delay=delay, op=op, by=by))

    async def leave_limit(self, name: str, member: str) -> None:
        """Gives a place back, or leaves the queue."""
        await self._client.run(limit_calls.leave_limit(self._bound.keys, name=name, member=member))

    async def note_limited(self, agent_id: AgentId, fence: str, name: str) -> None:
        """Notes which limit an incarnation waits for; empty: none."""
        await self._client.run(_note(self._bound, agent_id, fence, name))
