"""Durable steps of agents on the process's event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextvars import Token
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from msgspec import structs

from ares_celery.agents.steps import StepOptions
from ares_celery.agents.tools import Tool
from ares_celery.background import start_detached
from ares_celery.ids import Version
from ares_celery.model.event import Event, NewEvent
from ares_celery.model.step import StepRecord, function_identity
from ares_celery.plugins.contract import StepCall
from ares_celery.runtime.awaited import Awaited
from ares_celery.runtime.calling import call_on_loop, on_thread
from ares_celery.runtime.fault_points import AsyncFaultPoints
from ares_celery.runtime.step_scope import MAIN, NEVER, SCOPE, Opening, Scope, execution_of
from ares_celery.runtime.step_waits import AsyncStepWaits, Coming
from ares_celery.runtime.step_work import Work, digest_of_call, is_outcome
from ares_celery.runtime.steps import ABSENT, UNRECORDABLE, StepCallers, StepParts, Steps, reset_scope
from ares_celery.runtime.waits import Waits
from ares_celery.store.base import AsyncIncarnationStore
from ares_celery.store.steps import Begun, OpenExecution, Recorded

__all__ = ["AsyncExecution", "AsyncStepCaller", "AsyncSteps"]


class AsyncSteps(Steps):
    """The steps of one incarnation, awaited.

    Attributes:
        gate: Awaited before each try of a step or a tool; what it raises keeps it from running.
        points: Where faults are felt, before a step runs; None: nowhere.
        interrupter: Awaited with the step, before it runs for the first time: who wants a person's word asks here.
    """

    def __init__(self, parts: StepParts, store: AsyncIncarnationStore, waits: AsyncStepWaits) -> None:
        super().__init__(parts)
        self._store = store
        self._waits = waits
        self._entering = asyncio.Lock()
        self._coming = Coming()
        self.gate: Callable[[], Awaitable[None]] | None = None
        self.points: AsyncFaultPoints | None = None
        self.interrupter: Callable[[StepCall], Awaitable[None]] | None = None

    def are_busy(self, waits: Waits) -> bool:
        """Some step is under way, and none of these waits is inside of it."""
        return bool(self._coming.count) or any(
            not waits.are_inside(work.opening.id, work.path) for work in self._running
        )

    # -- executions ---------------------------------------------------------------------------------------------------

    async def enter(self, execution_id: object) -> Opening:
        """Opens an execution that the agent's code names."""
        async with self._entering:
            return await self._open(self._check_own(execution_id))

    async def leave(self, opening: Opening, error: BaseException | None) -> None:
        """Ends it: done, or to be gone on with. A signal or a cancellation leaves it to the next incarnation."""
        self._openings.pop(opening.id, None)
        if opening.is_finished or not (error is None or isinstance(error, Exception)):
            return
        await self._close(opening.id, completed=self._is_done(opening, error))

    async def take_over(self, message_id: str) -> None:
        """Opens what an earlier incarnation has begun for a message, and this one has not: it ends with the answer."""
        await self._open(execution_of(message_id))

    async def end_main(self) -> None:
        """The agent is done, and what it did outside of every other execution with it."""
        if not self.has_main:
            return
        opening = self._openings.pop(MAIN, None) or await self._open(MAIN)
        self._openings.pop(MAIN, None)
        if not opening.is_finished:
            await self._close(MAIN, completed=True)

    async def _close(self, execution_id: str, *, completed: bool) -> None:
        op, agent_id, fence = self._next_op(), self._agent_id, self._fence
        await self._waits.persist(
            lambda: self._store.close_steps(agent_id, execution_id, fence=fence, op=op, completed=completed)
        )

    async def _now(self, scope: Scope | None) -> Opening:
        """The execution that the calling code is in."""
        if scope is not None:
            return scope.opening
        execution_id = self._current_id()
        known = self._openings.get(execution_id)
        if known is not None:
            return known
        async with self._entering:
            return self._openings.get(execution_id) or await self._open(execution_id)

    async def _open(self, execution_id: str) -> Opening:
        op, agent_id, fence, store = self._next_op(), self._agent_id, self._fence, self._store
        opened: OpenExecution = await self._waits.persist(
            lambda: store.open_steps(agent_id, execution_id, fence=fence, op=op)
        )
        if self._is_of_earlier_run(opened):
            opened = await self._waits.persist(
                lambda: store.open_steps(agent_id, execution_id, fence=fence, op=op, anew=True)
            )
        return self._opened(opened)

    # -- steps --------------------------------------------------------------------------------------------------------

    async def run(
        self,
        step_id: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
        *,
        name: str = "",
    ) -> Any:  # noqa: ANN401 - whatever was recorded
        """Runs a step of the agent's own, or returns what it has recorded; ``name`` stands for the function's."""
        self._demand_function(step_id, function)
        work = Work(function, name=name or function_identity(function), args=args, kwargs=kwargs, options=options)
        scope = self._scope()
        with self._coming:
            opening = await self._now(scope)
        self._place_step(work, scope, opening, step_id)
        return await self._used(work)

    async def emit(self, step_id: str, event: NewEvent) -> Event | None:
        """Stores an event of the agent together with the record of a step that did it; None: an earlier life has."""
        work, scope = self._emitting(event), self._scope()
        self._place_step(work, scope, await self._now(scope), step_id)
        try:
            record = work.opening.find(work.path)
            if record is not None:
                await self._demand_same(work, record)
                self._value(work, record)
                return None
            self._check(work)
            await self._waits.alive()
            if self.gate is not None:
                await self.gate()
            return await self._emitted(work, event)
        finally:
            self._free(work)

    async def _emitted(self, work: Work, event: NewEvent) -> Event | None:
        record, op, opening_id = self._words.record_of(work, None, 1), self._next_op(), work.opening.id
        agent_id, fence, store, begun = self._agent_id, self._fence, self._store, self._begun_before
        # The same in every try.
        named = structs.replace(event, id=op)
        last: Recorded | None = None

        async def write(_: Version) -> tuple[Event, ...]:
            nonlocal last
            seen = self._incarnation.newest_version
            last = await store.record_step(
                agent_id, fence, opening_id, record, op=op, expected=seen, event=named, begun=begun
            )
            return () if last.event is None else (last.event,)

        stored = await self._waits.emit_by(write)
        if last is not None:
            self._settled(work, replace(last, version=None))
            if last.event is not None:
                return last.event
        # An earlier try has stored it, and no other event of the agent's own came since.
        epoch = self._incarnation.epoch
        return next((one for one in stored if one.epoch == epoch and one.type == event.type), None)

    async def call_tool(
        self, tool: Tool, step_id: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: StepOptions
    ) -> Any:  # noqa: ANN401 - whatever was recorded
        """Calls a tool as a step."""
        digest = "" if step_id else digest_of_call(tool, args, kwargs)
        work = Work(tool.function, name=f"tool:{tool.name}", args=args, kwargs=kwargs, options=options, tool=tool.name)
        scope = self._scope()
        with self._coming:
            opening = await self._now(scope)
        self._place_call(work, scope, opening, step_id, digest)
        return await self._used(work)

    async def _used(self, work: Work) -> Any:  # noqa: ANN401 - whatever was recorded
        try:
            record = work.opening.find(work.path)
            if record is not None:
                await self._demand_same(work, record)
                return self._value(work, record)
            self._check(work)
            with self._coming:
                await self._waits.alive()
                if self._incarnation.faults is not None:
                    await self._feel(work)
                if self.gate is not None:
                    await self.gate()
            if self.interrupter is not None:
                await self.interrupter(self._words.seen(work, 1))
            self._begin(work)
            try:
                record = await (self._once(work) if work.options.replay == "never" else self._repeatedly(work))
            finally:
                self._end(work)
            return self._value(work, record)
        finally:
            self._free(work)

    async def _feel(self, work: Work) -> None:
        """Feels the faults that are on its agent; one of them may leave a tool less time."""
        if self.points is not None and not work.tool:
            await self.points.before_call()
        elif self.points is not None:
            limit = await self.points.before_tool(work.options.limit)
            work.options = replace(work.options, limit=limit)

    async def _demand_same(self, work: Work, record: StepRecord) -> None:
        """The function that recorded it is the one that is called now, or one that this one stands for."""
        change = self._words.change(work, record)
        if change is None:
            return
        await self._waits.say([change])
        if record.function not in work.options.formerly:
            raise self._words.changed(work, record)

    async def _repeatedly(self, work: Work) -> StepRecord:
        """Runs what may be repeated, until it comes to its end or its tries are used up."""
        attempt = 1
        while True:
            try:
                value = await self._attempt(work, attempt)
            except Exception as error:
                if not await self._goes_on(work, attempt, error):
                    raise
            else:
                return await self._succeeded(work, value, attempt)
            await self._waits.pause(self._wait_after(attempt))
            await self._let_in_again(work, attempt)
            work.opening.retry(work.path)
            attempt += 1

    async def _let_in_again(self, work: Work, attempts: int) -> None:
        """What keeps a step from running may have come about in its last try: each one may spend."""
        try:
            if self.gate is not None:
                await self.gate()
        except Exception as error:
            await self._waits.say(self._words.said_given_up(work, attempts, error))
            raise

    async def _succeeded(self, work: Work, value: Any, attempts: int) -> StepRecord:  # noqa: ANN401 - whatever was returned
        try:
            record = await self._kept(work, value, attempts)
        except UNRECORDABLE as error:
            self._note_unrecorded(work, error)
            raise
        if attempts > 1:
            await self._waits.say(self._words.said_recovered(work, attempts))
        return record

    async def _goes_on(self, work: Work, attempt: int, error: Exception) -> bool:
        """A try failed: plug-ins are asked about another one, and it is told."""
        refused = ""
        will_retry = self._may_retry(work, attempt, error)
        judge = self._incarnation.judge
        if will_retry and judge is not None:
            refused = await on_thread(judge.refusal, self._words.failure(work, attempt, error))
            will_retry = not refused
        await self._waits.say(self._words.said_failed(work, attempt, error, will_retry=will_retry, refused_by=refused))
        return will_retry

    async def _once(self, work: Work) -> StepRecord:
        """Runs what must not run twice: from before it is noted until it is recorded no wait unloads the agent."""
        if self._is_too_late:
            await self._waits.pause(0)
        self._incarnation.open_never += 1
        inside = NEVER.set(work.path)
        try:
            return await self._noted_once(work)
        finally:
            NEVER.reset(inside)
            self._incarnation.open_never -= 1

    async def _noted_once(self, work: Work) -> StepRecord:
        """Noted before, recorded after; cut off in between, a person has to look."""
        intent, op, opening_id = self._words.intent(work), self._next_op(), work.opening.id
        agent_id, fence, store = self._agent_id, self._fence, self._store
        seen = self._incarnation.newest_version
        begun: Begun = await self._waits.persist(
            lambda: store.record_intent(agent_id, fence, opening_id, intent, op=op, expected=seen)
        )
        self._noted(begun, intent)
        if begun.record is not None:
            return begun.record
        try:
            if begun.version is not None and self._is_heard:
                await self._waits.tell(begun.version)
            return await self._to_its_outcome(work)
        finally:
            if not work.is_recorded:
                self._lose(work, sys.exception())

    async def _to_its_outcome(self, work: Work) -> StepRecord:
        try:
            value = await self._attempt(work, 1)
        except BaseException as error:
            if not is_outcome(error) or work.is_late or work.opening.has_lost(work.path):
                raise
            record = await self._record(work, self._words.record_of_error(work, error), closes_intent=True)
            raise self._words.failed(work, record.error or {}) from error
        try:
            return await self._kept(work, value, 1, closes_intent=True)
        except Exception as error:
            self._note_returned(work, error)
            raise

    async def _attempt(self, work: Work, attempt: int) -> Any:  # noqa: ANN401 - whatever is returned
        hooks = self._hooks
        if hooks is None or not hooks.hooks:
            return await self._called(work)
        seen, began = self._words.seen(work, attempt), self._clock.monotonic()
        await on_thread(hooks.before_step, seen)
        try:
            value = await self._called(work)
        except BaseException as error:
            # Beside the error: what ends the agent must not wait for plug-ins.
            failed = self._words.result(began, None, error)
            start_detached("step-hooks", lambda: hooks.after_step(seen, failed))
            raise
        work.after = partial(hooks.after_step, seen, self._words.result(began, value))
        return value

    async def _called(self, work: Work) -> Any:  # noqa: ANN401 - as above
        """Calls the function; steps that it makes are inside of this one."""
        outside = SCOPE.set(self._inside(work))
        try:
            if work.is_async and work.options.limit is None:
                return await work.function(*work.args, **work.kwargs)
            return await call_on_loop(
                work.function,
                work.args,
                work.kwargs,
                is_async=work.is_async,
                limit=work.options.limit,
                late=lambda: self._words.late(work),
            )
        finally:
            SCOPE.reset(outside)

    async def _kept(self, work: Work, value: Any, attempts: int, *, closes_intent: bool = False) -> StepRecord:  # noqa: ANN401 - whatever was returned
        """Records what the function gave, and then tells hooks: however long they take, it is done."""
        try:
            return await self._record(work, self._words.record_of(work, value, attempts), closes_intent=closes_intent)
        finally:
            after, work.after = work.after, None
            if after is not None and work.is_recorded:
                await on_thread(after)
            elif after is not None:
                start_detached("step-hooks", after)

    async def _record(self, work: Work, record: StepRecord, *, closes_intent: bool = False) -> StepRecord:
        op, took, begun = self._next_op(), self._words.took(work), self._begun_before
        write = partial(self._store.record_step, self._agent_id, self._fence, work.opening.id, record, begun=begun)
        seen = self._incarnation.newest_version
        recorded: Recorded = await self._waits.persist(
            lambda: write(op=op, closes_intent=closes_intent, took_ms=took, expected=seen)
        )
        known = self._settled(work, recorded)
        if recorded.version is not None and self._is_heard:
            await self._waits.tell(recorded.version)
        return known


class AsyncStepCaller(StepCallers[AsyncSteps]):
    """Implements :class:`~ares_celery.agents.steps.StepCaller`."""

    def __call__(
        self,
        step_id: str,
        function: Callable[..., Any] = ABSENT,
        /,
        *args: Any,  # noqa: ANN401 - whatever the function takes
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> Awaited[Any]:
        """Runs a step; see the protocol."""
        made = self._steps.run(step_id, function, args, kwargs, self._options(function))
        return Awaited(made, self._steps.hosted, "ctx.step({}, …)", step_id)


class AsyncExecution:
    """A block whose steps belong to one execution."""

    __slots__ = ("_id", "_opening", "_outside", "_steps")

    def __init__(self, steps: AsyncSteps, execution_id: str) -> None:
        self._steps = steps
        self._id = execution_id
        self._opening: Opening | None = None
        self._outside: Token[Scope | None] | None = None

    async def __aenter__(self) -> Opening:
        """Takes the execution."""
        self._opening = await self._steps.enter(self._id)
        self._outside = SCOPE.set(Scope(self._steps, self._opening))
        return self._opening

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it, or gives it back."""
        reset_scope(self._outside)
        if self._opening is not None:
            await self._steps.leave(self._opening, error)
