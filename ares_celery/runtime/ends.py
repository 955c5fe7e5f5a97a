"""How an agent's code came to its end, and what a message came to; said as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from ares_celery.errors import (
    AgentFailedError,
    AgentSignal,
    AresError,
    BudgetExceededError,
    StepChangedError,
    StepRejectedError,
)
from ares_celery.errors.wording import message_of, place_of, traceback_of
from ares_celery.model.agent import RestartType
from ares_celery.model.causes import cause_of
from ares_celery.model.restart import DeathCause
from ares_celery.runtime.faults import StateLostSignal
from ares_celery.runtime.incarnation import Incarnation, Parked
from ares_celery.store.base import Reply

__all__ = [
    "WAIT",
    "ApplyFailedSignal",
    "Completed",
    "Crash",
    "End",
    "Fenced",
    "ParkSignal",
    "Parked",
    "Waits",
    "Yielded",
    "agent_failed",
    "crash",
    "failure_reply",
    "is_over_budget",
    "park_if_no_answer",
    "parked_by",
    "verdict_on_return",
    "verdict_on_signal",
]

#: Why an incarnation ended that gave its slot back.
WAIT = "wait"
#: Why agents are parked: another function recorded a step, a person said no, one made what cannot be recorded.
_STEP_CHANGED, _STEP_REJECTED, _STEP_RESULT = "step_changed", "step_rejected", "step_result"
#: A traceback longer than this says nothing more, and every event with it would be refused.
_LONGEST_TRACEBACK = 8_000


class ApplyFailedSignal(StateLostSignal):
    """An event is stored but the agent could not apply it: its state is no longer the fold; carries what it raised."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The agent is done for good."""

    result: Any


@dataclass(frozen=True, slots=True)
class Yielded:
    """The agent ended as it was asked to."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """The incarnation was over before it ended."""


@dataclass(frozen=True, slots=True)
class Crash:
    """The agent's code raised, or returned although it should never."""

    error: AgentFailedError
    cause: DeathCause = DeathCause.CRASH


@dataclass(frozen=True, slots=True)
class Waits:
    """The agent gives its slot back until something has happened; the incarnation knows for what."""


End = Completed | Yielded | Fenced | Crash | Parked | Waits


def agent_failed(agent_id: str, error: BaseException) -> AgentFailedError:
    """The error as callers and operators get it: type, message and traceback text; nothing of the process itself."""
    return AgentFailedError(
        agent_id=agent_id,
        type=type(error).__name__,
        error=(place_of(error) + message_of(error))[:2_000],
        traceback=traceback_of(error)[-_LONGEST_TRACEBACK:],
    )


def crash(agent_id: str, error: BaseException) -> Crash | Parked:
    """The end by an exception, with whose fault it is; where the next life would end alike, a person looks."""
    return parked_by(error) or Crash(agent_failed(agent_id, error), cause_of(error))


def parked_by(error: BaseException) -> Parked | None:
    """The end by which a person is asked, if the error, or one in its group, is such that restarts do not help."""
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return next((found for one in members if (found := parked_by(one)) is not None), None)
    if isinstance(error, StepChangedError):
        return Parked(_STEP_CHANGED, str(error))
    if isinstance(error, StepRejectedError):
        return Parked(_STEP_REJECTED, str(error), rejected=str(error.fields.get("question") or ""))
    if isinstance(error, AresError) and error.fields.get("unrecorded"):
        return Parked(_STEP_RESULT, str(error))
    return None


class ParkSignal(AgentSignal):
    """Ends the incarnation in order, and leaves the agent to a person."""

    def __init__(self, cause: str, reason: str) -> None:
        """Says why."""
        super().__init__(reason)
        self.end = Parked(cause, reason)


def failure_reply(agent_id: str, message_id: str, error: BaseException) -> Reply:
    """The answer to a message whose handling raised."""
    return Reply(message_id, error={**agent_failed(agent_id, error).fields, "message_id": message_id})


def verdict_on_signal(incarnation: Incarnation) -> End:
    """What it means that the agent's code was unwound because it did not stop by itself."""
    incarnation.observed = True
    return verdict_on_return(incarnation, serves=False) or Yielded()


def verdict_on_return(incarnation: Incarnation, *, serves: bool, returned: object = None) -> End | None:
    """What a normal return of ``start`` means; None = the agent goes on and serves its inbox.

    A return after the agent saw that it should stop is a yield. Without that, the restart type decides; what ``start``
    returned is then the result.
    """
    if incarnation.completion is not None:
        return Completed(incarnation.completion.result)
    if incarnation.fenced:
        return Fenced()
    if incarnation.waits is not None or incarnation.observed:
        return Waits() if incarnation.waits is not None else Yielded()
    if serves:
        return None
    if incarnation.record.spec.restart is RestartType.PERMANENT:
        error = AgentFailedError(
            agent_id=incarnation.agent_id, type="Returned", error="start() returned, but the agent is permanent"
        )
        return Crash(error)
    return Completed(returned)


def park_if_no_answer(error: BaseException) -> None:
    """A message is not answered with what only a person brings on: it is handled again then, and its steps are kept.

    That a person did not allow a step, or that its result cannot be recorded, is an answer like any other failure: who
    has sent the message wants to know it, and one odd message keeps no others waiting for an un-parking.

    Raises:
        ParkSignal: The error is such a one.
    """
    parked = parked_by(error)
    if parked is not None and parked.cause not in (_STEP_REJECTED, _STEP_RESULT):
        raise ParkSignal(parked.cause, parked.reason) from error


def is_over_budget(incarnation: Incarnation, error: BaseException) -> bool:
    """The error, or one in its group, is that a budget is used up, for which this incarnation is parked anyway."""
    if incarnation.parking is None:
        return False
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return any(is_over_budget(incarnation, one) for one in members)
    return isinstance(error, BudgetExceededError)
