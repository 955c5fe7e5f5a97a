"""The moves that lifecycle rules are made of: each takes a Situation and gives a Plan. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, cast

from ares_celery.clock import micros
from ares_celery.errors import StepsUnsettledError
from ares_celery.ids import Epoch, Instant
from ares_celery.model.agent import AgentRecord, AgentState, Held, Request, RuntimeState
from ares_celery.model.command import Command, Deadline
from ares_celery.model.event import RUNTIME_MODULE, EventType, NewEvent
from ares_celery.model.plan import NUDGE_SPACING, Plan, Situation

__all__ = [
    "STOP_REASONS",
    "UNKNOWN_OUTCOME",
    "ask",
    "closing",
    "demand_settled",
    "end",
    "hold",
    "ignore",
    "launch",
    "lease_end",
    "lifecycle_event",
    "next_epoch",
    "park",
    "renew",
    "rest",
    "the_record",
    "without_proof",
]

#: Cause of an agent that is parked as a step of it may or may not have happened.
UNKNOWN_OUTCOME: Final = "reconcile"
STOP_REASONS: Mapping[Request, str] = {
    Request.STOP: "explicit_stop",
    Request.PAUSE: "pause",
    Request.RESTART: "restart",
    Request.RESTORE: "restore",
    Request.SHUTDOWN: "shutdown",
    Request.GROUP: "group",
}
_NO_DEADLINES: Mapping[Deadline, Instant | None] = {
    Deadline.LEASE: None,
    Deadline.NUDGE: None,
    Deadline.ATTEMPT: None,
    Deadline.STOP: None,
    Deadline.HANG: None,
}


#: What an agent at rest may be waiting for.
_NO_WAITS: Mapping[Deadline, Instant | None] = {Deadline.TIMER: None, Deadline.APPROVAL: None}


def _cleared(situation: Situation) -> Mapping[Deadline, Instant | None]:
    """The deadlines that are of no use any more, whatever comes next."""
    waits = situation.record is not None and situation.record.state is AgentState.WAITING
    return {**_NO_DEADLINES, **_NO_WAITS} if waits else _NO_DEADLINES


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
        held=Held.NO,
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
        after = replace(record, state=AgentState.REGISTERED, waiting=None)
        return Plan(command, situation.record, after, events, dict(_cleared(situation)), counters or {})
    due = max(at, record.claimable_after)
    waits = due > now
    sent_again = Instant(now + NUDGE_SPACING[0] * 1_000_000)
    timer: dict[Deadline, Instant | None] = {Deadline.ATTEMPT: due} if waits else {Deadline.NUDGE: sent_again}
    if record.held:
        timer[Deadline.GROUP] = None
    return Plan(
        command,
        situation.record,
        replace(record, state=state, held=Held.NO, next_attempt_at=due if waits else Instant(0), waiting=None),
        events,
        {**_cleared(situation), **timer},
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
    waiting = record.waiting if state is AgentState.WAITING else None
    return Plan(
        command,
        situation.record,
        replace(record, state=state, held=Held.NO, failover=False, attempt=0, waiting=waiting),
        (*closing(record, "aborted by " + (events[-1].payload.get("reason", state) if events else state)), *events),
        dict(_cleared(situation)),
        counters or {},
        wake_owner=bool(situation.record and situation.record.hosted),
        free_host=_leaves_host(situation.record, record),
    )


def hold(  # noqa: PLR0913 - the parts of one decision
    situation: Situation,
    command: Command,
    record: AgentRecord,
    held: Held,
    *,
    state: AgentState,
    at: Instant = Instant(0),
    events: tuple[NewEvent, ...] = (),
    counters: Mapping[str, int] | None = None,
) -> Plan:
    """Lets the next incarnation wait for the agent's group, which is told at once; ``at`` is its own earliest time."""
    now = situation.now
    due = max(at, record.claimable_after)
    return Plan(
        command,
        situation.record,
        replace(record, state=state, held=held, next_attempt_at=due if due > now else Instant(0)),
        events,
        {**_NO_DEADLINES, Deadline.GROUP: now},
        counters or {},
        free_host=_leaves_host(situation.record, record),
        wake_owner=bool(situation.record and situation.record.hosted),
    )


def _leaves_host(before: AgentRecord | None, after: AgentRecord) -> bool:
    """The exit of its last process matters no longer."""
    return before is not None and before.owner is not None and after.owner is None


def closing(record: AgentRecord, why: str) -> tuple[NewEvent, ...]:
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


def park(  # noqa: PLR0913 - the parts of one decision
    situation: Situation,
    command: Command,
    record: AgentRecord,
    cause: str,
    reason: str,
    *,
    events: tuple[NewEvent, ...] = (),
    counters: Mapping[str, int] | None = None,
) -> Plan:
    """Gives the agent up for a person to look at; said by an event, a state and a counter."""
    kind = EventType.AGENT_EXHAUSTED if cause in ("cap", "attempts", "group_cap") else EventType.AGENT_PARKED
    after = replace(record, cause=cause, reason=reason, last_error=reason)
    said = lifecycle_event(record, kind, reason=cause, cause=cause, detail=reason, charged=record.charged)
    return rest(
        situation,
        command,
        after,
        AgentState.PARKED,
        events=(*events, said),
        counters={**(counters or {}), "parked": 1},
    )


def the_record(situation: Situation) -> AgentRecord:
    """The record of an agent that exists; the table calls handlers of existing agents with nothing else."""
    return cast("AgentRecord", situation.record)


def demand_settled(record: AgentRecord) -> None:
    """Refuses an end by which an agent could run again although somebody has to look at its steps first."""
    if record.intents:
        raise StepsUnsettledError(agent_id=record.spec.id, intents=record.intents)


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
