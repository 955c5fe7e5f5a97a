"""The one place that decides an agent's life: a transition table as data, and ``decide`` which looks into it. Pure.

Rows are operations, columns are states; docs/reference/lifecycle.md is generated from :data:`TABLE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ares_celery.errors import AgentNotFoundError, FencedError
from ares_celery.model import command as commands
from ares_celery.model import rules
from ares_celery.model.agent import AgentState
from ares_celery.model.command import Command, Deadline, Operation
from ares_celery.model.plan import Plan, Situation
from ares_celery.model.transitions import ignore

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
    O.REGISTER: _cells((tuple(S), rules.keep, _STAY)),
    O.START: _cells(
        (_IDLE, rules.start, _BEGUN),
        ((S.COMPLETED,), rules.start, (S.STARTING,)),
        ((S.STARTING, S.RUNNING, S.STOPPING), rules.start, (_SAME, S.STOPPING)),
        ((S.RESURRECTING,), rules.start, (_SAME, S.STOPPING, S.STARTING)),
        (_ASLEEP, rules.start, (_SAME, S.STARTING)),
        ((S.PARKED,), rules.refuse_parked, _STAY),
    ),
    O.STOP: _cells(
        (_LIVE, rules.stop_hosted, (S.STOPPING, S.STOPPED)),
        ((*_IDLE, *_ASLEEP), rules.stop_resting, (S.STOPPED,)),
        (_OVER, rules.stop_over, _STAY),
    ),
    O.PAUSE: _cells(
        (_CLAIMABLE, rules.pause, (S.STOPPING, S.PAUSED)),
        ((S.RUNNING, S.STOPPING), rules.pause, (S.STOPPING,)),
        (_ASLEEP, rules.nothing, _STAY),
        ((*_IDLE, S.COMPLETED), rules.refuse_state, _STAY),
        ((S.PARKED,), rules.refuse_parked, _STAY),
    ),
    O.RESUME: _cells(
        ((S.PAUSED,), rules.resume, (S.STARTING,)),
        ((S.STOPPING,), rules.resume, _STAY),
        ((*_HOSTABLE, *_IDLE, S.WAITING, *_OVER), rules.resume_other, _STAY),
    ),
    O.RESTART: _cells(
        (_CLAIMABLE, rules.restart, (S.STOPPING, S.STARTING)),
        ((S.RUNNING, S.STOPPING), rules.restart, (S.STOPPING,)),
        (_IDLE, rules.restart, _BEGUN),
        ((*_ASLEEP, S.COMPLETED), rules.restart, (S.STARTING,)),
        ((S.PARKED,), rules.restart_parked, (S.STARTING,)),
    ),
    O.RESTORE: _cells(
        ((S.STARTING,), rules.restore, (_SAME, S.STOPPING)),
        ((S.RUNNING, S.STOPPING), rules.restore, (S.STOPPING,)),
        ((S.RESURRECTING,), rules.restore, _STAY),
        ((*_IDLE, *_ASLEEP, S.COMPLETED), rules.refuse_state, _STAY),
        ((S.PARKED,), rules.refuse_parked, _STAY),
    ),
    O.UPDATE: _cells((tuple(S), rules.update, _STAY)),
    O.DELETE: _cells((_LIVE, rules.refuse_delete, _STAY), (_RESTING, rules.delete, _STAY)),
    O.CLAIM: _cells(
        (_CLAIMABLE, rules.claim, _STAY),
        ((S.RUNNING, S.STOPPING, *_RESTING), rules.refuse_claim, _STAY),
    ),
    O.MARK_RUNNING: _cells(
        (_HOSTABLE, rules.mark_running, (S.RUNNING,)),
        ((S.STOPPING,), rules.fenced_ignore, _STAY),
        (_RESTING, rules.refuse_fenced, _STAY),
    ),
    O.RELEASE: _cells(
        (_HOSTABLE, rules.release, (S.STARTING, S.STOPPED)),
        ((S.STOPPING,), rules.release, _SETTLED),
        (_RESTING, rules.refuse_fenced, _STAY),
    ),
    O.COMPLETE: _cells((_LIVE, rules.complete, (S.COMPLETED,)), (_RESTING, rules.refuse_fenced, _STAY)),
    O.PARK: _cells((_LIVE, rules.park_hosted, (S.PARKED,)), (_RESTING, rules.refuse_fenced, _STAY)),
    O.DIE: _cells(
        (_HOSTABLE, rules.death, (_SAME, S.STOPPING, *_DIED)),
        ((S.STOPPING,), rules.death_while_stopping, (_SAME, *_SETTLED)),
        (_RESTING, rules.nothing, _STAY),
    ),
    O.ATTEMPT_FAILED: _cells(
        (_HOSTABLE, rules.recovery_failed, _DIED),
        ((S.STOPPING,), rules.recovery_failed, _SETTLED),
        (_RESTING, rules.refuse_fenced, _STAY),
    ),
    O.OWNER_EXITED: _cells(
        (_HOSTABLE, rules.owner_exited, (_SAME, *_DIED)),
        ((S.STOPPING,), rules.owner_exited, (_SAME, *_SETTLED)),
        (_RESTING, rules.owner_exited, _STAY),
    ),
    O.LEASE_DUE: _cells(
        (_CLAIMABLE, rules.lease_due, (_SAME, *_DIED)),
        ((S.RUNNING,), rules.lease_due, _DIED),
        ((S.STOPPING,), rules.lease_due, _SETTLED),
        (_RESTING, rules.drop_deadline, _STAY),
    ),
    O.STOP_DUE: _cells(
        ((S.STOPPING,), rules.stop_due, _SETTLED),
        ((*_HOSTABLE, *_RESTING), rules.drop_deadline, _STAY),
    ),
    O.HANG_DUE: _cells(
        (_CLAIMABLE, rules.hang_due, (_SAME, *_DIED)),
        ((S.RUNNING, S.STOPPING, *_RESTING), rules.drop_deadline, _STAY),
    ),
    O.NUDGE_DUE: _cells(
        (_CLAIMABLE, rules.send_again, (_SAME, S.STOPPED)),
        ((S.RUNNING, S.STOPPING, *_RESTING), rules.drop_deadline, _STAY),
    ),
    O.ATTEMPT_DUE: _cells(
        (_CLAIMABLE, rules.send_again, (_SAME, S.STOPPED)),
        ((S.RUNNING, S.STOPPING, *_RESTING), rules.drop_deadline, _STAY),
    ),
    O.RECONCILE: _cells(
        (_CLAIMABLE, rules.reconcile_hosted, (_SAME, S.STOPPING, S.STOPPED)),
        ((S.RUNNING, S.STOPPING), rules.reconcile_hosted, (_SAME, S.STOPPING)),
        (_IDLE, rules.reconcile_resting, (_SAME, S.STARTING)),
        ((*_ASLEEP, *_OVER), rules.nothing, _STAY),
    ),
}

_DUE: Final[Mapping[Deadline, Operation]] = {
    Deadline.LEASE: O.LEASE_DUE,
    Deadline.NUDGE: O.NUDGE_DUE,
    Deadline.ATTEMPT: O.ATTEMPT_DUE,
    Deadline.STOP: O.STOP_DUE,
    Deadline.HANG: O.HANG_DUE,
    Deadline.RECONCILE: O.RECONCILE,
}
#: Operations that make an agent that does not exist.
_BIRTHS: Final[Mapping[Operation, Handler]] = {O.REGISTER: rules.register, O.START: rules.start_new}
#: Reports about an agent that was deleted: nothing to do, and no error.
_LATE: Final = frozenset({O.OWNER_EXITED, O.RECONCILE})
#: What incarnations say: without a record their time is over.
_OF_INCARNATIONS: Final = frozenset({O.CLAIM, O.MARK_RUNNING, O.RELEASE, O.COMPLETE, O.PARK, O.ATTEMPT_FAILED})


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
        plan = TABLE[operation][record.state].handler(situation, command)
        return _spent(plan, command.kind) if isinstance(command, commands.DeadlineDue) else plan
    if operation in _BIRTHS and getattr(command, "spec", None) is not None:
        return _BIRTHS[operation](situation, command)
    if isinstance(command, commands.DeadlineDue):
        return Plan(command, None, None, deadlines={command.kind: None})
    if operation in _LATE:
        return ignore(situation, command, "deleted")
    if operation in _OF_INCARNATIONS:
        raise FencedError(agent_id=agent_id, epoch=_epoch_of(command), reason="deleted")
    raise AgentNotFoundError(agent_id=agent_id)


def _spent(plan: Plan, kind: Deadline) -> Plan:
    """Clears the deadline that was acted on unless the plan moved it: what found nothing to do must not stay due."""
    if kind in plan.deadlines:
        return plan
    return replace(plan, deadlines={**plan.deadlines, kind: None}, ignored="")


def _epoch_of(command: Command) -> str:
    if isinstance(command, commands.Claim):
        return str(command.epoch)
    return command.fence.partition("|")[0] if isinstance(command, commands.Fenced) else ""
