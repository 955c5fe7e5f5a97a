"""Fault points: where an agent's calls feel what disturbs it on purpose.

In front of a message, a step, a call of a tool, an MCP server or a language model. Whoever is not disturbed comes no
further than one look at ``Incarnation.faults``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NoReturn

from ares_celery.clock import Clock
from ares_celery.errors import AgentSignal, FencedSignal, MCPConnectionLostError, StopSignal, StoreUnavailableError
from ares_celery.model.fault import Fault, FaultKind
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.store.faults import AsyncFaultStore, FaultStore

__all__ = ["AsyncFaultPoints", "SyncFaultPoints", "cut_by"]

#: Seconds after which a wait looks again, whatever it was told.
_LONGEST_LOOK: Final = 5.0


class _Points:
    """What both colours know of the faults of one incarnation."""

    __slots__ = ("_clock", "_incarnation", "_next_op")

    def __init__(self, incarnation: Incarnation, clock: Clock, next_op: Callable[[], str]) -> None:
        self._incarnation = incarnation
        self._clock = clock
        self._next_op = next_op

    @property
    def is_disturbed(self) -> bool:
        """There is something to feel: else nothing else needs to be asked here."""
        return self._incarnation.faults is not None

    def _felt(self, kind: FaultKind) -> Fault | None:
        faults = self._incarnation.faults
        return None if faults is None else faults.active(kind)

    def _cut_off_for(self) -> float:
        """Seconds to wait as the incarnation is cut off from its store; zero when it is not.

        Raises:
            AgentSignal: There is nothing to be waited for.
        """
        faults = self._incarnation.faults
        fault = None if faults is None else faults.active(FaultKind.PARTITION)
        if faults is None or fault is None:
            return 0.0
        return min(faults.left(fault), _LONGEST_LOOK)

    def _signal(self) -> AgentSignal | None:
        """Why a wait is to end with a signal."""
        if self._incarnation.fenced:
            return FencedSignal()
        return StopSignal() if self._incarnation.stopping_reason is not None else None

    def _demand_memory(self) -> None:
        faults = self._incarnation.faults
        if faults is not None:
            faults.demand_memory()

    def _still_slow(self, fault: Fault, until: float) -> float:
        """Seconds that a call still waits: less when it is healed, or the agent is asked to end."""
        faults = self._incarnation.faults
        if faults is None or self._incarnation.stopping_reason is not None:
            return 0.0
        return min(until - self._clock.monotonic(), faults.left(fault), _LONGEST_LOOK)

    @property
    def fence(self) -> str:
        """Of the incarnation."""
        return self._incarnation.fence

    def on_disturbed(self, tell: Callable[[], None]) -> None:
        """Who is told, from any thread, when faults begin or end."""
        self._incarnation.on_disturbed(tell)

    def disturbs(self, server: str) -> bool:
        """Some fault is on its connection to an MCP server."""
        return bool(self._servers(server))

    def cuts(self, server: str) -> bool:
        """Every call of the server is cut off, those that wait for an answer included."""
        return any(not fault.is_counted for fault in self._servers(server))

    def _servers(self, server: str) -> list[Fault]:
        """The faults that cut an MCP server off."""
        faults = self._incarnation.faults
        found = () if faults is None else faults.all(FaultKind.MCP)
        return [fault for fault in found if fault.server in ("", server)]

    def _models(self) -> tuple[Fault, ...]:
        """The faults of its calls of models, the oldest first: one that spares a call leaves it to the next."""
        faults = self._incarnation.faults
        return () if faults is None else faults.all(FaultKind.LLM)


def _shorter(limit: float | None, fault: Fault) -> float:
    return fault.timeout if limit is None else min(limit, fault.timeout)


def cut_by(server: str, fault: Fault) -> MCPConnectionLostError:
    """What a call of a server meets that the fault cuts off."""
    return MCPConnectionLostError(server=server, problem=f"it is cut off on purpose (fault {fault.id})")


class AsyncFaultPoints(_Points):
    """For agents on an event loop.

    Args:
        incarnation: Who is disturbed.
        clock: Monotonic time.
        next_op: Gives operation ids.
        store: Counts the calls that a fault affects; no partition cuts it.
        wait: Waits so many seconds, or until the incarnation hears something.
        refuse: Raises a signal, in its own time.
    """

    __slots__ = ("_refuse", "_store", "_wait")

    def __init__(
        self,
        incarnation: Incarnation,
        clock: Clock,
        next_op: Callable[[], str],
        *,
        store: AsyncFaultStore,
        wait: Callable[[float], Awaitable[None]],
        refuse: Callable[[AgentSignal], Awaitable[NoReturn]],
    ) -> None:
        super().__init__(incarnation, clock, next_op)
        self._store = store
        self._wait = wait
        self._refuse = refuse

    async def before_call(self) -> None:
        """In front of a message, a step, a call of a tool: waits while cut off, dies of a corrupt memory, is slow.

        Raises:
            StateLostSignal: The memory of the instance is corrupt.
            FencedSignal, StopSignal: It is cut off, and its time is over.
        """
        await self.reach()
        fault = self._felt(FaultKind.SLOW)
        if fault is None or not await self._hits(fault):
            return
        until = self._clock.monotonic() + fault.delay
        while (left := self._still_slow(fault, until)) > 0:
            await self._wait(left)

    async def before_tool(self, limit: float | None) -> float | None:
        """In front of a call of a tool: also gives the seconds that it has, as the fault or ``limit`` says."""
        await self.before_call()
        fault = self._felt(FaultKind.TOOL_TIMEOUT)
        return _shorter(limit, fault) if fault is not None and await self._hits(fault) else limit

    async def before_server(self, server: str) -> Fault | None:
        """In front of a call of an MCP server: the fault that cuts it off, if any. Raises as :meth:`before_call`."""
        await self.reach()
        for fault in self._servers(server):
            if await self._hits(fault):
                return fault
        await self.before_call()
        return None

    async def take(self) -> Fault | None:
        """In front of a call of a language model: the fault that it meets, if any. Raises as :meth:`before_call`."""
        if self._incarnation.faults is None:
            return None
        await self.reach()
        for fault in self._models():
            if await self._hits(fault):
                return fault
        return None

    async def reach(self) -> None:
        """In front of whatever leaves the agent: waits while cut off, dies of a corrupt memory. Raises as above."""
        while (left := self._cut_off_for()) > 0:
            signal = self._signal()
            if signal is not None:
                await self._refuse(signal)
            await self._wait(left)
        self._demand_memory()

    async def _hits(self, fault: Fault) -> bool:
        """The fault affects this call; where nobody can say which, it affects none."""
        if not fault.is_counted:
            return True
        try:
            return (await self._store.use_fault(self._incarnation.agent_id, fault.id, op=self._next_op())).hit
        except StoreUnavailableError:
            return False


class SyncFaultPoints(_Points):
    """For plain agents; see :class:`AsyncFaultPoints`."""

    __slots__ = ("_refuse", "_store", "_wait")

    def __init__(
        self,
        incarnation: Incarnation,
        clock: Clock,
        next_op: Callable[[], str],
        *,
        store: FaultStore,
        wait: Callable[[float], None],
        refuse: Callable[[AgentSignal], NoReturn],
    ) -> None:
        super().__init__(incarnation, clock, next_op)
        self._store = store
        self._wait = wait
        self._refuse = refuse

    def before_call(self) -> None:
        """See :meth:`AsyncFaultPoints.before_call`."""
        self.reach()
        fault = self._felt(FaultKind.SLOW)
        if fault is None or not self._hits(fault):
            return
        until = self._clock.monotonic() + fault.delay
        while (left := self._still_slow(fault, until)) > 0:
            self._wait(left)

    def before_tool(self, limit: float | None) -> float | None:
        """See :meth:`AsyncFaultPoints.before_tool`."""
        self.before_call()
        fault = self._felt(FaultKind.TOOL_TIMEOUT)
        return _shorter(limit, fault) if fault is not None and self._hits(fault) else limit

    def before_server(self, server: str) -> Fault | None:
        """See :meth:`AsyncFaultPoints.before_server`."""
        self.reach()
        for fault in self._servers(server):
            if self._hits(fault):
                return fault
        self.before_call()
        return None

    def take(self) -> Fault | None:
        """See :meth:`AsyncFaultPoints.take`."""
        if self._incarnation.faults is None:
            return None
        self.reach()
        for fault in self._models():
            if self._hits(fault):
                return fault
        return None

    def reach(self) -> None:
        """See :meth:`AsyncFaultPoints.reach`."""
        while (left := self._cut_off_for()) > 0:
            signal = self._signal()
            if signal is not None:
                self._refuse(signal)
            self._wait(left)
        self._demand_memory()

    def _hits(self, fault: Fault) -> bool:
        """See :meth:`AsyncFaultPoints._hits`."""
        if not fault.is_counted:
            return True
        try:
            return self._store.use_fault(self._incarnation.agent_id, fault.id, op=self._next_op()).hit
        except StoreUnavailableError:
            return False
