"""Pauses: asked for by people, for a time or until somebody resumes the agent. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Final, cast

from ares_celery.clock import micros
from ares_celery.ids import Instant
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentState, Desired, Request, RuntimeState
from ares_celery.model.command import Command, Deadline
from ares_celery.model.event import EventType
from ares_celery.model.plan import Plan, Situation
from ares_celery.model.rules_asked import demand_runtime, nothing, refuse_state
from ares_celery.model.transitions import ask, end, ignore, launch, lifecycle_event, renew, rest, the_record

__all__ = ["pause", "pause_again", "resume", "resume_due", "resume_other"]

#: How often a pause that is over is looked at while the runtime does not run.
_LOOK: Final = timedelta(minutes=1)


def pause(situation: Situation, command: Command) -> Plan:
    """Wants it paused: asks the incarnation to end in order, or calls an unclaimed one off."""
    record, lasts = the_record(situation), cast("commands.Pause", command).lasts
    if record.desired is Desired.STOPPED:
        return refuse_state(situation, command)
    if record.desired is Desired.PAUSED and lasts is not None:
        return ignore(situation, command, "it is being paused already")
    wanted = replace(record, desired=Desired.PAUSED, actor=command.actor or record.actor, reason=command.reason)
    if record.hosted:
        plan = ask(situation, command, wanted, Request.PAUSE)
    else:
        after = end(wanted, situation.now, claimable_after=record.claimable_after)
        event = lifecycle_event(record, EventType.AGENT_STOPPED, reason="pause")
        plan = rest(situation, command, after, AgentState.PAUSED, events=(event,))
    # None clears that of an earlier pause, which this one does not end with.
    ends = None if lasts is None else Instant(situation.now + micros(lasts))
    return replace(plan, deadlines={**plan.deadlines, Deadline.RESUME: ends})


def pause_again(situation: Situation, command: Command) -> Plan:
    """It rests already: an end that was set stays, unless this pause shall have none."""
    if cast("commands.Pause", command).lasts is not None:
        return nothing(situation, command)
    record = the_record(situation)
    return Plan(command, record, record, deadlines={Deadline.RESUME: None})


def resume(situation: Situation, command: Command) -> Plan:
    """Lets a paused agent run again; not a restart."""
    record = the_record(situation)
    demand_runtime(situation)
    after = replace(record, desired=Desired.RUNNING, actor=command.actor or record.actor, start_reason="resume")
    if record.state is AgentState.STOPPING:
        if record.desired is not Desired.PAUSED:
            return ignore(situation, command, "not paused")
        return Plan(command, record, after)
    return launch(situation, command, renew(after, situation.now))


def resume_other(situation: Situation, command: Command) -> Plan:
    """It is not paused: success without effect."""
    demand_runtime(situation)
    return nothing(situation, command)


def resume_due(situation: Situation, command: Command) -> Plan:
    """A pause for a time is over: it runs again, or once the runtime does."""
    record = the_record(situation)
    if situation.runtime is not RuntimeState.RUNNING:
        return Plan(command, record, record, deadlines={Deadline.RESUME: Instant(situation.now + micros(_LOOK))})
    return resume(situation, command)
