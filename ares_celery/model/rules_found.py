"""What is found out: deaths, exits, deadlines that passed, disagreement with what is desired. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from ares_celery.ids import Instant
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentState, Desired, Request, RuntimeState
from ares_celery.model.command import Command, Deadline
from ares_celery.model.endings import Verdict, attempt_failed, die, settle
from ares_celery.model.event import EventType
from ares_celery.model.plan import NUDGE_SPACING, Plan, Situation
from ares_celery.model.restart import DeathCause
from ares_celery.model.transitions import (
    UNKNOWN_OUTCOME,
    ask,
    demand_settled,
    ignore,
    launch,
    lease_end,
    lifecycle_event,
    renew,
    rest,
    the_record,
    without_proof,
)

#: A report without an epoch means the incarnation now alive; a younger one was not meant.
_YOUNG = 1_000_000


def death(situation: Situation, command: Command) -> Plan:
    """A report of death: one for each epoch; without proof the incarnation is asked to give up first."""
    asked, record = cast("commands.Die", command), the_record(situation)
    if asked.epoch is not None and asked.epoch != record.epoch:
        return ignore(situation, command, "stale")
    if not record.hosted:
        return ignore(situation, command, "not hosted")
    if asked.epoch is None and situation.now - record.claimed_at < _YOUNG:
        return ignore(situation, command, "too young")
    if not asked.proof:
        if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
            return ignore(situation, command, "not desired")
        return ask(situation, command, replace(record, cause=asked.cause.value, actor=""), Request.DIE)
    if asked.itself:
        demand_settled(record)
    return _ended(situation, command, asked.reason, Verdict(asked.cause))


def death_while_stopping(situation: Situation, command: Command) -> Plan:
    """It was about to end anyway; with proof it has."""
    asked, record = cast("commands.Die", command), the_record(situation)
    if (asked.epoch is not None and asked.epoch != record.epoch) or not asked.proof or not record.hosted:
        return ignore(situation, command, "ends already")
    if asked.itself:
        demand_settled(record)
    return settle(situation, command)


def _ended(
    situation: Situation, command: Command, reason: str, verdict: Verdict, *, claimable_after: Instant = Instant(0)
) -> Plan:
    record = the_record(situation)
    if record.state is AgentState.STOPPING:
        return settle(situation, command, claimable_after=claimable_after)
    if record.state is AgentState.RESURRECTING:
        return attempt_failed(situation, command, reason, verdict, claimable_after=claimable_after)
    return die(situation, command, reason, verdict, claimable_after=claimable_after)


def owner_exited(situation: Situation, command: Command) -> Plan:
    """A process is gone: proof for the incarnation it held, or for one that was fenced before."""
    asked, record = cast("commands.OwnerExited", command), the_record(situation)
    if record.owner is None or record.owner.identity != asked.identity:
        return ignore(situation, command, "another owner")
    if record.hosted:
        verdict = Verdict(asked.cause, asked.suspicion)
        return _ended(situation, command, command.reason or "process lost", verdict)
    after = replace(record, claimable_after=Instant(0), owner=None)
    # A later failure waits for its backoff; what waits for this exit alone goes on at once.
    goes_on = record.state is AgentState.STARTING or (record.state is AgentState.RESURRECTING and record.failures <= 1)
    if not goes_on:
        return Plan(command, record, after, free_host=True)
    after = replace(after, next_attempt_at=Instant(0))
    if record.held:
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
    record, due = the_record(situation), cast("commands.DeadlineDue", command)
    if not record.hosted:
        return Plan(command, record, record, deadlines={Deadline.LEASE: None})
    cause = DeathCause.CO_TENANT if due.tenants > 1 else DeathCause.LOST
    return without_proof(_ended(situation, command, "lease expired", Verdict(cause, due.suspicion)))


def stop_due(situation: Situation, command: Command) -> Plan:
    """It did not end in time: fenced; the next one waits until its exit or its lease proves it over."""
    record = the_record(situation)
    if not record.hosted:
        return Plan(command, record, record, deadlines={Deadline.STOP: None})
    return without_proof(settle(situation, command, claimable_after=lease_end(situation)))


def hang_due(situation: Situation, command: Command) -> Plan:
    """Recovery took longer than start_timeout: that try is over."""
    record = the_record(situation)
    if not record.hosted:
        return Plan(command, record, record, deadlines={Deadline.HANG: None})
    return without_proof(
        _ended(
            situation,
            command,
            "recovery took longer than it may (start_timeout, restore_timeout)",
            Verdict(DeathCause.HUNG),
            claimable_after=lease_end(situation),
        )
    )


def send_again(situation: Situation, command: Command) -> Plan:
    """Nobody claimed it yet: send the message (again), later each time. Waiting for a slot is no death."""
    record, now = the_record(situation), situation.now
    if record.hosted or record.held:
        return Plan(command, record, record, deadlines={Deadline.NUDGE: None, Deadline.ATTEMPT: None})
    if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
        return settle(situation, command)
    due = cast("commands.DeadlineDue", command)
    first = due.kind is Deadline.ATTEMPT
    nudges = 0 if first else record.nudges + 1
    spacing = NUDGE_SPACING[min(nudges, len(NUDGE_SPACING) - 1)]
    after = replace(record, nudges=nudges, next_attempt_at=Instant(0))
    deadlines: dict[Deadline, Instant | None] = {
        Deadline.ATTEMPT: None,
        Deadline.NUDGE: Instant(now + spacing * 1_000_000),
    }
    return Plan(command, record, after, deadlines=deadlines, nudge=not due.crowded)


def drop_deadline(situation: Situation, command: Command) -> Plan:
    """The deadline has outlived its reason."""
    record = the_record(situation)
    due = cast("commands.DeadlineDue", command)
    return Plan(command, record, record, deadlines={due.kind: None})


def reconcile_hosted(situation: Situation, command: Command) -> Plan:
    """Makes a hosted or claimable agent agree with what is desired and with the runtime's state."""
    record = the_record(situation)
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
    record = the_record(situation)
    if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
        return ignore(situation, command, "agrees")
    after = replace(renew(record, situation.now), start_reason="start")
    return launch(situation, command, after)


def reconcile_parked(situation: Situation, command: Command) -> Plan:
    """Lets one go on whose steps of unknown outcome are all settled, to where it is meant to be."""
    record, now = the_record(situation), situation.now
    if record.cause != UNKNOWN_OUTCOME or record.intents:
        return ignore(situation, command, "not settled")
    after = replace(renew(record, now), cause="", last_error="", reason="reconciled", start_reason="reconciled")
    if record.desired is Desired.RUNNING and situation.runtime is RuntimeState.RUNNING:
        plan = launch(situation, command, after)
    else:
        reason, state = _rests(record.desired)
        said = lifecycle_event(record, EventType.AGENT_STOPPED, reason=reason)
        plan = rest(situation, command, replace(after, reason=reason), state, events=(said,))
    return replace(plan, deadlines={**plan.deadlines, Deadline.RECONCILE: None})


def _rests(desired: Desired) -> tuple[str, AgentState]:
    """Why one does not run, and its state then; one that is meant to run waits for its runtime."""
    match desired:
        case Desired.PAUSED:
            return "pause", AgentState.PAUSED
        case Desired.STOPPED:
            return "explicit_stop", AgentState.STOPPED
        case Desired.RUNNING:
            return "shutdown", AgentState.STOPPED
