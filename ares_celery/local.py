"""A whole runtime in this process: agents on threads of it, Redis beneath, no Celery. For scripts, tests, a laptop."""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Protocol

from typing_extensions import override

from ares_celery.agents.registry import REGISTRY, Registry
from ares_celery.clock import Clock, SystemClock
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.errors import EventStoreClosedError, OperationNotSupportedError
from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentSpec
from ares_celery.plugins.bus import PluginBus
from ares_celery.plugins.judge import judge_of_all
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.handle import AgentHandle
from ares_celery.runtime.host import ProcessHost
from ares_celery.runtime.loop_guard import LoopGuard, refuse_event_loop
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.runtime.thread_launcher import InProcessLauncher
from ares_celery.runtime.worker_hooks import StateSources
from ares_celery.store.async_access import AsyncAccess
from ares_celery.store.base import MemoryManager, SnapshotStore
from ares_celery.store.redis.open import open_store
from ares_celery.store.redis.store import RedisStore
from ares_celery.supervision.deaths import DeathDesk
from ares_celery.supervision.hosts import HostWatch, has_ended
from ares_celery.supervision.postman import Postman
from ares_celery.supervision.repeating import Repeating
from ares_celery.supervision.sweep_thread import SweepThread

__all__ = ["LocalManager"]

log: Final = logging.getLogger(__name__)

#: Seconds for threads to end whose agents have ended already.
_LAST_STEPS: Final = 2.0
#: How often it is looked for dead letters that somebody wants.
_LETTERS: Final = timedelta(seconds=1)
#: Seconds between two looks at agents that are still ending.
_LOOK: Final = 0.01


class LocalManager(CoreManager):
    """A Manager that hosts the agents itself, on threads of this process; made by ``Manager.local()``.

    Everything else is as with workers: state, deaths, resurrections, messages and histories are in Redis, and what runs
    here goes through the same host, lease keeper and sweep. The seed's form of registration works: an instance with a
    factory. Not for a process that forks while it is open.

    ``start()`` begins, ``stop()`` ends every agent in order and leaves no thread behind; leaving the ``with`` block
    without it lets the agents take a snapshot and release, so that the next process goes on with them.
    """

    def __init__(  # noqa: PLR0913 - the public constructor
        self,
        config: RuntimeConfig | None = None,
        *,
        redis_url: str | None = None,
        namespace: str | None = None,
        memory: MemoryManager | None = None,
        snapshot_store: SnapshotStore | None = None,
        registry: Registry = REGISTRY,
        bus: PluginBus | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Binds the manager; nothing is opened and no thread is started before the first call.

        Args:
            config: Settings for a namespace that does not exist yet.
            redis_url: Where the store is; default ARES_REDIS_URL.
            namespace: One that no worker serves; it stays, with its agents. Default: one of its own, which is deleted
                when the manager is closed.
            memory: The memory manager that recovery asks; default the namespace's own.
            snapshot_store: The store of snapshots that recovery uses; default the namespace's own.
            registry: The agent types of this process.
            bus: Plug-ins that observe and decide here; whoever makes it starts and stops it.
            clock: Injected in tests.

        Raises:
            InvalidSettingError: A setting is wrong; the text names it.
        """
        is_own = namespace is None
        settings = ProcessSettings.from_env(
            redis_url=redis_url, namespace=f"local-{uuid.uuid4().hex[:12]}" if namespace is None else namespace
        )
        self.state_sources.memory, self.state_sources.snapshots = memory, snapshot_store
        self._local = _LocalPorts(
            settings, config, registry, clock or SystemClock(), sources=self.state_sources, bus=bus, is_own=is_own
        )
        super().__init__(LoopGuard(self._local), registry=registry, clock=clock, hosts_here=True)

    @property
    @override
    def namespace(self) -> str:
        """The namespace's name; opens nothing."""
        return self._local.namespace

    @override
    def start(self, *, reason: str = "", actor: str = "") -> None:
        """Makes the runtime run, here; agents that should run are launched. See :meth:`Manager.start`."""
        refuse_event_loop()
        self._local.serve(again=True)
        super().start(reason=reason, actor=actor)

    @override
    def stop(self, *, reason: str = "", actor: str = "") -> None:
        """Ends every agent in order and then the threads of this runtime, within overall_stop_timeout and seconds."""
        super().stop(reason=reason, actor=actor)
        # What has not ended by now was fenced, and has had its time.
        self._local.rest(patience=timedelta(0))

    @override
    def register_agent(
        self,
        agent: AgentSpec | object,
        factory: Callable[..., Any] | None = None,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AgentHandle:
        """Makes an agent known; see :meth:`Manager.register_agent`. A factory is for incarnations in this process."""
        handle = super().register_agent(agent, factory, reason=reason, actor=actor, op=op)
        self._local.announce()
        return handle

    def open_access(self) -> AsyncAccess:
        """What coroutines wait with, for ``AsyncManager.local()``; may block."""
        return self._local.store.open_access()

    @override
    def _check_type(self, spec: AgentSpec, *, values: bool = True) -> None:
        # Nobody else hosts here, so what this process does not know cannot run.
        self._registry.get(spec.type).check_config(spec, values=values)


class _Closable(Protocol):
    def close(self) -> None: ...


class _LocalPorts:
    """The store and, beside it, what a worker would run: made on first use, ended in order."""

    def __init__(  # noqa: PLR0913 - those of LocalManager
        self,
        settings: ProcessSettings,
        config: RuntimeConfig | None,
        registry: Registry,
        clock: Clock,
        *,
        sources: StateSources,
        bus: PluginBus | None,
        is_own: bool,
    ) -> None:
        self._bus = bus
        self._settings = settings
        self._asked = config
        self._registry = registry
        self._clock = clock
        self._sources = sources
        self._is_own = is_own
        self._identity = ProcessIdentity.current()
        self._worker = f"local@{socket.gethostname()}"
        self._lock = threading.RLock()
        self._opened: tuple[RedisStore, Committer, InProcessLauncher] | None = None
        self._host: ProcessHost | None = None
        self._parts: list[_Closable] = []
        self._is_closed = False

    @property
    def namespace(self) -> str:
        return self._settings.namespace

    @property
    def store(self) -> RedisStore:
        return self._open()[0]

    @property
    def committer(self) -> Committer:
        return self._open()[1]

    @property
    def config(self) -> RuntimeConfig:
        return self.store.config

    def announce(self) -> None:
        """Tells the namespace which types are hosted here, so that others may ask for them."""
        self.store.report_types(self._registry.describe())

    def serve(self, *, again: bool = False) -> None:
        """Begins to host and to sweep, if that is not done yet; ``again``: also after it was ended."""
        with self._lock:
            self._open()
            if again and self._host is None:
                self._begin()

    def rest(self, *, patience: timedelta | None = None) -> None:
        """Ends hosting and sweeping; agents that are left take a snapshot and release, within drain_timeout."""
        with self._lock:
            host, parts = self._host, self._parts
            self._parts = []
        if host is None:
            return
        for part in reversed(parts):
            part.close()
        host.drain()
        self._wait_for(host, self.store.config.drain_timeout if patience is None else patience)
        with self._lock:
            self._host = None
        host.close()
        stuck = self._open()[2].join(_LAST_STEPS)
        if stuck:
            log.error("these agents' code does not end and keeps its thread: %s", ", ".join(stuck))

    def close(self) -> None:
        """Ends everything; a namespace of this manager's own is deleted. Idempotent."""
        with self._lock:
            if self._opened is None or self._is_closed:
                self._is_closed = True
                return
        self.rest()
        with self._lock:
            store, self._opened, self._is_closed = self.store, None, True
        if self._is_own:
            store.wipe()
        store.close()

    def _open(self) -> tuple[RedisStore, Committer, InProcessLauncher]:
        with self._lock:
            if self._is_closed:
                raise EventStoreClosedError(message="this manager is closed; make a new one")
            if self._opened is None:
                store = open_store(self._settings, self._asked, clock=self._clock)
                try:
                    self._refuse_company(store)
                except BaseException:
                    store.close()
                    raise
                launcher = InProcessLauncher(store, self._registry, lambda: self._host, self._worker)
                judge = None if self._bus is None else judge_of_all(lambda: self._bus, self._clock)
                committer = Committer(
                    store, lambda: store.config, launcher, clock=self._clock, judge=judge, listener=self._bus
                )
                self._opened = store, committer, launcher
                self._begin()
            return self._opened

    def _begin(self) -> None:
        """Starts what a worker would run. The lock is held."""
        store, committer, _ = self._open()
        self.announce()
        self._host = ProcessHost(
            store=store,
            config=lambda: store.config,
            committer=committer,
            registry=self._registry,
            open_async=store.open_async,
            wakeups=store.wakeups(self._identity.encode()),
            sources=self._sources,
            clock=self._clock,
            listener=self._bus,
        )
        desk = DeathDesk(clock=self._clock)
        desk.start(store, committer)
        watch = HostWatch(store, desk, self._identity, self._worker, clock=self._clock)
        sweep = SweepThread(store, committer, lambda: store.config, self._identity, clock=self._clock)
        watch.start()
        sweep.start()
        letters = Repeating(
            "dead letters", Postman(store, self._identity, clock=self._clock).look, _LETTERS, clock=self._clock
        )
        letters.start()
        self._parts = [desk, watch, sweep, letters]

    def _wait_for(self, host: ProcessHost, patience: timedelta) -> None:
        until = self._clock.monotonic() + patience.total_seconds()
        never = threading.Event()
        while host.hosted() and self._clock.monotonic() < until:
            self._clock.wait(never, _LOOK)

    def _refuse_company(self, store: RedisStore) -> None:
        """Workers do not have this process's factories: their tries to host its agents would fail, one by one."""
        for text, worker in store.hosts().items():
            other = ProcessIdentity.decode(text)
            if other == self._identity or (other.same_kernel(self._identity) and has_ended(other)):
                continue
            raise OperationNotSupportedError(
                operation=f"Manager.local() in namespace {store.namespace!r}",
                reason=f"{worker} serves it; name another namespace, or none for one of its own",
            )
