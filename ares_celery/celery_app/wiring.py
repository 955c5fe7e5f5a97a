"""What belongs to one app in one process: store, committer, host; opened on first use and anew after a fork."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Final, cast

from celery import Celery

from ares_celery.background import start_detached
from ares_celery.celery_app.control_ports import LONGEST_WAIT, ControlPorts, LateListener
from ares_celery.celery_app.drain import DrainLine
from ares_celery.celery_app.hosting import open_host
from ares_celery.celery_app.launcher import CeleryLauncher, refuse_eager
from ares_celery.celery_app.names import RUN_AGENT
from ares_celery.celery_app.plugins import WorkerPlugins
from ares_celery.celery_app.services import WorkerServices
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.errors import AresError, InvalidSettingError, OperationNotSupportedError
from ares_celery.ids import AgentId, Epoch
from ares_celery.model.plan import nudge_for
from ares_celery.plugins.registry import offers_of
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.host import ProcessHost
from ares_celery.store.base import Store
from ares_celery.store.redis.hurry import Hurry
from ares_celery.store.redis.open import open_hurried_store, open_store
from ares_celery.store.redis.store import RedisStore

__all__ = ["Wiring", "find_wiring", "wiring_of"]

log: Final = logging.getLogger(__name__)

_ATTRIBUTE: Final = "ares_wiring"
#: Seconds that the result of a command is kept for a caller who has not read it yet.
COMMAND_RESULT_EXPIRES: Final = 3600


class Wiring:
    """Everything of ours that an app's processes share between tasks; also the ports of a Manager.

    Safe to share between threads. After a fork the child opens its own; what it inherited is left to its parent.

    Args:
        app: The app that the tasks are in.
        settings: Where the namespace is.
        config: Settings for a namespace that this process is the first to open.
        plugins: Plug-ins, their classes or functions that make them, for the workers of the app.
    """

    def __init__(
        self,
        app: Celery,
        settings: ProcessSettings,
        config: RuntimeConfig | None = None,
        plugins: Sequence[object] = (),
    ) -> None:
        #: What the app's workers shall run, and, in one of its workers, what this process runs of it.
        self.offered_plugins = offers_of(plugins)
        self.plugins: WorkerPlugins | None = None
        self.app = app
        self.settings = settings
        self.services: WorkerServices | None = None
        self.drain: DrainLine | None = None
        #: This process is a child of a prefork pool: one agent at a time, in the main thread.
        self.is_pool_child = False
        self._asked = config
        self._lock = threading.RLock()
        self._store: RedisStore | None = None
        self._committer: Committer | None = None
        self._host: ProcessHost | None = None
        self._result_backend: Any = None
        self._control_backend: Any = None
        #: For control tasks.
        self.control_ports = ControlPorts(self._open_for_control)
        vars(app)[_ATTRIBUTE] = self
        _call_in_forked_child(weakref.WeakMethod(self._forget_all))

    # -- the ports of a Manager ---------------------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        return self.settings.namespace

    @property
    def store(self) -> Store:
        """The open namespace. Raises StoreUnavailableError, NamespaceMismatchError and the like."""
        return self._opened()[0]

    @property
    def committer(self) -> Committer:
        """The loop for every change. Raises OperationNotSupportedError in an app with ``task_always_eager``."""
        refuse_eager(self.app, RUN_AGENT)
        return self._opened()[1]

    @property
    def config(self) -> RuntimeConfig:
        """The namespace's settings."""
        return self.store.config

    @property
    def own_config(self) -> RuntimeConfig:
        """The settings that this process was given, by its code or its environment; they never win."""
        return RuntimeConfig.from_env() if self._asked is None else self._asked

    @property
    def drain_timeout(self) -> timedelta:
        """The namespace's setting, or the default where it was never opened. Asks nobody."""
        store = self._store
        return (store.config if store is not None else RuntimeConfig()).drain_timeout

    def open_ports(self) -> tuple[Store, Committer]:
        """The store, and a committer for threads that serve every agent: plug-ins may not hold them up."""
        store = self._opened()[0]
        return store, self._new_committer(store, shared=True)

    def close(self) -> None:
        """Ends the host and closes the store; the next use opens them again."""
        with self._lock:
            host, self._host = self._host, None
            store, self._store, self._committer = self._store, None, None
        if host is not None:
            host.close()
        if self.plugins is not None:
            self.plugins.close()
        if store is not None:
            store.close()
        self.control_ports.close()

    def _open_for_control(self, hurry: Hurry) -> tuple[Store, Committer]:
        store = open_hurried_store(self.settings, self._asked, hurry=hurry, patience=LONGEST_WAIT)
        launcher, most = CeleryLauncher(self.app, store.namespace), timedelta(seconds=LONGEST_WAIT)
        plugins = self.plugins
        if plugins is None:
            return store, Committer(store, lambda: store.config, launcher, most_patience=most)
        if plugins.bus is None:
            # It comes with the store of everything else, for which nobody waits here.
            start_detached("plug-ins", self._open_plugins)
        listener = LateListener(lambda: plugins.bus)
        judge = plugins.shared_judge
        return store, Committer(
            store, lambda: store.config, launcher, judge=judge, listener=listener, most_patience=most
        )

    def _open_plugins(self) -> None:
        try:
            self._opened()
        except AresError as error:
            log.warning("plug-ins of this process start when its store is asked next: %s", error)

    def _opened(self) -> tuple[RedisStore, Committer]:
        with self._lock:
            if self._store is None or self._committer is None:
                store = open_store(self.settings, self._asked)
                if self.plugins is not None:
                    self.plugins.open(store)
                self._store, self._committer = store, self._new_committer(store, shared=False)
            return self._store, self._committer

    def _new_committer(self, store: RedisStore, *, shared: bool) -> Committer:
        launcher, plugins = CeleryLauncher(self.app, store.namespace), self.plugins
        if plugins is None:
            return Committer(store, lambda: store.config, launcher)
        judge = plugins.shared_judge if shared else plugins.judge
        return Committer(store, lambda: store.config, launcher, judge=judge, listener=plugins.bus)

    def _forget_all(self) -> None:
        """Drops, in a forked child, what belongs to the parent; nothing is closed, as its sockets are shared."""
        self._lock = threading.RLock()
        self._store = self._committer = self._host = self.services = None
        self._result_backend = self._control_backend = None
        self.control_ports.forget()
        if self.plugins is not None:
            self.plugins.forget()

    @property
    def result_backend(self) -> Any:  # noqa: ANN401 - any of Celery's backends
        """One result backend for all threads of this process, where results are in Redis.

        Celery makes one a thread, each with its own connection, and an agent keeps its thread for life. Other backends
        may be no use to two threads at once: each thread has Celery's own.
        """
        with self._lock:
            if self._result_backend is None:
                found = self.app.backend
                if not _is_redis(found):
                    return found
                self._result_backend = found
            return self._result_backend

    @property
    def control_backend(self) -> Any:  # noqa: ANN401 - any of Celery's backends
        """Where the results of commands go: as those of the app, but in Redis for an hour at most, whatever that says.

        Other backends forget by other means than a time for each result, and may be no use to two threads at once.
        """
        with self._lock:
            if self._control_backend is None:
                if not _is_redis(found := self.app.backend):
                    return found
                # Another one than the app's, which keeps the app's own time; its type stubs do not know how.
                app: Any = self.app
                self._control_backend = keep_briefly(app._get_backend())  # noqa: SLF001 - as above
            return self._control_backend

    # -- hosting ------------------------------------------------------------------------------------------------------

    def host(self) -> ProcessHost:
        """The host of this process, made for its first agent."""
        with self._lock:
            if self._host is None:
                store, committer = self._opened()
                listener = self.plugins.bus if self.plugins is not None else None
                self._host = open_host(store, committer, exclusive=self.is_pool_child, listener=listener)
                if self.is_draining:
                    self._host.drain()
            return self._host

    def warm_up(self) -> None:
        """Opens the host before its first agent comes, on a thread of its own: a failover then waits for nothing."""
        start_detached("warm-up", self._warm_up)

    def _warm_up(self) -> None:
        try:
            self.host().warm_up()
        except Exception as error:  # noqa: BLE001 - whatever it is, the first agent's own task meets it again and says so
            log.warning("this process could not be warmed up; its first agent starts more slowly: %s", error)

    @property
    def is_draining(self) -> bool:
        """This process takes no agents any more."""
        return self.drain is not None and self.drain.is_draining

    def begin_drain(self) -> None:
        """The worker shuts down: every agent snapshots and releases. Safe in a signal handler."""
        if self.drain is not None:
            self.drain.begin()

    def drain_host(self) -> None:
        """Tells the host of this process, if there is one."""
        host = self._host
        if host is not None:
            host.drain()

    def term_is_hint(self) -> AbstractContextManager[None]:
        """While it is entered, a pool child that gets SIGTERM drains instead of dying."""
        if self.drain is None or not self.is_pool_child:
            return contextlib.nullcontext()
        return self.drain.term_is_hint()

    def send_again(self, agent_id: AgentId, epoch: Epoch) -> None:
        """Gives a message to another worker, if it is still wanted; a deadline does so too, but later."""
        record = self.store.read(agent_id).record
        if record is None or record.epoch != epoch or record.hosted:
            return
        CeleryLauncher(self.app, self.namespace).launch(nudge_for(record, fresh=True))


def _is_redis(backend: object) -> bool:
    return "RedisBackend" in {kind.__name__ for kind in type(backend).__mro__}


def keep_briefly(backend: Any) -> Any:  # noqa: ANN401 - any of Celery's backends
    """Has what a backend stores expire after an hour, where the backend does that; its caller may be gone for good."""
    for name in ("expires", "failure_expires"):
        # Older versions of Celery keep failures as long as all others, and have no word for them.
        kept: object = getattr(backend, name, "")
        if kept is None or isinstance(kept, (int, float)):
            setattr(backend, name, min(int(kept or COMMAND_RESULT_EXPIRES), COMMAND_RESULT_EXPIRES))
    return backend


def wiring_of(app: Celery) -> Wiring:
    """The wiring of an app that has our tasks.

    Raises:
        OperationNotSupportedError: It has not.
    """
    wiring = find_wiring(app)
    if wiring is None:
        raise OperationNotSupportedError(
            operation=f"app {app.main!r}",
            reason="it has none of our tasks; make it with create_app() or add install(app)",
        )
    return wiring


def find_wiring(app: Celery) -> Wiring | None:
    """The wiring of an app, None when it has none of our tasks.

    Raises:
        InvalidSettingError: It is no app, but perhaps the module that has it.
    """
    if not isinstance(cast("object", app), Celery):
        problem = "pass the Celery app itself, such as shop.app"
        raise InvalidSettingError(field="app", value=repr(app)[:200], problem=problem)
    return cast("Wiring | None", vars(app).get(_ATTRIBUTE))


def _call_in_forked_child(method: weakref.WeakMethod[Any]) -> None:
    def call() -> None:
        alive = method()
        if alive is not None:
            alive()

    os.register_at_fork(after_in_child=call)
