"""What each operation does in each state: the handlers that the transition table names. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from ares_celery.clock import micros
from ares_celery.errors import (
    AgentAlreadyRegisteredError,
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    FencedError,
    NilAgentError,
    OperationNotSupportedError,
    RuntimeStoppedError,
    VersionConflictError,
)
from ares_celery.ids import Instant
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentRecord, AgentState, Desired, Request, RuntimeState
from ares_celery.model.command import Command, Deadline
from ares_celery.model.event import EventType, NewEvent
from ares_celery.model.plan import NUDGE_SPACING, Plan, Situation
from ares_celery.model.restart import DeathCause
from ares_celery.model.transitions import (
    ask,
    attempt_failed,
    die,
    end,
    ignore,
    launch,
    lifecycle_event,
    next_epoch,
    park,
    rest,
    settle,
)

#: A report without an epoch means the incarnation now alive; a younger one was not meant.
_YOUNG = 1_000_000
#: Causes that a restart may not wave through.
_UNSETTLED = frozenset({"reconcile", "integrity"})


def _record(situation: Situation) -> AgentRecord:
    return cast("AgentRecord", situation.record)


# -- what people ask ---------------------------------------------------------------------------------------------------


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
    _demand_runtime(situation)
    epoch = next_epoch(None, situation.now)
    record = AgentRecord(spec, Desired.RUNNING, epoch=epoch, reason=command.reason, actor=command.actor)
    return launch(situation, command, record)


def start(situation: Situation, command: Command) -> Plan:
    """Starts a resting agent with its state kept and its counters at zero, or applies `if_exists`."""
    asked, record = cast("commands.Start", command), _record(situation)
    _demand_runtime(situation)
    simply = (AgentState.REGISTERED, AgentState.STOPPED, AgentState.COMPLETED)
    if record.desired is not Desired.STOPPED and record.state not in simply:
        return _exists(situation, asked, record)
    base = replace(
        record,
        spec=asked.spec or record.spec,
        desired=Desired.RUNNING,
        reason=command.reason,
        actor=command.actor or record.actor,
        cause="",
        last_error="",
        restarts=0,
        charged=0,
        charged_at=(),
        manual_restarts=0,
        failures=0,
        attempt=0,
        start_reason="start",
        result="",
    )
    if record.state is AgentState.STOPPING:
        return Plan(command, record, base)
    return launch(situation, command, _renew(base, situation.now))


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
            raise AgentAlreadyRegisteredError(
                agent_id=record.spec.id, state=record.state.value, desired=record.desired.value
            )


def _renew(record: AgentRecord, now: Instant) -> AgentRecord:
    """The resting record with the epoch of its next incarnation; a process not seen to end is still waited for."""
    return end(record, now, claimable_after=record.claimable_after)


def _demand_runtime(situation: Situation) -> None:
    if situation.runtime in (RuntimeState.STOPPED, RuntimeState.FROZEN):
        raise RuntimeStoppedError(namespace=situation.namespace, state=situation.runtime.value)


def refuse_parked(situation: Situation, command: Command) -> Plan:
    """A parked agent waits for a person."""
    record = _record(situation)
    raise AgentParkedError(
        agent_id=record.spec.id, cause=record.cause, reason=record.reason, operation=command.operation.value
    )


def refuse_state(situation: Situation, command: Command) -> Plan:
    """The operation has no meaning in this state."""
    record = _record(situation)
    raise AgentNotRunningError(
        agent_id=record.spec.id, state=record.state.value, operation=command.operation.value.replace("_", " ")
    )


def stop_hosted(situation: Situation, command: Command) -> Plan:
    """Wants it stopped: an incarnation is asked to end (by force: ended at once), an unclaimed one is called off."""
    asked, record = cast("commands.Stop", command), _record(situation)
    if record.desired is Desired.STOPPED and record.state is AgentState.STOPPING and not asked.force:
        return ignore(situation, command, "stopping already")
    wanted = replace(
        record, desired=Desired.STOPPED, reason=command.reason or "explicit_stop", actor=command.actor or record.actor
    )
    if record.hosted and not asked.force:
        return ask(situation, command, wanted, Request.STOP)
    after = end(wanted, situation.now, claimable_after=_until(situation))
    stopped = lifecycle_event(record, EventType.AGENT_STOPPED, reason="explicit_stop")
    return rest(situation, command, after, AgentState.STOPPED, events=(stopped,))


def stop_resting(situation: Situation, command: Command) -> Plan:
    """It does not run; makes sure that nothing starts it."""
    record = _record(situation)
    if record.state is AgentState.STOPPED and record.desired is Desired.STOPPED:
        return ignore(situation, command, "stopped already")
    after = replace(
        _renew(record, situation.now),
        desired=Desired.STOPPED,
        reason=command.reason or "explicit_stop",
        actor=command.actor or record.actor,
    )
    stopped = lifecycle_event(record, EventType.AGENT_STOPPED, reason="explicit_stop")
    return rest(situation, command, after, AgentState.STOPPED, events=(stopped,))


def stop_over(situation: Situation, command: Command) -> Plan:
    """It is over already; only the wish is noted."""
    record = _record(situation)
    if record.desired is Desired.STOPPED:
        return ignore(situation, command, f"{record.state} already")
    return Plan(command, record, replace(record, desired=Desired.STOPPED, actor=command.actor or record.actor))


def pause(situation: Situation, command: Command) -> Plan:
    """Wants it paused: asks the incarnation to end in order, or calls an unclaimed one off."""
    record = _record(situation)
    if record.desired is Desired.STOPPED:
        return refuse_state(situation, command)
    wanted = replace(record, desired=Desired.PAUSED, actor=command.actor or record.actor, reason=command.reason)
    if record.hosted:
        return ask(situation, command, wanted, Request.PAUSE)
    after = end(wanted, situation.now, claimable_after=record.claimable_after)
    event = lifecycle_event(record, EventType.AGENT_STOPPED, reason="pause")
    return rest(situation, command, after, AgentState.PAUSED, events=(event,))


def resume(situation: Situation, command: Command) -> Plan:
    """Lets a paused agent run again; not a restart."""
    record = _record(situation)
    _demand_runtime(situation)
    after = replace(record, desired=Desired.RUNNING, actor=command.actor or record.actor, start_reason="resume")
    if record.state is AgentState.STOPPING:
        if record.desired is not Desired.PAUSED:
            return ignore(situation, command, "not paused")
        return Plan(command, record, after)
    return launch(situation, command, _renew(after, situation.now))


def resume_other(situation: Situation, command: Command) -> Plan:
    """It is not paused: success without effect."""
    _demand_runtime(situation)
    return nothing(situation, command)


def nothing(situation: Situation, command: Command) -> Plan:
    """Nothing to do in this state."""
    return ignore(situation, command, f"nothing to do while {_record(situation).state}")


def restart(situation: Situation, command: Command) -> Plan:
    """Asks a hosted incarnation to end so that a new one begins; a resting one is started; counted as by hand."""
    record = _record(situation)
    _demand_runtime(situation)
    wanted = replace(
        record, desired=Desired.RUNNING, reason=command.reason or "restart", actor=command.actor or record.actor
    )
    if record.hosted:
        return ask(situation, command, wanted, Request.RESTART)
    closing: tuple[NewEvent, ...] = ()
    if record.failover:
        closing = (lifecycle_event(record, EventType.FAILOVER_ABORTED, reason="restart"),)
    after = replace(
        _renew(wanted, situation.now),
        manual_restarts=record.manual_restarts + 1,
        failover=False,
        attempt=0,
        failures=0,
        start_reason="restart",
        result="",
    )
    return launch(situation, command, after, events=closing, counters={"manual_restarts": 1})


def restart_parked(situation: Situation, command: Command) -> Plan:
    """A person un-parks: the budget is full again; what must be settled first stays parked."""
    record = _record(situation)
    if record.cause in _UNSETTLED:
        return refuse_parked(situation, command)
    fresh = replace(record, charged=0, charged_at=(), cause="", last_error="")
    plan = restart(replace(situation, record=fresh), command)
    return replace(plan, before=record)


def restore(situation: Situation, command: Command) -> Plan:
    """Fails over on purpose; two at once: one wins, the other gets a conflict."""
    record = _record(situation)
    if record.desired is not Desired.RUNNING:
        return refuse_state(situation, command)
    if record.state is AgentState.RESURRECTING or record.request in (Request.RESTORE, Request.DIE, Request.RESTART):
        raise VersionConflictError(
            subject=f"agent {record.spec.id!r}", actual=record.state.value, expected="running", agent_id=record.spec.id
        )
    if record.hosted:
        return ask(situation, command, replace(record, reason="restore"), Request.RESTORE)
    return ignore(situation, command, "starting already")


def update(situation: Situation, command: Command) -> Plan:
    """Replaces the spec; the next incarnation gets it."""
    record, spec = _record(situation), cast("commands.Update", command).spec
    if spec is None or spec == record.spec:
        return ignore(situation, command, "same spec")
    return Plan(command, record, replace(record, spec=spec, actor=command.actor or record.actor))


def delete(situation: Situation, command: Command) -> Plan:
    """Forgets a resting agent; a late claim or write finds nothing."""
    return Plan(command, situation.record, None, free_host=True)


def refuse_delete(situation: Situation, command: Command) -> Plan:  # noqa: ARG001 - every handler takes both
    """It may be hosted: stop it first."""
    record = _record(situation)
    raise OperationNotSupportedError(
        operation=f"delete agent {record.spec.id!r}",
        reason=f"it is {record.state}; stop it first",
        agent_id=record.spec.id,
        state=record.state.value,
    )


# -- what incarnations say ---------------------------------------------------------------------------------------------


def claim(situation: Situation, command: Command) -> Plan:
    """Gives the fence to the claimer of exactly this epoch; raises nothing."""
    asked, record = cast("commands.Claim", command), _record(situation)
    fence = f"{asked.epoch}|{asked.token}"
    if record.fence == fence:
        return ignore(situation, command, "claimed by this claimer already")
    refusal = _claim_refusal(situation, asked, record)
    if refusal:
        raise FencedError(agent_id=record.spec.id, epoch=asked.epoch, reason=refusal)
    after = replace(
        record,
        fence=fence,
        owner=asked.owner,
        incarnation=record.incarnation + 1,
        attempt=record.attempt + 1,
        claimed_at=situation.now,
        running_since=Instant(0),
        claimable_after=Instant(0),
        nudges=0,
    )
    deadlines: dict[Deadline, Instant | None] = {
        Deadline.LEASE: Instant(situation.now + micros(situation.policy.lease_ttl)),
        Deadline.HANG: Instant(situation.now + micros(situation.policy.start_timeout)),
        Deadline.NUDGE: None,
        Deadline.ATTEMPT: None,
    }
    return Plan(command, record, after, deadlines=deadlines)


def _claim_refusal(situation: Situation, asked: commands.Claim, record: AgentRecord) -> str:
    if asked.epoch != record.epoch:
        return "epoch"
    if record.hosted:
        return "owned"
    if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
        return "not desired"
    return "early" if record.claimable_after > situation.now else ""


def refuse_claim(situation: Situation, command: Command) -> Plan:
    """Nothing is to be claimed in this state; a repeat by the holder of the fence is no second claim."""
    asked, record = cast("commands.Claim", command), _record(situation)
    if record.fence == f"{asked.epoch}|{asked.token}":
        return ignore(situation, command, "claimed by this claimer already")
    refusal = _claim_refusal(situation, asked, record) or "not desired"
    raise FencedError(agent_id=record.spec.id, epoch=asked.epoch, reason=refusal)


def _demand_fence(record: AgentRecord, command: Command) -> None:
    fence = cast("commands.Fenced", command).fence
    if not fence or fence != record.fence:
        raise FencedError(agent_id=record.spec.id, epoch=fence.partition("|")[0])


def mark_running(situation: Situation, command: Command) -> Plan:
    """The agent's own code begins: closes the failover, or says why it started."""
    record = _record(situation)
    _demand_fence(record, command)
    if record.state is AgentState.RUNNING:
        return ignore(situation, command, "running already")
    if record.failover:
        said = lifecycle_event(
            record,
            EventType.FAILOVER_COMPLETED,
            type=record.spec.type,
            incarnation=record.incarnation,
            attempts=record.attempt,
        )
    else:
        said = lifecycle_event(
            record,
            EventType.AGENT_STARTED,
            type=record.spec.type,
            reason=record.start_reason,
            incarnation=record.incarnation,
        )
    after = replace(
        record,
        state=AgentState.RUNNING,
        running_since=situation.now,
        failover=False,
        attempt=0,
        task_id="",
        retries=0,
    )
    return Plan(command, record, after, (said,), {Deadline.HANG: None})


def fenced_ignore(situation: Situation, command: Command) -> Plan:
    """It was asked to end meanwhile: it should release instead."""
    _demand_fence(_record(situation), command)
    return ignore(situation, command, "asked to end")


def refuse_fenced(situation: Situation, command: Command) -> Plan:
    """Nobody holds the fence in this state."""
    fence = cast("commands.Fenced", command).fence
    raise FencedError(agent_id=_record(situation).spec.id, epoch=fence.partition("|")[0])


def release(situation: Situation, command: Command) -> Plan:
    """The incarnation ended in order: the next state is chosen by what is desired at this moment."""
    _demand_fence(_record(situation), command)
    return settle(situation, command)


def complete(situation: Situation, command: Command) -> Plan:
    """The agent is done, for good, whatever else was asked meanwhile."""
    record = _record(situation)
    _demand_fence(record, command)
    result = cast("commands.Complete", command).result
    after = replace(end(record, situation.now), desired=Desired.STOPPED, result=result, reason=command.reason)
    said = lifecycle_event(record, EventType.AGENT_COMPLETED, type=record.spec.type, incarnation=record.incarnation)
    return rest(situation, command, after, AgentState.COMPLETED, events=(said,), counters={"completed": 1})


def park_hosted(situation: Situation, command: Command) -> Plan:
    """The incarnation found what only a person can settle."""
    record = _record(situation)
    _demand_fence(record, command)
    cause = cast("commands.Park", command).cause
    failed: tuple[NewEvent, ...] = ()
    if record.failover:
        failed = (lifecycle_event(record, EventType.FAILOVER_FAILED, reason=command.reason, cause=cause),)
    after = replace(end(record, situation.now), failover=False)
    return park(situation, command, after, cause, command.reason, events=failed)


def recovery_failed(situation: Situation, command: Command) -> Plan:
    """Recovery failed in a claimed incarnation: a death of a first start, a used-up try of a failover."""
    asked, record = cast("commands.AttemptFailed", command), _record(situation)
    _demand_fence(record, command)
    if record.state is AgentState.STOPPING:
        return settle(situation, command)
    if not record.failover:
        return die(situation, command, asked.reason, DeathCause.CRASH)
    return attempt_failed(situation, command, asked.reason, task_id=asked.task_id, retries=asked.retries)


# -- what is found out -------------------------------------------------------------------------------------------------


def _until(situation: Situation) -> Instant:
    """When an incarnation that nobody saw end has certainly lost its lease."""
    record = _record(situation)
    return max(situation.lease_until, record.claimable_after) if record.hosted else record.claimable_after


def death(situation: Situation, command: Command) -> Plan:
    """A report of death: one for each epoch; without proof the incarnation is asked to give up first."""
    asked, record = cast("commands.Die", command), _record(situation)
    if asked.epoch is not None and asked.epoch != record.epoch:
        return ignore(situation, command, "stale")
    if not record.hosted:
        return ignore(situation, command, "not hosted")
    if asked.epoch is None and situation.now - record.claimed_at < _YOUNG:
        return ignore(situation, command, "too young")
    if not asked.proof:
        if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
            return ignore(situation, command, "not desired")
        return ask(situation, command, replace(record, cause=asked.cause.value), Request.DIE)
    return _ended(situation, command, asked.reason, asked.cause)


def death_while_stopping(situation: Situation, command: Command) -> Plan:
    """It was about to end anyway; with proof it has."""
    asked, record = cast("commands.Die", command), _record(situation)
    if (asked.epoch is not None and asked.epoch != record.epoch) or not asked.proof or not record.hosted:
        return ignore(situation, command, "ends already")
    return settle(situation, command)


def _ended(
    situation: Situation, command: Command, reason: str, cause: DeathCause, *, claimable_after: Instant = Instant(0)
) -> Plan:
    record = _record(situation)
    if record.state is AgentState.STOPPING:
        return settle(situation, command, claimable_after=claimable_after)
    if record.state is AgentState.RESURRECTING:
        return attempt_failed(situation, command, reason, claimable_after=claimable_after)
    return die(situation, command, reason, cause, claimable_after=claimable_after)


def owner_exited(situation: Situation, command: Command) -> Plan:
    """A process is gone: proof for the incarnation it held, or for one that was fenced before."""
    asked, record = cast("commands.OwnerExited", command), _record(situation)
    if record.owner is None or record.owner.identity != asked.identity:
        return ignore(situation, command, "another owner")
    if record.hosted:
        return _ended(situation, command, command.reason or "process lost", asked.cause)
    after = replace(record, claimable_after=Instant(0), owner=None)
    # A later failure waits for its backoff; what waits for this exit alone goes on at once.
    goes_on = record.state is AgentState.STARTING or (record.state is AgentState.RESURRECTING and record.failures <= 1)
    if not goes_on:
        return Plan(command, record, after, free_host=True)
    sent_again = Instant(situation.now + NUDGE_SPACING[0] * 1_000_000)
    return Plan(
        command,
        record,
        after,
        deadlines={Deadline.ATTEMPT: None, Deadline.NUDGE: sent_again},
        nudge=True,
        free_host=True,
    )


def lease_due(situation: Situation, command: Command) -> Plan:
    """The lease ran out and nobody renewed it: the incarnation is over."""
    record, due = _record(situation), cast("commands.DeadlineDue", command)
    if not record.hosted:
        return Plan(command, record, record, deadlines={Deadline.LEASE: None})
    cause = DeathCause.CO_TENANT if due.tenants > 1 else DeathCause.LOST
    return _ended(situation, command, "lease expired", cause)


def stop_due(situation: Situation, command: Command) -> Plan:
    """It did not end in time: fenced; the next one waits until its exit or its lease proves it over."""
    record = _record(situation)
    if not record.hosted:
        return Plan(command, record, record, deadlines={Deadline.STOP: None})
    return settle(situation, command, claimable_after=_until(situation))


def hang_due(situation: Situation, command: Command) -> Plan:
    """Recovery took longer than start_timeout: that try is over."""
    record = _record(situation)
    if not record.hosted:
        return Plan(command, record, record, deadlines={Deadline.HANG: None})
    return _ended(
        situation,
        command,
        "recovery took longer than start_timeout",
        DeathCause.HUNG,
        claimable_after=_until(situation),
    )


def send_again(situation: Situation, command: Command) -> Plan:
    """Nobody claimed it yet: send the message (again), later each time. Waiting for a slot is no death."""
    record, now = _record(situation), situation.now
    if record.hosted:
        return Plan(command, record, record, deadlines={Deadline.NUDGE: None, Deadline.ATTEMPT: None})
    if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
        return settle(situation, command)
    first = cast("commands.DeadlineDue", command).kind is Deadline.ATTEMPT
    nudges = 0 if first else record.nudges + 1
    spacing = NUDGE_SPACING[min(nudges, len(NUDGE_SPACING) - 1)]
    after = replace(record, nudges=nudges)
    deadlines: dict[Deadline, Instant | None] = {
        Deadline.ATTEMPT: None,
        Deadline.NUDGE: Instant(now + spacing * 1_000_000),
    }
    return Plan(command, record, after, deadlines=deadlines, nudge=True)


def drop_deadline(situation: Situation, command: Command) -> Plan:
    """The deadline has outlived its reason."""
    record = _record(situation)
    due = cast("commands.DeadlineDue", command)
    return Plan(command, record, record, deadlines={due.kind: None})


def reconcile_hosted(situation: Situation, command: Command) -> Plan:
    """Makes a hosted or claimable agent agree with what is desired and with the runtime's state."""
    record = _record(situation)
    runs_on = record.desired is Desired.RUNNING and situation.runtime is RuntimeState.RUNNING
    if runs_on or record.state is AgentState.STOPPING:
        return ignore(situation, command, "agrees")
    if not record.hosted:
        return settle(situation, command)
    if record.desired is Desired.RUNNING:
        return ask(situation, command, record, Request.SHUTDOWN)
    return ask(situation, command, record, Request.PAUSE if record.desired is Desired.PAUSED else Request.STOP)


def reconcile_resting(situation: Situation, command: Command) -> Plan:
    """Starts a resting agent that should run."""
    record = _record(situation)
    if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
        return ignore(situation, command, "agrees")
    after = replace(_renew(record, situation.now), start_reason="start")
    return launch(situation, command, after)
