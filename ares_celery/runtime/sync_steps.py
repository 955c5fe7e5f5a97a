"""Durable steps of plain agents, in the task's own thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import Token
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

from msgspec import structs

from ares_celery.agents.steps import StepOptions
from ares_celery.agents.tools import Tool
from ares_celery.errors import StepThreadError
from ares_celery.ids import Version
from ares_celery.model.event import Event, NewEvent
from ares_celery.model.step import StepRecord, function_identity
from ares_celery.plugins.contract import StepCall
from ares_celery.runtime.calling import ThreadCaller
from ares_celery.runtime.fault_points import SyncFaultPoints
from ares_celery.runtime.shared_steps import SharedSteps
from ares_celery.runtime.step_scope import HERE, MAIN, NEVER, SCOPE, Opening, Scope, execution_of
from ares_celery.runtime.step_waits import SyncStepWaits
from ares_celery.runtime.step_work import Work, digest_of_call, is_outcome
from ares_celery.runtime.steps import ABSENT, UNRECORDABLE, StepCallers, StepParts, reset_scope
from ares_celery.store.base import Store
from ares_celery.store.steps import Begun, OpenExecution, Recorded

__all__ = ["SyncExecution", "SyncStepCaller", "SyncSteps"]


class SyncSteps(SharedSteps):
    """The steps of one incarnation, in its thread.

    Attributes:
        gate: Called before each try of a step or a tool; what it raises keeps it from running.
        points: Where faults are felt, before a step runs; None: nowhere.
        interrupter: Called with the step, before it runs for the first time: who wants a person's word asks here.
    """

    def __init__(self, parts: StepParts, store: Store, waits: SyncStepWaits, calls: Callable[[], ThreadCaller]) -> None:
        super().__init__(parts)
        self._calls = calls
        self._store = store
        self._waits = waits
        self._entering = threading.RLock()
        self.gate: Callable[[], None] | None = None
        self.points: SyncFaultPoints | None = None
        self.interrupter: Callable[[StepCall], None] | None = None

    # -- executions ---------------------------------------------------------------------------------------------------

    def enter(self, execution_id: object) -> Opening:
        """Opens an execution that the agent's code names."""
        with self._entering:
            return self._open(self._check_own(execution_id))

    def leave(self, opening: Opening, error: BaseException | None) -> None:
        """Ends it: done, or to be gone on with. A signal or a cancellation leaves it to the next incarnation."""
        self._openings.pop(opening.id, None)
        if opening.is_finished or not (error is None or isinstance(error, Exception)):
            return
        self._close(opening.id, completed=self._is_done(opening, error))

    def take_over(self, message_id: str) -> None:
        """Opens what an earlier incarnation has begun for a message, and this one has not: it ends with the answer."""
        self._open(execution_of(message_id))

    def end_main(self) -> None:
        """The agent is done, and what it did outside of every other execution with it."""
        if not self.has_main:
            return
        opening = self._openings.pop(MAIN, None) or self._open(MAIN)
        self._openings.pop(MAIN, None)
        if not opening.is_finished:
            self._close(MAIN, completed=True)

    def _close(self, execution_id: str, *, completed: bool) -> None:
        op, agent_id, fence = self._next_op(), self._agent_id, self._fence
        self._waits.persist(
            lambda: self._store.close_steps(agent_id, execution_id, fence=fence, op=op, completed=completed)
        )

    def _now(self, scope: Scope | None) -> Opening:
        """The execution that the calling code is in."""
        if scope is not None:
            return scope.opening
        execution_id = self._current_id()
        known = self._openings.get(execution_id)
        if known is not None:
            return known
        with self._entering:
            return self._openings.get(execution_id) or self._open(execution_id)

    def _demand_place(self, scope: Scope | None, step_id: object) -> None:
        """A thread that carries no context says nothing of the block or message that its step belongs to."""
        if scope is not None or HERE.get() is self._incarnation:
            return
        entered = next((name for name in tuple(self._openings) if name != MAIN), "")
        if entered or self._incarnation.at_hand:
            at = f"execution {entered!r}" if entered else "a message"
            raise StepThreadError(agent_id=self._agent_id, step=str(step_id), at=at)

    def _open(self, execution_id: str) -> Opening:
        op, agent_id, fence, store = self._next_op(), self._agent_id, self._fence, self._store
        opened: OpenExecution = self._waits.persist(
            lambda: store.open_steps(agent_id, execution_id, fence=fence, op=op)
        )
        if self._is_of_earlier_run(opened):
            opened = self._waits.persist(
                lambda: store.open_steps(agent_id, execution_id, fence=fence, op=op, anew=True)
            )
        return self._opened(opened)

    # -- steps --------------------------------------------------------------------------------------------------------

    def run(
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
        self._demand_place(scope, step_id)
        opening = self._now(scope)
        with self._knowing:
            self._place_step(work, scope, opening, step_id)
        return self._used(work)

    def emit(self, step_id: str, event: NewEvent) -> Event | None:
        """Stores an event of the agent together with the record of a step that did it; None: an earlier life has."""
        work, scope = self._emitting(event), self._scope()
        self._demand_place(scope, step_id)
        opening = self._now(scope)
        with self._knowing:
            self._place_step(work, scope, opening, step_id)
        try:
            record = work.opening.find(work.path)
            if record is not None:
                self._demand_same(work, record)
                self._value(work, record)
                return None
            self._check(work)
            self._waits.alive()
            if self.gate is not None:
                self.gate()
            return self._emitted(work, event)
        finally:
            self._free(work)

    def _emitted(self, work: Work, event: NewEvent) -> Event | None:
        record, op, opening_id = self._words.record_of(work, None, 1), self._next_op(), work.opening.id
        agent_id, fence, store, begun = self._agent_id, self._fence, self._store, self._begun_before
        # The same in every try.
        named = structs.replace(event, id=op)
        last: Recorded | None = None

        def write(_: Version) -> tuple[Event, ...]:
            nonlocal last
            seen = self._incarnation.newest_version
            last = store.record_step(
                agent_id, fence, opening_id, record, op=op, expected=seen, event=named, begun=begun
            )
            return () if last.event is None else (last.event,)

        stored = self._waits.emit_by(write)
        if last is not None:
            self._settled(work, replace(last, version=None))
            if last.event is not None:
                return last.event
        # An earlier try has stored it, and no other event of the agent's own came since.
        epoch = self._incarnation.epoch
        return next((one for one in stored if one.epoch == epoch and one.type == event.type), None)

    def call_tool(
        self, tool: Tool, step_id: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: StepOptions
    ) -> Any:  # noqa: ANN401 - whatever was recorded
        """Calls a tool as a step."""
        digest = "" if step_id else digest_of_call(tool, args, kwargs)
        work = Work(tool.function, name=f"tool:{tool.name}", args=args, kwargs=kwargs, options=options, tool=tool.name)
        scope = self._scope()
        self._demand_place(scope, step_id or work.name)
        opening = self._now(scope)
        with self._knowing:
            self._place_call(work, scope, opening, step_id, digest)
        return self._used(work)

    def _used(self, work: Work) -> Any:  # noqa: ANN401 - whatever was recorded
        try:
            record = work.opening.find(work.path)
            if record is not None:
                self._demand_same(work, record)
                return self._value(work, record)
            self._check(work)
            self._waits.alive()
            if self._incarnation.faults is not None:
                self._feel(work)
            if self.gate is not None:
                self.gate()
            if self.interrupter is not None:
                self.interrupter(self._words.seen(work, 1))
            self._begin(work)
            try:
                record = self._once(work) if work.options.replay == "never" else self._repeatedly(work)
            finally:
                self._end(work)
            return self._value(work, record)
        finally:
            self._tell_hooks(work)
            self._free(work)

    def _feel(self, work: Work) -> None:
        """Feels the faults that are on its agent; one of them may leave a tool less time."""
        if self.points is not None and not work.tool:
            self.points.before_call()
        elif self.points is not None:
            limit = self.points.before_tool(work.options.limit)
            work.options = replace(work.options, limit=limit)

    def _demand_same(self, work: Work, record: StepRecord) -> None:
        """The function that recorded it is the one that is called now, or one that this one stands for."""
        change = self._words.change(work, record)
        if change is None:
            return
        self._waits.say([change])
        if record.function not in work.options.formerly:
            raise self._words.changed(work, record)

    def _repeatedly(self, work: Work) -> StepRecord:
        """Runs what may be repeated, until it comes to its end or its tries are used up."""
        attempt = 1
        while True:
            try:
                value = self._attempt(work, attempt)
            except Exception as error:
                self._tell_hooks(work)
                if not self._goes_on(work, attempt, error):
                    raise
            else:
                return self._succeeded(work, value, attempt)
            self._waits.pause(self._wait_after(attempt))
            self._let_in_again(work, attempt)
            with self._knowing:
                work.opening.retry(work.path)
            attempt += 1

    def _let_in_again(self, work: Work, attempts: int) -> None:
        """What keeps a step from running may have come about in its last try: each one may spend."""
        try:
            if self.gate is not None:
                self.gate()
        except Exception as error:
            self._waits.say(self._words.said_given_up(work, attempts, error))
            raise

    # -- its tries ----------------------------------------------------------------------------------------------------

    def _succeeded(self, work: Work, value: Any, attempts: int) -> StepRecord:  # noqa: ANN401 - whatever was returned
        try:
            record = self._kept(work, value, attempts)
        except UNRECORDABLE as error:
            self._note_unrecorded(work, error)
            raise
        if attempts > 1:
            self._waits.say(self._words.said_recovered(work, attempts))
        return record

    def _goes_on(self, work: Work, attempt: int, error: Exception) -> bool:
        """A try failed: plug-ins are asked about another one, and it is told."""
        refused = ""
        will_retry = self._may_retry(work, attempt, error)
        judge = self._incarnation.judge
        if will_retry and judge is not None:
            refused = judge.refusal(self._words.failure(work, attempt, error))
            will_retry = not refused
        self._waits.say(self._words.said_failed(work, attempt, error, will_retry=will_retry, refused_by=refused))
        return will_retry

    def _once(self, work: Work) -> StepRecord:
        """Runs what must not run twice: from before it is noted until it is recorded no wait unloads the agent."""
        if self._is_too_late:
            self._waits.pause(0)
        self._incarnation.open_never += 1
        inside = NEVER.set(work.path)
        try:
            return self._noted_once(work)
        finally:
            NEVER.reset(inside)
            self._incarnation.open_never -= 1

    def _noted_once(self, work: Work) -> StepRecord:
        """Noted before, recorded after; cut off in between, a person has to look."""
        intent, op, opening_id = self._words.intent(work), self._next_op(), work.opening.id
        agent_id, fence, store = self._agent_id, self._fence, self._store
        seen = self._incarnation.newest_version
        begun: Begun = self._waits.persist(
            lambda: store.record_intent(agent_id, fence, opening_id, intent, op=op, expected=seen)
        )
        self._noted(begun, intent)
        if begun.record is not None:
            return begun.record
        try:
            if begun.version is not None and self._is_heard:
                self._waits.tell(begun.version)
            return self._to_its_outcome(work)
        finally:
            if not work.is_recorded:
                self._lose(work, sys.exception())

    def _to_its_outcome(self, work: Work) -> StepRecord:
        try:
            value = self._attempt(work, 1)
        except BaseException as error:
            if not is_outcome(error) or work.is_late or work.opening.has_lost(work.path):
                self._tell_hooks(work)
                raise
            record = self._record(work, self._words.record_of_error(work, error), closes_intent=True)
            self._tell_hooks(work)
            raise self._words.failed(work, record.error or {}) from error
        try:
            return self._kept(work, value, 1, closes_intent=True)
        except Exception as error:
            self._note_returned(work, error)
            raise

    def _attempt(self, work: Work, attempt: int) -> Any:  # noqa: ANN401 - whatever is returned
        hooks = self._hooks
        if hooks is None or not hooks.hooks:
            return self._called(work)
        seen, began = self._words.seen(work, attempt), self._clock.monotonic()
        hooks.before_step(seen)
        try:
            value = self._called(work)
        except BaseException as error:
            work.after = partial(hooks.after_step, seen, self._words.result(began, None, error))
            raise
        work.after = partial(hooks.after_step, seen, self._words.result(began, value))
        return value

    def _called(self, work: Work) -> Any:  # noqa: ANN401 - as above
        """Calls the function; steps that it makes are inside of this one."""
        outside = SCOPE.set(self._inside(work))
        try:
            return self._calls().call(
                work.function,
                work.args,
                work.kwargs,
                is_async=work.is_async,
                limit=work.options.limit,
                late=lambda: self._words.late(work),
            )
        finally:
            SCOPE.reset(outside)

    def _kept(self, work: Work, value: Any, attempts: int, *, closes_intent: bool = False) -> StepRecord:  # noqa: ANN401 - whatever was returned
        """Records what the function gave, and then tells hooks."""
        try:
            return self._record(work, self._words.record_of(work, value, attempts), closes_intent=closes_intent)
        finally:
            self._tell_hooks(work)

    @staticmethod
    def _tell_hooks(work: Work) -> None:
        """What has run is told once, behind its record: however long hooks take, it is done."""
        after, work.after = work.after, None
        if after is not None:
            after()

    def _record(self, work: Work, record: StepRecord, *, closes_intent: bool = False) -> StepRecord:
        op, took, opening_id = self._next_op(), self._words.took(work), work.opening.id
        agent_id, fence, store, seen = self._agent_id, self._fence, self._store, self._incarnation.newest_version
        begun = self._begun_before
        recorded: Recorded = self._waits.persist(
            lambda: store.record_step(
                agent_id,
                fence,
                opening_id,
                record,
                op=op,
                closes_intent=closes_intent,
                took_ms=took,
                expected=seen,
                begun=begun,
            )
        )
        known = self._settled(work, recorded)
        if recorded.version is not None and self._is_heard:
            self._waits.tell(recorded.version)
        return known


class SyncStepCaller(StepCallers[SyncSteps]):
    """Implements :class:`~ares_celery.agents.steps.StepCaller`."""

    def __call__(self, step_id: str, function: Callable[..., Any] = ABSENT, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever was recorded
        """Runs a step; see the protocol."""
        return self._steps.run(step_id, function, args, kwargs, self._options(function))


class SyncExecution:
    """A block whose steps belong to one execution."""

    __slots__ = ("_id", "_opening", "_outside", "_steps")

    def __init__(self, steps: SyncSteps, execution_id: str) -> None:
        self._steps = steps
        self._id = execution_id
        self._opening: Opening | None = None
        self._outside: Token[Scope | None] | None = None

    def __enter__(self) -> Opening:
        """Takes the execution."""
        self._opening = self._steps.enter(self._id)
        self._outside = SCOPE.set(Scope(self._steps, self._opening))
        return self._opening

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends it, or gives it back."""
        reset_scope(self._outside)
        if self._opening is not None:
            self._steps.leave(self._opening, error)
