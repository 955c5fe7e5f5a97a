"""Where our parts join a worker's life: made before its children, ready, shutting down, gone."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from celery import Celery
from celery.signals import (
    after_setup_logger,
    after_setup_task_logger,
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)

from ares_celery.agents.registry import load_modules
from ares_celery.celery_app.drain import DrainLine
from ares_celery.celery_app.inherited import broker_ports, let_go_of_sockets
from ares_celery.celery_app.log import tag_handlers
from ares_celery.celery_app.names import AGENTS_QUEUE, CONTROL_QUEUE, SUPERVISION_QUEUE, queue_kind
from ares_celery.celery_app.plugins import WorkerPlugins
from ares_celery.celery_app.process_end import end_when_late
from ares_celery.celery_app.services import WorkerServices
from ares_celery.celery_app.unknown_tasks import hide_unknown_bodies
from ares_celery.celery_app.wiring import Wiring
from ares_celery.chaos.moved_clock import MovedClock
from ares_celery.clock import SystemClock
from ares_celery.errors import AresError
from ares_celery.runtime.offspring import lead_process_group

__all__ = ["PrepareWorker", "connect_worker"]

log: Final = logging.getLogger(__name__)

#: Gets Celery's worker and the namespace.
PrepareWorker = Callable[[Any, str], None]

_KINDS: Final = (AGENTS_QUEUE, SUPERVISION_QUEUE, CONTROL_QUEUE)
_NOT_AGENTS: Final = frozenset({SUPERVISION_QUEUE, CONTROL_QUEUE})


def connect_worker(app: Celery, wiring: Wiring, prepare: PrepareWorker | None = None) -> None:
    """Makes every worker of this app that consumes one of our queues supervise, drain and host.

    Other workers, and other apps of the process, are left alone.
    """

    def on_init(sender: Any = None, **_: object) -> None:  # noqa: ANN401 - Celery's WorkController
        if sender is None or sender.app is not app:
            return
        kinds = _kinds_consumed(app, wiring.namespace)
        if not kinds:
            _warn_of_other_queues(app, wiring.namespace, is_guest=prepare is not None)
            return
        if prepare is not None:
            prepare(sender, wiring.namespace)
        _WorkerHooks(wiring, str(sender.hostname), hosts_agents=bool(kinds - _NOT_AGENTS)).connect()

    worker_init.connect(on_init, weak=False, dispatch_uid=f"ares-init-{id(app)}")


def _kinds_consumed(app: Celery, namespace: str) -> set[str]:
    """Our queues, without the namespace, that the worker reads."""
    names: list[str] = list(app.amqp.queues.consume_from)
    return {kind for name in names if (kind := queue_kind(namespace, name)) is not None}


def _warn_of_other_queues(app: Celery, namespace: str, *, is_guest: bool) -> None:
    """A worker that reads the queues of another namespace than its own hosts nobody, and looks healthy.

    In an app of somebody else they may well be queues of theirs.
    """
    others = [name for name in app.amqp.queues.consume_from if name.rpartition(".")[2] in _KINDS]
    if others and is_guest:
        log.info(
            "this worker hosts no agents; if %s should be queues of agents: namespace %r has %s",
            ", ".join(others),
            namespace,
            ", ".join(f"{namespace}.{kind}" for kind in _KINDS),
        )
    elif others:
        log.critical(
            "this worker hosts and supervises nothing: it reads %s, but ARES_NAMESPACE is %r, whose queues are %s",
            ", ".join(others),
            namespace,
            ", ".join(f"{namespace}.{kind}" for kind in _KINDS),
        )


class _WorkerHooks:
    """The hooks of one worker; each does little, as Celery waits for it."""

    def __init__(self, wiring: Wiring, worker: str, *, hosts_agents: bool) -> None:
        self._wiring = wiring
        self._worker = worker
        self._hosts_agents = hosts_agents
        self._broker_ports = broker_ports(wiring.app)
        self._pid = os.getpid()
        self._moved_clock: MovedClock | None = None

    def connect(self) -> None:
        """Before the pool is made: children inherit the agent types and the drain line."""
        self._load_agents()
        self._hold_clock()
        hide_unknown_bodies()
        # The last hooks of an earlier worker in this process, as in tests, must not answer for this one.
        uid = "ares-worker"
        for signal, hook in (
            (after_setup_logger, self._on_logger),
            (after_setup_task_logger, self._on_logger),
            (worker_process_init, self._on_child_init),
            (worker_process_shutdown, self._on_child_end),
            (worker_ready, self._on_ready),
            (worker_shutting_down, self._on_shutting_down),
            (worker_shutdown, self._on_shutdown),
        ):
            signal.disconnect(dispatch_uid=uid)
            signal.connect(hook, weak=False, dispatch_uid=uid)
        self._wiring.plugins = WorkerPlugins(
            self._wiring.offered_plugins, self._worker, hosts_agents=self._hosts_agents
        )
        self._wiring.drain = DrainLine()
        _freeze_memory()
        self._wiring.services = WorkerServices(self._wiring.open_ports, self._worker, hosts_agents=self._hosts_agents)

    def _load_agents(self) -> None:
        """A worker that cannot import its agents must not start: it would take their messages and fail each."""
        try:
            modules = load_modules(self._wiring.settings.agent_modules)
        except Exception as error:
            # Celery logs what a hook raises and goes on; only this ends the worker.
            log.critical("agent modules cannot be loaded", exc_info=error)
            raise SystemExit(f"ARES_AGENT_MODULES cannot be loaded: {type(error).__name__}: {error}") from error
        log.info("agent modules: %s", ", ".join(modules) or "none")

    def _hold_clock(self) -> None:
        """A worker that ignored the wish would let its scenarios pass for nothing."""
        path = self._wiring.settings.clock_file
        if path is None:
            return
        try:
            self._moved_clock = MovedClock(Path(path))
        except AresError as error:
            log.critical("%s", error)
            raise SystemExit(f"ARES_CLOCK_FILE cannot be followed: {error}") from error

    def _on_logger(self, logger: logging.Logger | None = None, **_: object) -> None:
        if logger is not None:
            tag_handlers(logger)

    def _on_ready(self, sender: Any = None, **_: object) -> None:  # noqa: ANN401 - Celery's Consumer
        wiring = self._wiring
        if self._moved_clock is not None:
            self._moved_clock.follow()
        if _has_children(sender) and wiring.plugins is not None:
            wiring.plugins.let_children_host()
        elif self._hosts_agents:
            wiring.warm_up()
        _freeze_memory()
        if wiring.drain is not None and wiring.services is not None:
            wiring.drain.watch(self._on_drain)
            wiring.services.start()

    def _on_drain(self) -> None:
        """In the main process, once the worker shuts down."""
        self._wiring.drain_host()
        end_when_late(self._wiring.drain_timeout, SystemClock())

    def _on_child_init(self, **_: object) -> None:
        """In a pool child, right after its fork; the solo pool says the same in the main process."""
        wiring = self._wiring
        if wiring.drain is None or os.getpid() == self._pid:
            return
        wiring.is_pool_child = True
        lead_process_group()
        let_go_of_sockets(self._broker_ports)
        wiring.drain.become_child()
        wiring.drain.watch(wiring.drain_host)
        if self._moved_clock is not None:
            self._moved_clock.follow()
        if self._hosts_agents:
            wiring.warm_up()

    def _on_shutting_down(self, **_: object) -> None:
        """In signal context: one system call."""
        self._wiring.begin_drain()

    def _on_child_end(self, **_: object) -> None:
        if os.getpid() != self._pid:
            self._wiring.close()

    def _on_shutdown(self, **_: object) -> None:
        services, self._wiring.services = self._wiring.services, None
        if services is not None:
            services.close()
        self._wiring.close()


def _freeze_memory() -> None:
    """Takes what start-up has made out of the garbage collector's sight, for good.

    Celery collects garbage in the main process before it forks a new pool child: over everything that was imported
    that takes 150 ms, in which a failover waits. Children also share more memory that way.
    """
    gc.collect()
    gc.freeze()


def _has_children(consumer: Any) -> bool:  # noqa: ANN401 - Celery's Consumer
    """The pool forks: agents are hosted by its children, not by this process."""
    return "prefork" in type(getattr(consumer, "pool", None)).__module__
