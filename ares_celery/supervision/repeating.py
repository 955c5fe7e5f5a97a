"""Something small, done again and again on a thread of its own, that outlives outages of the store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import StoreUnavailableError

__all__ = ["Repeating"]

log: Final = logging.getLogger(__name__)

_CLOSE_TIMEOUT: Final = timedelta(seconds=1)


class Repeating:
    """Calls a function every ``interval``; what it raises is logged, an outage of the store once.

    Args:
        what: Names it in the log.
        call: Called on the thread.
        interval: From the end of one call to the beginning of the next.
        clock: Waits between calls.
    """

    def __init__(
        self, what: str, call: Callable[[], object], interval: timedelta, *, clock: Clock | None = None
    ) -> None:
        self._what = what
        self._call = call
        self._interval = interval.total_seconds()
        self._clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ares-{what.replace(' ', '-')}", daemon=True)
        self._is_away = False

    def start(self) -> None:
        """Begins with a call at once."""
        self._thread.start()

    def close(self, timeout: timedelta = _CLOSE_TIMEOUT) -> None:
        """Ends the thread, after the call that is going on."""
        self._stopping.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout.total_seconds())

    def turn(self) -> None:
        """Calls once; never raises an error."""
        try:
            self._call()
        except StoreUnavailableError as error:
            if not self._is_away:
                log.warning("%s waits until the store is back: %s", self._what, error)
            self._is_away = True
        except Exception:
            log.exception("%s failed; it is tried again", self._what)
        else:
            self._is_away = False

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.turn()
            self._clock.wait(self._stopping, self._interval)
