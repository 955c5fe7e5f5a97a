"""Takes a stop to the children of the agent that was stopped, and the end of a child to its parent's inbox."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    AresError,
    EventTooLargeError,
    MailboxFullError,
    MessageIdReusedError,
    StoreUnavailableError,
)
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import AT_REST, AgentRecord, AgentState, Desired
from ares_celery.model.command import Deadline, DeadlineDue, Stop
from ares_celery.model.rules_family import is_final
from ares_celery.runtime.commits import Committer
from ares_celery.store.base import DueDeadline, Store

__all__ = ["FamilyKeeper", "report_of"]

log: Final = logging.getLogger(__name__)

#: Between two looks at children that end, and at a parent whose inbox is full: a quarter of the time that it takes
#: already, within these bounds.
_SHORTEST: Final = timedelta(seconds=1)
_LONGEST: Final = timedelta(minutes=1)


class FamilyKeeper:
    """Acts on the deadlines of families. Two at once do no harm, and one that dies at any point leaves a deadline.

    Args:
        store: The namespace.
        committer: Through which every decision about a child goes.
    """

    def __init__(self, store: Store, committer: Committer) -> None:
        self._store = store
        self._committer = committer

    def handle(self, deadline: DueDeadline) -> None:
        """Acts on a deadline of kind children or report.

        Raises:
            StoreUnavailableError: The store did not answer; the deadline stands.
        """
        if deadline.kind is Deadline.REPORT:
            self._report(deadline)
        elif deadline.name:
            self._forget(deadline)
        else:
            self._look_after(deadline)

    # -- stops --------------------------------------------------------------------------------------------------------

    def _look_after(self, deadline: DueDeadline) -> None:
        read = self._store.read(deadline.agent_id)
        record, again = read.record, None
        if record is not None:
            self._follow_parent(record)
            if self.cascade(record):
                again = _pause(read.now, record.changed_at)
        due = DeadlineDue(kind=deadline.kind, score=deadline.score, again=again)
        self._committer.apply(deadline.agent_id, due, guard=deadline)

    def _follow_parent(self, record: AgentRecord) -> None:
        """Stops a child whose parent was stopped after it had taken it in, by whoever could not see the child yet."""
        if record.birth is None or record.spec.parent is None or record.desired is Desired.STOPPED:
            return
        parent = self._store.read_record(AgentId(record.spec.parent))
        if parent is None or parent.stops != record.birth.stops:
            self._stop(record, parent)

    def cascade(self, parent: AgentRecord) -> bool:
        """Asks the children to stop that came before the parent was stopped; True when some have not ended yet."""
        if not parent.children or not parent.stops:
            return False
        waits = False
        for read in self._store.read_many(self._store.children(parent.id)):
            child = read.record
            if child is None:
                # Not made yet: it will look for its parent itself. Or it cannot be read: somebody has to see to it.
                waits = waits or bool(read.problem)
            elif child.birth is not None and child.spec.parent == parent.id and child.birth.stops < parent.stops:
                waits = self._ends(child, parent) or waits
        return waits

    def _ends(self, child: AgentRecord, parent: AgentRecord) -> bool:
        """Asks one child; True while it has not ended."""
        if child.state in AT_REST and child.desired is Desired.STOPPED and not child.children:
            return False
        try:
            after = self._stop(child, parent)
        except StoreUnavailableError:
            raise
        except AresError:
            log.exception("agent %s: its child %s could not be asked to stop", parent.id, child.id)
            return True
        # Somebody who started it again since has the last word.
        return after is not None and after.desired is Desired.STOPPED and after.state not in AT_REST

    def _stop(self, child: AgentRecord, parent: AgentRecord | None) -> AgentRecord | None:
        """Applies the stop once for each stop of the parent, whoever does it."""
        birth_of_parent = parent.created_at if parent is not None else 0
        stops = parent.stops if parent is not None else 0
        command = Stop(reason=f"its parent {child.spec.parent} was stopped", actor=parent.actor if parent else "")
        op = f"cascade|{child.spec.parent}|{birth_of_parent}|{stops}|{child.id}"
        return self._committer.apply(child.id, command, op=op).record

    def _forget(self, deadline: DueDeadline) -> None:
        """A child was deleted: its parent lists it no longer."""
        parent, _, number = deadline.name.partition("|")
        self._store.forget_child(AgentId(parent), deadline.agent_id, number=int(number))
        # One that was made anew under this id keeps its own deadline.
        due = DeadlineDue(kind=deadline.kind, score=deadline.score, again=_SHORTEST)
        self._committer.apply(deadline.agent_id, due, guard=deadline)

    # -- reports ------------------------------------------------------------------------------------------------------

    def _report(self, deadline: DueDeadline) -> None:
        read = self._store.read(deadline.agent_id)
        record, again, dropped = read.record, None, ""
        if record is not None and record.spec.parent is not None and is_final(record):
            try:
                dropped = self._tell(record, AgentId(record.spec.parent))
            except MailboxFullError as error:
                again = _pause(read.now, record.changed_at)
                log.warning("agent %s: its end is told to its parent in %s: %s", record.id, again, error)
        if dropped and record is not None:
            log.warning("agent %s: its end (%s) is not told to its parent: %s", record.id, record.state, dropped)
        due = DeadlineDue(kind=deadline.kind, score=deadline.score, again=again, dropped=dropped)
        self._committer.apply(deadline.agent_id, due, guard=deadline)

    def _tell(self, record: AgentRecord, parent_id: AgentId) -> str:
        """Sends the message, once for each end; gives why nobody gets it."""
        parent = self._store.read_record(parent_id)
        if parent is None:
            return f"agent {parent_id!r} does not exist"
        if parent.desired is Desired.STOPPED:
            return f"agent {parent_id!r} is {parent.state} and meant to be stopped"
        body, message_id = report_of(record), f"child:{record.id}:{record.epoch}"
        try:
            self._send(parent_id, body, message_id)
        except (AgentNotFoundError, AgentNotRunningError, AgentParkedError) as error:
            return str(error)
        except MessageIdReusedError:
            log.info("agent %s: its end was told to its parent before", record.id)
        return ""

    def _send(self, parent_id: AgentId, body: Mapping[str, Any], message_id: str) -> None:
        try:
            self._store.send(parent_id, body, message_id=message_id, wants_reply=False)
        except EventTooLargeError:
            short = {**body, "result": None, "omitted": "the result is too large for a message; read it from the child"}
            self._store.send(parent_id, short, message_id=message_id, wants_reply=False)


def report_of(record: AgentRecord) -> dict[str, Any]:
    """What the parent is told of a child's end; the same whenever it is asked for."""
    told: dict[str, Any] = {"child": record.spec.id, "state": record.state.value}
    match record.state:
        case AgentState.COMPLETED:
            return {**told, "result": json.loads(record.result) if record.result else None}
        case AgentState.PARKED:
            return {**told, "cause": record.cause, "reason": record.reason}
        case _:
            return {**told, "reason": record.reason}


def _pause(now: Instant, since: Instant) -> timedelta:
    """Until the next look: longer the longer it takes already."""
    return max(_SHORTEST, min(_LONGEST, timedelta(microseconds=max(0, now - since) // 4)))
