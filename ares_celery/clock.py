"""Time, as an argument: the only place that asks the machine for it."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from ares_celery.ids import Instant

__all__ = ["Clock", "SystemClock", "instant_from", "micros", "to_datetime"]

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class Clock(Protocol):
    """What the product needs of time. Tests inject one that they turn by hand."""

    def monotonic(self) -> float:
        """Seconds that only grow; for durations inside one process."""
        ...

    def wall(self) -> Instant:
        """The machine's wall clock; for logs, never for a decision about a lease."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits until the event is set or the time is over; True when it was set."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        """Seconds that only grow; for durations inside one process."""
        return time.monotonic()

    def wall(self) -> Instant:
        """The machine's wall clock; for logs, never for a decision about a lease."""
        return Instant(time.time_ns() // 1000)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits until the event is set or the time is over; True when it was set."""
        return event.wait(max(0.0, seconds))


def micros(duration: timedelta) -> int:
    """The duration in whole microseconds.

    Example:
        >>> micros(timedelta(seconds=1.5))
        1500000
    """
    return duration // _MICROSECOND


def to_datetime(instant: int) -> datetime:
    """The instant as an aware UTC datetime.

    Example:
        >>> to_datetime(0).isoformat()
        '1970-01-01T00:00:00+00:00'
    """
    return _EPOCH + instant * _MICROSECOND


def instant_from(moment: datetime) -> Instant:
    """The aware datetime as an instant."""
    return Instant((moment - _EPOCH) // _MICROSECOND)
