"""The façade for event loops: the names of a Manager, awaitable. No truth and no decision of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Self

from ares_celery.async_manager.agents import AsyncAgents
from ares_celery.async_manager.calls import Calls
from ares_celery.async_manager.chaos import AsyncChaos
from ares_celery.async_manager.handle import AsyncAgentHandle
from ares_celery.async_manager.namespace import AsyncNamespace
from ares_celery.async_manager.ports import AsyncCheckpoints, AsyncEvents, AsyncMemory, AsyncSnapshots
from ares_celery.clock import Clock, SystemClock
from ares_celery.config import RuntimeConfig
from ares_celery.manager import CoreManager
from ares_celery.runtime.worker_hooks import StateSources
from ares_celery.store.async_access import AsyncAccess
from ares_celery.store.base import SnapshotStore

__all__ = ["AsyncAgentHandle", "CoreAsyncManager"]


class CoreAsyncManager(AsyncAgents, AsyncNamespace, AsyncChaos):
    """A Manager for coroutines; one object may serve any number of event loops, one after the other or in threads.

    Short calls run on a few threads of its own, as Celery's publisher blocks. Waits (``process``, ``process_stream``,
    ``wait_for``, ``start_agent(wait="running")``, ``stop_agent(wait=True)``, subscriptions) are the event loop's own:
    thousands of them share a handful of connections. A caller that is cancelled leaves a short call that has begun to
    its end; with ``op=`` it can be made again and acts once.
    """

    def __init__(
        self,
        core: CoreManager,
        open_access: Callable[[], AsyncAccess],
        *,
        namespace: str,
        clock: Clock | None = None,
    ) -> None:
        """Binds the façade; nothing is opened and no thread is started before the first call.

        Args:
            core: The Manager whose methods these are; closed with it.
            open_access: Opens what an event loop waits with; called on a thread.
            namespace: Its name.
            clock: Injected in tests.
        """
        self._calls = Calls(core, open_access, clock or SystemClock())
        self._namespace = namespace

    async def __aenter__(self) -> Self:
        """A handle: leaving the block closes it and touches no agent."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Closes the handle."""
        await self.close()

    async def close(self) -> None:
        """Closes connections and ends subscriptions; agents go on. Waits that go on raise, as do later calls."""
        await self._calls.close()

    @property
    def events(self) -> AsyncEvents:
        """The streams of events; what is appended here is from outside: the runtime's own types are refused."""
        return AsyncEvents(self._calls)

    @property
    def snapshots(self) -> AsyncSnapshots:
        """The newest states."""
        return AsyncSnapshots(self._calls)

    @property
    def checkpoints(self) -> AsyncCheckpoints:
        """The executions of agents, each with its checkpoint."""
        return AsyncCheckpoints(self._calls)

    @property
    def memory(self) -> AsyncMemory:
        """What agents said and were told."""
        return AsyncMemory(self._calls)

    @property
    def config(self) -> Awaitable[RuntimeConfig]:
        """The namespace's settings, as they are now: ``await manager.config``."""
        return self._calls.run(lambda: self._calls.core.config)

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self._namespace

    @property
    def state_sources(self) -> StateSources:
        """What this manager was given; see :meth:`Manager.with_snapshot_store`."""
        return self._calls.core.state_sources

    def with_snapshot_store(self, store: SnapshotStore) -> Self:
        """Keeps snapshots in another store; before start(). Returns the manager itself; asks nobody."""
        self._calls.core.with_snapshot_store(store)
        return self
