"""What an incarnation may still spend: its charges, and the look before each step and tool."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

from ares_celery.clock import Clock
from ares_celery.errors import AresError, BudgetExceededError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentRecord
from ares_celery.model.budget import NOTHING, Exceeded, Spending, check_charge, exceeded_by
from ares_celery.model.command import Finding
from ares_celery.model.event import EventType
from ares_celery.runtime.incarnation import Incarnation, Parked
from ares_celery.store.budgets import AsyncBudgetStore, BudgetStore

__all__ = ["LOOK", "AsyncMeter", "SyncMeter", "tell_tree"]

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds for which an agent goes by what it knows of its budget, and of the one that it shares.
LOOK: Final = 1.0


class AsyncPersist(Protocol):
    """Repeats a call under the same operation id until the store answers or the incarnation is over."""

    def __call__(self, call: Callable[[], Awaitable[T]], /) -> Awaitable[T]: ...


class Persist(Protocol):
    """The same in a thread."""

    def __call__(self, call: Callable[[], T], /) -> T: ...


class _Meter:
    """What both kinds share: how the agent stands, and what follows."""

    def __init__(self, incarnation: Incarnation, clock: Clock, pause: Callable[[], float]) -> None:
        """Begins with what the claim brought.

        Args:
            incarnation: Who spends.
            clock: Tells when to look again.
            pause: Seconds to wait before the next refusal: more each time, for an agent that catches it and goes on.
        """
        self._incarnation = incarnation
        self._clock = clock
        self._pause = pause
        self._agent_id = incarnation.agent_id
        self._fence = incarnation.fence
        self._root = AgentId(incarnation.record.root)
        self._own: Spending = incarnation.record.spending
        self._above: Spending | None = None
        self._looked_at = -math.inf

    def steps_are(self, total: int) -> None:
        """The store has counted a step: so many are recorded by now."""
        own = self._own.own
        if total > own.steps:
            self._own = replace(self._own, own=replace(own, steps=total))

    @property
    def _is_due(self) -> bool:
        """It is time to look: there is a limit, and what is known of it may be old."""
        if not self._root and not self._own.limits:
            return False
        return self._clock.monotonic() - self._looked_at >= LOOK

    def _exceeded(self) -> Exceeded | None:
        found = exceeded_by(self._own, self._agent_id)
        return exceeded_by(self._above, self._root) if found is None and self._above is not None else found

    def _refusal(self, exceeded: Exceeded) -> BudgetExceededError:
        """Lets the incarnation end and its agent wait for a person; the error for the call at hand."""
        facts: dict[str, Any] = {
            "budget": exceeded.budget,
            "spent": exceeded.spent,
            "limit": exceeded.limit,
            "whose": exceeded.whose,
        }
        error = BudgetExceededError(agent_id=self._agent_id, **facts)
        found = Finding(EventType.BUDGET_EXCEEDED, facts, "budgets_exceeded")
        self._incarnation.park(Parked("budget", error.finding, (found,)))
        return error

    def _took(self, own: Spending, above: Spending | None) -> None:
        self._own, self._above = own, above
        self._looked_at = self._clock.monotonic()

    def _go_on_spending(self, before: Exceeded | None) -> None:
        """Its budget was used up before this charge already, and no step told it so: it is asked to end."""
        if before is not None:
            self._refusal(before)


class AsyncMeter(_Meter):
    """For agents on an event loop."""

    def __init__(
        self,
        incarnation: Incarnation,
        clock: Clock,
        pause: Callable[[], float],
        *,
        store: AsyncBudgetStore,
        persist: AsyncPersist,
        next_op: Callable[[], str],
    ) -> None:
        """Binds it to the store; ``persist`` and ``next_op`` are the context's."""
        super().__init__(incarnation, clock, pause)
        self._store = store
        self._persist = persist
        self._next_op = next_op
        self._lock = asyncio.Lock()

    async def charge(self, tokens: object, usd: object, steps: object) -> dict[str, int | float]:
        """Records what was spent; see :meth:`ares_celery.agents.context.AgentContext.charge`."""
        spent, before = check_charge(tokens=tokens, usd=usd, steps=steps), self._exceeded()
        async with self._lock:
            op = self._next_op() if spent else ""
            own = await self._persist(lambda: self._store.charge(self._agent_id, self._fence, spent, op=op))
            await self._tell(own)
        self._go_on_spending(before if spent else None)
        return own.own.told()

    async def check(self) -> None:
        """Before a step, a tool or the like: raises BudgetExceededError when there is nothing left for it."""
        if self._is_due:
            async with self._lock:
                if self._is_due:
                    await self._tell(
                        await self._persist(lambda: self._store.charge(self._agent_id, self._fence, NOTHING, op=""))
                    )
        exceeded = self._exceeded()
        if exceeded is not None:
            error = self._refusal(exceeded)
            # Its loop turns first: the other agents of the process live on it.
            await asyncio.sleep(self._pause())
            raise error

    async def _tell(self, own: Spending) -> None:
        """Takes over how the agent stands, after it was told to the top of its tree."""
        above: Spending | None = None
        if self._root:
            created_at = self._incarnation.record.created_at
            above = await self._persist(
                lambda: self._store.share_spending(self._root, self._agent_id, created_at, own.own)
            )
        self._took(own, above)


class SyncMeter(_Meter):
    """For plain agents."""

    def __init__(
        self,
        incarnation: Incarnation,
        clock: Clock,
        pause: Callable[[], float],
        *,
        store: BudgetStore,
        persist: Persist,
        next_op: Callable[[], str],
    ) -> None:
        """Binds it to the store; ``persist`` and ``next_op`` are the context's."""
        super().__init__(incarnation, clock, pause)
        self._store = store
        self._persist = persist
        self._next_op = next_op
        self._lock = threading.Lock()

    def charge(self, tokens: object, usd: object, steps: object) -> dict[str, int | float]:
        """See :meth:`AsyncMeter.charge`."""
        spent, before = check_charge(tokens=tokens, usd=usd, steps=steps), self._exceeded()
        with self._lock:
            op = self._next_op() if spent else ""
            own = self._persist(lambda: self._store.charge(self._agent_id, self._fence, spent, op=op))
            self._tell(own)
        self._go_on_spending(before if spent else None)
        return own.own.told()

    def check(self) -> None:
        """See :meth:`AsyncMeter.check`."""
        if self._is_due:
            with self._lock:
                if self._is_due:
                    self._tell(self._persist(lambda: self._store.charge(self._agent_id, self._fence, NOTHING, op="")))
        exceeded = self._exceeded()
        if exceeded is not None:
            error = self._refusal(exceeded)
            self._clock.wait(threading.Event(), self._pause())
            raise error

    def _tell(self, own: Spending) -> None:
        above: Spending | None = None
        if self._root:
            created_at = self._incarnation.record.created_at
            above = self._persist(lambda: self._store.share_spending(self._root, self._agent_id, created_at, own.own))
        self._took(own, above)


def tell_tree(store: BudgetStore, incarnation: Incarnation, record: AgentRecord | None) -> None:
    """At the end of an incarnation: the agent at the top of its tree learns of its last steps and charges.

    Once and without patience: what is not told now, the agent's next incarnation tells.
    """
    if record is None or not record.spending.own:
        return
    root, own = AgentId(record.root), record.spending.own
    try:
        store.share_spending(root, incarnation.agent_id, record.created_at, own)
    except AresError as error:
        log.warning("agent %s: what it has spent could not be told to agent %s: %s", record.id, root, error)
