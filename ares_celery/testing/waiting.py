"""Waiting for a condition in real time: what a test does instead of sleeping."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from ares_celery.clock import Clock, SystemClock

__all__ = ["DEFAULT_INTERVAL", "DEFAULT_TIMEOUT", "wait_until"]

T = TypeVar("T")

#: Seconds; far above what any healthy step takes on a slow machine, below the timeout of most tests.
DEFAULT_TIMEOUT: Final = 10.0
#: Seconds between two looks; short, as most conditions are one round trip to a server on this machine.
DEFAULT_INTERVAL: Final = 0.01


def wait_until(
    condition: Callable[[], T],
    what: str = "the condition",
    *,
    timeout: float = DEFAULT_TIMEOUT,
    interval: float = DEFAULT_INTERVAL,
    clock: Clock | None = None,
) -> T:
    """Returns the first truthy value of the condition.

    Args:
        condition: Looked at once at least, and once more after the time is over.
        what: Names the awaited thing in the failure.
        timeout: Seconds of monotonic time.
        interval: Seconds between two looks.
        clock: Injected in tests.

    Raises:
        AssertionError: Nothing truthy came in time; the last value is in the message.

    Example:
        >>> wait_until(lambda: 3, "three")
        3
    """
    clock, never = clock or SystemClock(), threading.Event()
    deadline = clock.monotonic() + timeout
    while True:
        is_last_look = clock.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if is_last_look:
            raise AssertionError(f"waited {timeout:g} s for {what}; last seen: {value!r}")
        clock.wait(never, interval)
