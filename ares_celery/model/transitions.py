"""The moves that lifecycle rules are made of: each takes a Situation and gives a Plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ares_celery.clock import micros
from ares_celery.ids import Epoch, Instant
from ares_celery.model.agent import AgentRecord, AgentState, Desired, Request, RestartType, RuntimeState
from ares_celery.model.command import Command, Deadline
from ares_celery.model.event import RUNTIME_MODULE, EventType, NewEvent
from ares_celery.model.plan import NUDGE_SPACING, Plan, Situation
from ares_celery.model.restart import CHARGED, DeathCause, backoff_delay, charged_deaths, failures_before

__all__ = [
    "ask",
    "attempt_failed",
    "die",
    "end",
    "ignore",
    "launch",
    "lease_end",
    "lifecycle_event",
    "next_epoch",
    "park",
    "renew",
    "rest",
    "settle",
    "the_record",
    "without_proof",
]

_STOP_REASONS: Mapping[Request, str] = {
    Request.STOP: "explicit_stop",
    Request.PAUSE: "pause",
    Request.RESTART: "restart",
    Request.RESTORE: "restore",
    Request.SHUTDOWN: "shutdown",
}
_NO_DEADLINES: Mapping[Deadline, Instant | None] = {
    Deadline.LEASE: None,
    Deadline.NUDGE: None,
    Deadline.ATTEMPT: None,
    Deadline.STOP: None,
    Deadline.HANG: None,
}


def next_epoch(record: AgentRecord | None, now: Instant) -> Epoch:
    """An epoch above every earlier one, also after a clock that stepped back."""
    return Epoch(max((record.epoch if record else 0) + 1, now))


def lifecycle_event(record: AgentRecord, kind: EventType, /, **payload: Any) -> NewEvent:  # noqa: ANN401 - JSON values
    """One of the runtime's own events about the agent."""
    return NewEvent(kind, {"agent_id": record.spec.id, **payload}, {"module": RUNTIME_MODULE})


def ignore(situation: Situation, command: Command, why: str) -> Plan:
    """Nothing is to be done, and that is no error."""
    return Plan(command, situation.record, situation.record, ignored=why)


def end(record: AgentRecord, now: Instant, *, claimable_after: Instant = Instant(0)) -> AgentRecord:
    """The record after its incarnation is over: a higher epoch, nobody holds the fence.

    Args:
        record: The record with its incarnation.
        now: Redis TIME.
        claimable_after: Without proof that the process is gone, when its lease ends; the owner is then kept, so that
            its exit can be recognised later.
    """
    return replace(
        record,
        epoch=next_epoch(record, now),
        fence="",
        owner=record.owner if claimable_after > now else None,
        claimable_after=claimable_after if claimable_after > now else Instant(0),
        request=Request.NONE,
        request_reason="",
        next_attempt_at=Instant(0),
        nudges=0,
        task_id="",
        retries=0,
    )


def launch(  # noqa: PLR0913 - the parts of one decision
    situation: Situation,
    command: Command,
    record: AgentRecord,
    *,
    state: AgentState = AgentState.STARTING,
    at: Instant = Instant(0),
    events: tuple[NewEvent, ...] = (),
    counters: Mapping[str, int] | None = None,
) -> Plan:
    """Makes the next incarnation claimable, at once or at ``at``; ``record`` carries its epoch already.

    A namespace that does not run yet keeps the agent registered instead. In one that is stopped nobody may come here.
    """
    now = situation.now
    if situation.runtime is not RuntimeState.RUNNING:
        after = replace(record, state=AgentState.REGISTERED)
        return Plan(command, situation.record, after, events, dict(_NO_DEADLINES), counters or {})
    due = max(at, record.claimable_after)
    waits = due > now
    sent_again = Instant(now + NUDGE_SPACING[0] * 1_000_000)
    timer = {Deadline.ATTEMPT: due} if waits else {Deadline.NUDGE: sent_again}
    return Plan(
        command,
        situation.record,
        replace(record, state=state, next_attempt_at=due if waits else Instant(0)),
        events,
        {**_NO_DEADLINES, **timer},
        counters or {},
        nudge=not waits,
        free_host=_leaves_host(situation.record, record),
        wake_owner=bool(situation.record and situation.record.hosted),
    )


def rest(
    situation: Situation,
    command: Command,
    record: AgentRecord,
    state: AgentState,
    *,
    events: tuple[NewEvent, ...] = (),
    counters: Mapping[str, int] | None = None,
) -> Plan:
    """Puts the agent to rest in an unhosted state."""
    return Plan(
        command,
        situation.record,
        replace(record, state=state, failover=False, attempt=0),
        (*_closing(record, "aborted by " + (events[-1].payload.get("reason", state) if events else state)), *events),
        dict(_NO_DEADLINES),
        counters or {},
        wake_owner=bool(situation.record and situation.record.hosted),
        free_host=_leaves_host(situation.record, record),
    )


def _leaves_host(before: AgentRecord | None, after: AgentRecord) -> bool:
    """The exit of its last process matters no longer."""
    return before is not None and before.owner is not None and after.owner is None


def _closing(record: AgentRecord, why: str) -> tuple[NewEvent, ...]:
    """Closes an open failover, so that each triggered has exactly one completed, failed or aborted."""
    if not record.failover:
        return ()
    return (lifecycle_event(record, EventType.FAILOVER_ABORTED, reason=why),)


def ask(situation: Situation, command: Command, record: AgentRecord, request: Request) -> Plan:
    """Asks the incarnation to end in order, until the stop deadline; raises no epoch."""
    first = record.state is not AgentState.STOPPING
    after = replace(
        record,
        state=AgentState.STOPPING,
        request=request,
        request_reason=command.reason,
        signal=record.signal + 1,
        reason=command.reason or record.reason,
        actor=command.actor or record.actor,
    )
    deadline = {Deadline.STOP: Instant(situation.now + micros(situation.policy.agent_stop_timeout))} if first else {}
    return Plan(command, situation.record, after, (), deadline, wake_owner=True)


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
    record = situation.record
    assert record is not None  # noqa: S101 - the table calls it for existing agents only
    now = situation.now
    runs_on = record.desired is Desired.RUNNING and situation.runtime is RuntimeState.RUNNING
    if record.request is Request.DIE and runs_on:
        return _died_as_asked(situation, command, claimable_after)
    after = replace(
        end(record, now, claimable_after=max(claimable_after, record.claimable_after)),
        failures=failures_before(record, situation.policy, now),
    )
    stopped = _STOP_REASONS.get(record.request, unasked)
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
            *_closing(record, "restore"),
            lifecycle_event(record, EventType.AGENT_STOPPED, reason="restore", auto_restore=True),
            lifecycle_event(record, EventType.FAILOVER_TRIGGERED, reason="restore"),
        )
        return launch(situation, command, after, state=AgentState.RESURRECTING, events=events)
    manual = record.request is Request.RESTART
    start_reason = {Request.RESTART: "restart", Request.PAUSE: "resume", Request.NONE: unasked}
    after = replace(
        after,
        failover=False,
        attempt=0,
        manual_restarts=record.manual_restarts + manual,
        failures=0 if manual else after.failures,
        start_reason=start_reason.get(record.request, "start"),
    )
    events = (*_closing(record, stopped), lifecycle_event(record, EventType.AGENT_STOPPED, reason=stopped))
    counters = {"manual_restarts": 1} if manual else {}
    return launch(situation, command, after, events=events, counters=counters)


def _died_as_asked(situation: Situation, command: Command, claimable_after: Instant) -> Plan:
    """It was reported dead without proof, was asked to give up, and is over now: the report was right."""
    record = situation.record
    assert record is not None  # noqa: S101 - the table calls it for existing agents only
    reason = record.request_reason or command.reason
    if record.failover:
        return attempt_failed(situation, command, reason, claimable_after=claimable_after)
    return die(situation, command, reason, DeathCause(record.cause), claimable_after=claimable_after)


def die(
    situation: Situation,
    command: Command,
    reason: str,
    cause: DeathCause,
    *,
    claimable_after: Instant = Instant(0),
) -> Plan:
    """An incarnation died while it should run: policy says whether and when it comes back."""
    record = situation.record
    assert record is not None  # noqa: S101 - the table calls it for existing agents only
    now, policy = situation.now, situation.policy
    if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
        return settle(situation, command, claimable_after=claimable_after)
    charge = cause in CHARGED
    charged_at = charged_deaths(record, policy, now)
    spent = len(charged_at) if policy.restart_period is not None else record.charged
    after = replace(
        end(record, now, claimable_after=claimable_after),
        reason=reason,
        cause=cause.value,
        last_error=reason,
        died_at=now,
        failures=failures_before(record, policy, now) + 1,
        attempt=0,
    )
    if policy.restart is RestartType.TEMPORARY:
        event = lifecycle_event(record, EventType.AGENT_STOPPED, reason=reason, auto_restore=False, cause=cause.value)
        after = replace(after, desired=Desired.STOPPED)
        return rest(situation, command, after, AgentState.STOPPED, events=(event,), counters={"deaths": 1})
    if charge and policy.max_restarts and spent >= policy.max_restarts:
        stopped = lifecycle_event(record, EventType.AGENT_STOPPED, reason=reason, auto_restore=False, cause=cause.value)
        return park(situation, command, after, "cap", reason, events=(stopped,))
    after = replace(
        after,
        restarts=record.restarts + 1,
        charged=spent + charge,
        charged_at=(*charged_at, now) if charge and policy.restart_period is not None else charged_at,
        failover=True,
        start_reason="failover",
    )
    delay = backoff_delay(policy, after.failures, seed=f"{record.spec.id}|{after.epoch}")
    events = (
        *_closing(record, reason),
        lifecycle_event(record, EventType.AGENT_STOPPED, reason=reason, auto_restore=True, cause=cause.value),
        lifecycle_event(
            record,
            EventType.FAILOVER_TRIGGERED,
            reason=reason,
            cause=cause.value,
            charged=charge,
            restarts=after.restarts,
            incarnation=record.incarnation,
            delay_ms=micros(delay) // 1000,
        ),
    )
    return launch(
        situation,
        command,
        after,
        state=AgentState.RESURRECTING,
        at=Instant(now + micros(delay)),
        events=events,
        counters={"deaths": 1, "restarts": 1},
    )


def attempt_failed(
    situation: Situation,
    command: Command,
    reason: str,
    *,
    task_id: str = "",
    retries: int = 0,
    claimable_after: Instant = Instant(0),
) -> Plan:
    """A try to bring the agent back failed before it ran: wait longer, or give up after the last."""
    record = situation.record
    assert record is not None  # noqa: S101 - the table calls it for existing agents only
    now, policy = situation.now, situation.policy
    if record.desired is not Desired.RUNNING or situation.runtime is not RuntimeState.RUNNING:
        return settle(situation, command, claimable_after=claimable_after)
    after = replace(
        end(record, now, claimable_after=claimable_after),
        last_error=reason,
        reason=reason,
        failures=max(record.failures, record.attempt) + 1,
    )
    if record.attempt >= policy.restore_attempts:
        failed = lifecycle_event(record, EventType.FAILOVER_FAILED, reason=reason, attempts=record.attempt)
        after = replace(after, failover=False)
        return park(situation, command, after, "attempts", reason, events=(failed,))
    after = replace(after, task_id=task_id, retries=retries)
    delay = backoff_delay(policy, after.failures, seed=f"{record.spec.id}|{after.epoch}")
    at = Instant(now + micros(delay))
    return launch(
        situation,
        command,
        after,
        state=AgentState.RESURRECTING,
        at=at,
        counters={"failed_attempts": 1},
    )


def park(
    situation: Situation,
    command: Command,
    record: AgentRecord,
    cause: str,
    reason: str,
    *,
    events: tuple[NewEvent, ...] = (),
) -> Plan:
    """Gives the agent up for a person to look at; said by an event, a state and a counter."""
    kind = EventType.AGENT_EXHAUSTED if cause in ("cap", "attempts") else EventType.AGENT_PARKED
    after = replace(record, cause=cause, reason=reason, last_error=reason)
    said = lifecycle_event(record, kind, reason=cause, cause=cause, detail=reason, charged=record.charged)
    counters = {"deaths": 1, "parked": 1} if cause == "cap" else {"parked": 1}
    return rest(
        situation,
        command,
        after,
        AgentState.PARKED,
        events=(*events, said),
        counters=counters,
    )


def the_record(situation: Situation) -> AgentRecord:
    """The record of an agent that exists; the table calls handlers of existing agents with nothing else."""
    return cast("AgentRecord", situation.record)


def renew(record: AgentRecord, now: Instant) -> AgentRecord:
    """The resting record with the epoch of its next incarnation; a process not seen to end is still waited for."""
    return end(record, now, claimable_after=record.claimable_after)


def without_proof(plan: Plan) -> Plan:
    """Marks a plan that ends an incarnation which nobody saw end: it holds only while its lease is as it was read."""
    return replace(plan, on_lease=bool(plan.before and plan.before.hosted and not plan.ignored))


def lease_end(situation: Situation) -> Instant:
    """When an incarnation that nobody saw end has certainly lost its lease."""
    record = the_record(situation)
    return max(situation.lease_until, record.claimable_after) if record.hosted else record.claimable_after
