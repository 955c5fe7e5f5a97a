"""Waits that cost no slot: how they begin, and what brings an agent on again. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final, cast

from ares_celery.clock import micros
from ares_celery.errors import FencedError
from ares_celery.ids import Instant
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentRecord, AgentState, Desired, RuntimeState
from ares_celery.model.command import Command, Deadline
from ares_celery.model.endings import settle
from ares_celery.model.event import EventType
from ares_celery.model.plan import Plan, Situation
from ares_celery.model.restart import failures_before
from ares_celery.model.transitions import (
    closing,
    demand_settled,
    end,
    ignore,
    launch,
    lifecycle_event,
    renew,
    rest,
    the_record,
)
from ares_celery.model.waits import Waiting, WaitKind

__all__ = ["reconcile_waiting", "wait", "wait_due"]

#: How often a wait that is over is looked at while the runtime does not run. A runtime that begins to looks at once.
_LOOK: Final = timedelta(minutes=1)
_DEADLINE: Final = {WaitKind.TIMER: Deadline.TIMER, WaitKind.APPROVAL: Deadline.APPROVAL}


def wait(situation: Situation, command: Command) -> Plan:
    """The incarnation gives its slot back until a time or a decision; what came meanwhile brings it on at once."""
    record, now = the_record(situation), situation.now
    asked = cast("commands.Wait", command)
    if not asked.fence or asked.fence != record.fence:
        raise FencedError(agent_id=record.spec.id, epoch=asked.fence.partition("|")[0])
    demand_settled(record)
    if record.state is AgentState.STOPPING or record.desired is not Desired.RUNNING:
        return settle(situation, command)
    waiting = asked.waiting or Waiting()
    ended = replace(
        end(record, now, claimable_after=record.claimable_after),
        failures=failures_before(record, situation.policy, now),
        cause="",
        reason=command.reason,
    )
    said = lifecycle_event(record, EventType.AGENT_STOPPED, reason="wait")
    runs = situation.runtime is RuntimeState.RUNNING
    if runs and _is_over(record, waiting, now):
        after = _woken(replace(ended, failover=False, attempt=0), waiting, now)
        return launch(situation, command, after, events=(*closing(record, "aborted by wait"), said))
    after = replace(ended, waiting=waiting)
    plan = rest(situation, command, after, AgentState.WAITING, events=(said,))
    kind = _DEADLINE[waiting.kind]
    due = waiting.until or None
    if _is_over(record, waiting, now):
        due = Instant(now + micros(_LOOK))
    return replace(plan, deadlines={**plan.deadlines, kind: due})


def wait_due(situation: Situation, command: Command) -> Plan:
    """What it waited for is there: the next incarnation begins, and reads on from the top."""
    record, due = the_record(situation), cast("commands.DeadlineDue", command)
    if situation.runtime is not RuntimeState.RUNNING:
        return Plan(command, record, record, deadlines={due.kind: Instant(situation.now + micros(_LOOK))})
    return _go_on(situation, command)


def reconcile_waiting(situation: Situation, command: Command) -> Plan:
    """Brings on one whose wait ended while the runtime did not run."""
    record = the_record(situation)
    waiting = record.waiting or Waiting()
    if situation.runtime is not RuntimeState.RUNNING or not _is_over(record, waiting, situation.now):
        return ignore(situation, command, "agrees")
    return _go_on(situation, command)


def _go_on(situation: Situation, command: Command) -> Plan:
    record = the_record(situation)
    after = _woken(renew(record, situation.now), record.waiting or Waiting(), situation.now)
    return launch(situation, command, after)


def _is_over(record: AgentRecord, waiting: Waiting, now: Instant) -> bool:
    """The time has come, or somebody has decided something since the agent's code looked last."""
    decided = waiting.decisions >= 0 and record.decisions != waiting.decisions
    return decided or 0 < waiting.until <= now


def _woken(after: AgentRecord, waiting: Waiting, now: Instant) -> AgentRecord:
    """With why it begins, and which timers its code need not wait for again."""
    is_timer = 0 < waiting.until <= now and waiting.sleeps > 0
    return replace(
        after,
        start_reason=(WaitKind.TIMER if 0 < waiting.until <= now else WaitKind.APPROVAL).value,
        woken_until=waiting.until if is_timer else after.woken_until,
        woken_sleeps=waiting.sleeps if is_timer else after.woken_sleeps,
        woken_at=now if is_timer else after.woken_at,
    )
