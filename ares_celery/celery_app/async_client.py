"""The AsyncManager that people make: settings in, the façade for event loops out, everything opened on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from ares_celery.agents.registry import REGISTRY, Registry
from ares_celery.async_manager.core import CoreAsyncManager
from ares_celery.celery_app.client import OpenOnUse, places_of
from ares_celery.clock import Clock
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.local import LocalManager
from ares_celery.manager import CoreManager
from ares_celery.plugins.bus import PluginBus
from ares_celery.store.async_access import AsyncAccess
from ares_celery.store.base import MemoryManager, SnapshotStore

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["AsyncManager"]


class AsyncManager(CoreAsyncManager):
    """What :class:`Manager` is for threads, for coroutines: the same names, awaitable.

    One object, made at import if you like, may serve many event loops, threads and forked processes; each opens
    connections of its own at its first call. It never becomes Celery's current app.

    A caller that is cancelled leaves what it asked for to its end: a message stays in the inbox, a started agent
    starts. Only a stream ends with its reader, unless it is detached.

    Example:
        ``async with AsyncManager.from_env() as manager: answer = await manager.process("counter-1", {"ask": "total"})``
    """

    def __init__(  # noqa: PLR0913 - the public constructor
        self,
        config: RuntimeConfig | None = None,
        *,
        redis_url: str | None = None,
        broker_url: str | None = None,
        namespace: str | None = None,
        app: Celery | None = None,
        memory: MemoryManager | None = None,
        snapshot_store: SnapshotStore | None = None,
        clock: Clock | None = None,
        registry: Registry = REGISTRY,
        may_run: bool = True,
    ) -> None:
        """Binds the manager to a namespace; see :class:`Manager` for the arguments.

        Raises:
            InvalidSettingError: A setting is wrong; the text names it.
        """
        if app is not None:
            namespace, redis_url = places_of(app, namespace, redis_url)
        settings = ProcessSettings.from_env(redis_url=redis_url, broker_url=broker_url, namespace=namespace)
        ports = OpenOnUse(settings, config, app, clock)
        core = CoreManager(ports, registry=registry, clock=clock, may_run=may_run)
        core.state_sources.memory, core.state_sources.snapshots = memory, snapshot_store

        def open_access() -> AsyncAccess:
            return ports.store.open_access()

        super().__init__(core, open_access, namespace=ports.namespace, clock=clock)

    @classmethod
    def from_env(cls, **given: Any) -> Self:  # noqa: ANN401 - those of the constructor
        """A manager of the namespace that ``ARES_*`` names; given arguments win."""
        return cls(**given)

    @classmethod
    def connect(cls, **given: Any) -> Self:  # noqa: ANN401 - those of the constructor
        """The same for services: its start() and stop() raise RuntimePermissionError."""
        return cls(may_run=False, **given)

    @staticmethod
    def local(  # noqa: PLR0913 - those of LocalManager
        config: RuntimeConfig | None = None,
        *,
        redis_url: str | None = None,
        namespace: str | None = None,
        memory: MemoryManager | None = None,
        snapshot_store: SnapshotStore | None = None,
        registry: Registry = REGISTRY,
        bus: PluginBus | None = None,
        clock: Clock | None = None,
    ) -> CoreAsyncManager:
        """A manager that hosts the agents in this process, without Celery; see :class:`LocalManager`."""
        core = LocalManager(
            config,
            redis_url=redis_url,
            namespace=namespace,
            memory=memory,
            snapshot_store=snapshot_store,
            registry=registry,
            bus=bus,
            clock=clock,
        )
        return CoreAsyncManager(core, core.open_access, namespace=core.namespace, clock=clock)
