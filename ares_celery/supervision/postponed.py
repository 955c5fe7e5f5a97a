"""Deadlines that could not be handled: tried again later and later, so that one of them costs no busy loop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from ares_celery.clock import Clock
from ares_celery.store.base import DueDeadline

__all__ = ["Postponed"]

_FIRST_DELAY: Final = timedelta(seconds=1)
_LONGEST_DELAY: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class _Delay:
    until: float
    length: timedelta


class Postponed:
    """Remembers, in this process alone, which deadlines are not to be touched before when.

    Args:
        clock: Monotonic time of this process.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._delays: dict[DueDeadline, _Delay] = {}

    def is_ready(self, deadline: DueDeadline) -> bool:
        """It was never put off, or long enough ago."""
        delay = self._delays.get(deadline)
        return delay is None or self._clock.monotonic() >= delay.until

    def put_off(self, deadline: DueDeadline) -> timedelta:
        """Puts it off, each time twice as long as before, from 1 s to 5 min; returns how long."""
        before = self._delays.get(deadline)
        length = _FIRST_DELAY if before is None else min(before.length * 2, _LONGEST_DELAY)
        self._delays[deadline] = _Delay(self._clock.monotonic() + length.total_seconds(), length)
        return length

    def forget(self, deadline: DueDeadline) -> None:
        """It was handled."""
        self._delays.pop(deadline, None)

    def keep_only(self, due: Iterable[DueDeadline]) -> None:
        """Forgets all that are no longer due."""
        if self._delays:
            still = set(due)
            self._delays = {deadline: delay for deadline, delay in self._delays.items() if deadline in still}
