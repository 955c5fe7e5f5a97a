"""What agents have to do with those that they spawned: births, stops that cascade, reports of an end. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

from ares_celery.clock import micros
from ares_celery.errors import AgentAlreadyRegisteredError, AgentParkedError, NilAgentError
from ares_celery.ids import Instant
from ares_celery.model import command as commands
from ares_celery.model.agent import AT_REST, AgentRecord, AgentSpec, AgentState, Desired
from ares_celery.model.birth import Birth
from ares_celery.model.command import Command, Deadline
from ares_celery.model.event import EventType, NewEvent
from ares_celery.model.plan import Plan, Situation
from ares_celery.model.rules_asked import demand_runtime, started_anew
from ares_celery.model.transitions import ignore, launch, lifecycle_event, next_epoch, renew, the_record

__all__ = ["cascading", "children_due", "is_final", "is_spawned", "report_due", "reporting", "spawn", "spawn_new"]

#: Why an agent that was born stopped does not run.
_PARENT_STOPPED: Final = "parent_stopped"


def spawn_new(situation: Situation, command: Command) -> Plan:
    """Makes the agent and its first incarnation claimable; born stopped when its parent is asked to stop."""
    asked = cast("commands.Spawn", command)
    if asked.spec is None:
        raise NilAgentError
    record = AgentRecord(
        asked.spec,
        Desired.RUNNING,
        epoch=next_epoch(None, situation.now),
        reason=command.reason,
        actor=command.actor,
        start_reason="spawn",
        root=asked.root,
        birth=asked.birth,
    )
    if asked.stillborn:
        after = replace(record, desired=Desired.STOPPED, state=AgentState.STOPPED, reason=_PARENT_STOPPED)
        said = lifecycle_event(record, EventType.AGENT_STOPPED, reason=_PARENT_STOPPED)
        return Plan(command, None, after, (said,))
    demand_runtime(situation)
    return _launched(situation, command, record)


def _launched(situation: Situation, command: Command, record: AgentRecord) -> Plan:
    """The parent may have been stopped meanwhile by somebody who could not see the child yet: looked at, soon."""
    plan = launch(situation, command, record)
    return replace(plan, deadlines={**plan.deadlines, Deadline.CHILDREN: situation.now})


def spawn(situation: Situation, command: Command) -> Plan:
    """A repeat of the call that spawned it changes nothing; another one starts a child of its own that rests."""
    asked, record = cast("commands.Spawn", command), the_record(situation)
    if asked.spec is None or asked.birth is None:
        raise NilAgentError
    if is_spawned(record, asked.spec, asked.birth):
        return ignore(situation, command, "spawned already")
    if asked.stillborn:
        return ignore(situation, command, "its parent is asked to stop")
    demand_runtime(situation)
    anew = started_anew(record, asked.spec, command)
    after = replace(renew(anew, situation.now), start_reason="spawn", root=asked.root, birth=asked.birth)
    return _launched(situation, command, after)


def is_spawned(record: AgentRecord, spec: AgentSpec, birth: Birth) -> bool:
    """The very call has spawned it; False: that call may start it again.

    Raises:
        AgentAlreadyRegisteredError: It is no child of this parent, or one of another call that goes on.
        AgentParkedError: It waits for a person.
    """
    known = {"agent_id": record.spec.id, "state": record.state.value, "desired": record.desired.value}
    if record.birth is None or record.spec.parent != spec.parent:
        problem = f"agent {record.spec.id!r} exists and is no child of {spec.parent!r}; choose another id"
        raise AgentAlreadyRegisteredError(known, message=problem)
    if _is_repeat(record, record.birth, birth):
        return True
    if record.state is AgentState.PARKED:
        raise AgentParkedError(agent_id=record.spec.id, cause=record.cause, reason=record.reason, operation="spawn")
    if is_final(record) or record.state is AgentState.REGISTERED:
        return False
    problem = (
        f"child {record.spec.id!r} was spawned by another call and is {record.state}; give each call ids of its own, "
        "or wait for its result"
    )
    raise AgentAlreadyRegisteredError(known, message=problem)


def _is_repeat(record: AgentRecord, known: Birth, asked: Birth) -> bool:
    """The same call once more; one of a parent that was started anew means it only while the child goes on."""
    return known.key == asked.key and (known.starts == asked.starts or not is_final(record))


def is_final(record: AgentRecord) -> bool:
    """It has come to an end that nothing but a wish changes: completed, parked, or stopped for good."""
    if record.state is AgentState.STOPPED:
        return record.desired is Desired.STOPPED
    return record.state in (AgentState.COMPLETED, AgentState.PARKED)


def cascading(plan: Plan, situation: Situation) -> Plan:
    """Lets a stop reach those that the agent has spawned, also when it rests itself; by a deadline, as many may be."""
    record = situation.record
    if record is None or not record.children or not isinstance(plan.command, commands.Stop):
        return plan
    if plan.ignored and record.state not in AT_REST:
        return plan
    after = plan.after or record
    due: dict[Deadline, Instant | None] = {Deadline.CHILDREN: situation.now}
    return replace(plan, after=replace(after, stops=record.stops + 1), deadlines={**plan.deadlines, **due}, ignored="")


def reporting(plan: Plan, situation: Situation) -> Plan:
    """Has the end of a child told to its parent; none that was born stopped, which the parent knows."""
    before, after = plan.before, plan.after
    if plan.ignored or before is None or after is None or after.birth is None or not after.birth.reports:
        return plan
    if not is_final(after) or (is_final(before) and before.epoch == after.epoch):
        return plan
    return replace(plan, deadlines={**plan.deadlines, Deadline.REPORT: situation.now})


def children_due(situation: Situation, command: Command) -> Plan:
    """Those that it spawned were asked to stop with it; looked at again until they have."""
    return _again(situation, command)


def report_due(situation: Situation, command: Command) -> Plan:
    """Its end was told to its parent, is told later, or nobody is there to be told."""
    plan, due, record = _again(situation, command), cast("commands.DeadlineDue", command), the_record(situation)
    if not due.dropped:
        return plan
    said: NewEvent = lifecycle_event(
        record,
        EventType.CHILD_REPORT_DROPPED,
        parent=record.spec.parent,
        state=record.state.value,
        reason=due.dropped,
    )
    return replace(plan, events=(said,))


def _again(situation: Situation, command: Command) -> Plan:
    record, due = the_record(situation), cast("commands.DeadlineDue", command)
    at = None if due.again is None else Instant(situation.now + micros(due.again))
    return Plan(command, record, record, deadlines={due.kind: at})
