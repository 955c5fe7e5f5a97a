"""How a fork begins and becomes an agent like any other. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

from ares_celery.errors import AgentAlreadyRegisteredError, AgentForkingError, AgentNotFoundError, VersionConflictError
from ares_celery.ids import Version
from ares_celery.model import command as commands
from ares_celery.model.agent import AgentRecord, Desired
from ares_celery.model.command import Command, Operation
from ares_celery.model.event import EventType
from ares_celery.model.fork import ForkMark, ForkOrigin
from ares_celery.model.plan import Plan, Situation
from ares_celery.model.rules_asked import demand_runtime
from ares_celery.model.transitions import ignore, launch, lifecycle_event, next_epoch, renew, the_record

__all__ = ["fork", "fork_done", "fork_existing", "refuse_forking"]

#: What would run an agent, or say that it shall not: a fork whose history is not whole is not there yet for it.
_NOT_YET: Final = frozenset(
    {
        Operation.START,
        Operation.STOP,
        Operation.PAUSE,
        Operation.RESUME,
        Operation.RESTART,
        Operation.RESTORE,
        Operation.UNPARK,
    }
)


def fork(situation: Situation, command: Command) -> Plan:
    """Makes the new agent's record, which cannot run before its history is copied."""
    asked = cast("commands.Fork", command)
    if asked.spec is None or asked.origin is None:
        raise AgentNotFoundError(agent_id="")
    if asked.start:
        demand_runtime(situation)
    epoch, at = next_epoch(None, situation.now), asked.origin.at
    record = AgentRecord(
        asked.spec,
        Desired.STOPPED,
        epoch=epoch,
        reason=command.reason,
        actor=command.actor,
        forked_from=str(asked.origin),
        forking=str(ForkMark(at)),
        accepted_version=Version(min(asked.accepted_version, at)),
    )
    return Plan(command, None, record)


def fork_existing(situation: Situation, command: Command) -> Plan:
    """Goes on with the same fork when it is not whole yet; any other agent of this id is left alone."""
    asked, record = cast("commands.Fork", command), the_record(situation)
    if record.forking and record.forked_from == str(asked.origin):
        return ignore(situation, command, "begun already")
    if record.forking:
        raise _not_yet(record, Operation.FORK)
    agent_id = record.spec.id
    raise AgentAlreadyRegisteredError(
        agent_id=agent_id,
        state=record.state.value,
        desired=record.desired.value,
        message=f"agent {agent_id!r} exists ({record.state}); choose another id for the fork, or delete it first",
    )


def fork_done(situation: Situation, command: Command) -> Plan:
    """Its history is whole: says so by an event behind it, and starts the agent when it is meant to run."""
    asked, record = cast("commands.ForkDone", command), the_record(situation)
    if not record.forking:
        return ignore(situation, command, "whole already")
    mark, origin = ForkMark.parse(record.forking), ForkOrigin.parse(record.forked_from)
    if not mark.copied == mark.at == record.version:
        raise VersionConflictError(
            subject=f"the history of agent {record.spec.id!r}",
            actual=record.version,
            expected=mark.at,
            agent_id=record.spec.id,
        )
    after = replace(
        renew(record, situation.now),
        forking="",
        desired=Desired.RUNNING if asked.start else Desired.STOPPED,
        start_reason="fork",
        reason=command.reason or record.reason,
        actor=command.actor or record.actor,
    )
    # Beside "at", the words of the fork: whose history it is up to that version.
    event = lifecycle_event(record, EventType.AGENT_FORKED, **{"from": origin.source, "at": origin.at})
    if asked.start:
        return launch(situation, command, after, events=(event,))
    return Plan(command, record, after, (event,))


def refuse_forking(record: AgentRecord, operation: Operation) -> None:
    """Refuses what a fork cannot do before its history is whole. Raises AgentForkingError."""
    if record.forking and operation in _NOT_YET:
        raise _not_yet(record, operation)


def _not_yet(record: AgentRecord, operation: Operation) -> AgentForkingError:
    origin = ForkOrigin.parse(record.forked_from)
    return AgentForkingError(
        agent_id=record.spec.id, source=origin.source, at=origin.at, operation=operation.value.replace("_", " ")
    )
