"""What people ask: the handlers of start, stop, pause, restart and their like. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from ares_celery.errors import (
    AgentAlreadyRegisteredError,
    AgentNotFoundError,
    AgentNotParkedError,
    AgentNotRunningError,
    AgentParkedError,
    NilAgentError,
    OperationNotSupportedError,
    RuntimeStoppedError,
    VersionConflictError,
)
from ares_celery.ids import Instant
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Desired, Request, RuntimeState
from ares_celery.model.budget import changed_budget, exceeded_by
from ares_celery.model.command import Command
from ares_celery.model.event import EventType, NewEvent
from ares_celery.model.plan import Plan, Situation
from ares_celery.model.transitions import (
    UNKNOWN_OUTCOME,
    ask,
    end,
    ignore,
    launch,
    lease_end,
    lifecycle_event,
    next_epoch,
    renew,
    rest,
    the_record,
    without_proof,
)


def register(situation: Situation, command: Command) -> Plan:
    """Makes the agent known; before the runtime runs it is also meant to run."""
    spec = cast("commands.Register", command).spec
    if spec is None:
        raise NilAgentError
    desired = Desired.STOPPED if situation.runtime is RuntimeState.RUNNING else Desired.RUNNING
    record = AgentRecord(
        spec, desired, epoch=next_epoch(None, situation.now), reason=command.reason, actor=command.actor
    )
    return Plan(command, None, record)


def keep(situation: Situation, command: Command) -> Plan:
    """It exists; the newest factory of its type serves its next incarnation anyway."""
    return ignore(situation, command, "registered already")


def start_new(situation: Situation, command: Command) -> Plan:
    """Makes the agent and its first incarnation claimable."""
    spec = cast("commands.Start", command).spec
    if spec is None:
        raise AgentNotFoundError(agent_id="")
    demand_runtime(situation)
    epoch = next_epoch(None, situation.now)
    record = AgentRecord(spec, Desired.RUNNING, epoch=epoch, reason=command.reason, actor=command.actor)
    return launch(situation, command, record)


def start(situation: Situation, command: Command) -> Plan:
    """Starts a resting agent with its state kept and its counters at zero, or applies `if_exists`."""
    asked, record = cast("commands.Start", command), the_record(situation)
    demand_runtime(situation)
    simply = (AgentState.REGISTERED, AgentState.STOPPED, AgentState.COMPLETED)
    if record.desired is not Desired.STOPPED and record.state not in simply:
        return _exists(situation, asked, record)
    base = replace(started_anew(record, asked.spec or record.spec, command), begun_at=_begun(situation, record))
    if record.state is AgentState.STOPPING:
        return Plan(command, record, base)
    return launch(situation, command, renew(base, situation.now))


def started_anew(record: AgentRecord, spec: AgentSpec, command: Command) -> AgentRecord:
    """The record as somebody starts it: its state is kept, its counters begin at zero."""
    return replace(
        record,
        spec=spec,
        desired=Desired.RUNNING,
        reason=command.reason,
        actor=command.actor or record.actor,
        cause="",
        last_error="",
        restarts=0,
        charged=0,
        charged_at=(),
        deaths={},
        lost_together=(),
        manual_restarts=0,
        failures=0,
        attempt=0,
        start_reason="start",
        result="",
        woken_until=Instant(0),
        woken_sleeps=0,
        woken_at=Instant(0),
        starts=record.starts + 1,
    )


def _begun(situation: Situation, record: AgentRecord) -> Instant:
    """When this run of the agent began: one that had completed begins a new one."""
    return situation.now if record.state is AgentState.COMPLETED else record.begun_at


def _exists(situation: Situation, asked: commands.Start, record: AgentRecord) -> Plan:
    match asked.if_exists:
        case "return":
            return ignore(situation, asked, "exists")
        case "restart":
            return restart(situation, asked)
        case "update":
            after = replace(record, spec=asked.spec or record.spec)
            return Plan(asked, record, after, ignored="" if after != record else "same spec")
        case _:
            known = {"agent_id": record.spec.id, "state": record.state.value, "desired": record.desired.value}
            if record.desired is Desired.PAUSED:
                raise AgentAlreadyRegisteredError(
                    known, message=f"agent {record.spec.id!r} exists and is paused; resume_agent lets it run again"
                )
            raise AgentAlreadyRegisteredError(known)


def demand_runtime(situation: Situation) -> None:
    """Refuses to start anything while the runtime is stopped or frozen. Raises RuntimeStoppedError."""
    if situation.runtime in (RuntimeState.STOPPED, RuntimeState.FROZEN):
        raise RuntimeStoppedError(namespace=situation.namespace, state=situation.runtime.value)


def refuse_parked(situation: Situation, command: Command) -> Plan:
    """A parked agent waits for a person."""
    record = the_record(situation)
    raise AgentParkedError(
        agent_id=record.spec.id,
        cause=record.cause,
        reason=record.reason,
        operation=command.operation.value,
        **({"intents": record.intents} if record.cause == UNKNOWN_OUTCOME else {}),
    )


def refuse_state(situation: Situation, command: Command) -> Plan:
    """The operation has no meaning in this state."""
    record = the_record(situation)
    raise AgentNotRunningError(
        agent_id=record.spec.id, state=record.state.value, operation=command.operation.value.replace("_", " ")
    )


def stop_hosted(situation: Situation, command: Command) -> Plan:
    """Wants it stopped: an incarnation is asked to end (by force: ended at once), an unclaimed one is called off."""
    asked, record = cast("commands.Stop", command), the_record(situation)
    if record.desired is Desired.STOPPED and record.state is AgentState.STOPPING and not asked.force:
        return ignore(situation, command, "stopping already")
    wanted = replace(
        record, desired=Desired.STOPPED, reason=command.reason or "explicit_stop", actor=command.actor or record.actor
    )
    if record.hosted and not asked.force:
        return ask(situation, command, wanted, Request.STOP)
    after = end(wanted, situation.now, claimable_after=lease_end(situation))
    stopped = lifecycle_event(record, EventType.AGENT_STOPPED, reason="explicit_stop")
    return without_proof(rest(situation, command, after, AgentState.STOPPED, events=(stopped,)))


def stop_resting(situation: Situation, command: Command) -> Plan:
    """It does not run; makes sure that nothing starts it."""
    record = the_record(situation)
    if record.state is AgentState.STOPPED and record.desired is Desired.STOPPED:
        return ignore(situation, command, "stopped already")
    after = replace(
        renew(record, situation.now),
        desired=Desired.STOPPED,
        reason=command.reason or "explicit_stop",
        actor=command.actor or record.actor,
    )
    stopped = lifecycle_event(record, EventType.AGENT_STOPPED, reason="explicit_stop")
    return rest(situation, command, after, AgentState.STOPPED, events=(stopped,))


def stop_over(situation: Situation, command: Command) -> Plan:
    """It is over already; only the wish is noted."""
    record = the_record(situation)
    if record.desired is Desired.STOPPED:
        return ignore(situation, command, f"{record.state} already")
    return Plan(command, record, replace(record, desired=Desired.STOPPED, actor=command.actor or record.actor))


def nothing(situation: Situation, command: Command) -> Plan:
    """Nothing to do in this state."""
    return ignore(situation, command, f"nothing to do while {the_record(situation).state}")


def restart(situation: Situation, command: Command) -> Plan:
    """Asks a hosted incarnation to end so that a new one begins; a resting one is started; counted as by hand."""
    record = the_record(situation)
    demand_runtime(situation)
    wanted = replace(
        record, desired=Desired.RUNNING, reason=command.reason or "restart", actor=command.actor or record.actor
    )
    if record.hosted:
        return ask(situation, command, wanted, Request.RESTART)
    closing: tuple[NewEvent, ...] = ()
    if record.failover:
        closing = (lifecycle_event(record, EventType.FAILOVER_ABORTED, reason="restart"),)
    after = replace(
        renew(wanted, situation.now),
        manual_restarts=record.manual_restarts + 1,
        failover=False,
        attempt=0,
        failures=0,
        start_reason="restart",
        begun_at=_begun(situation, record),
        result="",
        starts=record.starts + (record.state is AgentState.COMPLETED),
    )
    return launch(situation, command, after, events=closing, counters={"manual_restarts": 1})


def restart_parked(situation: Situation, command: Command) -> Plan:
    """A person un-parks: no death counts any more; what must be settled first stays parked."""
    record = the_record(situation)
    is_open = record.cause == UNKNOWN_OUTCOME and bool(record.intents)
    if record.cause == "integrity" or is_open or _has_no_budget(record):
        return refuse_parked(situation, command)
    fresh = replace(record, charged=0, charged_at=(), lost_together=(), cause="", last_error="")
    plan = restart(replace(situation, record=fresh), command)
    return replace(plan, before=record)


def _has_no_budget(record: AgentRecord) -> bool:
    """It would only be parked again: its own budget is used up. One that it shares is known elsewhere."""
    return record.cause == "budget" and exceeded_by(record.spending, record.spec.id) is not None


def unpark(situation: Situation, command: Command) -> Plan:
    """Un-parks as a restart does; with `accept_loss` from cause integrity, whose losses up to now count as accepted."""
    record = the_record(situation)
    if not cast("commands.Unpark", command).accept_loss:
        return restart_parked(situation, command)
    if record.cause != "integrity":
        raise OperationNotSupportedError(
            operation=f"unpark agent {record.spec.id!r} with accept_loss",
            reason=f"its cause is {record.cause or 'not known'}, so no loss was found; leave accept_loss out",
            agent_id=record.spec.id,
            cause=record.cause,
        )
    settled = replace(record, cause="", accepted_version=record.version, begin_anew=True)
    return replace(restart_parked(replace(situation, record=settled), command), before=record)


def refuse_unparked(situation: Situation, command: Command) -> Plan:  # noqa: ARG001 - every handler takes both
    """There is nothing to unpark."""
    record = the_record(situation)
    raise AgentNotParkedError(agent_id=record.spec.id, state=record.state.value)


def restore(situation: Situation, command: Command) -> Plan:
    """Fails over on purpose; two at once: one wins, the other gets a conflict."""
    record = the_record(situation)
    if record.desired is not Desired.RUNNING:
        return refuse_state(situation, command)
    if record.state is AgentState.RESURRECTING or record.request in (Request.RESTORE, Request.DIE, Request.RESTART):
        raise VersionConflictError(
            subject=f"agent {record.spec.id!r}", actual=record.state.value, expected="running", agent_id=record.spec.id
        )
    kind = cast("commands.Restore", command).type or record.spec.type
    wanted = replace(record, spec=_with(record.spec, type=kind))
    if record.hosted:
        return ask(situation, command, replace(wanted, reason="restore"), Request.RESTORE)
    if wanted != record:
        return Plan(command, record, wanted)
    return ignore(situation, command, "starting already")


def _with(spec: AgentSpec, **fields: object) -> AgentSpec:
    """The spec with other fields, whose values were checked by the caller."""
    return (
        spec if all(getattr(spec, name) == value for name, value in fields.items()) else spec.model_copy(update=fields)
    )


def update(situation: Situation, command: Command) -> Plan:
    """Replaces the spec; the next incarnation gets it. When asked to, a running one ends for it."""
    asked, record = cast("commands.Update", command), the_record(situation)
    spec = asked.spec or record.spec
    if asked.config is not None:
        spec = _with(spec, config={**(spec.config if asked.merge else {}), **asked.config})
    if asked.budget is not None:
        spec = _with(spec, budget=changed_budget(spec.budget, asked.budget))
    # One that is not hosted gets it anyway, and one that ends already makes room for it, if it is meant to run at all.
    runs = situation.runtime is RuntimeState.RUNNING and record.hosted and record.state is not AgentState.STOPPING
    if asked.restart and runs:
        plan = restart(replace(situation, record=replace(record, spec=spec)), command)
        return replace(plan, before=record)
    if spec == record.spec:
        return ignore(situation, command, "same spec")
    return Plan(command, record, replace(record, spec=spec, actor=command.actor or record.actor))


def delete(situation: Situation, command: Command) -> Plan:
    """Forgets a resting agent; a late claim or write finds nothing. Waits for a process that was not seen to end."""
    record = the_record(situation)
    if record.claimable_after > situation.now:
        left = (record.claimable_after - situation.now) / 1_000_000
        raise OperationNotSupportedError(
            operation=f"delete agent {record.spec.id!r}",
            reason=f"the process of its last incarnation may still run; try again in {left:.1f} s",
            agent_id=record.spec.id,
            state=record.state.value,
        )
    return Plan(command, situation.record, None, free_host=True)


def refuse_delete(situation: Situation, command: Command) -> Plan:  # noqa: ARG001 - every handler takes both
    """It may be hosted: stop it first."""
    record = the_record(situation)
    raise OperationNotSupportedError(
        operation=f"delete agent {record.spec.id!r}",
        reason=f"it is {record.state}; stop it first",
        agent_id=record.spec.id,
        state=record.state.value,
    )
