"""Writes what happens to plug-ins into the store, off everybody's path: events of the bus, and counters."""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Protocol

from ares_celery.clock import Clock
from ares_celery.errors import AresError, StoreUnavailableError
from ares_celery.model.event import Event, NewEvent

__all__ = ["Counters", "Ledger", "Streams"]

log: Final = logging.getLogger(__name__)

#: Events that may wait while the store is away; more are logged and forgotten.
_MOST_WAITING: Final = 1_000
#: Seconds between two tries while the store is away.
_OUTAGE_PAUSE: Final = 0.5
#: Seconds between two writes of counters, so that a plug-in that fails all the time costs little.
_COUNT_PAUSE: Final = 0.05


#: Events of one plug-in that are kept, about; each process adds two or three.
_KEPT: Final = 1_000
#: How many new events are worth a look at the old ones.
_TRIM_EVERY: Final = 100


class Streams(Protocol):
    """As much of an event store as is written to here."""

    def append(self, stream_id: str, events: Sequence[NewEvent], /) -> tuple[Event, ...]:
        """Appends events; see EventStore."""
        ...

    def trim_before(self, stream_id: str, version: int) -> int:
        """Removes the events up to a version; see SummaryStore."""
        ...


class Counters(Protocol):
    """Where counters are kept."""

    def count(self, by: Mapping[str, int], *, op: str) -> None:
        """Raises counters of the namespace, once for each ``op``."""
        ...


@dataclass(slots=True)
class _Batch:
    """Counts on their way, with the id under which they are repeated until the store has answered."""

    op: str = field(default_factory=lambda: uuid.uuid4().hex)
    by: dict[str, int] = field(default_factory=dict[str, int])


class Ledger:
    """Takes events and counts at once, and writes them on a thread of its own, in order; tries again in an outage.

    Args:
        events: Where events go; None = nowhere.
        counters: Where counts go; None = nowhere.
        clock: Injected in tests.
    """

    def __init__(self, events: Streams | None, counters: Counters | None, clock: Clock) -> None:
        self._events = events
        self._counters = counters
        self._clock = clock
        self._waiting: deque[tuple[str, NewEvent]] = deque()
        self._counts: Counter[str] = Counter()
        self._batch = _Batch()
        self._lock = threading.Lock()
        #: After close() the next thread may begin while the last one still writes.
        self._writing = threading.Lock()
        self._news = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def write(self, stream_id: str, event: NewEvent) -> None:
        """Takes an event; never waits."""
        if self._events is None:
            return
        with self._lock:
            full = len(self._waiting) >= _MOST_WAITING
            if not full:
                self._waiting.append((stream_id, event))
        if full:
            log.error(
                "%d events of plug-ins wait for the store; %s of %s is lost", _MOST_WAITING, event.type, stream_id
            )
        self._wake()

    def count(self, name: str) -> None:
        """Counts one; never waits."""
        if self._counters is None:
            return
        with self._lock:
            self._counts[name] += 1
        self._wake()

    def close(self, within: timedelta) -> bool:
        """Writes what waits, for at most ``within``; False when something is left. What comes later begins anew."""
        written = self._clock.wait(self._idle, within.total_seconds())
        self._closing.set()
        self._news.set()
        return written

    def _wake(self) -> None:
        with self._lock:
            self._idle.clear()
            if self._thread is None or self._closing.is_set():
                self._closing = threading.Event()
                target, closing = self._run, self._closing
                self._thread = threading.Thread(target=target, args=(closing,), name="ares-plugin-log", daemon=True)
                self._thread.start()
        self._news.set()

    def _run(self, closing: threading.Event) -> None:
        while not closing.is_set():
            self._news.wait()
            self._news.clear()
            while not self._write_all():
                if self._clock.wait(closing, _OUTAGE_PAUSE):
                    return
            with self._lock:
                if not self._waiting and not self._counts:
                    self._idle.set()
            self._clock.wait(closing, _COUNT_PAUSE)

    def _write_all(self) -> bool:
        """Writes all that waits; False while the store is away. What is refused is logged and forgotten."""
        with self._writing:
            return self._write_in_order()

    def _write_in_order(self) -> bool:
        while self._waiting:
            stream_id, event = self._waiting[0]
            if not self._write_event(stream_id, event):
                return False
            self._waiting.popleft()
        with self._lock:
            if not self._batch.by:
                self._batch, self._counts = _Batch(by=dict(self._counts)), Counter()
        if self._batch.by and not self._write_counts(self._batch):
            return False
        self._batch = _Batch()
        return True

    def _write_event(self, stream_id: str, event: NewEvent) -> bool:
        try:
            if self._events is not None:
                stored = self._events.append(stream_id, [event])
                last = stored[-1].version if stored else 0
                if last > _KEPT and last % _TRIM_EVERY == 0:
                    self._events.trim_before(stream_id, last - _KEPT)
        except StoreUnavailableError as error:
            log.warning("%s of %s waits for the store: %s", event.type, stream_id, error)
            return False
        except AresError as error:
            log.error("%s of %s cannot be stored: %s", event.type, stream_id, error)  # noqa: TRY400 - it says it all
        except Exception:
            log.exception("%s of %s cannot be stored", event.type, stream_id)
        return True

    def _write_counts(self, batch: _Batch) -> bool:
        try:
            if self._counters is not None:
                self._counters.count(batch.by, op=batch.op)
        except StoreUnavailableError:
            return False
        except Exception:
            log.exception("counters of plug-ins cannot be stored: %s", batch.by)
        return True
