"""Threads that the runtime starts beside an agent and that wait through its clock: their waits are simulated too."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Final

from ares_celery.clock import Clock

__all__ = ["Bystanders"]

#: What the runtime calls its threads.
_PREFIX: Final = "ares-"
#: Real seconds between two looks of a thread that waits, and of a test that waits for one to rest.
_LOOK: Final = 0.001


@dataclass(slots=True)
class _Wait:
    """What a thread waits for."""

    event: threading.Event
    until: float

    def is_over(self, now: float) -> bool:
        return self.event.is_set() or self.until <= now


class Bystanders:
    """Keeps simulated time from passing while such a thread has something to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        #: None: it runs.
        self._threads: dict[threading.Thread, _Wait | None] = {}
        self._is_closed = False

    @staticmethod
    def is_one() -> bool:
        """The calling thread is one."""
        return threading.current_thread().name.startswith(_PREFIX)

    @property
    def next_at(self) -> float:
        """When the first of them goes on by itself."""
        with self._lock:
            waits = [wait for thread, wait in self._threads.items() if wait is not None and thread.is_alive()]
        return min((-math.inf if wait.event.is_set() else wait.until for wait in waits), default=math.inf)

    def wait(self, event: threading.Event, until: float) -> bool:
        """A wait of such a thread, until the event is set or simulated time has come."""
        wait, me = _Wait(event, until), threading.current_thread()
        with self._lock:
            self._threads[me] = wait
        while not self._is_closed and not wait.is_over(self._clock.monotonic()):
            event.wait(_LOOK)
        with self._lock:
            self._threads[me] = None
        return event.is_set()

    def settle(self, patience: float) -> None:
        """Returns when all of them wait, or have ended; one that does neither in so many real seconds is left alone."""
        never = threading.Event()
        for _ in range(int(patience / _LOOK)):
            if not self._busy():
                return
            never.wait(_LOOK)
        with self._lock:
            for thread in self._threads:
                if self._threads[thread] is None:
                    # It does something else than to wait through the clock.
                    self._threads[thread] = _Wait(never, math.inf)

    def close(self) -> None:
        """Ends all waits."""
        self._is_closed = True

    def _busy(self) -> bool:
        now = self._clock.monotonic()
        with self._lock:
            self._threads = {thread: wait for thread, wait in self._threads.items() if thread.is_alive()}
            return any(wait is None or wait.is_over(now) for wait in self._threads.values())
