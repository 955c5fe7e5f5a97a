"""The context of a plain agent, which runs in the task's own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NoReturn, TypeVar

from typing_extensions import override

from ares_celery.agents.contract import Agent, StatefulAgent
from ares_celery.agents.sharing import SyncMCPHandle
from ares_celery.agents.steps import DEFAULTS
from ares_celery.clock import Clock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentSignal,
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
from ares_celery.runtime.budgets import SyncMeter
from ares_celery.runtime.context import OUTAGE_PAUSE
from ares_celery.runtime.fault_points import SyncFaultPoints
from ares_celery.runtime.faults import StateLostSignal
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.limits import SyncLimit
from ares_celery.runtime.llm_access import SyncModels
from ares_celery.runtime.nursery import SyncChild, SyncNursery
from ares_celery.runtime.shared_access import SyncAccess, things_without_loop
from ares_celery.runtime.shared_things import SharedThings
from ares_celery.runtime.step_waits import SyncStepWaits
from ares_celery.runtime.sync_steps import SyncExecution, SyncStepCaller, SyncSteps
from ares_celery.runtime.sync_waits import SyncWaiting
from ares_celery.runtime.tool_calls import SyncToolCall
from ares_celery.store.base import Store

__all__ = ["SyncContext"]

T = TypeVar("T")


class SyncContext(SyncWaiting):
    """Implements :class:`ares_celery.agents.context.SyncAgentContext`."""

    def __init__(  # noqa: PLR0913 - the parts of one incarnation
        self,
        incarnation: Incarnation,
        agent: Agent,
        schema: int,
        config: RuntimeConfig,
        clock: Clock,
        *,
        store: Store,
        hand_over: Callable[[], None],
        shared: SharedThings | None = None,
    ) -> None:
        """Binds the context; ``hand_over`` lets the agent answer the messages that wait."""
        super().__init__(incarnation, agent, schema, config, clock)
        self._store = store
        self._hand_over = hand_over
        self._woken = threading.Event()
        self._emitting = False
        # An agent may emit from threads of its own: what is stored in an order is applied in it, and once.
        self._in_order = threading.RLock()
        self._called_at = clock.monotonic()
        self._waiting = False
        self._shared = shared

    @cached_property
    def steps(self) -> SyncSteps:
        """The steps of this incarnation."""
        waits = SyncStepWaits(
            self._persist, self._alive, self._emit, self._emit_by, self._wait_to_retry, self._tell_stored
        )
        steps = SyncSteps(self._step_parts(self._meter.steps_are), self._store, waits, lambda: self._access.calls)
        steps.gate = self._meter.check
        steps.interrupter = self._demand_word
        steps.points = self.points
        return steps

    @cached_property
    def points(self) -> SyncFaultPoints:
        """Where calls feel faults; asked only while there are some."""
        return SyncFaultPoints(
            self._incarnation,
            self._clock,
            self._next_op,
            store=self._store,
            wait=self._wait_for_change,
            refuse=self._refuse,
        )

    @cached_property
    def step(self) -> SyncStepCaller:
        """Runs a function once in the current execution."""
        return SyncStepCaller(self.steps)

    @override
    def _as_step(self, step_id: str, function: Callable[[], Any]) -> Any:
        return self.steps.run(step_id, function, (), {}, DEFAULTS, name=step_id.partition(":")[0])

    @override
    def _has_step(self, step_id: str) -> bool:
        return self.steps.has(step_id)

    def execution(self, execution_id: str, /) -> SyncExecution:
        """The execution that the steps of a block belong to."""
        return SyncExecution(self.steps, execution_id)

    @cached_property
    def _access(self) -> SyncAccess:
        things = self._shared or things_without_loop()
        return SyncAccess(
            things,
            self._tool_caller(),
            self._look_up,
            self._alive,
            gate=self._meter.check,
            steps=self.steps,
            points=self.points,
            tell=self._tell_degraded,
        )

    @cached_property
    def _meter(self) -> SyncMeter:
        return SyncMeter(
            self._incarnation,
            self._clock,
            self._next_refusal,
            store=self._store,
            persist=self._persist,
            next_op=self._next_op,
        )

    def charge(self, tokens: int = 0, usd: float = 0, steps: int = 0) -> Mapping[str, float]:
        """Records what was spent; returns all that the agent has spent so far."""
        return self._meter.charge(tokens, usd, steps)

    def resource(self, which: Any, /) -> Any:  # noqa: ANN401 - a name or a function
        """Something that all agents of this process share."""
        return self._access.resource(which)

    def tool(self, which: Any, /) -> SyncToolCall:  # noqa: ANN401 - as above
        """A registered tool, to be called."""
        return self._access.tool(which)

    def mcp(self, name: str, /) -> SyncMCPHandle:
        """The connection to an MCP server that this process shares."""
        return self._access.mcp(name)

    def silence(self) -> float:
        """Seconds since the agent's code last called the context; none while it waits in a call. From any thread."""
        return 0.0 if self._waiting else self._clock.monotonic() - self._called_at

    @cached_property
    def _models(self) -> SyncModels:
        return SyncModels(
            self._incarnation,
            self._shared or things_without_loop(),
            store=self._store,
            persist=self._persist,
            permit=self._permit_call,
            take=self.points.take,
            wait=self._wait_to_retry,
            next_op=self._next_op,
        )

    def _permit_call(self) -> None:
        self._alive()
        self._meter.check()

    def llm_http_client(self, **options: Any) -> Any:  # noqa: ANN401 - of a library that may be absent
        """An HTTP client for the SDK of a language model."""
        return self._models.client(options)

    def limit(self, name: str, /, rate: str | None = None, concurrency: int | None = None) -> SyncLimit:
        """A limit that all agents share."""
        return self._models.limit(name, rate, concurrency)

    def wake(self) -> None:
        """Ends waits of this context, so that they look at the flags again; callable from any thread."""
        self._news = object()
        self._woken.set()

    def emit(
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
            self.points.reach()
        made = self._new_events([(type, payload)], metadata)
        return self._emit(made)[0] if step is None else self.steps.emit(step, made[0])

    def emit_many(self, events: Iterable[tuple[str, Mapping[str, Any]]], /) -> tuple[Event, ...]:
        """Stores several events at once, all or none, then applies them in order."""
        if self._incarnation.faults is not None:
            self.points.reach()
        made = self._new_events(events)
        return self._emit(made) if made else ()

    def sleep(self, seconds: float, /) -> None:
        """Waits; wakes at once on stop, pause and drain. Messages are answered meanwhile."""
        self._alive()
        if self._sleeps_too_often():
            self._refuse(StopSignal())
        self.settle()
        until = self._clock.monotonic() + seconds
        while not self._should_stop():
            self._woken.clear()
            self._hand_over()
            left = until - self._clock.monotonic()
            if self._should_stop() or left <= 0:
                break
            self._idle(left)
        self._alive()

    @override
    def _idle(self, seconds: float) -> None:
        """Until it is woken, at most so long; no silence of the agent's code."""
        self._waiting = True
        self._clock.wait(self._woken, seconds)
        self._called_at, self._waiting = self._clock.monotonic(), False

    @override
    def _answer_messages(self) -> None:
        self._hand_over()

    @override
    def heartbeat(self) -> None:
        """Says that the agent makes progress; lets it answer messages."""
        super().heartbeat()
        self._called_at = self._clock.monotonic()
        self._hand_over()

    def snapshot(self) -> bool:
        """Takes a snapshot now; False when none was stored: see the protocol."""
        if not isinstance(self._agent, StatefulAgent) or self._emitting:
            return False
        if self._incarnation.faults is not None:
            self.points.reach()
        state, version = self._agent.snapshot(), self._incarnation.last_version
        fence, agent_id = self._incarnation.fence, self._incarnation.agent_id
        schema, origin = self._schema, self._incarnation.origin

        def save() -> None:
            self._store.save_snapshot(agent_id, fence, state, version=version, schema=schema, origin=origin)

        is_kept = not self._says_nothing(state)
        if is_kept:
            self._persist(save)
        self._snapshot_taken()
        return is_kept

    def send(self, agent_id: str, message: object, /, *, message_id: str | None = None) -> str:
        """Sends a message to another agent's inbox; returns its message id."""
        if self._incarnation.faults is not None:
            self.points.reach()
        to, (sent, is_repeated) = check_agent_id(agent_id), self._id_to_send(message_id)
        try:
            self._persist(lambda: self._store.send(to, message, message_id=sent, wants_reply=False))
        except MessageIdReusedError:
            # Sent in an earlier handling of the same message, perhaps in other words: it is not sent twice.
            if not is_repeated:
                raise
        return sent

    def spawn(self, spec: AgentSpec, /, *, report: bool | None = None) -> SyncChild:
        """Starts another agent as this one's child."""
        return self._nursery.spawn(spec, report)

    @cached_property
    def _nursery(self) -> SyncNursery:
        return SyncNursery(
            self._incarnation,
            self._agent,
            self._clock,
            step=self.step.with_options(replay="keyed"),
            persist=self._persist,
            sleep=self.sleep,
            read=self._store.read_record,
        )

    @override
    def settle(self) -> None:
        """A settled point: takes a snapshot when one is due. A failing one is logged and tried at the next point."""
        if not self._snapshot_due():
            return
        try:
            self.snapshot()
        except Exception as error:  # noqa: BLE001 - an agent's snapshot() may raise anything
            self._say_failed(error)

    def final_snapshot(self) -> None:
        """The snapshot of an orderly end; when it fails, recovery replays more instead."""
        if not isinstance(self._agent, StatefulAgent) or not self._snapshot_news():
            return
        try:
            self.snapshot()
        except Exception as error:  # noqa: BLE001 - an agent's snapshot() may raise anything
            self._say_failed(error)

    def _say_failed(self, error: Exception) -> None:
        event = self._snapshot_failed(error)
        if event is not None:
            self._emit([event])

    def _emit(self, events: list[NewEvent]) -> tuple[Event, ...]:
        op, fence, agent_id = self._next_op(), self._incarnation.fence, self._incarnation.agent_id
        return self._emit_by(lambda seen: self._store.append(agent_id, fence, events, op=op, expected=seen))

    def _emit_by(self, write: Callable[[Version], tuple[Event, ...]]) -> tuple[Event, ...]:
        """Has events stored and applies them, those of others that came meanwhile first.

        Args:
            write: Stores them, given the version that this incarnation has seen. What it gives is empty where an
                earlier try has stored them: then all that is new is read.
        """
        self._alive()
        with self._in_order:
            before = self._incarnation.last_version
            self._emitting = True
            try:
                stored = self._persist(lambda: write(before)) or self._between(before)
                if self._incarnation.listener is not None:
                    # Those of others were told by whoever has stored them.
                    self._incarnation.listener.publish([event for event in stored if event.epoch == self.epoch])
                if stored and stored[0].version > before + 1:
                    self._apply_all(self._between(before, stored[0].version))
                self._apply_all(stored)
            finally:
                self._emitting = False
        return stored

    def _between(self, before: Version, first: Version | None = None) -> tuple[Event, ...]:
        """Events that others wrote meanwhile: they come first, as on replay."""
        until = 0 if first is None else first - 1
        options = ReadOptions(from_version=before + 1, to_version=until, summaries=False)
        return self._persist(lambda: self._store.events.read(self._incarnation.agent_id, options))

    def _tell_stored(self, version: Version) -> None:
        """Has those who listen in this process hear an event that the store has written."""
        if self._incarnation.listener is not None:
            self._incarnation.listener.publish(self._between(Version(version - 1), Version(version + 1)))

    def _tell_degraded(self, text: str, events: list[NewEvent]) -> None:
        """Says what the agent has to do without, or that it has everything again."""
        fence, agent_id = self._incarnation.fence, self._incarnation.agent_id
        self._persist(lambda: self._store.note_degraded(agent_id, fence, text))
        self._emit(events)

    def _wait_for_change(self, seconds: float) -> None:
        """Until the incarnation hears something, at most so long."""
        self._woken.clear()
        self._idle(seconds)

    def _wait_to_retry(self, seconds: float) -> None:
        """Waits; raises a signal when the incarnation is asked to end, or is over."""
        until = self._clock.monotonic() + seconds
        while (left := until - self._clock.monotonic()) > 0 and self._incarnation.stopping_reason is None:
            self._wait_for_change(left)
        self._alive()
        if self._incarnation.stopping_reason is not None:
            self._refuse(StopSignal())

    @override
    def _persist(self, call: Callable[[], T]) -> T:
        """Repeats a call under the same operation id until the store answers or the incarnation is over."""
        while True:
            self._alive()
            try:
                if (faults := self._incarnation.faults) is not None:
                    faults.demand_store()
                return call()
            except StoreUnavailableError as error:
                if self._gives_up:
                    self._refuse(StopSignal())
                self.logger.warning("the store does not answer (%s); waiting", error)
                self._woken.clear()
                self._clock.wait(self._woken, OUTAGE_PAUSE)
            except FencedError as error:
                self._incarnation.ask("fenced")
                raise FencedSignal from error
            except MemoryCorruptedError as error:
                # The store knows before this process does.
                raise StateLostSignal(error) from None
            except VersionConflictError as error:
                if not error.fields.get("rolled_back"):
                    raise
                self._incarnation.roll_back(Version(int(error.fields["actual"])))
                raise FencedSignal from error

    @override
    def _alive(self) -> None:
        """Waits while suspended; raises FencedSignal once the incarnation is over."""
        self._called_at = self._clock.monotonic()
        while self._incarnation.suspended and self._incarnation.stopping_reason is None:
            self._woken.clear()
            self._clock.wait(self._woken, OUTAGE_PAUSE)
        if self._incarnation.fenced:
            self._refuse(FencedSignal())

    def _look_up(self) -> None:
        """While something shared is waited for: its caller may be over. Not a call of the agent's code."""
        if self._incarnation.fenced:
            self._refuse(FencedSignal())

    @override
    def _refuse(self, signal: AgentSignal) -> NoReturn:
        """Raises a signal; an agent that catches it again and again costs no core."""
        self._clock.wait(threading.Event(), self._next_refusal())
        raise signal
