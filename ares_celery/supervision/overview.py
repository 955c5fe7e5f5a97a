"""The namespace as a whole: registered DAGs, executions, and a snapshot of everything for people and tools."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from ares_celery.clock import to_datetime
from ares_celery.errors import StoreUnavailableError
from ares_celery.model.audit import AuditNote
from ares_celery.model.info import agent_info
from ares_celery.model.introspection import Activity, RuntimeSnapshot
from ares_celery.model.stats import RuntimeStats
from ares_celery.runtime.callers import check_texts, me
from ares_celery.runtime.queries import Ports
from ares_celery.store.base import Store
from ares_celery.store.checkpoints import CheckpointStore
from ares_celery.supervision.runtime_switch import runtime_stats

__all__ = ["MOST_ACTIVITY", "MOST_AGENTS", "NamespaceOverview"]

log: Final = logging.getLogger(__name__)

#: Entries of a snapshot's activity.
MOST_ACTIVITY: Final = 300
#: Faults that a snapshot lists in full; their number is told in any case.
MOST_FAULTS: Final = 1_000
#: Agents that a snapshot lists in full; their number is told in any case.
MOST_AGENTS: Final = 1_000

Part = Callable[[Store], Mapping[str, Any]]


class NamespaceOverview:
    """The half of a Manager that is about no single agent's life."""

    _ports: Ports

    @property
    def checkpoints(self) -> CheckpointStore:
        """The executions of agents, each with its checkpoint."""
        return self._ports.store.checkpoints

    def register_agent_dag(self, key: str, value: object, *, reason: str = "", actor: str = "") -> None:
        """Keeps a DAG, any JSON value, under a key; one that was there is replaced. It makes no agent and no work.

        Args:
            key: An agent's id or any other name, 1 to 200 printable characters; no agent of this name need exist.
            value: dict, list, str, int, float, bool or None, nested; at most ``max_event_bytes`` as JSON.
            reason: Kept in the audit stream.
            actor: Who asks; default user@host.

        Raises:
            DagRefusedError: Key or value cannot be stored; the DAG that was there stays.
        """
        check_texts(reason=reason, actor=actor)
        note = AuditNote(operation="dag.register", actor=actor or me(), reason=reason, changed=(str(key),))
        self._ports.store.put_dag(key, value, note=note)

    def get_agent_dag(self, key: str) -> Any:  # noqa: ANN401 - JSON
        """The DAG under a key; None when there is none."""
        check_texts(key=key)
        return self._ports.store.dag(key)

    def introspect(self) -> RuntimeSnapshot:
        """Everything that is known of the namespace at this moment.

        A part whose source does not exist is empty; so is one that cannot be read, and ``problems`` says why.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        store = self._ports.store
        problems: dict[str, str] = {}
        parts = {name: _contained(name, part, store, problems) for name, part in _PARTS.items()}
        activity = _contained("activity", _activity, store, problems).get("entries", ())
        # Numbered last: of two snapshots the one with the greater number has not seen less.
        seq, now = store.number_snapshot()
        return RuntimeSnapshot(seq=seq, time=to_datetime(now), **parts, activity=activity, problems=problems)


def _contained(name: str, part: Part, store: Store, problems: dict[str, str]) -> Mapping[str, Any]:
    """One part that cannot be read must not hide the others."""
    try:
        return part(store)
    except StoreUnavailableError:
        raise
    except Exception as error:
        log.exception("part %s of the runtime's snapshot cannot be read; the others are not held up by it", name)
        problems[name] = f"{type(error).__name__}: {error}"
        return {}


def _runtime(store: Store) -> Mapping[str, Any]:
    runtime, stats = store.runtime(), runtime_stats(store)
    return {
        "namespace": store.namespace,
        "state": runtime.state.value,
        "generation": runtime.generation,
        "reason": runtime.reason,
        "actor": runtime.actor,
        "since": to_datetime(runtime.since) if runtime.since else None,
        **{name: getattr(stats, name) for name in RuntimeStats.model_fields if name != "by_state"},
    }


def _agents(store: Store) -> Mapping[str, Any]:
    ids = store.list_ids()
    if not ids:
        return {}
    reads = store.read_many(ids[:MOST_AGENTS])
    return {
        "total": len(ids),
        "by_state": {state.value: count for state, count in store.count_by_state().items()},
        "listed": [agent_info(read.record).model_dump(mode="json") for read in reads if read.record is not None],
    }


def _supervision(store: Store) -> Mapping[str, Any]:
    age = store.sweep_age_ms()
    return {"last_sweep_ms": age, "clock_steps": store.clock().generation} if age >= 0 else {}


def _hosts(store: Store) -> Mapping[str, Any]:
    return store.hosts()


def _chaos(store: Store) -> Mapping[str, Any]:
    faults, allowed = store.all_faults(), store.chaos_state()
    if not faults and allowed.until is None:
        return {}
    return {
        "allowed_until": allowed.until,
        "total": len(faults),
        "faults": [fault.to_json() for fault in faults[:MOST_FAULTS]],
    }


def _dags(store: Store) -> Mapping[str, Any]:
    keys = store.dag_keys()
    return {"keys": list(keys)} if keys else {}


def _activity(store: Store) -> Mapping[str, Any]:
    entries: tuple[Activity, ...] = tuple(store.activity(limit=MOST_ACTIVITY))
    return {"entries": entries}


_PARTS: Final[Mapping[str, Part]] = {
    "runtime": _runtime,
    "agents": _agents,
    "supervision": _supervision,
    "hosts": _hosts,
    "chaos": _chaos,
    "dags": _dags,
}
