"""What incarnations say of themselves: claim, running, release, completion. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import cast

from ares_celery.clock import micros
from ares_celery.errors import FencedError
from ares_celery.ids import Instant
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentRecord, AgentState, Desired, RuntimeState
from ares_celery.model.command import Command, Deadline
from ares_celery.model.endings import Verdict, attempt_failed, die, settle
from ares_celery.model.event import EventType, NewEvent
from ares_celery.model.plan import Plan, Situation
from ares_celery.model.transitions import (
    UNKNOWN_OUTCOME,
    demand_settled,
    end,
    ignore,
    lifecycle_event,
    park,
    rest,
    the_record,
)


def claim(situation: Situation, command: Command) -> Plan:
    """Gives the fence to the claimer of exactly this epoch; raises nothing."""
    asked, record = cast("commands.Claim", command), the_record(situation)
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
        next_attempt_at=Instant(0),
        nudges=0,
    )
    deadlines: dict[Deadline, Instant | None] = {
        Deadline.LEASE: Instant(situation.now + micros(situation.policy.lease_ttl)),
        Deadline.HANG: Instant(situation.now + micros(_limit(situation, record))),
        Deadline.NUDGE: None,
        Deadline.ATTEMPT: None,
    }
    return Plan(command, record, after, deadlines=deadlines)


def _limit(situation: Situation, record: AgentRecord) -> timedelta:
    """How long the incarnation may take until its code runs."""
    policy = situation.policy
    return policy.restore_timeout if record.state is AgentState.RESURRECTING else policy.start_timeout


def _claim_refusal(situation: Situation, asked: commands.Claim, record: AgentRecord) -> str:
    if asked.epoch != record.epoch:
        return "epoch"
    if record.hosted:
        return "owned"
    if record.held:
        return "held"
    if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
        return "not desired"
    return "early" if record.claimable_after > situation.now else ""


def refuse_claim(situation: Situation, command: Command) -> Plan:
    """Nothing is to be claimed in this state; a repeat by the holder of the fence is no second claim."""
    asked, record = cast("commands.Claim", command), the_record(situation)
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
    record = the_record(situation)
    _demand_fence(record, command)
    if record.state is AgentState.RUNNING:
        return ignore(situation, command, "running already")
    demand_settled(record)
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
        begin_anew=False,
        failover=False,
        attempt=0,
        task_id="",
        retries=0,
    )
    return Plan(command, record, after, (said,), {Deadline.HANG: None})


def fenced_ignore(situation: Situation, command: Command) -> Plan:
    """It was asked to end meanwhile: it should release instead."""
    _demand_fence(the_record(situation), command)
    return ignore(situation, command, "asked to end")


def refuse_fenced(situation: Situation, command: Command) -> Plan:
    """Nobody holds the fence in this state."""
    fence = cast("commands.Fenced", command).fence
    raise FencedError(agent_id=the_record(situation).spec.id, epoch=fence.partition("|")[0])


def release(situation: Situation, command: Command) -> Plan:
    """The incarnation ended in order: the next state is chosen by what is desired at this moment."""
    record = the_record(situation)
    _demand_fence(record, command)
    asked = cast("commands.Release", command)
    if asked.newer_state:
        return settle(situation, command, unasked="newer_state")
    if not asked.rolled_back:
        demand_settled(record)
        return settle(situation, command)
    said = lifecycle_event(record, EventType.STORE_ROLLED_BACK, version=record.version, incarnation=record.incarnation)
    plan = settle(situation, command, unasked="store_rolled_back")
    return replace(plan, events=(said, *plan.events), counters={**plan.counters, "rollbacks": 1})


def complete(situation: Situation, command: Command) -> Plan:
    """The agent is done, for good, whatever else was asked meanwhile."""
    record = the_record(situation)
    _demand_fence(record, command)
    demand_settled(record)
    result = cast("commands.Complete", command).result
    after = replace(end(record, situation.now), desired=Desired.STOPPED, result=result, reason=command.reason)
    said = lifecycle_event(record, EventType.AGENT_COMPLETED, type=record.spec.type, incarnation=record.incarnation)
    return rest(situation, command, after, AgentState.COMPLETED, events=(said,), counters={"completed": 1})


def park_hosted(situation: Situation, command: Command) -> Plan:
    """The incarnation found what only a person can settle."""
    record = the_record(situation)
    _demand_fence(record, command)
    asked = cast("commands.Park", command)
    cause = asked.cause
    failed: tuple[NewEvent, ...] = ()
    if record.failover:
        failed = (lifecycle_event(record, EventType.FAILOVER_FAILED, reason=command.reason, cause=cause),)
    after = replace(end(record, situation.now), failover=False, rejected=asked.rejected or record.rejected)
    plan = park(situation, command, after, cause, command.reason, events=failed)
    if cause != UNKNOWN_OUTCOME:
        return plan
    # Of a step that came to its end meanwhile nobody would say anything: the sweep looks once whether any is open.
    return replace(plan, deadlines={**plan.deadlines, Deadline.RECONCILE: situation.now})


def recovery_failed(situation: Situation, command: Command) -> Plan:
    """Recovery failed in a claimed incarnation: a death of a first start, a used-up try of a failover."""
    asked, record = cast("commands.AttemptFailed", command), the_record(situation)
    _demand_fence(record, command)
    if record.state is AgentState.STOPPING:
        return settle(situation, command)
    if not record.failover:
        return die(situation, command, asked.reason, Verdict(asked.cause))
    retry = (asked.task_id, asked.retries)
    return attempt_failed(situation, command, asked.reason, Verdict(asked.cause), retry=retry)
