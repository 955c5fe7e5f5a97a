"""Starting and stopping a whole namespace, and its numbers."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from datetime import timedelta
from typing import Final

from ares_celery.background import work_in_progress
from ares_celery.clock import Clock
from ares_celery.errors import StoreUnavailableError
from ares_celery.ids import AgentId
from ares_celery.model.agent import LIVE, AgentState, RuntimeState
from ares_celery.model.command import Deadline, DeadlineDue
from ares_celery.model.stats import RuntimeStats
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.runtime.reconcile import reconcile_namespace
from ares_celery.store.base import RuntimeRead, Store

__all__ = ["runtime_stats", "start_runtime", "stop_runtime"]

log: Final = logging.getLogger(__name__)

#: Seconds between two looks at the agents that are still ending.
_LOOK: Final = 0.05
_PATIENCE: Final = timedelta(seconds=5)


def start_runtime(store: Store, committer: Committer, *, reason: str, actor: str) -> None:
    """Makes the runtime run, and launches every agent that should."""
    startable = (RuntimeState.NEW, RuntimeState.STOPPED)
    store.set_runtime(RuntimeState.RUNNING, only_from=startable, reason=reason or "start", actor=actor)
    reconcile_namespace(store, committer)


def stop_runtime(
    store: Store, committer: Committer, clock: Clock, *, limit: timedelta, reason: str, actor: str
) -> None:
    """Ends every agent in order within ``limit``; what has not ended by then is fenced. Desired states stay.

    One that cannot be stopped never keeps the others from it; it is logged.
    """
    until = clock.monotonic() + limit.total_seconds()
    store.set_runtime(RuntimeState.STOPPED, only_from=(RuntimeState.RUNNING,), reason=reason or "stop", actor=actor)
    reconcile_namespace(store, committer)
    unreadable = _unreadable(store)
    never = threading.Event()
    while (left := set(store.list_ids(LIVE)) - unreadable) and clock.monotonic() < until:
        clock.wait(never, _LOOK)
    for agent_id in sorted(left):
        try:
            committer.apply(agent_id, DeadlineDue(kind=Deadline.STOP), patience=_PATIENCE)
        except StoreUnavailableError:
            raise
        except Exception:
            log.exception("agent %s could not be fenced; the others are", agent_id, extra={"agent_id": agent_id})
    if unreadable:
        log.error("not stopped, as their records cannot be read: %s", ", ".join(sorted(unreadable)))


def _unreadable(store: Store) -> set[AgentId]:
    """Live agents whose record cannot be read: nobody can ask them to end, so nobody waits for it."""
    live = store.list_ids(LIVE)
    return {agent_id for agent_id, read in zip(live, store.read_many(live), strict=True) if read.problem}


def runtime_stats(store: Store) -> RuntimeStats:
    """The namespace in numbers."""
    runtime, counters, by_state = store.runtime(), store.counters(), store.count_by_state()
    # Of this process what runs now, of the others what they said within a second.
    work = Counter(work_in_progress())
    work.update(store.background(without=ProcessIdentity.current().encode()))
    return RuntimeStats(
        active_agents=sum(by_state.get(state, 0) for state in LIVE),
        paused_agents=by_state.get(AgentState.PAUSED, 0),
        registered_agents=by_state.get(AgentState.REGISTERED, 0),
        total_restarts=counters.get("restarts", 0) + counters.get("manual_restarts", 0),
        uptime=_uptime(runtime),
        background_tasks=dict(work),
        by_state={state.value: count for state, count in by_state.items()},
        counters=counters,
    )


def _uptime(runtime: RuntimeRead) -> timedelta:
    """How long the runtime has run since its last start; frozen once it was stopped."""
    began = runtime.started_at or (runtime.since if runtime.state is RuntimeState.RUNNING else runtime.first_started)
    ended = runtime.now if runtime.state is RuntimeState.RUNNING else runtime.stopped_at
    return timedelta(microseconds=max(0, ended - began)) if began and ended else timedelta(0)
