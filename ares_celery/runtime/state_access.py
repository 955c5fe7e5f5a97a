"""Where a manager's agents keep what they know, beside the namespace."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Self

from ares_celery.runtime.bounded import BoundedCalls
from ares_celery.runtime.queries import Ports
from ares_celery.runtime.worker_hooks import StateSources
from ares_celery.store.base import MemoryManager, SnapshotStore

__all__ = ["StateAccess"]

log = logging.getLogger(__name__)


class StateAccess:
    """Memory manager and snapshot store of a Manager."""

    _ports: Ports

    @cached_property
    def state_sources(self) -> StateSources:
        """What this manager was given; agents that it hosts itself (``Manager.local()``) recover from there."""
        return StateSources()

    @property
    def memory(self) -> MemoryManager:
        """What agents said and were told: the manager's own store of it, else the namespace's."""
        own = self.state_sources.memory
        return own if own is not None else self._ports.store.memory

    def with_snapshot_store(self, store: SnapshotStore) -> Self:
        """Keeps snapshots in another store; before start(). Returns the manager itself.

        Agents that the manager hosts itself save there and recover from there, and ``snapshots`` reads there. Workers
        elsewhere learn of a store by ``@worker_snapshot_store`` alone.
        """
        self.state_sources.snapshots = store
        return self

    def _hand_over_events(self) -> None:
        """A memory manager of the user's own that takes the event store gets it, when the runtime is started."""
        taker = self.state_sources.event_taker()
        if taker is not None:
            answer = BoundedCalls().call(taker, self._ports.store.events)
            if answer.problem:
                log.error("the memory manager did not take the event store: %s", answer.problem)
