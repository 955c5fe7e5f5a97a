"""From a record to what people see."""

from __future__ import annotations

import json

from ares_celery.clock import to_datetime
from ares_celery.model.agent import AgentInfo, AgentRecord, AgentState, Desired, agent_status
from ares_celery.model.fork import ForkOrigin

__all__ = ["agent_info"]


def agent_info(record: AgentRecord) -> AgentInfo:
    """The record as a person sees it."""
    unclaimed = record.state in (AgentState.STARTING, AgentState.RESURRECTING) and not record.hosted
    progress = record.last_progress or record.running_since
    return AgentInfo(
        id=record.spec.id,
        type=record.spec.type,
        state=record.state,
        status=agent_status(record.state),
        desired=record.desired,
        paused=record.desired is Desired.PAUSED,
        restarts=record.restarts,
        charged=record.charged,
        max_restarts=record.spec.max_restarts,
        deaths=dict(record.deaths),
        manual_restarts=record.manual_restarts,
        incarnation=record.incarnation,
        epoch=record.epoch,
        worker=record.owner.worker if record.owner and record.hosted else None,
        queue=record.spec.queue,
        group=record.spec.group,
        parent=record.spec.parent,
        reason=record.reason,
        actor=record.actor,
        cause=record.cause,
        pid=_pid_of(record.owner.identity) if record.owner and record.hosted else None,
        waiting_on=_waiting_on(record) if unclaimed or record.forking else _wait_of(record),
        waiting_until=to_datetime(record.waiting.until) if record.waiting and record.waiting.until else None,
        next_attempt=to_datetime(record.next_attempt_at) if unclaimed and record.next_attempt_at else None,
        last_progress=to_datetime(progress) if progress else None,
        step=record.step if record.step and record.hosted else None,
        step_since=to_datetime(record.step_since) if record.step and record.hosted and record.step_since else None,
        intents=record.intents,
        last_error=record.last_error,
        accepted_version=record.accepted_version,
        forked_from=_forked_from(record),
        result=json.loads(record.result) if record.result else None,
        labels=record.spec.labels,
        faults=record.faults,
        degraded=record.degraded if record.hosted else "",
        budget=record.spending.limits.told(),
        spent=record.spending.own.told(),
        spent_below=record.spending.children.told() if record.spending.children else None,
    )


def _waiting_on(record: AgentRecord) -> str:
    """What an agent that nobody has claimed yet waits for."""
    if record.forking:
        return "fork"
    if record.held:
        return "group"
    why, _, epoch = record.refused.partition("|")
    if record.next_attempt_at:
        return "backoff"
    return why if why and epoch == str(record.epoch) else "slot"


def _wait_of(record: AgentRecord) -> str | None:
    """What an agent without a slot waits for, or one that runs for long; None when it waits for nothing."""
    if record.waiting is None:
        return f"limit:{record.limited}" if record.limited and record.hosted else None
    kind, name = record.waiting.kind.value, record.waiting.name
    return f"{kind}:{name}" if name else kind


def _forked_from(record: AgentRecord) -> str:
    if not record.forked_from:
        return ""
    origin = ForkOrigin.parse(record.forked_from)
    return f"{origin.source}@{origin.at}"


def _pid_of(identity: str) -> int | None:
    """The process id in the identity of a host; None in one of another form."""
    parts = identity.rsplit(":", 2)
    return int(parts[1]) if len(parts) == 3 and parts[1].isdecimal() else None  # noqa: PLR2004 - …:pid:start
