"""The one place that decides an agent's life: a transition table as data, and ``decide`` which looks into it. Pure.

Rows are operations, columns are states; docs/reference/lifecycle.md is generated from :data:`TABLE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ares_celery.errors import AgentNotFoundError, FencedError
from ares_celery.ids import Instant
from ares_celery.model import command as commands
from ares_celery.model import rules_asked as asked
from ares_celery.model import rules_family as family
from ares_celery.model import rules_fork as forks
from ares_celery.model import rules_found as found
from ares_celery.model import rules_group as grouped
from ares_celery.model import rules_pause as pauses
from ares_celery.model import rules_said as said
from ares_celery.model import rules_waits as waits
from ares_celery.model.agent import AgentRecord, AgentState
from ares_celery.model.command import Command, Deadline, Operation
from ares_celery.model.plan import Plan, Situation
from ares_celery.model.transitions import ignore, lifecycle_event

__all__ = ["TABLE", "Rule", "decide", "operation_of"]

S = AgentState
O = Operation  # noqa: E741 - reads as a column head in the table below
Handler = Callable[[Situation, Command], Plan]


@dataclass(frozen=True, slots=True)
class Rule:
    """One cell: what is done, and the states that the agent may be in afterwards."""

    handler: Handler
    to: tuple[AgentState, ...]

    @property
    def does(self) -> str:
        """The sentence for the docs page."""
        return (self.handler.__doc__ or "").splitlines()[0]


#: A target: the state as it is.
_SAME: Final = None


def _cells(
    *entries: tuple[tuple[AgentState, ...], Handler, tuple[AgentState | None, ...]],
) -> dict[AgentState, Rule]:
    """Cells of one row."""
    return {
        state: Rule(handler, tuple(dict.fromkeys(target or state for target in to)))
        for states, handler, to in entries
        for state in states
    }


_CLAIMABLE = (S.STARTING, S.RESURRECTING)
_HOSTABLE = (S.STARTING, S.RUNNING, S.RESURRECTING)
_LIVE = (*_HOSTABLE, S.STOPPING)
_IDLE = (S.REGISTERED, S.STOPPED)
_ASLEEP = (S.PAUSED, S.WAITING)
_OVER = (S.COMPLETED, S.PARKED)
_RESTING = (*_IDLE, *_ASLEEP, *_OVER)
_STAY = (_SAME,)
#: Where an incarnation that was asked to end can lead, by what is desired once it has.
_SETTLED = (S.STOPPED, S.PAUSED, S.STARTING, S.RESURRECTING, S.PARKED)
#: Where a death can lead, by policy; stopped: a temporary agent, or a runtime that stops.
_DIED = (S.RESURRECTING, S.PARKED, S.STOPPED)
#: A namespace that does not run yet keeps what is started as registered.
_BEGUN = (S.STARTING, S.REGISTERED)

TABLE: Final[Mapping[Operation, Mapping[AgentState, Rule]]] = {
    O.REGISTER: _cells((tuple(S), asked.keep, _STAY)),
    O.START: _cells(
        (_IDLE, asked.start, _BEGUN),
        ((S.COMPLETED,), asked.start, (S.STARTING,)),
        ((S.STARTING, S.RUNNING, S.STOPPING), asked.start, (_SAME, S.STOPPING)),
        ((S.RESURRECTING,), asked.start, (_SAME, S.STOPPING, S.STARTING)),
        (_ASLEEP, asked.start, (_SAME, S.STARTING)),
        ((S.PARKED,), asked.refuse_parked, _STAY),
    ),
    O.SPAWN: _cells(
        (_IDLE, family.spawn, (_SAME, *_BEGUN)),
        ((S.COMPLETED,), family.spawn, (_SAME, S.STARTING)),
        ((*_LIVE, *_ASLEEP, S.PARKED), family.spawn, _STAY),
    ),
    O.STOP: _cells(
        (_LIVE, asked.stop_hosted, (S.STOPPING, S.STOPPED)),
        ((*_IDLE, *_ASLEEP), asked.stop_resting, (S.STOPPED,)),
        (_OVER, asked.stop_over, _STAY),
    ),
    O.PAUSE: _cells(
        (_CLAIMABLE, pauses.pause, (S.STOPPING, S.PAUSED)),
        ((S.RUNNING, S.STOPPING), pauses.pause, (S.STOPPING,)),
        ((S.PAUSED,), pauses.pause_again, _STAY),
        ((S.WAITING,), pauses.pause, (S.PAUSED,)),
        ((*_IDLE, S.COMPLETED), asked.refuse_state, _STAY),
        ((S.PARKED,), asked.refuse_parked, _STAY),
    ),
    O.RESUME: _cells(
        ((S.PAUSED,), pauses.resume, (S.STARTING,)),
        ((S.STOPPING,), pauses.resume, _STAY),
        ((*_HOSTABLE, *_IDLE, S.WAITING, *_OVER), pauses.resume_other, _STAY),
    ),
    O.RESTART: _cells(
        (_CLAIMABLE, asked.restart, (S.STOPPING, S.STARTING)),
        ((S.RUNNING, S.STOPPING), asked.restart, (S.STOPPING,)),
        (_IDLE, asked.restart, _BEGUN),
        ((*_ASLEEP, S.COMPLETED), asked.restart, (S.STARTING,)),
        ((S.PARKED,), asked.restart_parked, (S.STARTING,)),
    ),
    O.UNPARK: _cells(
        ((S.PARKED,), asked.unpark, (S.STARTING,)),
        ((*_LIVE, *_IDLE, *_ASLEEP, S.COMPLETED), asked.refuse_unparked, _STAY),
    ),
    O.RESTORE: _cells(
        ((S.STARTING,), asked.restore, (_SAME, S.STOPPING)),
        ((S.RUNNING, S.STOPPING), asked.restore, (S.STOPPING,)),
        ((S.RESURRECTING,), asked.restore, _STAY),
        ((*_IDLE, *_ASLEEP, S.COMPLETED), asked.refuse_state, _STAY),
        ((S.PARKED,), asked.refuse_parked, _STAY),
    ),
    O.UPDATE: _cells(
        (_HOSTABLE, asked.update, (_SAME, S.STOPPING)),
        ((S.STOPPING, *_RESTING), asked.update, _STAY),
    ),
    O.DELETE: _cells((_LIVE, asked.refuse_delete, _STAY), (_RESTING, asked.delete, _STAY)),
    O.CLAIM: _cells(
        (_CLAIMABLE, said.claim, _STAY),
        ((S.RUNNING, S.STOPPING, *_RESTING), said.refuse_claim, _STAY),
    ),
    O.MARK_RUNNING: _cells(
        (_HOSTABLE, said.mark_running, (S.RUNNING,)),
        ((S.STOPPING,), said.fenced_ignore, _STAY),
        (_RESTING, said.refuse_fenced, _STAY),
    ),
    O.RELEASE: _cells(
        (_HOSTABLE, said.release, (S.STARTING, S.STOPPED)),
        ((S.STOPPING,), said.release, _SETTLED),
        (_RESTING, said.refuse_fenced, _STAY),
    ),
    O.COMPLETE: _cells((_LIVE, said.complete, (S.COMPLETED,)), (_RESTING, said.refuse_fenced, _STAY)),
    O.PARK: _cells((_LIVE, said.park_hosted, (S.PARKED,)), (_RESTING, said.refuse_fenced, _STAY)),
    O.WAIT: _cells(
        (_HOSTABLE, waits.wait, (S.WAITING, S.STARTING)),
        ((S.STOPPING,), waits.wait, _SETTLED),
        (_RESTING, said.refuse_fenced, _STAY),
    ),
    O.DIE: _cells(
        (_HOSTABLE, found.death, (_SAME, S.STOPPING, *_DIED)),
        ((S.STOPPING,), found.death_while_stopping, (_SAME, *_SETTLED)),
        (_RESTING, asked.nothing, _STAY),
    ),
    O.ATTEMPT_FAILED: _cells(
        (_HOSTABLE, said.recovery_failed, _DIED),
        ((S.STOPPING,), said.recovery_failed, _SETTLED),
        (_RESTING, said.refuse_fenced, _STAY),
    ),
    O.OWNER_EXITED: _cells(
        (_HOSTABLE, found.owner_exited, (_SAME, *_DIED)),
        ((S.STOPPING,), found.owner_exited, (_SAME, *_SETTLED)),
        (_RESTING, found.owner_exited, _STAY),
    ),
    O.LEASE_DUE: _cells(
        (_CLAIMABLE, found.lease_due, (_SAME, *_DIED)),
        ((S.RUNNING,), found.lease_due, _DIED),
        ((S.STOPPING,), found.lease_due, _SETTLED),
        (_RESTING, found.drop_deadline, _STAY),
    ),
    O.STOP_DUE: _cells(
        ((S.STOPPING,), found.stop_due, _SETTLED),
        ((*_HOSTABLE, *_RESTING), found.drop_deadline, _STAY),
    ),
    O.HANG_DUE: _cells(
        (_CLAIMABLE, found.hang_due, (_SAME, *_DIED)),
        ((S.RUNNING, S.STOPPING, *_RESTING), found.drop_deadline, _STAY),
    ),
    O.NUDGE_DUE: _cells(
        (_CLAIMABLE, found.send_again, (_SAME, S.STOPPED)),
        ((S.RUNNING, S.STOPPING, *_RESTING), found.drop_deadline, _STAY),
    ),
    O.ATTEMPT_DUE: _cells(
        (_CLAIMABLE, found.send_again, (_SAME, S.STOPPED)),
        ((S.RUNNING, S.STOPPING, *_RESTING), found.drop_deadline, _STAY),
    ),
    O.WAIT_DUE: _cells(
        ((S.WAITING,), waits.wait_due, (_SAME, S.STARTING)),
        ((*_LIVE, *_IDLE, S.PAUSED, *_OVER), found.drop_deadline, _STAY),
    ),
    O.RECONCILE: _cells(
        (_CLAIMABLE, found.reconcile_hosted, (_SAME, S.STOPPING, S.STOPPED)),
        ((S.RUNNING, S.STOPPING), found.reconcile_hosted, (_SAME, S.STOPPING)),
        (_IDLE, found.reconcile_resting, (_SAME, S.STARTING)),
        ((S.WAITING,), waits.reconcile_waiting, (_SAME, S.STARTING)),
        ((S.PARKED,), found.reconcile_parked, (_SAME, S.STARTING, S.STOPPED, S.PAUSED)),
        ((S.PAUSED, S.COMPLETED), asked.nothing, _STAY),
    ),
    O.GROUP_STOP: _cells(
        (_HOSTABLE, grouped.group_stop, (_SAME, S.STOPPING)),
        ((S.STOPPING,), grouped.group_stop, _STAY),
        (_RESTING, asked.nothing, _STAY),
    ),
    O.GROUP_GO: _cells(
        (_CLAIMABLE, grouped.group_go, (_SAME, S.STOPPED)),
        ((S.RUNNING, S.STOPPING, *_RESTING), asked.nothing, _STAY),
    ),
    O.GROUP_PARK: _cells(
        (_CLAIMABLE, grouped.group_park, (_SAME, S.PARKED)),
        ((S.RUNNING, S.STOPPING, *_RESTING), asked.nothing, _STAY),
    ),
    O.GROUP_DUE: _cells((tuple(S), grouped.group_due, _STAY)),
    O.FORK: _cells((tuple(S), forks.fork_existing, _STAY)),
    O.FORK_DONE: _cells(
        ((S.REGISTERED,), forks.fork_done, (_SAME, S.STARTING)),
        ((*_LIVE, S.STOPPED, *_ASLEEP, *_OVER), asked.nothing, _STAY),
    ),
    O.CHILDREN_DUE: _cells((tuple(S), family.children_due, _STAY)),
    O.REPORT_DUE: _cells((tuple(S), family.report_due, _STAY)),
    O.RESUME_DUE: _cells(
        ((S.PAUSED,), pauses.resume_due, (_SAME, S.STARTING)),
        ((S.STOPPING,), pauses.resume_due, _STAY),
        ((*_HOSTABLE, *_IDLE, S.WAITING, *_OVER), found.drop_deadline, _STAY),
    ),
}

_DUE: Final[Mapping[Deadline, Operation]] = {
    Deadline.LEASE: O.LEASE_DUE,
    Deadline.NUDGE: O.NUDGE_DUE,
    Deadline.ATTEMPT: O.ATTEMPT_DUE,
    Deadline.STOP: O.STOP_DUE,
    Deadline.HANG: O.HANG_DUE,
    Deadline.TIMER: O.WAIT_DUE,
    Deadline.APPROVAL: O.WAIT_DUE,
    Deadline.RECONCILE: O.RECONCILE,
    Deadline.GROUP: O.GROUP_DUE,
    Deadline.CHILDREN: O.CHILDREN_DUE,
    Deadline.REPORT: O.REPORT_DUE,
    Deadline.RESUME: O.RESUME_DUE,
}
#: Operations that make an agent that does not exist.
_BIRTHS: Final[Mapping[Operation, Handler]] = {
    O.REGISTER: asked.register,
    O.START: asked.start_new,
    O.FORK: forks.fork,
    O.SPAWN: family.spawn_new,
}
#: Reports about an agent that was deleted: nothing to do, and no error.
_LATE: Final = frozenset({O.OWNER_EXITED, O.RECONCILE})
#: What incarnations say: without a record their time is over.
_OF_INCARNATIONS: Final = frozenset({O.CLAIM, O.MARK_RUNNING, O.RELEASE, O.COMPLETE, O.PARK, O.WAIT, O.ATTEMPT_FAILED})


def operation_of(command: Command) -> Operation:
    """The row that a command belongs to."""
    if isinstance(command, commands.DeadlineDue):
        return _DUE[command.kind]
    return command.operation


def decide(situation: Situation, command: Command, *, agent_id: str = "") -> Plan:
    """Decides what a command does to an agent; the only place that decides a life.

    Args:
        situation: The record as read, and the Redis TIME of that read.
        command: What is asked or was found out.
        agent_id: For the error text when there is no record.

    Returns:
        The Plan: record, deadlines, events and nudge that belong together; ``ignored`` says why nothing is to be done.

    Raises:
        AresError: The operation is refused; the class says why.
    """
    operation = operation_of(command)
    record = situation.record
    if record is not None:
        forks.refuse_forking(record, operation)
        plan = _joining(TABLE[operation][record.state].handler(situation, command), situation.now)
        plan = family.reporting(family.cascading(plan, situation), situation)
        if isinstance(command, commands.Fenced) and command.found:
            return _with_findings(plan, record, command.found)
        return _spent(plan, command.kind) if isinstance(command, commands.DeadlineDue) else plan
    if operation in _BIRTHS and getattr(command, "spec", None) is not None:
        return _joining(_BIRTHS[operation](situation, command), situation.now)
    if isinstance(command, commands.DeadlineDue):
        return Plan(command, None, None, deadlines={command.kind: None})
    if operation in _LATE:
        return ignore(situation, command, "deleted")
    if operation in _OF_INCARNATIONS:
        raise FencedError(agent_id=agent_id, epoch=_epoch_of(command), reason="deleted")
    raise AgentNotFoundError(agent_id=agent_id)


def _joining(plan: Plan, now: Instant) -> Plan:
    """Has the group told of a new member, kept in the order in which they came, and the old one of its loss."""
    before, after = plan.before, plan.after
    if plan.ignored or after is None:
        return plan
    left, group = (before.spec.group if before else None), after.spec.group
    if left == group:
        return plan
    plan = replace(plan, left_group=left or "")
    return plan if group is None else replace(plan, deadlines={Deadline.GROUP: now, **plan.deadlines})


def _spent(plan: Plan, kind: Deadline) -> Plan:
    """Clears the deadline that was acted on unless the plan moved it: what found nothing to do must not stay due."""
    if kind in plan.deadlines:
        return plan
    return replace(plan, deadlines={**plan.deadlines, kind: None}, ignored="")


def _with_findings(plan: Plan, record: AgentRecord, findings: tuple[commands.Finding, ...]) -> Plan:
    """Says what recovery came across before what is decided, and counts it; not when nothing is decided."""
    if plan.ignored:
        return plan
    told = tuple(lifecycle_event(record, finding.kind, **finding.payload) for finding in findings)
    counters = Counter(plan.counters)
    counters.update(finding.counter for finding in findings)
    return replace(plan, events=(*told, *plan.events), counters=dict(counters))


def _epoch_of(command: Command) -> str:
    if isinstance(command, commands.Claim):
        return str(command.epoch)
    return command.fence.partition("|")[0] if isinstance(command, commands.Fenced) else ""
