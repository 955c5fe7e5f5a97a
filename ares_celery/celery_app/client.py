"""The Manager that people make: settings in, the core façade out, everything opened on first use."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from ares_celery.agents.registry import REGISTRY, Registry
from ares_celery.clock import Clock
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.errors import EventStoreClosedError
from ares_celery.local import LocalManager
from ares_celery.manager import CoreManager
from ares_celery.plugins.bus import PluginBus
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.loop_guard import refuse_event_loop
from ares_celery.store.base import MemoryManager, SnapshotStore

if TYPE_CHECKING:
    from celery import Celery

    from ares_celery.celery_app.producers import Producers
    from ares_celery.store.redis.store import RedisStore

__all__ = ["Manager", "OpenOnUse", "connect", "places_of"]


class Manager(CoreManager):
    """Asks for agents to be started, stopped, restarted, from any process; safe to share between threads and forks.

    Nothing is opened and no thread is started before the first call. It never becomes Celery's current app.

    Example:
        ``with Manager.from_env() as manager: manager.start_agent(AgentSpec(id="counter-1", type="counter"))``
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
        """Binds the manager to a namespace.

        Args:
            config: Settings for a namespace that this manager is the first to open; an existing one keeps its own.
            redis_url: Where the store is; default ARES_REDIS_URL.
            broker_url: Where messages go; default the same store.
            namespace: Default ARES_NAMESPACE, else ``ares``.
            app: A Celery app to send with; default one of its own. Of one with ``install(app)`` it also takes
                namespace and redis_url, unless given.
            memory: Instead of the namespace's own memory manager; start() hands it the event store.
            snapshot_store: Instead of the namespace's own store of snapshots, see :meth:`with_snapshot_store`.
            clock: Injected in tests.
            registry: The agent types that this process knows.
            may_run: start() and stop() of the whole runtime are allowed.

        Raises:
            InvalidSettingError: A setting is wrong; the text names it.
        """
        if app is not None:
            namespace, redis_url = places_of(app, namespace, redis_url)
        settings = ProcessSettings.from_env(redis_url=redis_url, broker_url=broker_url, namespace=namespace)
        self.state_sources.memory, self.state_sources.snapshots = memory, snapshot_store
        ports = OpenOnUse(settings, config, app, clock)
        super().__init__(ports, registry=registry, clock=clock, may_run=may_run)

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
    ) -> LocalManager:
        """A manager that hosts the agents in this process, without Celery; see :class:`LocalManager`."""
        return LocalManager(
            config,
            redis_url=redis_url,
            namespace=namespace,
            memory=memory,
            snapshot_store=snapshot_store,
            registry=registry,
            bus=bus,
            clock=clock,
        )


def places_of(app: Celery, namespace: str | None, redis_url: str | None) -> tuple[str | None, str | None]:
    """Where the agents of an app are; what is given wins."""
    from ares_celery.celery_app.wiring import find_wiring

    installed = find_wiring(app)
    if installed is None:
        return namespace, redis_url
    return namespace or installed.settings.namespace, redis_url or installed.settings.redis_url


def connect(**given: Any) -> Manager:  # noqa: ANN401 - those of Manager
    """A handle for services; see :meth:`Manager.connect`."""
    return Manager.connect(**given)


#: What forked children got of their parents' managers: never used, and never let go of, as closing may say goodbye on
#: the parents' connections, or wait for a lock that a thread of theirs held.
_INHERITED: Final[list[object]] = []


@dataclass(frozen=True, slots=True)
class _Opened:
    store: RedisStore
    committer: Committer
    producers: Producers

    def close(self) -> None:
        self.store.close()
        self.producers.close()


class OpenOnUse:
    """Opens store and app at the first call, anew in a forked child; closes them once."""

    def __init__(
        self, settings: ProcessSettings, config: RuntimeConfig | None, app: Celery | None, clock: Clock | None
    ) -> None:
        """Binds it; nothing is opened."""
        self._settings = settings
        self._asked = config
        self._app = app
        self._clock = clock
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._opened: _Opened | None = None
        self._closed = False

    @property
    def store(self) -> RedisStore:
        """The open namespace."""
        return self._open().store

    @property
    def committer(self) -> Committer:
        """The loop for every change."""
        if self._app is not None:
            from ares_celery.celery_app.launcher import refuse_eager
            from ares_celery.celery_app.names import RUN_AGENT

            refuse_eager(self._app, RUN_AGENT)
        return self._open().committer

    @property
    def config(self) -> RuntimeConfig:
        """The namespace's settings."""
        return self.store.config

    @property
    def namespace(self) -> str:
        """The namespace's name; opens nothing."""
        return self._settings.namespace

    def close(self) -> None:
        """Closes what was opened; idempotent."""
        self._leave_parent()
        with self._lock:
            self._closed = True
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def _open(self) -> _Opened:
        refuse_event_loop()
        self._leave_parent()
        opened = self._opened
        if opened is not None:
            return opened
        with self._lock:
            if self._closed:
                raise EventStoreClosedError(message="this manager is closed; make a new one")
            if self._opened is None:
                self._opened = self._make()
            return self._opened

    def _leave_parent(self) -> None:
        """In a child: begins anew, with a lock of its own; the fork copied one that another thread may have held."""
        if self._pid != os.getpid():
            _INHERITED.append(self._opened)
            self._lock, self._opened, self._pid = threading.RLock(), None, os.getpid()

    def _make(self) -> _Opened:
        from ares_celery.celery_app.factory import create_app
        from ares_celery.celery_app.launcher import CeleryLauncher
        from ares_celery.celery_app.producers import Producers
        from ares_celery.store.redis.open import open_store

        store = open_store(self._settings, self._asked, guard=refuse_event_loop)
        try:
            app = self._app or create_app(self._settings, set_as_current=False)
            producers = Producers(app)
        except BaseException:
            store.close()
            raise
        launcher = CeleryLauncher(app, store.namespace, producers=producers)
        return _Opened(store, Committer(store, lambda: store.config, launcher, clock=self._clock), producers)
