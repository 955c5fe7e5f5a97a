"""What runs beside Celery in the main process of every worker that consumes our queues."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final, Protocol

from celery.worker import state as worker_state

from ares_celery.agents.registry import REGISTRY
from ares_celery.celery_app.children import ChildTable, Reaper
from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import AresError, StoreUnavailableError
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import Store
from ares_celery.supervision.announcement import Announcement
from ares_celery.supervision.deaths import DeathDesk
from ares_celery.supervision.hosts import HostWatch
from ares_celery.supervision.postman import Postman
from ares_celery.supervision.repeating import Repeating
from ares_celery.supervision.sweep_thread import SweepThread

__all__ = ["WorkerServices"]

log: Final = logging.getLogger(__name__)

#: Pause between tries to open the store, in seconds.
_OPEN_PAUSE: Final = 1.0
_REAP_INTERVAL: Final = timedelta(seconds=1)
_ANNOUNCE_INTERVAL: Final = timedelta(seconds=1)


class _Closable(Protocol):
    def close(self) -> None:
        """Ends it."""
        ...


class WorkerServices:
    """The sweep, the desk for deaths, the watch over other workers and over pool children, in one worker.

    The desk and the table of children take reports at once; the rest begins when the store is open, which is tried
    until it succeeds: a worker may start before its Redis.

    Args:
        open_ports: Opens the store and gives it with the committer; may raise StoreUnavailableError.
        worker: Celery's node name of this worker.
        hosts_agents: It consumes a queue of agents: it tells which types it knows, and a new namespace begins to run.
        clock: Monotonic time of this process.
    """

    def __init__(
        self,
        open_ports: Callable[[], tuple[Store, Committer]],
        worker: str,
        *,
        hosts_agents: bool,
        clock: Clock | None = None,
    ) -> None:
        self._open_ports = open_ports
        self._worker = worker
        self._hosts_agents = hosts_agents
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._parts: list[_Closable] = []
        self._thread = threading.Thread(target=self._begin, name="ares-services", daemon=True)
        self.desk = DeathDesk(clock=self._clock)
        self.children = ChildTable(self.desk, is_running=_is_running)

    def start(self) -> None:
        """Begins; returns at once."""
        self.children.start()
        self._thread.start()

    def close(self) -> None:
        """Ends all threads; what was told to the desk is committed first, if the store answers."""
        self._stopping.set()
        with self._lock:
            parts, self._parts = self._parts, []
        for part in reversed(parts):
            part.close()
        self.children.close()
        self.desk.close()

    def _begin(self) -> None:
        is_away = False
        while not self._stopping.is_set():
            try:
                self._start_parts(*self._open_ports())
            except StoreUnavailableError as error:
                if not is_away:
                    log.warning("supervision waits for the store: %s", error)
                is_away = True
            except AresError as error:
                # A wrong setting, a namespace of another layout: a person has to heal it; agents must not die of it.
                log.critical("supervision cannot work in this worker: %s", error)
            except Exception:
                log.exception("supervision could not start; tried again in %s s", _OPEN_PAUSE)
            else:
                return
            self._clock.wait(self._stopping, _OPEN_PAUSE)

    def _start_parts(self, store: Store, committer: Committer) -> None:
        identity = ProcessIdentity.current()
        announcement = Announcement(store, self._worker, REGISTRY.describe)
        if self._hosts_agents:
            announcement.look()
        self.desk.start(store, committer)
        reaper = Reaper(store, self.children, lambda: store.config, clock=self._clock)
        parts: list[Repeating | SweepThread | HostWatch] = [
            SweepThread(store, committer, lambda: store.config, identity, clock=self._clock),
            HostWatch(store, self.desk, identity, self._worker, children=self.children.processes, clock=self._clock),
            Repeating("reaper", reaper.look, _REAP_INTERVAL, clock=self._clock),
        ]
        if self._hosts_agents:
            # Handlers are in the modules of agents.
            postman = Postman(store, identity, clock=self._clock)
            parts.append(Repeating("dead letters", postman.look, _ANNOUNCE_INTERVAL, clock=self._clock))
            parts.append(Repeating("announcement", announcement.look, _ANNOUNCE_INTERVAL, clock=self._clock))
        with self._lock:
            if self._stopping.is_set():
                return
            for part in parts:
                part.start()
                self._parts.append(part)
        log.info("worker %s supervises namespace %r", self._worker, store.namespace)


def _is_running(task_id: str) -> bool:
    """The message is with the pool; Celery forgets it when the task returned."""
    return task_id in worker_state.requests
