"""The part of both contexts that spawns children and waits for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from ares_celery.agents.contract import Agent
from ares_celery.clock import Clock
from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    OperationNotSupportedError,
    StopSignal,
)
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentInfo, AgentRecord, AgentSpec, AgentState, Desired
from ares_celery.model.arguments import check_flags, check_timeout
from ares_celery.model.info import agent_info
from ares_celery.runtime.family import Family
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.openings import ON_THREADS
from ares_celery.runtime.waiting import timed_out

__all__ = ["AsyncNursery", "SyncNursery"]

T = TypeVar("T")

#: Seconds between two looks at a child that is waited for, at first and at most.
_FIRST_LOOK: Final = 0.02
_LONGEST_LOOK: Final = 1.0
_DONE: Final = frozenset({AgentState.COMPLETED})


class _Nursery:
    """What both kinds of agent have in common."""

    def __init__(self, incarnation: Incarnation, agent: Agent, clock: Clock) -> None:
        self.incarnation = incarnation
        self.clock = clock
        self._agent = agent

    @property
    def family(self) -> Family:
        """Who makes agents here."""
        family = self.incarnation.family
        if family is None:
            raise OperationNotSupportedError(operation="spawn", reason="nothing in this process makes agents")
        return family

    def reports(self, report: bool | None) -> bool:  # noqa: FBT001 - as the public name takes it
        """Whether the child's end is told to this agent."""
        if report is None:
            return callable(getattr(self._agent, "process", None))
        check_flags(report=report)
        return report

    def outcome(self, child_id: str, record: AgentRecord | None, limit: float, *, is_late: bool) -> tuple[Any] | None:
        """The result of a child that has completed, in a tuple; None = it goes on. Raises what it ended with.

        Raises StopSignal as well, when the agent itself is to end.
        """
        if record is None:
            raise AgentNotFoundError(agent_id=child_id)
        if record.state is AgentState.COMPLETED:
            return (json.loads(record.result) if record.result else None,)
        if self.incarnation.stopping_reason is not None:
            # Its children are stopped with it, which is no failure of theirs.
            self.incarnation.observed = True
            raise StopSignal
        if record.state is AgentState.PARKED:
            raise AgentParkedError(agent_id=child_id, cause=record.cause, reason=record.reason)
        at_rest = record.state in (AgentState.STOPPED, AgentState.REGISTERED)
        if at_rest and record.desired is Desired.STOPPED:
            raise AgentNotRunningError(agent_id=child_id, state=record.state.value, operation="waiting for its result")
        if is_late:
            raise timed_out(agent_info(record), _DONE, limit)
        return None

    def until(self, timeout: timedelta | float | str | None) -> tuple[float, float]:
        """The limit in seconds, and when it is over."""
        limit = float("inf") if timeout is None else check_timeout(timeout).total_seconds()
        return limit, self.clock.monotonic() + limit


class AsyncNursery(_Nursery):
    """Spawns for an agent on the event loop.

    Args:
        incarnation: Who spawns.
        agent: Its instance.
        clock: Monotonic time.
        step: Runs a function once, by a key that is the same in every life of the agent.
        persist: Repeats a call until the store answers or the incarnation is over.
        sleep: The agent's own.
        read: Reads a record.
    """

    def __init__(  # noqa: PLR0913 - what a context gives
        self,
        incarnation: Incarnation,
        agent: Agent,
        clock: Clock,
        *,
        step: Callable[[str, Callable[..., Awaitable[Any]]], Awaitable[Any]],
        persist: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]],
        sleep: Callable[[float], Awaitable[None]],
        read: Callable[[AgentId], Awaitable[AgentRecord | None]],
    ) -> None:
        super().__init__(incarnation, agent, clock)
        self.step = step
        self.persist = persist
        self.sleep = sleep
        self.read = read

    async def spawn(self, spec: AgentSpec, report: bool | None) -> AsyncChild:  # noqa: FBT001 - as the public name
        """See :meth:`Spawning.spawn`."""
        family, parent, reports = self.family, self.incarnation.record, self.reports(report)
        asked = family.read_spec(spec)

        async def spawn(*, idempotency_key: str = "") -> dict[str, str]:
            checked = await self._in_thread(lambda: family.checked(parent, asked))
            await self._in_thread(lambda: family.spawn(parent, checked, key=idempotency_key, reports=reports))
            return {"child": checked.id}

        await self.step(f"spawn:{asked.id}", spawn)
        return AsyncChild(self, asked.id)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Decisions are made by code that blocks; never on the loop."""
        loop = asyncio.get_running_loop()
        result: T = await self.persist(lambda: loop.run_in_executor(ON_THREADS, call))
        return result


class AsyncChild:
    """Implements :class:`~ares_celery.agents.children.ChildHandle`."""

    def __init__(self, nursery: AsyncNursery, child_id: str) -> None:
        self._nursery = nursery
        self._id = AgentId(child_id)

    @property
    def id(self) -> str:
        """The child's id."""
        return self._id

    async def info(self) -> AgentInfo:
        """What is known of it now."""
        record = await self._read()
        if record is None:
            raise AgentNotFoundError(agent_id=self._id)
        return agent_info(record)

    async def result(self, timeout: timedelta | float | str | None = None) -> Any:  # noqa: ANN401 - its JSON value
        """Waits until the child has completed, and gives its result."""
        nursery, pause = self._nursery, _FIRST_LOOK
        limit, until = nursery.until(timeout)
        while True:
            is_late = nursery.clock.monotonic() >= until
            found = nursery.outcome(self._id, await self._read(), limit, is_late=is_late)
            if found is not None:
                return found[0]
            await nursery.sleep(min(pause, until - nursery.clock.monotonic()))
            pause = min(pause * 1.5, _LONGEST_LOOK)

    async def _read(self) -> AgentRecord | None:
        record: AgentRecord | None = await self._nursery.persist(lambda: self._nursery.read(self._id))
        return record


class SyncNursery(_Nursery):
    """Spawns for a plain agent; see :class:`AsyncNursery`."""

    def __init__(  # noqa: PLR0913 - what a context gives
        self,
        incarnation: Incarnation,
        agent: Agent,
        clock: Clock,
        *,
        step: Callable[[str, Callable[..., Any]], Any],
        persist: Callable[[Callable[[], Any]], Any],
        sleep: Callable[[float], None],
        read: Callable[[AgentId], AgentRecord | None],
    ) -> None:
        super().__init__(incarnation, agent, clock)
        self.step = step
        self.persist = persist
        self.sleep = sleep
        self.read = read

    def spawn(self, spec: AgentSpec, report: bool | None) -> SyncChild:  # noqa: FBT001 - as the public name
        """See :meth:`Spawning.spawn`."""
        family, parent, reports = self.family, self.incarnation.record, self.reports(report)
        asked = family.read_spec(spec)

        def spawn(*, idempotency_key: str = "") -> dict[str, str]:
            checked: AgentSpec = self.persist(lambda: family.checked(parent, asked))
            self.persist(lambda: family.spawn(parent, checked, key=idempotency_key, reports=reports))
            return {"child": checked.id}

        self.step(f"spawn:{asked.id}", spawn)
        return SyncChild(self, asked.id)


class SyncChild:
    """Implements :class:`~ares_celery.agents.children.SyncChildHandle`."""

    def __init__(self, nursery: SyncNursery, child_id: str) -> None:
        self._nursery = nursery
        self._id = AgentId(child_id)

    @property
    def id(self) -> str:
        """The child's id."""
        return self._id

    def info(self) -> AgentInfo:
        """What is known of it now."""
        record = self._read()
        if record is None:
            raise AgentNotFoundError(agent_id=self._id)
        return agent_info(record)

    def result(self, timeout: timedelta | float | str | None = None) -> Any:  # noqa: ANN401 - its JSON value
        """Waits until the child has completed, and gives its result."""
        nursery, pause = self._nursery, _FIRST_LOOK
        limit, until = nursery.until(timeout)
        while True:
            is_late = nursery.clock.monotonic() >= until
            found = nursery.outcome(self._id, self._read(), limit, is_late=is_late)
            if found is not None:
                return found[0]
            nursery.sleep(min(pause, until - nursery.clock.monotonic()))
            pause = min(pause * 1.5, _LONGEST_LOOK)

    def _read(self) -> AgentRecord | None:
        record: AgentRecord | None = self._nursery.persist(lambda: self._nursery.read(self._id))
        return record
