"""The limit of a drain: who has not ended by then is left to its lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Final

from ares_celery.clock import Clock
from ares_celery.ids import AgentId

__all__ = ["end_in_order", "watch_drain"]

log: Final = logging.getLogger(__name__)

#: Seconds between two looks at a drain that goes on.
_LOOK: Final = 0.1


def watch_drain(
    hosted: Callable[[], Iterable[AgentId]], limit: timedelta, on_stuck: Callable[[], None], clock: Clock
) -> None:
    """Waits for ``limit``, then calls ``on_stuck`` if agents are hosted still."""
    until = clock.monotonic() + limit.total_seconds()
    never = threading.Event()
    while clock.monotonic() < until:
        clock.wait(never, _LOOK)
    left = sorted(hosted())
    if left:
        log.error("%d agents did not end within drain_timeout and are left to their leases: %s", len(left), left)
        on_stuck()


def end_in_order(close_shared: Callable[[], None], end: Callable[[], None]) -> None:
    """Closes what the agents share, and then ends the process, which leaves no other chance to close anything."""
    try:
        close_shared()
    finally:
        end()
