"""A bounded queue between the bus and somebody who listens."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Final

from ares_celery.errors import InvalidSettingError
from ares_celery.model.event import Event

__all__ = ["BusSubscription", "TypeFilter"]

log: Final = logging.getLogger(__name__)


class TypeFilter:
    """Which event types are wanted: exact ones, or beginnings that end with a star; none = all.

    Example:
        >>> wanted = TypeFilter("agent.*", "snapshot.failed")
        >>> [kind for kind in ("agent.started", "agents", "snapshot.failed", "tick") if wanted.takes(kind)]
        ['agent.started', 'snapshot.failed']
    """

    def __init__(self, *types: str) -> None:
        self._exact = frozenset(kind for kind in types if not kind.endswith("*"))
        self._beginnings = tuple(kind[:-1] for kind in types if kind.endswith("*"))
        self._all = not types

    def takes(self, kind: str) -> bool:
        """The type is wanted."""
        return self._all or kind in self._exact or kind.startswith(self._beginnings)


class BusSubscription:
    """Events for one listener, in the order in which they were published; iterate over it on a thread of your own.

    The publisher never waits: what finds the queue full is dropped and counted. The iteration ends when the bus has
    stopped, after what waits, or at once with :meth:`close`.

    Attributes:
        name: Shown where events are dropped.
        dropped: How many events found the queue full.
    """

    def __init__(
        self, *types: str, buffer: int = 64, name: str = "", on_drop: Callable[[], None] | None = None
    ) -> None:
        if buffer < 1:
            raise InvalidSettingError(field="buffer", value=buffer, problem="at least one event must find room")
        self.name = name or "a subscription"
        self.dropped = 0
        self._filter = TypeFilter(*types)
        self._buffer = buffer
        self._on_drop = on_drop
        self._waiting: deque[Event] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._ended = False

    def offer(self, event: Event, *, always: bool = False) -> None:
        """Takes an event if it is wanted and there is room; ``always`` also without room. Never waits."""
        if not self._filter.takes(event.type):
            return
        with self._changed:
            if self._ended:
                return
            full = len(self._waiting) >= self._buffer and not always
            if not full:
                self._waiting.append(event)
                self._changed.notify()
                return
            self.dropped += 1
            first = self.dropped == 1
        if first:
            log.warning("%s is too slow: %d events wait, more are dropped and counted", self.name, self._buffer)
        if self._on_drop is not None:
            self._on_drop()

    def get(self, timeout: timedelta | None = None) -> Event | None:
        """The next event; None when none came in time (None: for ever), or when the stream has ended."""
        found = self.take(1, timeout)
        return found[0] if found else None

    def take(self, limit: int, timeout: timedelta | None = None) -> list[Event]:
        """Up to ``limit`` events that wait, or the first that comes; empty like :meth:`get`'s None."""
        seconds = None if timeout is None else timeout.total_seconds()
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended, seconds)
            return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    @property
    def is_ended(self) -> bool:
        """Nothing comes any more, and nothing waits."""
        with self._changed:
            return self._ended and not self._waiting

    def __iter__(self) -> Iterator[Event]:
        """Yields until the end of the stream."""
        while (event := self.get()) is not None:
            yield event

    def end(self) -> None:
        """Nothing is taken any more; what waits is still delivered."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Ends at once: what waits is forgotten, too."""
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()
