"""A clock that stands still until somebody moves it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final

from ares_celery.errors import InvalidSettingError
from ares_celery.ids import Instant

__all__ = ["BEGINNING", "ManualClock"]

#: The first instant of every test, in microseconds: 2026-01-01 00:00 UTC.
BEGINNING: Final = Instant(1_767_225_600_000_000)


class ManualClock:
    """Implements :class:`ares_celery.clock.Clock`: time passes when :meth:`move_to` says so, and in no other way.

    Example:
        >>> clock = ManualClock()
        >>> clock.move_to(clock.monotonic() + 3600)
        >>> clock.monotonic()
        3600.0
    """

    def __init__(
        self, on_wait: Callable[[threading.Event, float], bool] | None = None, *, begins: datetime | None = None
    ) -> None:
        """Begins at 0.

        Args:
            on_wait: What a wait does, given its event and the instant at which it ends; returns whether the event was
                set. Default: the time jumps to the end of the wait.
            begins: Which moment 0 is; an aware datetime. Default: the beginning of 2026.

        Raises:
            InvalidSettingError: ``begins`` is no datetime, or has no zone.
        """
        self._now = 0.0
        self._on_wait = on_wait
        self._begins = BEGINNING if begins is None else _instant(begins)

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._now

    def wall(self) -> Instant:
        """The same as an instant; what the store of a test calls its own time."""
        return Instant(self._begins + round(self._now * 1_000_000))

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Waits until the event is set or simulated time is over; True when it was set."""
        if event.is_set():
            return True
        until = self._now + max(0.0, seconds)
        if self._on_wait is not None:
            return self._on_wait(event, until)
        self.move_to(until)
        return event.is_set()

    def move_to(self, moment: float) -> None:
        """Makes it so late; never earlier than it is."""
        self._now = max(self._now, moment)


def _instant(moment: object) -> Instant:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise InvalidSettingError(
            field="begins", value=moment, problem="must be a datetime with a zone, as datetime.now(UTC) is"
        )
    return Instant(round(moment.timestamp() * 1_000_000))
