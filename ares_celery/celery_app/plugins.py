"""The plug-ins of a worker: one bus in each of its processes that hosts or supervises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import AresError
from ares_celery.plugins.bus import PluginBus
from ares_celery.plugins.contract import PluginContext
from ares_celery.plugins.judge import judge_of_all, judge_of_one
from ares_celery.plugins.registry import PLUGINS, Offer, installed_plugins
from ares_celery.store.base import Store

__all__ = ["WorkerPlugins"]

log: Final = logging.getLogger(__name__)

#: How long the end of a process waits for all plug-ins together.
_STOP_TIMEOUT: Final = timedelta(seconds=5)


class WorkerPlugins:
    """Makes the bus of a process when its store opens, and starts the plug-ins on a thread of its own.

    Plug-ins come from ``create_app(plugins=…)``, from modules that called ``register_plugin`` and from installed
    packages, in this order. A forked child makes its own from the same classes and functions.

    Args:
        offered: Those of the app.
        worker: Celery's node name of the worker.
        hosts_agents: The worker consumes a queue of agents.
        clock: Injected in tests.
    """

    def __init__(
        self, offered: Sequence[Offer], worker: str, *, hosts_agents: bool, clock: Clock | None = None
    ) -> None:
        self._offered = tuple(offered)
        self._worker = worker
        self._hosts_agents = hosts_agents
        self._clock = clock or SystemClock()
        self._is_child = False
        self._children_host = False
        self._bus: PluginBus | None = None
        #: For the process of an agent that failed.
        self.judge = judge_of_one(lambda: self._bus, self._clock)
        #: For threads that serve every agent.
        self.shared_judge = judge_of_all(lambda: self._bus, self._clock)

    @property
    def bus(self) -> PluginBus | None:
        """The bus of this process; None until its store was opened."""
        return self._bus

    def let_children_host(self) -> None:
        """This is the main process of a prefork pool: it supervises, its children host."""
        self._children_host = True

    def forget(self) -> None:
        """In a forked child: what runs belongs to the parent, and locks may be held for good."""
        self._bus = None
        self._is_child = True
        PLUGINS.leave(None)
        self.shared_judge = judge_of_all(lambda: self._bus, self._clock)

    def open(self, store: Store) -> PluginBus:
        """Makes the bus and begins to start the plug-ins; returns at once."""
        context = PluginContext(
            namespace=store.namespace,
            worker=self._worker,
            hosts_agents=self._hosts_agents and (self._is_child or not self._children_host),
            supervises=not self._is_child,
            events=store.events,
        )
        bus = self._bus = PluginBus(context, counters=store, clock=self._clock)
        offers = (*self._offered, *PLUGINS.serve(bus), *installed_plugins())
        if offers:
            threading.Thread(target=self._start, args=(bus, offers), name="ares-plugins", daemon=True).start()
        else:
            bus.start()
        return bus

    def close(self) -> None:
        """Stops the plug-ins in reverse order, for at most five seconds together."""
        bus, self._bus = self._bus, None
        if bus is None:
            return
        PLUGINS.leave(bus)
        try:
            bus.stop(within=_STOP_TIMEOUT)
        except AresError as error:
            log.warning("plug-ins did not all stop: %s", error)

    def _start(self, bus: PluginBus, offers: Sequence[Offer]) -> None:
        for offer in offers:
            self._register(bus, offer)
        try:
            bus.start()
        except AresError as error:
            log.error("plug-ins did not all start; the worker goes on without them: %s", error)  # noqa: TRY400
        log.info("plug-ins: %s", ", ".join(bus.running) or "none")

    def _register(self, bus: PluginBus, offer: Offer) -> None:
        try:
            if offer.is_shared and self._is_child:
                bus.refuse_shared(offer.label)
            else:
                bus.register(offer.source, label=offer.label)
        except AresError as error:
            log.error("plug-in %s is not used: %s", offer.label, error)  # noqa: TRY400 - the sentence says it all
        except Exception:
            log.exception("plug-in %s is not used", offer.label)
