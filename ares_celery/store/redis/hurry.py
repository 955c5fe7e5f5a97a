"""Calls that have to be over by a time: what is left of it is asked before each one is sent."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from math import inf
from typing import Any

from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import StoreUnavailableError
from ares_celery.store.redis.connections import Driver

__all__ = ["Hurry", "InHurry"]


class Hurry:
    """How long what a thread does may still take; each thread has its own end.

    Example:
        >>> hurry = Hurry()
        >>> with hurry.within(60.0):
        ...     hurry.left > 59
        True
        >>> hurry.left
        inf
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._local = threading.local()

    @contextmanager
    def within(self, seconds: float) -> Generator[None]:
        """Inside, this thread has so many seconds."""
        self._local.until = self._clock.monotonic() + seconds
        try:
            yield
        finally:
            self._local.until = inf

    @property
    def left(self) -> float:
        """Seconds that this thread still has; without end outside of :meth:`within`."""
        until: float = getattr(self._local, "until", inf)
        return until - self._clock.monotonic() if until < inf else inf


class InHurry:
    """A driver that sends nothing more once the time of the thread is over.

    A call that was sent is waited for as long as the driver itself waits.
    """

    def __init__(self, driver: Driver, hurry: Hurry, shown: str) -> None:
        self._driver = driver
        self._hurry = hurry
        self._shown = shown

    def execute_command(self, *args: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        """Sends a command and returns its answer. Raises StoreUnavailableError when the time is over."""
        self._demand_time()
        return self._driver.execute_command(*args)

    def pipeline(self, transaction: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002 - the driver's own signature
        """Collects commands for one round trip. Raises StoreUnavailableError when the time is over."""
        self._demand_time()
        return self._driver.pipeline(transaction=transaction)

    def pubsub(self, **kwargs: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        """Listens to channels."""
        return self._driver.pubsub(**kwargs)

    def close(self) -> None:
        """Closes the connections."""
        self._driver.close()

    def _demand_time(self) -> None:
        if self._hurry.left <= 0:
            problem = "it is so slow that the time of this call is over; it may have taken effect, so ask again"
            raise StoreUnavailableError(url=self._shown, problem=problem)
