"""The context of an agent on the process's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from typing_extensions import override

from ares_celery.agents.contract import Agent, StatefulAgent
from ares_celery.agents.sharing import MCPHandle
from ares_celery.agents.steps import DEFAULTS
from ares_celery.clock import Clock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentSignal,
    AresError,
    FencedError,
    FencedSignal,
    MemoryCorruptedError,
    MessageIdReusedError,
    StopSignal,
    StoreUnavailableError,
    VersionConflictError,
)
from ares_celery.ids import Version, check_agent_id
from ares_celery.model.agent import AgentSpec
from ares_celery.model.event import Event, NewEvent, ReadOptions
from ares_celery.runtime.async_steps import AsyncExecution, AsyncStepCaller, AsyncSteps
from ares_celery.runtime.async_waits import AsyncWaiting
from ares_celery.runtime.awaited import awaited
from ares_celery.runtime.budgets import AsyncMeter
from ares_celery.runtime.context import OUTAGE_PAUSE
from ares_celery.runtime.fault_points import AsyncFaultPoints
from ares_celery.runtime.faults import StateLostSignal
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.limits import AsyncLimit
from ares_celery.runtime.llm_access import AsyncModels
from ares_celery.runtime.nursery import AsyncChild, AsyncNursery
from ares_celery.runtime.shared_access import AsyncAccess, things_without_loop
from ares_celery.runtime.shared_things import SharedThings
from ares_celery.runtime.step_waits import AsyncStepWaits
from ares_celery.runtime.tool_calls import AsyncToolCall
from ares_celery.store.base import AsyncIncarnationStore

__all__ = ["AsyncContext"]

T = TypeVar("T")


class AsyncContext(AsyncWaiting):
    """Implements :class:`ares_celery.agents.context.AgentContext`."""

    def __init__(  # noqa: PLR0913 - the parts of one incarnation
        self,
        incarnation: Incarnation,
        agent: Agent,
        schema: int,
        config: RuntimeConfig,
        clock: Clock,
        *,
        store: AsyncIncarnationStore,
        shared: SharedThings | None = None,
    ) -> None:
        """Binds the context; to be made on the loop."""
        super().__init__(incarnation, agent, schema, config, clock)
        self._store = store
        self._woken = asyncio.Event()
        self._emitting = asyncio.Lock()
        self._shared = shared

    @cached_property
    def steps(self) -> AsyncSteps:
        """The steps of this incarnation."""
        waits = AsyncStepWaits(
            self._persist, self._alive, self._emit, self._emit_by, self._wait_to_retry, self._tell_stored
        )
        steps = AsyncSteps(self._step_parts(self._meter.steps_are), self._store, waits)
        steps.gate = self._meter.check
        steps.interrupter = self._demand_word
        steps.points = self.points
        return steps

    @cached_property
    def points(self) -> AsyncFaultPoints:
        """Where calls feel faults; asked only while there are some."""
        return AsyncFaultPoints(
            self._incarnation,
            self._clock,
            self._next_op,
            store=self._store,
            wait=self._wait_for_change,
            refuse=self._refuse,
        )

    @cached_property
    def step(self) -> AsyncStepCaller:
        """Runs a function once in the current execution."""
        return AsyncStepCaller(self.steps)

    @override
    async def _as_step(self, step_id: str, function: Callable[[], Awaitable[Any]]) -> Any:
        return await self.steps.run(step_id, function, (), {}, DEFAULTS, name=step_id.partition(":")[0])

    @override
    def _has_step(self, step_id: str) -> bool:
        return self.steps.has(step_id)

    def execution(self, execution_id: str, /) -> AsyncExecution:
        """The execution that the steps of a block belong to."""
        return AsyncExecution(self.steps, execution_id)

    @cached_property
    def _access(self) -> AsyncAccess:
        things, caller = self._shared or things_without_loop(), self._tool_caller()
        return AsyncAccess(
            things,
            caller,
            self._alive,
            gate=self._meter.check,
            steps=self.steps,
            points=self.points,
            tell=self._tell_degraded,
        )

    @cached_property
    def _meter(self) -> AsyncMeter:
        return AsyncMeter(
            self._incarnation,
            self._clock,
            self._next_refusal,
            store=self._store,
            persist=self._persist,
            next_op=self._next_op,
        )

    @awaited
    async def charge(self, tokens: int = 0, usd: float = 0, steps: int = 0) -> Mapping[str, float]:
        """Records what was spent; returns all that the agent has spent so far."""
        return await self._meter.charge(tokens, usd, steps)

    def resource(self, which: Any, /) -> Awaitable[Any]:  # noqa: ANN401 - a name or a function
        """Something that all agents of this process share, once it is awaited."""
        return self._access.resource(which)

    def tool(self, which: Any, /) -> AsyncToolCall:  # noqa: ANN401 - as above
        """A registered tool, to be called."""
        return self._access.tool(which)

    def mcp(self, name: str, /) -> MCPHandle:
        """The connection to an MCP server that this process shares."""
        return self._access.mcp(name)

    @cached_property
    def _models(self) -> AsyncModels:
        return AsyncModels(
            self._incarnation,
            self._shared or things_without_loop(),
            store=self._store,
            persist=self._persist,
            permit=self._permit_call,
            take=self.points.take,
            wait=self._wait_to_retry,
            next_op=self._next_op,
        )

    async def _permit_call(self) -> None:
        await self._alive()
        await self._meter.check()

    def llm_http_client(self, **options: Any) -> Any:  # noqa: ANN401 - of a library that may be absent
        """An HTTP client for the SDK of a language model."""
        return self._models.client(options)

    def limit(self, name: str, /, rate: str | None = None, concurrency: int | None = None) -> AsyncLimit:
        """A limit that all agents share."""
        return self._models.limit(name, rate, concurrency)

    @property
    @override
    def _is_busy(self) -> bool:
        return self._emitting.locked() or self.steps.are_busy(self._waits)

    def wake(self) -> None:
        """Ends waits of this context, so that they look at the flags again; called on the loop."""
        self._news = object()
        self._woken.set()

    @awaited
    async def emit(
        self,
        type: str,  # noqa: A002
        payload: Mapping[str, Any] | None = None,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
        step: str | None = None,
    ) -> Any:  # noqa: ANN401 - the event, or None: see the protocol
        """Stores an event, then applies it; returns when both are done. With ``step`` once in its execution."""
        if self._incarnation.faults is not None:
            await self.points.reach()
        made = self._new_events([(type, payload)], metadata)
        return (await self._emit(made))[0] if step is None else await self.steps.emit(step, made[0])

    @awaited
    async def emit_many(self, events: Iterable[tuple[str, Mapping[str, Any]]], /) -> tuple[Event, ...]:
        """Stores several events at once, all or none, then applies them in order."""
        if self._incarnation.faults is not None:
            await self.points.reach()
        made = self._new_events(events)
        return await self._emit(made) if made else ()

    @awaited
    async def sleep(self, seconds: float, /) -> None:
        """Waits; wakes at once on stop, pause and drain."""
        await self._alive()
        if self._sleeps_too_often():
            await self._refuse(StopSignal())
        await self.settle()
        until = self._clock.monotonic() + seconds
        if seconds <= 0 or self._should_stop():
            # Let the loop turn although nothing is waited for: a sleep is where others get their turn.
            await asyncio.sleep(0)
        while not self._should_stop():
            left = until - self._clock.monotonic()
            if left <= 0:
                break
            self._woken.clear()
            try:
                async with asyncio.timeout(left):
                    await self._woken.wait()
            except TimeoutError:
                break
        await self._alive()

    @awaited
    async def snapshot(self) -> bool:
        """Takes a snapshot now; False when none was stored: see the protocol."""
        if not isinstance(self._agent, StatefulAgent) or self._emitting.locked():
            return False
        if self._incarnation.faults is not None:
            await self.points.reach()
        state, version = self._agent.snapshot(), self._incarnation.last_version
        fence, agent_id, schema = self._incarnation.fence, self._incarnation.agent_id, self._schema
        origin = self._incarnation.origin

        def save() -> Awaitable[None]:
            return self._store.save_snapshot(agent_id, fence, state, version=version, schema=schema, origin=origin)

        is_kept = not self._says_nothing(state)
        if is_kept:
            await self._persist(save)
        self._snapshot_taken()
        return is_kept

    @awaited
    async def send(self, agent_id: str, message: object, /, *, message_id: str | None = None) -> str:
        """Sends a message to another agent's inbox; returns its message id."""
        if self._incarnation.faults is not None:
            await self.points.reach()
        to, (sent, is_repeated) = check_agent_id(agent_id), self._id_to_send(message_id)
        try:
            await self._persist(lambda: self._store.send(to, message, message_id=sent, wants_reply=False))
        except MessageIdReusedError:
            # Sent in an earlier handling of the same message, perhaps in other words: it is not sent twice.
            if not is_repeated:
                raise
        return sent

    @awaited
    async def spawn(self, spec: AgentSpec, /, *, report: bool | None = None) -> AsyncChild:
        """Starts another agent as this one's child."""
        return await self._nursery.spawn(spec, report)

    @cached_property
    def _nursery(self) -> AsyncNursery:
        return AsyncNursery(
            self._incarnation,
            self._agent,
            self._clock,
            step=self.step.with_options(replay="keyed"),
            persist=self._persist,
            sleep=self.sleep,
            read=self._store.read_record,
        )

    @override
    async def settle(self) -> None:
        """A settled point: takes a snapshot when one is due. A failing one is logged and tried at the next point."""
        if not self._snapshot_due():
            return
        try:
            await self.snapshot()
        except Exception as error:  # noqa: BLE001 - an agent's snapshot() may raise anything
            await self._say_failed(error)

    async def final_snapshot(self) -> None:
        """The snapshot of an orderly end; when it fails, recovery replays more instead."""
        if not isinstance(self._agent, StatefulAgent) or not self._snapshot_news():
            return
        try:
            await self.snapshot()
        except Exception as error:  # noqa: BLE001 - an agent's snapshot() may raise anything
            await self._say_failed(error)

    async def _say_failed(self, error: Exception) -> None:
        event = self._snapshot_failed(error)
        if event is not None:
            await self._emit([event])

    async def _emit(self, events: list[NewEvent]) -> tuple[Event, ...]:
        op, fence, agent_id = self._next_op(), self._incarnation.fence, self._incarnation.agent_id
        return await self._emit_by(lambda seen: self._store.append(agent_id, fence, events, op=op, expected=seen))

    async def _emit_by(self, write: Callable[[Version], Awaitable[tuple[Event, ...]]]) -> tuple[Event, ...]:
        """Has events stored and applies them, those of others that came meanwhile first; one after the other.

        Args:
            write: Stores them, given the version that this incarnation has seen. What it gives is empty where an
                earlier try has stored them: then all that is new is read.
        """
        await self._alive()
        async with self._emitting:
            before = self._incarnation.last_version
            stored = await self._persist(lambda: write(before)) or await self._between(before)
            if self._incarnation.listener is not None:
                # Those of others were told by whoever has stored them.
                self._incarnation.listener.publish([event for event in stored if event.epoch == self.epoch])
            if stored and stored[0].version > before + 1:
                self._apply_all(await self._between(before, stored[0].version))
            self._apply_all(stored)
            return stored

    async def _between(self, before: Version, first: Version | None = None) -> tuple[Event, ...]:
        """Events that others wrote meanwhile: they come first, as on replay."""
        until = 0 if first is None else first - 1
        options = ReadOptions(from_version=before + 1, to_version=until, summaries=False)
        return await self._persist(lambda: self._store.read(self._incarnation.agent_id, options))

    async def _tell_stored(self, version: Version) -> None:
        """Has those who listen in this process hear an event that the store has written."""
        if self._incarnation.listener is not None:
            self._incarnation.listener.publish(await self._between(Version(version - 1), Version(version + 1)))

    async def _tell_degraded(self, text: str, events: list[NewEvent]) -> None:
        """Says what the agent has to do without, or that it has everything again."""
        fence, agent_id = self._incarnation.fence, self._incarnation.agent_id
        await self._persist(lambda: self._store.note_degraded(agent_id, fence, text))
        await self._emit(events)

    async def _wait_for_change(self, seconds: float) -> None:
        """Until the incarnation hears something, at most so long."""
        self._woken.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    async def _wait_to_retry(self, seconds: float) -> None:
        """Waits; raises a signal when the incarnation is asked to end, or is over."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0 and self._incarnation.stopping_reason is None:
            await self._wait_for_change(left)
        await self._alive()
        if self._incarnation.stopping_reason is not None:
            await self._refuse(StopSignal())

    @override
    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Repeats a call under the same operation id until the store answers or the incarnation is over."""
        while True:
            await self._alive()
            try:
                if (faults := self._incarnation.faults) is not None:
                    faults.demand_store()
                return await call()
            except StoreUnavailableError as error:
                if self._gives_up:
                    await self._refuse(StopSignal())
                self.logger.warning("the store does not answer (%s); waiting", error)
                await asyncio.sleep(OUTAGE_PAUSE)
            except FencedError as error:
                self._incarnation.ask("fenced")
                raise FencedSignal from error
            except MemoryCorruptedError as error:
                # The store knows before this process does.
                raise StateLostSignal(error) from None
            except VersionConflictError as error:
                if not _rolled_back(error):
                    raise
                self._incarnation.roll_back(Version(int(error.fields["actual"])))
                raise FencedSignal from error

    @override
    async def _alive(self) -> None:
        """Waits while suspended; raises FencedSignal once the incarnation is over."""
        while self._incarnation.suspended and self._incarnation.stopping_reason is None:
            self._woken.clear()
            await self._woken.wait()
        if self._incarnation.fenced:
            await self._refuse(FencedSignal())

    @override
    async def _refuse(self, signal: AgentSignal) -> NoReturn:
        """Raises a signal, but lets the loop turn first: its other agents live on it."""
        await asyncio.sleep(self._next_refusal())
        raise signal


def _rolled_back(error: AresError) -> bool:
    return bool(error.fields.get("rolled_back"))
