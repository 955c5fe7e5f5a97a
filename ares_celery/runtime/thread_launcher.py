"""A launcher without a broker: every nudge is run by a thread of this process."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import Final

from ares_celery.agents.registry import Registry
from ares_celery.errors import AresError
from ares_celery.model.plan import Nudge
from ares_celery.runtime.host import ProcessHost
from ares_celery.runtime.outcome import Delivery
from ares_celery.store.base import AgentStore

__all__ = ["InProcessLauncher"]

log: Final = logging.getLogger(__name__)


class InProcessLauncher:
    """Implements :class:`~ares_celery.runtime.ports.Launcher` for agents that this very process hosts.

    Args:
        store: Where an agent's type is looked up: one that this process does not know is left to others.
        registry: The types of this process.
        host: Gives the host; None while there is none. A nudge is then dropped, as its deadline sends it again.
        worker: The name under which agents are hosted.
    """

    def __init__(
        self, store: AgentStore, registry: Registry, host: Callable[[], ProcessHost | None], worker: str
    ) -> None:
        self._store = store
        self._registry = registry
        self._host = host
        self._worker = worker
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()

    def launch(self, nudge: Nudge) -> None:
        """Runs the nudge on a new thread."""
        host = self._host()
        if host is None:
            return
        thread = threading.Thread(target=self._run, args=(host, nudge), name=f"agent-{nudge.agent_id}", daemon=True)
        with self._lock:
            self._threads.add(thread)
        thread.start()

    def waiting(self, queue: str | None) -> int | None:  # noqa: ARG002 - the port's signature
        """Nothing waits: every nudge was run at once."""
        return 0

    def join(self, timeout: float) -> list[str]:
        """Waits for the threads to end, for so many seconds in all; gives the names of those that have not."""
        with self._lock:
            threads = [thread for thread in self._threads if thread is not threading.current_thread()]
        waiting = threading.Event()
        timer = threading.Timer(timeout, waiting.set)
        timer.daemon = True
        timer.start()
        for thread in threads:
            while thread.is_alive() and not waiting.is_set():
                thread.join(0.02)
        timer.cancel()
        timer.join()
        return sorted(thread.name for thread in threads if thread.is_alive())

    def _run(self, host: ProcessHost, nudge: Nudge) -> None:
        try:
            if self._knows(nudge):
                host.run(nudge.agent_id, nudge.epoch, Delivery(nudge.task_id or uuid.uuid4().hex, 0, self._worker))
        except AresError as error:
            # As a lost message: the deadline behind it sends it again.
            log.warning("agent %s: its message was lost: %s", nudge.agent_id, error)
        finally:
            with self._lock:
                self._threads.discard(threading.current_thread())

    def _knows(self, nudge: Nudge) -> bool:
        record = self._store.read(nudge.agent_id).record
        if record is None or self._registry.find(record.spec.type) is not None:
            return True
        log.warning(
            "agent %s waits: this process knows no type %r; register it, and the agent runs within a minute",
            nudge.agent_id,
            record.spec.type,
            extra={"agent_id": nudge.agent_id},
        )
        return False
