"""What agents spend, in Redis: for threads and for an event loop."""

from __future__ import annotations

from ares_celery.ids import AgentId, Instant
from ares_celery.model.budget import Spending, Spent
from ares_celery.store.redis import budget_calls
from ares_celery.store.redis.bound import Bound, Part
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.client import AsyncRedisClient
from ares_celery.store.redis.replies import epoch_of

__all__ = ["AsyncRedisBudgets", "RedisBudgets"]


def _charge(bound: Bound, agent_id: AgentId, fence: str, spent: Spent, op: str) -> Call[Spending]:
    epoch_of(agent_id, fence)
    return budget_calls.charge(bound.keys, agent_id=agent_id, fence=fence, spent=spent, op=op)


def _share(bound: Bound, root: AgentId, agent_id: AgentId, created_at: Instant, total: Spent) -> Call[Spending | None]:
    return budget_calls.share_spending(bound.keys, root=root, agent_id=agent_id, created_at=created_at, total=total)


class RedisBudgets(Part):
    """Implements :class:`~ares_celery.store.budgets.BudgetStore`."""

    def charge(self, agent_id: AgentId, fence: str, spent: Spent, *, op: str) -> Spending:
        """Adds to what an incarnation's agent has spent."""
        return self._bound.client.run(_charge(self._bound, agent_id, fence, spent, op))

    def share_spending(self, root: AgentId, agent_id: AgentId, created_at: Instant, total: Spent) -> Spending | None:
        """Tells the agent at the top of a tree what a member has spent since it was made."""
        return self._bound.client.run(_share(self._bound, root, agent_id, created_at, total))


class AsyncRedisBudgets:
    """Implements :class:`~ares_celery.store.budgets.AsyncBudgetStore`."""

    _bound: Bound
    _client: AsyncRedisClient

    async def charge(self, agent_id: AgentId, fence: str, spent: Spent, *, op: str) -> Spending:
        """Adds to what an incarnation's agent has spent."""
        return await self._client.run(_charge(self._bound, agent_id, fence, spent, op))

    async def share_spending(
        self, root: AgentId, agent_id: AgentId, created_at: Instant, total: Spent
    ) -> Spending | None:
        """Tells the agent at the top of a tree what a member has spent since it was made."""
        return await self._client.run(_share(self._bound, root, agent_id, created_at, total))
