"""What is said of a step: to the store, to plug-ins and in events."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal

from ares_celery.agents.secrets import SECRETS, StoredPlace
from ares_celery.clock import Clock
from ares_celery.errors import (
    SecretsHookError,
    StepChangedError,
    StepFailedError,
    StepIdReusedError,
    StepTimeoutError,
    ToolTimeoutError,
)
from ares_celery.errors.wording import describe_error, message_of, traceback_of
from ares_celery.model.causes import cause_of
from ares_celery.model.event import RUNTIME_MODULE, EventType, NewEvent
from ares_celery.model.failure import Failure
from ares_celery.model.step import StepIntent, StepRecord
from ares_celery.plugins.contract import StepCall, StepResult
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.step_work import LONGEST_MESSAGE, LONGEST_TRACEBACK, Work, as_noted, cut_arguments, storable

__all__ = ["StepWords"]

#: What steps are called that the context makes for an agent.
_SPAWN, _QUESTION = "spawn", "approval"
_RUNTIME: Final = {"module": RUNTIME_MODULE}


class StepWords:
    """The words of one incarnation."""

    def __init__(self, incarnation: Incarnation, clock: Clock) -> None:
        self._incarnation = incarnation
        self._agent_id = incarnation.agent_id
        self._clock = clock

    def change(self, work: Work, record: StepRecord) -> NewEvent | None:
        """What is to be told when another function has recorded it; None when this one did."""
        if record.function == work.name:
            return None
        kind = EventType.STEP_MIGRATED if record.function in work.options.formerly else EventType.STEP_REFUSED
        return NewEvent(kind, {**self._facts(work), "recorded": record.function}, _RUNTIME)

    def changed(self, work: Work, record: StepRecord) -> StepChangedError:
        """Another function has recorded it."""
        return StepChangedError(
            agent_id=self._agent_id,
            execution=work.opening.id,
            step=work.path,
            recorded=record.function,
            function=work.name,
        )

    def reused(self, work: Work) -> StepIdReusedError:
        """Its id is used; of a child and of a question, whose ids the agent does not give, in their own words."""
        whose = {"agent_id": self._agent_id, "execution": work.opening.id, "step": work.path}
        name = work.path.partition(f"{work.name}:")[2]
        where = f"in execution {work.opening.id!r} of agent {self._agent_id!r}"
        if name and work.name == _SPAWN:
            problem = (
                f"child {name!r} was spawned already {where}; keep the handle that ctx.spawn gave, give each child an "
                "id of its own, like f'worker-{i}', or spawn one that rests again in another ctx.execution(…)"
            )
            return StepIdReusedError(whose, message=problem)
        if name and work.name == _QUESTION:
            problem = (
                f"question {name!r} was asked already {where}; keep the answer, or put the index in the name, like "
                "f'deploy:{i}'"
            )
            return StepIdReusedError(whose, message=problem)
        return StepIdReusedError(whose)

    def failed(self, work: Work, error: Mapping[str, str]) -> StepFailedError:
        """It has failed in an earlier life, and that is its outcome."""
        return StepFailedError(
            agent_id=self._agent_id,
            execution=work.opening.id,
            step=work.path,
            error_type=error.get("type", ""),
            problem=error.get("message", ""),
            traceback=error.get("traceback", ""),
        )

    def late(self, work: Work) -> Exception:
        """It did not return in time; whether it took effect is unknown."""
        work.is_late = True
        if work.tool:
            return ToolTimeoutError(tool=work.tool, agent_id=self._agent_id, limit=work.options.limit)
        return StepTimeoutError(
            agent_id=self._agent_id, execution=work.opening.id, step=work.path, timeout=work.options.limit
        )

    def seen(self, work: Work, attempt: int) -> StepCall:
        """The step as plug-ins see it."""
        return StepCall(
            self._agent_id,
            work.path,
            agent_type=self._incarnation.record.spec.type,
            execution=work.opening.id,
            tool=work.tool,
            attempt=attempt,
        )

    def result(self, began: float, value: object, error: BaseException | None = None) -> StepResult:
        """How a try ended, as plug-ins see it."""
        took = timedelta(seconds=self._clock.monotonic() - began)
        return StepResult(value, "" if error is None else describe_error(error), took)

    def failure(self, work: Work, attempt: int, error: Exception) -> Failure:
        """What recovery plug-ins are asked about."""
        record = self._incarnation.record
        return Failure(
            agent_id=self._agent_id,
            agent_type=record.spec.type,
            stage="step",
            cause=cause_of(error).value,
            reason=describe_error(error)[:LONGEST_MESSAGE],
            incarnation=record.incarnation,
            attempt=attempt,
            failures=attempt,
            restarts=record.restarts,
            step_id=work.path,
        )

    def said_failed(
        self, work: Work, attempt: int, error: Exception, *, will_retry: bool, refused_by: str
    ) -> list[NewEvent]:
        """What is told of a failed try."""
        known = self._told_of(work, error)
        problem = f"{known['type']}: {known['message']}"[:LONGEST_MESSAGE]
        told = self._facts(work)
        failed = {**told, "attempts": attempt, "took_ms": self.took(work), "problem": problem}
        events = [NewEvent(EventType.STEP_FAILED, {**failed, "will_retry": will_retry}, _RUNTIME)]
        if will_retry and attempt == 1:
            events.append(NewEvent(EventType.STEP_RECOVERY_STARTED, told, _RUNTIME))
        elif not will_retry and work.options.retries:
            why = f"plug-in {refused_by} refuses it" if refused_by else problem
            lost = {**told, "attempts": attempt, "reason": why}
            events.append(NewEvent(EventType.STEP_RECOVERY_FAILED, lost, _RUNTIME))
        return events

    def said_given_up(self, work: Work, attempts: int, error: Exception) -> list[NewEvent]:
        """What is told of a step that was to be tried again, and may not run any more."""
        lost = {**self._facts(work), "attempts": attempts, "reason": describe_error(error)[:LONGEST_MESSAGE]}
        return [NewEvent(EventType.STEP_RECOVERY_FAILED, lost, _RUNTIME)]

    def said_recovered(self, work: Work, attempts: int) -> list[NewEvent]:
        """What is told of a step that came to its end after it had failed."""
        return [NewEvent(EventType.STEP_RECOVERY_COMPLETED, {**self._facts(work), "attempts": attempts}, _RUNTIME)]

    def record_of(self, work: Work, value: Any, attempts: int) -> StepRecord:  # noqa: ANN401 - whatever was returned
        """What is recorded of a result. Raises SecretsHookError."""
        if SECRETS.is_set:
            value = SECRETS.hide(value, self.place(work, "result"))
        return StepRecord(work.path, work.name, work.options.replay, value, None, attempts)

    def record_of_error(self, work: Work, error: BaseException) -> StepRecord:
        """What is recorded of a failure, which is the outcome of a step that must not run twice."""
        return StepRecord(work.path, work.name, work.options.replay, None, self._told_of(work, error), 1)

    def _told_of(self, work: Work, error: BaseException) -> dict[str, str]:
        """What may be stored of an error."""
        told = {
            "type": type(error).__name__,
            "message": storable(message_of(error), LONGEST_MESSAGE),
            "traceback": storable(traceback_of(error)[-LONGEST_TRACEBACK:], LONGEST_TRACEBACK),
        }
        if not SECRETS.is_set:
            return told
        unsaid = {"type": told["type"], "message": "not stored: the secrets hook gave no texts", "traceback": ""}
        try:
            hidden = SECRETS.hide(told, self.place(work, "error"))
            return {name: storable(str(hidden[name]), LONGEST_TRACEBACK) for name in told}
        except (SecretsHookError, TypeError, LookupError):
            return unsaid

    def intent(self, work: Work) -> StepIntent:
        """What is noted before it runs. Raises SecretsHookError."""
        function, args, kwargs = work.function, work.args, work.kwargs
        while isinstance(function, partial):
            args, kwargs, function = (*function.args, *args), {**function.keywords, **kwargs}, function.func
        arguments: Any = {
            "args": [as_noted(value) for value in args],
            "kwargs": {name: as_noted(value) for name, value in kwargs.items()},
        }
        if SECRETS.is_set:
            arguments = as_noted(SECRETS.hide(arguments, self.place(work, "arguments")))
        incarnation = self._incarnation.record.incarnation
        return StepIntent(work.opening.id, work.path, work.name, "never", cut_arguments(arguments), incarnation)

    def took(self, work: Work) -> int:
        """Milliseconds since its first try began."""
        return int((self._clock.monotonic() - work.began) * 1_000)

    def _facts(self, work: Work) -> dict[str, Any]:
        return {
            "agent_id": self._agent_id,
            "execution": work.opening.id,
            "step": work.path,
            "function": work.name,
            "replay": work.options.replay,
        }

    def place(self, work: Work, what: Literal["result", "arguments", "error"]) -> StoredPlace:
        """Where something of it is about to be stored."""
        kind = self._incarnation.record.spec.type
        return StoredPlace(self._agent_id, kind, work.opening.id, work.path, work.name, what)
