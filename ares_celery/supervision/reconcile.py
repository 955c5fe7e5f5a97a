"""Agents that do not agree with what is desired: found a page at a time, so that deadlines never wait behind them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import StoreUnavailableError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentState, Desired, RuntimeState
from ares_celery.model.command import Reconcile
from ares_celery.runtime.commits import Committer
from ares_celery.store.base import AgentRead, Store

__all__ = ["Reconciler"]

log: Final = logging.getLogger(__name__)

#: Agents read at once.
_PAGE: Final = 200
#: Seconds between two looks at the runtime's generation.
_LOOK_INTERVAL: Final = 1.0
#: Waiting for a message or hosted, and meant to run unless the runtime does not.
_ACTIVE: Final = (AgentState.STARTING, AgentState.RUNNING, AgentState.RESURRECTING)
#: Without a slot until a time or a decision, which may have come while the runtime did not run.
_WAITING: Final = (AgentState.WAITING,)
#: At rest, and launched by a runtime that begins to run, if they are meant to run.
_IDLE: Final = (AgentState.REGISTERED, AgentState.STOPPED)


class Reconciler:
    """Makes all agents agree with the runtime's state whenever that has changed, whoever changed it and died since.

    Args:
        store: The namespace.
        committer: Through which every decision goes.
        clock: Monotonic time of this process.
    """

    def __init__(self, store: Store, committer: Committer, *, clock: Clock | None = None) -> None:
        self._store = store
        self._committer = committer
        self._clock = clock or SystemClock()
        # The first look finds a difference: whoever swept before may have died in the middle of a page.
        self._generation = -1
        self._look_at = 0.0
        self._waiting: list[AgentId] = []
        #: Another look at all is due: some shard may not have heard of the change when its agents were looked at.
        self._again = False

    @property
    def is_busy(self) -> bool:
        """There are agents left to look at."""
        return bool(self._waiting)

    def begin(self) -> None:
        """Looks at every agent (again)."""
        self._waiting = self._store.list_ids((*_ACTIVE, *_IDLE, *_WAITING))

    def step(self) -> int:
        """Looks whether the runtime's state changed, then at one page of agents; returns how many were changed.

        Raises:
            StoreUnavailableError: The store did not answer; the page is looked at again.
        """
        if self._clock.monotonic() >= self._look_at:
            self._look()
        if not self._waiting:
            return 0
        page, rest = self._waiting[:_PAGE], self._waiting[_PAGE:]
        changed = self._reconcile(page)
        self._waiting = rest
        return changed

    def _look(self) -> None:
        generation = self._store.runtime().generation
        self._look_at = self._clock.monotonic() + _LOOK_INTERVAL
        if generation != self._generation:
            self.begin()
            self._generation, self._again = generation, True
        elif self._again and not self._waiting:
            # The change reaches one shard after the other. An agent that was looked at, or made, before its shard had
            # heard of it would not be looked at again.
            self._again = False
            self.begin()

    def _reconcile(self, page: Sequence[AgentId]) -> int:
        changed = 0
        for agent_id, read in zip(page, self._store.read_many(page), strict=True):
            self._again = self._again or read.generation < self._generation
            if not _differs(read):
                continue
            try:
                changed += not self._committer.apply(agent_id, Reconcile("the runtime's state changed")).ignored
            except StoreUnavailableError:
                raise
            except Exception:
                log.exception("agent %s could not be reconciled", agent_id, extra={"agent_id": agent_id})
        return changed


def _differs(read: AgentRead) -> bool:
    """The agent may have to be started, or asked to end; `decide` knows for certain."""
    if read.record is None:
        return False
    runs_on = read.record.desired is Desired.RUNNING and read.runtime is RuntimeState.RUNNING
    return read.record.state in ((*_IDLE, *_WAITING) if runs_on else _ACTIVE)
