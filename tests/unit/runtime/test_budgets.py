"""Charges of one incarnation: whatever answers are lost, each counts once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ares_celery.clock import SystemClock
from ares_celery.errors import StoreUnavailableError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import AgentRecord, AgentSpec
from ares_celery.model.budget import Spending, Spent
from ares_celery.runtime.budgets import AsyncMeter
from ares_celery.runtime.incarnation import Incarnation

T = TypeVar("T")


class LosesAnswers:
    """Knows a repeat of the last charge only, as the store does, and answers each charge at the second try."""

    def __init__(self) -> None:
        self.total = Spent()
        self.last = ""
        self.calls = 0

    async def charge(self, agent_id: AgentId, fence: str, spent: Spent, *, op: str) -> Spending:
        """Counts, and loses the answer of every other call."""
        assert (agent_id, fence) == ("a", "1|t")
        await asyncio.sleep(0)
        self.calls += 1
        if op != self.last:
            self.total, self.last = self.total + spent, op
            raise StoreUnavailableError(url="nowhere", problem="the answer was lost")
        return Spending(self.total)

    async def share_spending(
        self, root: AgentId, agent_id: AgentId, created_at: Instant, total: Spent
    ) -> Spending | None:
        """Nobody is above."""
        raise AssertionError((root, agent_id, created_at, total))


async def persist(call: Callable[[], Awaitable[T]]) -> T:
    """As a context does."""
    while True:
        try:
            return await call()
        except StoreUnavailableError:
            await asyncio.sleep(0)


def test_charges_at_once_whose_answers_are_lost_count_once_each() -> None:
    """They are made one after the other: a repeat of one is never the repeat of another."""
    store, ops = LosesAnswers(), itertools.count(1)
    record = AgentRecord(AgentSpec(id="a", type="t"), fence="1|t")

    async def spend() -> None:
        meter = AsyncMeter(
            Incarnation(record, "task"),
            SystemClock(),
            lambda: 0.0,
            store=store,
            persist=persist,
            next_op=lambda: f"op-{next(ops)}",
        )
        told = await asyncio.gather(*(meter.charge(2, 0.1, 1) for _ in range(20)))
        assert max(one["tokens"] for one in told) == 40

    asyncio.run(spend())
    assert (store.total, store.calls) == (Spent(40, 2_000_000, 20), 40)
