"""The end of a process that shuts down and whose agents, or whose Redis, hold it up."""

from __future__ import annotations

import logging
import os
import threading
from datetime import timedelta
from typing import Any, Final

from celery.worker import state as worker_state

from ares_celery.clock import Clock

__all__ = ["end_process", "end_when_late"]

log: Final = logging.getLogger(__name__)

#: What Celery itself may take beyond the drain: it joins its pool with sleeps, and says good-bye to the broker.
_GRACE: Final = timedelta(seconds=10)


def end_process() -> None:
    """Ends this process at once, unless tasks of somebody else still run in it: those are for Celery to wait for.

    Nothing less would do: Celery waits for its threads without limit, and a thread cannot be ended. Leases prove the
    agents over that are left behind.
    """
    others = sorted({str(request.name) for request in worker_state.active_requests if _is_foreign(request)})
    if others:
        log.warning("this worker should have ended; it waits for tasks that are not ours: %s", ", ".join(others))
        return
    logging.shutdown()
    os._exit(1)


def end_when_late(drain_timeout: timedelta, clock: Clock) -> None:
    """Sees to it, on a thread of its own, that the process is gone soon after ``drain_timeout``."""

    def watch() -> None:
        never = threading.Event()
        clock.wait(never, (drain_timeout + _GRACE).total_seconds())
        while True:
            log.critical("the worker does not end by itself: it is ended")
            end_process()
            clock.wait(never, _GRACE.total_seconds())

    threading.Thread(target=watch, name="ares-late-end", daemon=True).start()


def _is_foreign(request: Any) -> bool:  # noqa: ANN401 - Celery's request
    """By what our tasks carry: an app of somebody else may have tasks that are named like ours."""
    return not hasattr(getattr(request, "task", None), "ares_namespace")
