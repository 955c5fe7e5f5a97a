"""What both kinds of context share: the incarnation's facts, and the rules of stopping."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, MutableMapping, Sequence
from types import MappingProxyType
from typing import Any, Final, cast

from typing_extensions import override

from ares_celery.agents.context import StoppingReason
from ares_celery.agents.contract import Agent, Applier, Replayer, StatefulAgent
from ares_celery.clock import Clock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import UnserialisableError
from ares_celery.errors.wording import describe_error, say_place
from ares_celery.ids import Version
from ares_celery.model.event import NO_METADATA, RUNTIME_MODULE, Event, EventType, NewEvent, why_reserved
from ares_celery.runtime.callers import check_texts
from ares_celery.runtime.ends import ApplyFailedSignal
from ares_celery.runtime.handling import id_of_sent
from ares_celery.runtime.incarnation import Completion, Incarnation
from ares_celery.runtime.ports import StepHooks
from ares_celery.runtime.replay import replayable
from ares_celery.runtime.step_scope import NEVER
from ares_celery.runtime.steps import StepParts
from ares_celery.runtime.tool_calls import ToolCaller
from ares_celery.runtime.waits import Sleeps, Waits, Wishes
from ares_celery.store.interrupts import InterruptLook

#: Signals that are raised without a pause; an agent that catches more of them would hold the loop, or a core.
_FREE_REFUSALS: Final = 3

__all__ = ["OUTAGE_PAUSE", "AgentLogger", "BaseContext"]

#: Pause between tries of one write while the store does not answer.
OUTAGE_PAUSE: Final = 0.2
#: Sleeps that an agent may begin after it was asked to stop; one more ends it, so a loop that never looks cannot spin.
_SLEEPS_WHILE_STOPPING: Final = 2


class AgentLogger(logging.LoggerAdapter[logging.Logger]):
    """Puts agent id, incarnation and task id on every line."""

    @override
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        extra = dict(self.extra or {})
        kwargs["extra"] = {**extra, **kwargs.get("extra", {})}
        return f"[{extra.get('agent_id')}#{extra.get('incarnation')} {extra.get('task_id')}] {msg}", kwargs


class _Done:
    """Something to await that is there already, so that ``ctx.complete()`` works with and without ``await``."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


class BaseContext:
    """The facts of one incarnation and the bookkeeping of its events and snapshots."""

    def __init__(
        self, incarnation: Incarnation, agent: Agent, schema: int, config: RuntimeConfig, clock: Clock
    ) -> None:
        """Binds the context to a recovered agent."""
        self._incarnation = incarnation
        self._agent = agent
        self._schema = schema
        self._settings = config
        self._clock = clock
        self._batches = itertools.count(1)
        self._batch_prefix = f"{incarnation.fence.partition('|')[2]}:"
        self._sleeps_while_stopping = 0
        self._refusals = 0
        self._events_since_snapshot = 0
        self._snapshot_at = clock.monotonic()
        self._snapshot_version = incarnation.last_version
        self._snapshot_problem = ""
        self._logger: AgentLogger | None = None
        self._emits = 0
        self._sleeps = Sleeps(incarnation.record)
        self._waits = Waits()
        #: Another one with each word that something has happened: whoever has looked before looks again.
        self._news = object()
        self._wishes = Wishes(incarnation.listener, incarnation.record.rejected)

    # -- facts ------------------------------------------------------------------------------------------------------

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        return self._incarnation.agent_id

    @property
    def type(self) -> str:
        """The agent's type."""
        return self._incarnation.record.spec.type

    @property
    def hosted(self) -> Incarnation:
        """The runtime's own view of the incarnation."""
        return self._incarnation

    @property
    def epoch(self) -> int:
        """The incarnation's fencing token."""
        return self._incarnation.record.epoch

    @property
    def fence(self) -> str:
        """What the incarnation shows with a write, ``Manager.checkpoints.apply`` among them."""
        return self._incarnation.fence

    @property
    def incarnation(self) -> int:
        """Which life this is, from 1."""
        return self._incarnation.record.incarnation

    @property
    def config(self) -> Mapping[str, Any]:
        """The spec's config."""
        return MappingProxyType(self._incarnation.record.spec.config)

    @property
    def logger(self) -> AgentLogger:
        """A logger whose lines carry agent id, incarnation and task id."""
        if self._logger is None:
            facts = {"agent_id": self.agent_id, "incarnation": self.incarnation, "task_id": self._incarnation.task_id}
            self._logger = AgentLogger(logging.getLogger(f"ares_celery.agent.{self.type}"), facts)
        return self._logger

    @property
    def stop_requested(self) -> bool:
        """The agent should return soon."""
        asked = self._incarnation.is_ending
        if asked:
            self._incarnation.observed = True
        return asked

    @property
    def stopping_reason(self) -> StoppingReason | None:
        """Why it should return; None while it should not."""
        return self._incarnation.stopping_reason

    def complete(self, result: object = None) -> Awaitable[None]:
        """Says that the agent is done, for good."""
        self._incarnation.completion = Completion(result)
        self._incarnation.progress_at = self._clock.monotonic()
        return _Done()

    def heartbeat(self) -> None:
        """Says that the agent makes progress."""
        self._incarnation.progress_at = self._clock.monotonic()

    def _step_parts(self, note_spent: Callable[[int], None]) -> StepParts:
        """What steps need of this context; ``note_spent`` is told how many the agent has recorded."""

        def note(spent: int) -> None:
            self._emits += 1
            note_spent(spent)

        return StepParts(self._incarnation, self._clock, self._next_op, self._note_version, note)

    def _note_version(self, version: Version) -> None:
        """The store has told a step by an event of the runtime's own: there is nothing to apply as a rule."""
        self._events_since_snapshot += 1
        self._incarnation.told_version = max(self._incarnation.told_version, version)
        is_next = version == self._incarnation.last_version + 1
        # One that is applied, or that comes behind events of others, is read at the next emit.
        if is_next and not self._incarnation.record.spec.replay_lifecycle:
            self._incarnation.last_version = version

    def _tool_caller(self) -> ToolCaller:
        """The incarnation as it calls tools; plug-ins with hooks are told."""
        listener: object = self._incarnation.listener
        return ToolCaller(self.agent_id, self.type, self._clock, listener if isinstance(listener, StepHooks) else None)

    # -- rules ------------------------------------------------------------------------------------------------------

    def _should_stop(self) -> bool:
        """Looks at the flags afresh: other threads set them."""
        return self.stop_requested

    @property
    def _gives_up(self) -> bool:
        """A write that gets no answer is not tried again, as the agent is to end.

        Inside of a step that must not be repeated it is, until that is cut off: the end waits for it anyway, and an
        outcome that is not recorded costs a person's time.
        """
        return self._incarnation.stopping_reason is not None and not NEVER.get()

    def _sleeps_too_often(self) -> bool:
        """The agent goes on sleeping although it was asked to stop."""
        if not self._should_stop():
            return False
        self._sleeps_while_stopping += 1
        return self._sleeps_while_stopping > _SLEEPS_WHILE_STOPPING

    def _next_refusal(self) -> float:
        """Seconds to wait before a signal is raised: more each time, for an agent that catches it and goes on."""
        self._refusals += 1
        return 0.0 if self._refusals <= _FREE_REFUSALS else min(0.01 * 2 ** (self._refusals - _FREE_REFUSALS), 1.0)

    def _id_to_send(self, message_id: str | None) -> tuple[str, bool]:
        """The id of a message to another agent; True when a repeated handling sends it under the same."""
        if message_id is None:
            return id_of_sent(self._incarnation)
        check_texts(message_id=message_id)
        return message_id, False

    def _progress(self) -> int:
        """Grows with whatever the agent's code has emitted or recorded."""
        return self._emits

    def _warn_of_moment(self) -> None:
        """The agent waits for a moment that it computes anew in each life."""
        if self._sleeps.first_warning():
            self.logger.warning(
                "sleep_until(…, release_slot=True) was called with a later time than the one that it was woken for, as "
                "its code began from the top: taken for the same wait. Compute the time in a step: "
                "t = await ctx.step('when', …)"
            )

    def _announce(self, look: InterruptLook) -> None:
        """Tells the process's listener what was stored about a question."""
        if look.event is not None and self._incarnation.listener is not None:
            self._incarnation.listener.publish([look.event])

    def _next_op(self) -> str:
        return f"{self._batch_prefix}{next(self._batches)}"

    def _new_events(
        self, events: Iterable[tuple[str, Mapping[str, Any] | None]], metadata: Mapping[str, Any] | None = None
    ) -> list[NewEvent]:
        self._emits += 1
        about = NO_METADATA if metadata is None else metadata
        made: list[NewEvent] = []
        for kind, payload in events:
            given = cast("object", kind)
            if not isinstance(given, str) or not given:
                raise UnserialisableError(
                    what="an event", agent_id=self.agent_id, problem=f"its type {given!r} is not a non-empty string"
                )
            problem = why_reserved(kind, about)
            if problem:
                raise UnserialisableError(what="an event", agent_id=self.agent_id, problem=problem)
            made.append(NewEvent(kind, payload if payload is not None else {}, about))
        return made

    def _apply_all(self, events: Sequence[Event]) -> None:
        """Applies stored events in order and moves the seen version with each, so both always agree."""
        folds = self._agent if isinstance(self._agent, Applier) else None
        lifecycle = self._incarnation.record.spec.replay_lifecycle
        for event in events:
            if folds is not None and replayable(event, lifecycle=lifecycle):
                try:
                    folds.apply(event)
                except Exception as error:
                    say_place(error, f"apply raised on event {event.type!r}, version {event.version}")
                    raise ApplyFailedSignal(error) from error
            self._incarnation.last_version = event.version
        self._events_since_snapshot += len(events)
        self._incarnation.progress_at = self._clock.monotonic()

    def _snapshot_due(self) -> bool:
        if not isinstance(self._agent, StatefulAgent):
            return False
        if self._events_since_snapshot >= self._settings.snapshot_every_events:
            return True
        age = self._clock.monotonic() - self._snapshot_at
        return age >= self._settings.snapshot_interval.total_seconds() and self._snapshot_news()

    def _snapshot_news(self) -> bool:
        """There is something that the last snapshot lacks; state that no event tells of may always have changed."""
        return not isinstance(self._agent, Applier) or self._incarnation.last_version > self._snapshot_version

    def _says_nothing(self, state: object) -> bool:
        """An empty snapshot of an agent that folds its events: those alone bring back more, so it is not stored."""
        return state == {} and isinstance(self._agent, (Applier, Replayer))

    def _snapshot_failed(self, error: Exception) -> NewEvent | None:
        """The runtime's own event about it; None when the last one said the same."""
        self._snapshot_at = self._clock.monotonic()
        self.logger.error("snapshot failed; the previous one stays, recovery replays more", exc_info=error)
        problem = describe_error(error)[:1_000]
        if problem == self._snapshot_problem:
            return None
        self._snapshot_problem = problem
        payload = {"agent_id": self.agent_id, "incarnation": self.incarnation, "problem": problem}
        return NewEvent(EventType.SNAPSHOT_FAILED, payload, {"module": RUNTIME_MODULE})

    def _snapshot_taken(self) -> None:
        self._snapshot_problem = ""
        self._events_since_snapshot = 0
        self._snapshot_at = self._clock.monotonic()
        self._snapshot_version = self._incarnation.last_version
