"""A worker that ends without a signal, as after an error of its consumer, drains its agents like any other."""

from __future__ import annotations

import logging
from typing import Any, Final

from celery import Celery, bootsteps
from typing_extensions import override

from ares_celery.celery_app.wiring import wiring_of

__all__ = ["drain_at_end"]

log: Final = logging.getLogger(__name__)


class DrainAtEnd(bootsteps.StartStopStep):
    """Begins the drain when the worker stops, before Celery waits for its pool: agents would never end by themselves.

    Celery's signals tell of a shutdown only when the process itself got one; a consumer that fails, and the remote
    command to shut down, end in its bootsteps alone.
    """

    @override
    def close(self, parent: Any) -> None:
        """Every way to stop begins here, in the main process and before the pool is told."""
        wiring = wiring_of(parent.app)
        if wiring.drain is None or wiring.is_draining:
            return
        log.warning("the worker ends without a signal: its agents snapshot and release")
        wiring.begin_drain()


def drain_at_end(app: Celery) -> None:
    """Makes every worker of the app do so."""
    app.steps["worker"].add(DrainAtEnd)
