"""Making every agent of a namespace agree with what is desired, after the runtime's state changed."""

from __future__ import annotations

import logging

from ares_celery.errors import AresError
from ares_celery.model.agent import AgentState
from ares_celery.model.command import Reconcile
from ares_celery.runtime.commits import Committer
from ares_celery.store.base import AgentStore

__all__ = ["reconcile_namespace"]

log = logging.getLogger(__name__)
_SETTLED = frozenset({AgentState.PAUSED, AgentState.WAITING, AgentState.COMPLETED, AgentState.PARKED})


def reconcile_namespace(store: AgentStore, committer: Committer) -> int:
    """Starts what should run and asks what should not to end; returns how many agents changed.

    One agent that cannot be reconciled never keeps the others from it: it is logged, and its deadlines stand.
    """
    changed = 0
    for agent_id in store.list_ids([state for state in AgentState if state not in _SETTLED]):
        try:
            applied = committer.apply(agent_id, Reconcile())
        except AresError:
            log.exception("agent %s could not be reconciled", agent_id, extra={"agent_id": agent_id})
            continue
        changed += not applied.ignored
    return changed
