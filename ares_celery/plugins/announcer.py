"""What a bus tells: events to its subscribers, events about plug-ins to the store, failures to log and counters."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from ares_celery.clock import Clock, to_datetime
from ares_celery.errors import AresError, PluginTimeoutError
from ares_celery.ids import Version
from ares_celery.model.event import Event, EventType, NewEvent
from ares_celery.plugins.contract import PluginContext, plugin_stream
from ares_celery.plugins.ledger import Counters, Ledger
from ares_celery.plugins.subscription import BusSubscription

__all__ = ["Announcer"]

log: Final = logging.getLogger(__name__)

#: Stream of what plug-ins emit; never stored.
_BUS_STREAM: Final = "@bus"
_MODULE: Final = {"module": "plugins"}
#: Failures of these calls are always an event; of others the first, so that a bad day is no flood.
_RARE: Final = frozenset({"register", "start", "stop"})


class Announcer:
    """The telling half of a bus; nothing here waits for anybody.

    Args:
        context: Whose event store takes plugin.started, plugin.stopped and plugin.failed.
        counters: Where failures are counted, besides :attr:`counts`.
        clock: Injected in tests.
    """

    def __init__(self, context: PluginContext, counters: Counters | None, clock: Clock) -> None:
        self._worker = context.worker
        self._clock = clock
        self._ledger = Ledger(context.events, counters, clock)
        self._lock = threading.Lock()
        self._subscriptions: tuple[BusSubscription, ...] = ()
        self._failed_before: set[tuple[str, str]] = set()
        self._counts: dict[str, int] = {}

    @property
    def wants_events(self) -> bool:
        """Somebody listens."""
        return bool(self._subscriptions)

    @property
    def counts(self) -> dict[str, int]:
        """What was counted so far; a copy."""
        with self._lock:
            return dict(self._counts)

    def subscribe(self, types: tuple[str, ...], buffer: int, name: str) -> BusSubscription:
        """Adds a listener."""
        made = BusSubscription(*types, buffer=buffer, name=name, on_drop=lambda: self.count("plugin_events_dropped"))
        with self._lock:
            self._subscriptions = (*(one for one in self._subscriptions if not one.is_ended), made)
        return made

    def publish(self, events: Sequence[Event]) -> None:
        """Passes events on; without subscribers it costs nothing."""
        for subscription in self._subscriptions:
            for event in events:
                subscription.offer(event)

    def emit(self, kind: str, payload: Mapping[str, Any]) -> None:
        """Passes on something that is not stored."""
        self.publish([self._event(_BUS_STREAM, kind, payload)])

    def tell(self, kind: EventType, name: str, **facts: object) -> None:
        """Stores an event about a plug-in and passes it on, to full subscriptions as well: there are only a few."""
        stream, worker = plugin_stream(name), {"worker": self._worker} if self._worker else {}
        event = self._event(stream, kind, {"plugin_name": name, **facts, **worker})
        self._ledger.write(stream, NewEvent(event.type, event.payload, event.metadata, event.id))
        for subscription in self._subscriptions:
            subscription.offer(event, always=True)

    def note_failure(self, name: str, call: str, error: AresError) -> None:
        """Logs and counts a failed call of a plug-in, and makes it an event unless such a call has failed before."""
        self.count("plugin_timeouts" if isinstance(error, PluginTimeoutError) else "plugin_failures")
        shown = str(error.fields.get("traceback") or "")
        log.error("%s%s", error, f"\n{shown}" if shown else "", extra={"plugin": name})
        with self._lock:
            known = (name, call) in self._failed_before
            self._failed_before.add((name, call))
        if call in _RARE or not known:
            self.tell(EventType.PLUGIN_FAILED, name, call=call, error=str(error)[:2_000])

    def count(self, name: str) -> None:
        """Counts one."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + 1
        self._ledger.count(name)

    def end(self, within: timedelta) -> None:
        """Ends all subscriptions, after what waits in them, and writes what waits for the store."""
        with self._lock:
            subscriptions, self._subscriptions = self._subscriptions, ()
        for subscription in subscriptions:
            subscription.end()
        if not self._ledger.close(within):
            log.warning("the last events of plug-ins were not stored in %s", within)

    def _event(self, stream: str, kind: str, payload: Mapping[str, Any]) -> Event:
        time = to_datetime(self._clock.wall())
        return Event(os.urandom(16).hex(), stream, Version(0), str(kind), payload, time, 0, _MODULE)
