"""How incarnations end: as they were asked to, by a death, or in a recovery that failed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from ares_celery.clock import micros
from ares_celery.ids import Instant
from ares_celery.model.agent import AgentRecord, AgentState, Desired, Held, Request, RestartType, RuntimeState
from ares_celery.model.command import Command
from ares_celery.model.event import EventType, NewEvent
from ares_celery.model.failure import Failure, FailureStage
from ares_celery.model.plan import Plan, Situation
from ares_celery.model.restart import (
    CHARGED,
    PROBATION_AFTER,
    TOGETHER,
    DeathCause,
    LifecyclePolicy,
    Suspicion,
    backoff_delay,
    charged_deaths,
    failures_before,
    kept_charges,
    lost_together,
    separation,
)
from ares_celery.model.transitions import (
    STOP_REASONS,
    closing,
    end,
    hold,
    launch,
    lifecycle_event,
    park,
    rest,
    the_record,
)

__all__ = ["Verdict", "attempt_failed", "die", "settle"]

#: Losses together that a record keeps: hosts that are lost more often than that fall to nobody's account.
_MOST_LOSSES: Final = 50


@dataclass(frozen=True, slots=True)
class Verdict:
    """Why an incarnation is over that nobody asked to end."""

    why: DeathCause
    suspicion: Suspicion = Suspicion.NONE

    @property
    def cause(self) -> DeathCause:
        """The cause that counts: the loss of a shared host is charged to the one that is suspected of it."""
        is_suspect = self.why is DeathCause.CO_TENANT and self.suspicion is Suspicion.PRIME
        return DeathCause.SUSPECT if is_suspect else self.why

    @property
    def charge(self) -> bool:
        """It uses up the restart budget."""
        return self.cause in CHARGED


def settle(
    situation: Situation, command: Command, *, claimable_after: Instant = Instant(0), unasked: str = "drain"
) -> Plan:
    """The incarnation ended, as asked or by a drain: what is desired now says what comes next. Nothing is charged.

    Args:
        situation: With the record of the incarnation.
        command: What was said or found out.
        claimable_after: Without proof that the process is gone, when its lease ends.
        unasked: The reason of an end that nobody asked for.
    """
    record, now = the_record(situation), situation.now
    runs_on = record.desired is Desired.RUNNING and situation.runtime is RuntimeState.RUNNING
    if record.request is Request.DIE and runs_on:
        return _died_as_asked(situation, command, claimable_after)
    after = replace(
        end(record, now, claimable_after=max(claimable_after, record.claimable_after)),
        failures=failures_before(record, situation.policy, now),
        # Of an earlier death, which is not why this incarnation ended.
        cause="",
    )
    if record.desired is Desired.PAUSED:
        event = lifecycle_event(record, EventType.AGENT_STOPPED, reason="pause")
        return rest(situation, command, after, AgentState.PAUSED, events=(event,))
    if record.desired is Desired.STOPPED:
        event = lifecycle_event(record, EventType.AGENT_STOPPED, reason="explicit_stop")
        return rest(situation, command, after, AgentState.STOPPED, events=(event,))
    if situation.runtime is not RuntimeState.RUNNING:
        event = lifecycle_event(record, EventType.AGENT_STOPPED, reason="shutdown")
        after = replace(after, reason="shutdown", start_reason="start")
        return rest(situation, command, after, AgentState.STOPPED, events=(event,))
    if record.request is Request.RESTORE:
        after = replace(after, failover=True, attempt=0, died_at=now)
        events = (
            *closing(record, "restore"),
            lifecycle_event(record, EventType.AGENT_STOPPED, reason="restore", auto_restore=True),
            _triggered(record, after, "restore", "restore", charge=False),
        )
        return launch(situation, command, after, state=AgentState.RESURRECTING, events=events)
    return _goes_on(situation, command, after, unasked)


def _goes_on(situation: Situation, command: Command, ended: AgentRecord, unasked: str) -> Plan:
    """It ended in order and is meant to run: the next incarnation begins."""
    record = the_record(situation)
    stopped = STOP_REASONS.get(record.request, unasked)
    if record.request is Request.GROUP:
        return _waits_for_group(situation, command, ended)
    manual = record.request is Request.RESTART
    start_reason = {Request.RESTART: "restart", Request.PAUSE: "resume", Request.NONE: unasked}
    after = replace(
        ended,
        failover=False,
        attempt=0,
        manual_restarts=record.manual_restarts + manual,
        failures=0 if manual else ended.failures,
        start_reason=start_reason.get(record.request, "start"),
    )
    events = (*closing(record, stopped), lifecycle_event(record, EventType.AGENT_STOPPED, reason=stopped))
    counters = {"manual_restarts": 1} if manual else {}
    return launch(situation, command, after, events=events, counters=counters)


def _waits_for_group(situation: Situation, command: Command, ended: AgentRecord) -> Plan:
    """Its group restarts: the next incarnation waits, and a temporary agent has none."""
    record = the_record(situation)
    reason = record.request_reason or "group"
    said = lifecycle_event(record, EventType.AGENT_STOPPED, reason="group", detail=reason)
    after = replace(ended, failover=False, attempt=0, reason=reason, start_reason="group")
    if situation.policy.restart is RestartType.TEMPORARY:
        after = replace(after, failover=record.failover, desired=Desired.STOPPED)
        return rest(situation, command, after, AgentState.STOPPED, events=(said,))
    events = (*closing(record, "group"), said)
    return hold(situation, command, after, Held.ASKED, state=AgentState.STARTING, events=events)


def _died_as_asked(situation: Situation, command: Command, claimable_after: Instant) -> Plan:
    """It was reported dead without proof, was asked to give up, and is over now: the report was right."""
    record = the_record(situation)
    reason, verdict = record.request_reason or command.reason, Verdict(DeathCause(record.cause))
    if record.failover:
        return attempt_failed(situation, command, reason, verdict, claimable_after=claimable_after)
    return die(situation, command, reason, verdict, claimable_after=claimable_after)


def _who(record: AgentRecord, command: Command) -> str:
    """Who said that it died; nobody, as a rule. An earlier wish was somebody's, and has nothing to do with it."""
    return command.actor or (record.actor if record.request is Request.DIE else "")


def _counted(record: AgentRecord, cause: DeathCause) -> Mapping[str, int]:
    return {**record.deaths, cause.value: record.deaths.get(cause.value, 0) + 1}


def _delay(after: AgentRecord, verdict: Verdict, policy: LifecyclePolicy, losses: tuple[int, ...]) -> timedelta:
    """How long the next try waits: the backoff, and on probation what tells the suspects apart."""
    seed = f"{after.spec.id}|{after.epoch}"
    delay = backoff_delay(policy, after.failures, seed=seed)
    if verdict.suspicion is Suspicion.TIED and len(losses) > PROBATION_AFTER:
        delay += separation(policy, after.spec.id, len(losses))
    return delay


def _losses(record: AgentRecord, verdict: Verdict, now: int) -> tuple[int, ...]:
    earlier = lost_together(record, now)
    return (*earlier, now)[-_MOST_LOSSES:] if verdict.cause in TOGETHER else earlier


def die(
    situation: Situation, command: Command, reason: str, verdict: Verdict, *, claimable_after: Instant = Instant(0)
) -> Plan:
    """An incarnation died while it should run: policy says whether and when it comes back."""
    record, now, policy = the_record(situation), situation.now, situation.policy
    if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
        return settle(situation, command, claimable_after=claimable_after)
    charge, cause = verdict.charge, verdict.cause.value
    charged_at = charged_deaths(record, policy, now)
    spent = len(charged_at) if policy.restart_period is not None else record.charged
    losses = _losses(record, verdict, now)
    after = replace(
        end(record, now, claimable_after=claimable_after),
        reason=reason,
        actor=_who(record, command),
        cause=cause,
        last_error=reason,
        died_at=now,
        failures=failures_before(record, policy, now) + 1,
        attempt=0,
        deaths=_counted(record, verdict.cause),
        lost_together=losses,
    )
    deaths = {"deaths": 1, f"deaths.{cause}": 1}
    over = lifecycle_event(record, EventType.AGENT_STOPPED, reason=reason, auto_restore=False, cause=cause)
    if policy.restart is RestartType.TEMPORARY:
        after = replace(after, desired=Desired.STOPPED)
        return rest(situation, command, after, AgentState.STOPPED, events=(over,), counters=deaths)
    if charge and policy.max_restarts and spent >= policy.max_restarts:
        return park(situation, command, after, "cap", reason, events=(over,), counters=deaths)
    if command.refused_by:
        return park(situation, command, after, "plugin", _refused(command, reason), events=(over,), counters=deaths)
    after = replace(
        after,
        restarts=record.restarts + 1,
        charged=spent + charge,
        charged_at=kept_charges((*charged_at, now), policy.max_restarts)
        if charge and policy.restart_period is not None
        else charged_at,
        failover=True,
        start_reason="failover",
    )
    delay = _delay(after, verdict, policy, losses)
    events = (*closing(record, reason), *_told(record, after, verdict, delay))
    counters = {**deaths, "restarts": 1}
    at, state = Instant(now + micros(delay)), AgentState.RESURRECTING
    if record.spec.group is not None:
        plan = hold(situation, command, after, Held.DIED, state=state, at=at, events=events, counters=counters)
    else:
        plan = launch(situation, command, after, state=state, at=at, events=events, counters=counters)
    return replace(plan, failure=_failure(record, after, "death", verdict, reason))


def _told(record: AgentRecord, after: AgentRecord, verdict: Verdict, delay: timedelta) -> tuple[NewEvent, ...]:
    """What is said of a death that will be followed by a resurrection."""
    cause = verdict.cause.value
    return (
        lifecycle_event(record, EventType.AGENT_STOPPED, reason=after.reason, auto_restore=True, cause=cause),
        _triggered(record, after, after.reason, cause, charge=verdict.charge, delay=delay),
    )


def _triggered(
    record: AgentRecord,
    after: AgentRecord,
    reason: str,
    cause: str,
    *,
    charge: bool,
    delay: timedelta = timedelta(0),
) -> NewEvent:
    """What is said when an agent is brought back, whether it died or somebody wished it."""
    return lifecycle_event(
        record,
        EventType.FAILOVER_TRIGGERED,
        reason=reason,
        cause=cause,
        charged=charge,
        restarts=after.restarts,
        incarnation=record.incarnation,
        delay_ms=micros(delay) // 1000,
    )


def attempt_failed(
    situation: Situation,
    command: Command,
    reason: str,
    verdict: Verdict,
    *,
    retry: tuple[str, int] = ("", 0),
    claimable_after: Instant = Instant(0),
) -> Plan:
    """A try to bring the agent back failed before it ran: wait longer, or give up after the last.

    What is never charged uses up no try either; its wait grows all the same.
    """
    record, now, policy = the_record(situation), situation.now, situation.policy
    if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
        return settle(situation, command, claimable_after=claimable_after)
    losses = _losses(record, verdict, now)
    after = replace(
        end(record, now, claimable_after=claimable_after),
        last_error=reason,
        reason=reason,
        actor=_who(record, command),
        failures=max(record.failures, record.attempt) + 1,
        lost_together=losses,
    )
    if not verdict.charge:
        after = replace(after, attempt=max(record.attempt - 1, 0))
    elif record.attempt >= policy.restore_attempts:
        failed = lifecycle_event(record, EventType.FAILOVER_FAILED, reason=reason, attempts=record.attempt)
        return park(situation, command, replace(after, failover=False), "attempts", reason, events=(failed,))
    if command.refused_by:
        failed = lifecycle_event(record, EventType.FAILOVER_FAILED, reason=reason, attempts=record.attempt)
        after = replace(after, failover=False)
        return park(situation, command, after, "plugin", _refused(command, reason), events=(failed,))
    task_id, retries = retry
    after = replace(after, task_id=task_id, retries=retries)
    delay = _delay(after, verdict, policy, losses)
    plan = launch(
        situation,
        command,
        after,
        state=AgentState.RESURRECTING,
        at=Instant(now + micros(delay)),
        counters={"failed_attempts": 1},
    )
    return replace(plan, failure=_failure(record, after, "attempt", verdict, reason))


def _failure(record: AgentRecord, after: AgentRecord, stage: FailureStage, verdict: Verdict, reason: str) -> Failure:
    """What recovery plug-ins are asked about, before the plan is committed."""
    return Failure(
        agent_id=record.spec.id,
        agent_type=record.spec.type,
        stage=stage,
        cause=verdict.cause.value,
        reason=reason,
        incarnation=record.incarnation,
        attempt=record.attempt,
        failures=after.failures,
        restarts=record.restarts,
    )


def _refused(command: Command, reason: str) -> str:
    """Why a person has to decide, with the plug-in that said no."""
    return f"{reason} (plug-in {command.refused_by} refuses to recover it)"
