"""The one fault that needs no arena: SIGKILL of the process that hosts an agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    ChaosDisabledError,
    OperationNotSupportedError,
)
from ares_celery.ids import AgentId
from ares_celery.model.audit import AuditNote
from ares_celery.runtime.exit_watcher import kill
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import Store

__all__ = ["kill_hosting_process"]

#: Co-tenants named in the sentence for people; the error's field has all.
_NAMED: Final = 10


def kill_hosting_process(
    store: Store, agent_id: AgentId, *, allowed: bool, force: bool, why: tuple[str, str]
) -> Mapping[str, Any]:
    """Kills the process that hosts an agent; see :meth:`ares_celery.supervision.chaos.Chaos.kill_agent`."""
    if not allowed:
        raise ChaosDisabledError(operation="kill_agent", namespace=store.namespace)
    record = store.read(agent_id).record
    if record is None:
        raise AgentNotFoundError(agent_id=agent_id)
    if record.owner is None or not record.hosted:
        raise AgentNotRunningError(agent_id=agent_id, state=record.state.value, operation="kill_agent")
    others = [other for other in store.hosted_by(record.owner.identity) if other != agent_id]
    if others and not force:
        named = ", ".join(others[:_NAMED]) + (" …" if len(others) > _NAMED else "")
        raise OperationNotSupportedError(
            operation=f"kill agent {agent_id!r}",
            reason=f"its process also hosts {named}; pass force=True",
            agent_id=agent_id,
            co_tenants=others,
        )
    identity = ProcessIdentity.decode(record.owner.identity)
    # Before the signal: a caller who dies of it leaves a trace, too.
    store.note_down(
        AuditNote(operation="kill", agent_id=agent_id, reason=why[0], actor=why[1], state=record.state.value)
    )
    if not kill(identity):
        raise OperationNotSupportedError(
            operation=f"kill agent {agent_id!r}",
            reason=f"its process {record.owner.identity} is gone or is not on this machine",
            agent_id=agent_id,
        )
    return {"agent_id": agent_id, "pid": identity.pid, "worker": record.owner.worker, "co_tenants": others}
