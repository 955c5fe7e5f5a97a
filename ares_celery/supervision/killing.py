"""The faults that need no arena: SIGKILL of the process that hosts an agent, and of a whole worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ares_celery.errors import (
    AgentNotFoundError,
    ChaosDisabledError,
    OperationNotSupportedError,
    WorkerNotFoundError,
)
from ares_celery.ids import AgentId
from ares_celery.model.audit import AuditNote
from ares_celery.model.fault import nobody_hosts
from ares_celery.runtime.exit_watcher import kill
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import Store
from ares_celery.supervision.hosts import has_ended, parent_of

__all__ = ["kill_hosting_process", "kill_worker_process"]

#: Agents named in the sentence for people; the error's field has all.
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
        raise nobody_hosts(agent_id, record.state.value, "kill_agent")
    identity, operation = ProcessIdentity.decode(record.owner.identity), f"kill agent {agent_id!r}"
    _demand_here([identity], operation, agent_id=agent_id)
    others = [other for other in store.hosted_by(record.owner.identity) if other != agent_id]
    if others and not force:
        raise OperationNotSupportedError(
            operation=operation,
            reason=f"its process also hosts {_named(others)}; pass force=True",
            agent_id=agent_id,
            co_tenants=others,
        )
    # Before the signal: a caller who dies of it leaves a trace, too.
    store.note_down(
        AuditNote(operation="kill", agent_id=agent_id, reason=why[0], actor=why[1], state=record.state.value)
    )
    _kill(identity, operation, agent_id=agent_id)
    return {"agent_id": agent_id, "pid": identity.pid, "worker": record.owner.worker, "co_tenants": others}


def kill_worker_process(
    store: Store, worker: str, *, allowed: bool, force: bool, why: tuple[str, str]
) -> Mapping[str, Any]:
    """Kills the main process of a worker; see :meth:`ares_celery.supervision.chaos.Chaos.kill_worker`."""
    if not allowed:
        raise ChaosDisabledError(operation="kill_worker", namespace=store.namespace)
    hosts, operation = store.hosts(), f"kill worker {worker!r}"
    found = [ProcessIdentity.decode(identity) for identity, name in hosts.items() if name == worker]
    if not found:
        raise WorkerNotFoundError(worker=worker, known=sorted(set(hosts.values())))
    main, living = _main_of(_demand_here(found, operation, worker=worker), operation, worker)
    agents = sorted({agent_id for one in living for agent_id in store.hosted_by(one.encode())})
    if agents and not force:
        reason = f"it hosts {_named(agents)}; pass force=True"
        raise OperationNotSupportedError(operation=operation, reason=reason, worker=worker, agents=agents)
    reason, actor = why
    store.note_down(AuditNote(operation="kill_worker", reason=f"{worker}: {reason}".removesuffix(": "), actor=actor))
    for agent_id in agents:
        store.note_down(AuditNote(operation="kill", agent_id=agent_id, reason=reason, actor=actor))
    _kill(main, operation, worker=worker)
    return {"worker": worker, "pid": main.pid, "agents": agents}


def _demand_here(found: Sequence[ProcessIdentity], operation: str, **fields: str) -> list[ProcessIdentity]:
    """Those of the processes that this one can reach.

    Raises:
        OperationNotSupportedError: None; says where they are.
    """
    own = ProcessIdentity.current()
    here = [one for one in found if one.same_kernel(own)]
    if not here:
        one = found[-1]
        where = f"host {one.host}" if one.host != own.host else f"host {one.host}, in a container of its own"
        reason = f"process {one.pid} runs on {where}, where nobody can kill it from here: do it there"
        raise OperationNotSupportedError(operation=operation, reason=reason, host=one.host, pid=one.pid, **fields)
    return here


def _main_of(
    here: Sequence[ProcessIdentity], operation: str, worker: str
) -> tuple[ProcessIdentity, list[ProcessIdentity]]:
    """The main process of a worker, and all that live, itself included: its children go with it."""
    living = [one for one in here if not has_ended(one)]
    pids = {one.pid for one in living}
    mains = [one for one in living if parent_of(one) not in pids]
    if len(mains) == 1:
        return mains[0], living
    told = f"processes {', '.join(str(one.pid) for one in mains)} all have its name: give each a name of its own"
    reason = told if mains else "its process has ended"
    raise OperationNotSupportedError(operation=operation, reason=reason, worker=worker)


def _kill(identity: ProcessIdentity, operation: str, **fields: str) -> None:
    if not kill(identity):
        reason = f"its process {identity.pid} has ended, or may not be killed by this one's user"
        raise OperationNotSupportedError(operation=operation, reason=reason, host=identity.host, **fields)


def _named(agent_ids: Sequence[str]) -> str:
    return ", ".join(agent_ids[:_NAMED]) + (" …" if len(agent_ids) > _NAMED else "")
