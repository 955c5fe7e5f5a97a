"""A launcher without a broker: every nudge is run by a thread of this process."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable

from ares_celery.model.plan import Nudge
from ares_celery.runtime.host import ProcessHost
from ares_celery.runtime.outcome import Delivery, Outcome, RetryLater

__all__ = ["ThreadLauncher"]

log = logging.getLogger(__name__)


class ThreadLauncher:
    """Implements :class:`ares_celery.runtime.ports.Launcher` for tests: at once, in order of arrival, never lost."""

    def __init__(self, host: Callable[[], ProcessHost]) -> None:
        """Binds the launcher to whatever hosts; asked at each nudge."""
        self._host = host
        self.sent: list[Nudge] = []
        self.outcomes: list[Outcome] = []
        self._threads: list[threading.Thread] = []

    def launch(self, nudge: Nudge) -> None:
        """Runs the nudge on a new thread."""
        self.sent.append(nudge)
        thread = threading.Thread(target=self._run, args=(nudge,), name=f"agent-{nudge.agent_id}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def waiting(self, queue: str | None) -> int | None:  # noqa: ARG002 - the port's signature
        """Nothing waits: every nudge was run at once."""
        return 0

    def _run(self, nudge: Nudge) -> None:
        delivery = Delivery(nudge.task_id or uuid.uuid4().hex, nudge.retries, "threads@here")
        outcome = self._host().run(nudge.agent_id, nudge.epoch, delivery)
        self.outcomes.append(outcome)
        if isinstance(outcome, RetryLater):
            log.info("agent %s is tried again in %s", nudge.agent_id, outcome.delay)

    def join(self, timeout: float = 10.0) -> bool:
        """Waits for all runs to end; False when one did not."""
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)
