"""How an incarnation's time in a process is brought to its end: what its code came to, committed and told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from ares_celery.clock import Clock
from ares_celery.errors import (
    AgentFailedError,
    AresError,
    FencedError,
    NewerStateError,
    StepsUnsettledError,
    StoreUnavailableError,
    UnserialisableError,
)
from ares_celery.errors.wording import describe_error, message_of, place_of
from ares_celery.model.agent import AgentState
from ares_celery.model.causes import cause_of
from ares_celery.model.command import AttemptFailed, Command, Complete, Die, Finding, MarkRunning, Park, Release, Wait
from ares_celery.model.json_words import why_no_json
from ares_celery.model.restart import CHARGED, DeathCause
from ares_celery.runtime.budgets import tell_tree
from ares_celery.runtime.commits import Applied, Committer
from ares_celery.runtime.context import OUTAGE_PAUSE
from ares_celery.runtime.ends import WAIT, Completed, Crash, End, Fenced, Parked, Waits, Yielded, agent_failed
from ares_celery.runtime.forgotten import note_forgotten
from ares_celery.runtime.incarnation import Incarnation, facts_of
from ares_celery.runtime.outcome import Crashed, Delivery, Ended, Noop, Outcome, RetryLater
from ares_celery.runtime.unsettled import parked_instead
from ares_celery.store.base import Store

__all__ = ["Finishing"]

log: Final = logging.getLogger(__name__)

#: An incarnation waits out any outage: only the store can say that it is over.
_FOR_EVER: Final = timedelta(days=3650)


class Finishing:
    """The part of a hosting process that ends incarnations; each method gives what the task says to Celery."""

    _store: Store
    _committer: Committer
    _clock: Clock

    def _park(self, incarnation: Incarnation, end: Parked, found: Sequence[Finding] = ()) -> Outcome:
        """Leaves an agent to a person; whatever is wrong stays as it is."""
        log.error("agent %s is parked: %s", incarnation.agent_id, end.reason, extra=self._facts(incarnation))
        rejected = end.rejected or incarnation.rejected
        park = Park(reason=end.reason, cause=end.cause, fence=incarnation.fence, found=tuple(found), rejected=rejected)
        return self._commit(incarnation, park)

    def _leave_to_newer_code(self, incarnation: Incarnation, error: NewerStateError, found: list[Finding]) -> Outcome:
        """Gives the agent back, uncharged; its next claim is refused to whoever knows no newer schema than this."""
        log.warning("%s", error, extra=self._facts(incarnation))
        agent_id, fence, schema = incarnation.agent_id, incarnation.fence, int(error.fields["found"])
        try:
            self._store.note_state(agent_id, fence, origin=incarnation.origin, schema=schema)
        except (FencedError, StoreUnavailableError) as failure:
            log.warning("agent %s: the schema of its state could not be noted: %s", agent_id, failure)
        return self._commit(incarnation, Release(fence=fence, reason=str(error), newer_state=True, found=tuple(found)))

    def _finish(self, incarnation: Incarnation, end: End) -> Outcome:
        try:
            return self._finish_as(incarnation, end)
        except StepsUnsettledError:
            agent_id, returned = incarnation.agent_id, incarnation.unsettled
            return self._park(incarnation, parked_instead(self._store.checkpoints, agent_id, end, returned))

    def _finish_as(self, incarnation: Incarnation, end: End) -> Outcome:
        fence = incarnation.fence
        if incarnation.parking is not None and incarnation.completion is None and not isinstance(end, (Fenced, Parked)):
            end = incarnation.parking
        match end:
            case Completed(result):
                return self._complete(incarnation, result)
            case Yielded() | Waits():
                wait = Wait(fence=fence, reason=WAIT, waiting=incarnation.waits)
                release = Release(fence=fence, reason=incarnation.stopping_reason or "yield")
                return self._commit(incarnation, wait if isinstance(end, Waits) else release)
            case Fenced():
                if incarnation.rolled_back:
                    note_forgotten(self._store, incarnation, self._clock)
                    return self._commit(incarnation, Release(fence=fence, reason="store rolled back", rolled_back=True))
                return Noop("fenced")
            case Crash(error, cause):
                return self._crashed(incarnation, error, cause)
            case Parked():
                return self._park(incarnation, end, end.found)

    def _complete(self, incarnation: Incarnation, result: Any) -> Outcome:  # noqa: ANN401 - a JSON value of user code
        try:
            text = msgspec.json.encode(result).decode() if result is not None else ""
        except (TypeError, ValueError, OverflowError, RecursionError):
            what = "the result of start()" if incarnation.completion is None else "the result given to ctx.complete()"
            refused = UnserialisableError(what=what, agent_id=incarnation.agent_id, problem=why_no_json(result))
            return self._crashed(incarnation, agent_failed(incarnation.agent_id, refused))
        found = incarnation.parking.found if incarnation.parking is not None else ()
        return self._commit(incarnation, Complete(fence=incarnation.fence, result=text, found=found))

    def _crashed(
        self, incarnation: Incarnation, error: AgentFailedError, cause: DeathCause = DeathCause.CRASH
    ) -> Outcome:
        reason = f"{error.fields['type']}: {error.fields['error']}"
        log.error(
            "agent %s failed: %s\n%s",
            incarnation.agent_id,
            reason,
            error.fields.get("traceback", ""),
            extra=self._facts(incarnation),
        )
        died = Die(epoch=incarnation.record.epoch, reason=reason[:2_000], cause=cause, proof=True, itself=True)
        try:
            applied = self._apply(incarnation, died)
        except FencedError:
            return Noop("fenced")
        return Crashed(error, applied.record.state if applied.record else AgentState.STOPPED)

    def _attempt_failed(
        self, incarnation: Incarnation, delivery: Delivery, error: BaseException, found: list[Finding]
    ) -> Outcome:
        failed = error if isinstance(error, AresError) else agent_failed(incarnation.agent_id, error)
        reason = message_of(error) if isinstance(error, AresError) else place_of(error) + describe_error(error)
        log.error(
            "agent %s: recovery failed: %s",
            incarnation.agent_id,
            reason,
            exc_info=error,
            extra=self._facts(incarnation),
        )
        cause = cause_of(error)
        command = AttemptFailed(
            fence=incarnation.fence,
            found=tuple(found),
            reason=f"start failed: {reason}"[:2_000],
            task_id=delivery.task_id,
            retries=delivery.retries + 1,
            cause=cause if cause not in CHARGED else DeathCause.RESTORE_FAILED,
        )
        try:
            applied = self._apply(incarnation, command)
        except FencedError:
            return Noop("fenced")
        after = applied.record
        if after is None or after.state is not AgentState.RESURRECTING or applied.committed is None:
            return Crashed(failed, after.state if after else AgentState.STOPPED)
        if after.task_id != delivery.task_id:
            return Crashed(failed, after.state)
        due = next((at for at in applied.plan.deadlines.values() if at), None)
        wait = max(0, (due or applied.committed.now) - applied.committed.now)
        return RetryLater(failed, after.epoch, timedelta(microseconds=wait))

    def _commit(self, incarnation: Incarnation, command: Command) -> Outcome:
        try:
            applied = self._apply(incarnation, command)
        except FencedError:
            return Noop("fenced")
        after = applied.record
        state = after.state if after else AgentState.STOPPED
        return Ended(state, incarnation.record.incarnation, command.reason)

    def _apply(self, incarnation: Incarnation, command: Command) -> Applied:
        self._reach(incarnation)
        incarnation.released = not isinstance(command, MarkRunning)
        applied = self._committer.apply(incarnation.agent_id, command, patience=_FOR_EVER)
        if incarnation.released and incarnation.record.root:
            tell_tree(self._store, incarnation, applied.record)
        return applied

    def _reach(self, incarnation: Incarnation) -> None:
        """Waits while a fault cuts the incarnation off from its store; as in an outage, for as long as that lasts."""
        while (faults := incarnation.faults) is not None and faults.is_cut_off and not incarnation.fenced:
            self._clock.wait(threading.Event(), OUTAGE_PAUSE)

    _facts = staticmethod(facts_of)
