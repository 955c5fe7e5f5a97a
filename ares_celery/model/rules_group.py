"""What a group asks of its members: to end and wait, to go on, to be given up. Pure."""

from __future__ import annotations

from typing import cast

from ares_celery.clock import micros
from ares_celery.ids import Instant
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentRecord, AgentState, Desired, Held, Request, RuntimeState
from ares_celery.model.command import Command, Deadline
from ares_celery.model.endings import settle
from ares_celery.model.plan import GROUP_LOOK, Plan, Situation
from ares_celery.model.transitions import ask, end, hold, ignore, launch, park, the_record

__all__ = ["group_due", "group_go", "group_park", "group_stop"]


def _runs_on(situation: Situation, record: AgentRecord) -> bool:
    return record.desired is Desired.RUNNING and situation.runtime is RuntimeState.RUNNING


def group_stop(situation: Situation, command: Command) -> Plan:
    """Its group restarts: a hosted incarnation is asked to end in order, an unclaimed one waits for the group."""
    asked, record = cast("commands.GroupStop", command), the_record(situation)
    if asked.epoch != record.epoch:
        return ignore(situation, command, "stale")
    if not _runs_on(situation, record):
        return ignore(situation, command, "not desired")
    if record.held or record.state is AgentState.STOPPING:
        return ignore(situation, command, "ends or waits already")
    if record.hosted:
        return ask(situation, command, record, Request.GROUP)
    after = end(record, situation.now, claimable_after=record.claimable_after)
    return hold(situation, command, after, Held.ASKED, state=record.state, at=record.next_attempt_at)


def group_go(situation: Situation, command: Command) -> Plan:
    """The group lets it go on: claimable, once its own backoff is over."""
    asked, record = cast("commands.GroupGo", command), the_record(situation)
    if not record.held or asked.epoch != record.epoch:
        return ignore(situation, command, "waits for no group")
    if not _runs_on(situation, record):
        return settle(situation, command)
    return launch(situation, command, record, state=record.state, at=record.next_attempt_at)


def group_park(situation: Situation, command: Command) -> Plan:
    """Its group restarted too often and is given up, with all its members."""
    asked, record = cast("commands.GroupPark", command), the_record(situation)
    if not record.held or asked.epoch != record.epoch:
        return ignore(situation, command, "waits for no group")
    after = end(record, situation.now, claimable_after=record.claimable_after)
    return park(situation, command, after, "group_cap", command.reason)


def group_due(situation: Situation, command: Command) -> Plan:
    """Its group knows of it; one that waits for the group asks again after a while."""
    record = the_record(situation)
    again = Instant(situation.now + micros(GROUP_LOOK)) if record.held else None
    return Plan(command, record, record, deadlines={Deadline.GROUP: again})
