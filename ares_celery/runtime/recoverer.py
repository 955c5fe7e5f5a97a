"""Makes the agent of one incarnation and brings its state back, with all that the hosting process has for that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, NamedTuple, TypeVar, cast

from ares_celery.agents.contract import Agent
from ares_celery.agents.registry import AgentType, Registry
from ares_celery.clock import Clock
from ares_celery.config import ConfigSource, RuntimeConfig, config_source
from ares_celery.errors import FencedSignal, StoreUnavailableError
from ares_celery.model.command import Finding
from ares_celery.runtime.cognition import Cognition
from ares_celery.runtime.elsewhere import AsyncSavesElsewhere, SavesElsewhere, SnapshotsElsewhere
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.recovery import Recovery, StateCode, recover_agent_state
from ares_celery.runtime.replay import Patience, ReplayPolicy
from ares_celery.runtime.worker_hooks import HOOKS, StateSources
from ares_celery.store.base import AsyncIncarnationStore, Claimed, Store

__all__ = ["Recoverer"]

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds between two tries of a read while the store does not answer.
_OUTAGE_PAUSE: Final = 0.2


class _Parts(NamedTuple):
    """What was made of the sources."""

    memory: object
    snapshots: object
    cognition: Cognition
    elsewhere: SnapshotsElsewhere | None


class Recoverer:
    """Recovers the agents of one process; safe to share between their threads.

    Args:
        store: The open namespace.
        config: Its settings.
        registry: The agent types of this process.
        clock: For waits.
        sources: Memory manager and snapshot store; None = those of the worker hooks.
        draining: Set when the process is about to end.
    """

    def __init__(
        self,
        store: Store,
        config: RuntimeConfig | ConfigSource,
        registry: Registry,
        *,
        clock: Clock,
        sources: StateSources | None,
        draining: threading.Event,
    ) -> None:
        self._store = store
        self._settings = config_source(config)
        self._registry = registry
        self._clock = clock
        self._sources = sources
        self._draining = draining
        self._lock = threading.Lock()
        self._parts: _Parts | None = None
        if sources is not None:
            self.open()

    def open(self) -> _Parts:
        """Makes what the sources need; a memory manager is handed the event store now. Made anew when they change."""
        sources = HOOKS.open() if self._sources is None else self._sources
        memory = sources.memory if sources.memory is not None else self._store.memory
        with self._lock:
            parts = self._parts
            if parts is None or parts.memory is not memory or parts.snapshots is not sources.snapshots:
                elsewhere = None
                if sources.snapshots is not None:
                    elsewhere = SnapshotsElsewhere(sources.snapshots, self._store.events, clock=self._clock)
                cognition = parts.cognition if parts is not None and parts.memory is memory else None
                cognition = cognition or Cognition(memory, self._store.events, taker=sources.event_taker())
                parts = self._parts = _Parts(memory, sources.snapshots, cognition, elsewhere)
            return parts

    def recover(self, incarnation: Incarnation, claimed: Claimed, found: list[Finding]) -> tuple[Agent, AgentType]:
        """Makes the instance and gives it its state.

        Args:
            incarnation: Which one; gets the origin of the snapshots that it will take.
            claimed: What its claim gave.
            found: Gets what people should know, also when this raises.

        Raises:
            BaseException: Whatever the agent's code raises, and the errors of
                :func:`~ares_celery.runtime.recovery.recover_agent_state`.
        """
        spec, config = claimed.record.spec, self._settings()
        agent_type = self._registry.get(spec.type)
        agent = agent_type.create(spec)
        incarnation.origin = agent_type.origin_of(spec)
        parts = self.open()
        recovery = Recovery(
            self._store,
            claimed,
            StateCode(spec.type, agent_type.schema, incarnation.origin, self._registry.upcasters),
            ReplayPolicy(
                lifecycle=spec.replay_lifecycle,
                newest=config.max_replay_events if config.replay_overflow == "newest" else 0,
                forgive=config.integrity == "warn",
            ),
            patience=self.patience(incarnation),
            cognition=parts.cognition,
            elsewhere=parts.elsewhere,
            found=found,
        )
        recover_agent_state(recovery, agent)
        return agent, agent_type

    def saving(self, store: Store) -> Store:
        """The store, with its snapshots going where this process keeps them."""
        elsewhere = self.open().elsewhere
        return cast("Store", SavesElsewhere(store, elsewhere)) if elsewhere is not None else store

    def saving_async(self, store: AsyncIncarnationStore) -> AsyncIncarnationStore:
        """The same for an event loop."""
        elsewhere = self.open().elsewhere
        return cast("AsyncIncarnationStore", AsyncSavesElsewhere(store, elsewhere)) if elsewhere is not None else store

    def patience(self, incarnation: Incarnation) -> Patience:
        """An outage is no failure of the agent: reads wait until the store answers or the incarnation is over."""

        def wait(call: Callable[[], T]) -> T:
            while True:
                try:
                    if (faults := incarnation.faults) is not None:
                        faults.demand_store()
                    return call()
                except StoreUnavailableError:
                    if incarnation.fenced:
                        raise FencedSignal from None
                    if self._clock.wait(self._draining, _OUTAGE_PAUSE):
                        raise

        return wait
