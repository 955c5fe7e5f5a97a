"""Who asked for what, and why: one entry for each change that somebody asked for."""

from __future__ import annotations

from datetime import datetime
from typing import Final

from pydantic import BaseModel, ConfigDict

from ares_celery.model.agent import AgentRecord
from ares_celery.model.command import Command, Operation, Unpark
from ares_celery.model.plan import Plan

__all__ = ["AuditEntry", "AuditNote", "is_asked", "note_of"]

#: Operations that a person or a service asks for. All others are findings of the runtime, which its events tell.
_ASKED: Final = frozenset(
    {
        Operation.REGISTER,
        Operation.START,
        Operation.SPAWN,
        Operation.STOP,
        Operation.PAUSE,
        Operation.RESUME,
        Operation.RESTART,
        Operation.RESTORE,
        Operation.UNPARK,
        Operation.UPDATE,
        Operation.DELETE,
        Operation.FORK,
        Operation.DIE,
    }
)
#: What the outside calls them, where that is another word.
_WORDS: Final = {Operation.DIE: "notify_dead"}


class AuditNote(BaseModel):
    """What is written of one change; the store adds the time. Never a value of a setting or of a config.

    Attributes:
        operation: What was asked for: start, stop, update, reconcile, …, runtime.start, config.set.
        agent_id: Of which agent; None for the namespace.
        actor: Who asked.
        reason: Why.
        state: The state that the change led to; ``deleted`` for an agent that is gone.
        op: The operation id, the same in a repeated call.
        changed: Names of spec fields or settings that changed; their values are not kept here. ``accept_loss``: the
            agent was un-parked without what is lost of it. Of a reconcile: ``done`` or ``retry``, execution, step.
    """

    model_config = ConfigDict(frozen=True)

    operation: str
    agent_id: str | None = None
    actor: str = ""
    reason: str = ""
    state: str | None = None
    op: str = ""
    changed: tuple[str, ...] = ()


class AuditEntry(AuditNote):
    """One entry of the audit stream: a note and Redis' time of the change.

    Example:
        ``[(entry.actor, entry.operation) for entry in manager.audit("counter-1")]``
    """

    time: datetime


def is_asked(command: Command) -> bool:
    """Somebody asks for it, whose word must not be lost once it is acknowledged."""
    # Deadlines that passed have no operation of their own.
    operation: Operation | None = getattr(command, "operation", None)
    return operation in _ASKED and bool(command.actor)


def note_of(plan: Plan, op: str) -> AuditNote | None:
    """What a plan's commit writes into the audit stream; None for what nobody asked for."""
    command = plan.command
    operation: Operation | None = getattr(command, "operation", None)
    if operation is None or not is_asked(command):
        return None
    record = plan.after or plan.before
    return AuditNote(
        operation=_WORDS.get(operation, operation.value),
        agent_id=record.spec.id if record else None,
        actor=command.actor,
        reason=command.reason,
        state=plan.after.state.value if plan.after else "deleted",
        op=op,
        changed=_accepted(command) or _changed(plan.before, plan.after),
    )


def _accepted(command: object) -> tuple[str, ...]:
    return ("accept_loss",) if isinstance(command, Unpark) and command.accept_loss else ()


def _changed(before: AgentRecord | None, after: AgentRecord | None) -> tuple[str, ...]:
    if before is None or after is None or before.spec == after.spec:
        return ()
    names = type(after.spec).model_fields
    return tuple(name for name in names if getattr(before.spec, name) != getattr(after.spec, name))
