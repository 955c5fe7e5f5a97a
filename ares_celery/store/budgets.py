"""The ports for what agents spend."""

from __future__ import annotations

from typing import Protocol

from ares_celery.ids import AgentId, Instant
from ares_celery.model.budget import Spending, Spent

__all__ = ["AsyncBudgetStore", "BudgetStore"]


class BudgetStore(Protocol):
    """Counts what agents spend; totals only ever grow."""

    def charge(self, agent_id: AgentId, fence: str, spent: Spent, *, op: str) -> Spending:
        """Adds to what an incarnation's agent has spent, in one step; returns how it stands then.

        The charges of one incarnation are made one after the other: a repeat is recognised for the last one.

        Args:
            agent_id: Who spends.
            fence: Demanded to be equal to the record's.
            spent: What is added.
            op: Operation id; a repeat adds nothing. Empty: nothing is added, it is only read.

        Raises:
            FencedError: The incarnation is over; nothing was added.
        """
        ...

    def share_spending(self, root: AgentId, agent_id: AgentId, created_at: Instant, total: Spent) -> Spending | None:
        """Tells the agent at the top of a tree what a member has spent since it was made.

        Repeats, another order and lost calls do no harm: only what is more than was known is added.

        Returns:
            How the agent at the top stands; None: it does not exist (any more), and nothing was written.
        """
        ...


class AsyncBudgetStore(Protocol):
    """The same, awaitable."""

    async def charge(self, agent_id: AgentId, fence: str, spent: Spent, *, op: str) -> Spending:
        """See :meth:`BudgetStore.charge`."""
        ...

    async def share_spending(
        self, root: AgentId, agent_id: AgentId, created_at: Instant, total: Spent
    ) -> Spending | None:
        """See :meth:`BudgetStore.share_spending`."""
        ...
