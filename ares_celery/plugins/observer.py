"""A shipped plug-in: copies chosen events of the whole fleet into one stream, and into the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from ares_celery.errors import InvalidSettingError
from ares_celery.model.event import Event, NewEvent
from ares_celery.plugins.contract import Capability, EventBus, PluginContext
from ares_celery.plugins.subscription import BusSubscription
from ares_celery.store.base import EventStore

__all__ = ["ObserverPlugin"]

#: What tells of lives, and of plug-ins; not what agents emit.
LIFECYCLE: Final = ("agent.*", "failover.*", "plugin.*", "snapshot.failed", "store.rolled_back")
#: Events written with one call.
_BATCH: Final = 100
#: How many new copies are worth a look at the old ones.
_TRIM_EVERY: Final = 1_000
#: How long the end waits for what was seen already.
_FLUSH: Final = timedelta(seconds=3)


class ObserverPlugin:
    """Mirrors events of the agents that its process hosts or supervises; one process of the fleet sees each of them.

    An event that cannot be stored is logged and counted in :attr:`failed`; the observer goes on.

    Args:
        types: Which events: exact types, or beginnings such as ``order.*``.
        stream: Where the copies go, in the event store; begins with ``@``, as no agent's id does. Empty = only the
            log.
        keep: How many of the newest copies are kept, about; 0 = all.
        name: For more than one observer.
        buffer: Events that may wait; more are dropped and counted by the bus.
        level: Level of the log lines; 0 = none.

    Attributes:
        seen: Events observed so far.
        failed: Copies that could not be stored.

    Example:
        >>> ObserverPlugin(types=["order.*"], stream="@orders").name
        'observer'
    """

    capabilities = (Capability.OBSERVER,)

    def __init__(
        self,
        types: Sequence[str] = LIFECYCLE,
        *,
        stream: str = "",
        keep: int = 100_000,
        name: str = "observer",
        buffer: int = 1_000,
        level: int = logging.INFO,
    ) -> None:
        if isinstance(types, str):
            raise InvalidSettingError(field="types", value=types, problem="give a list of types, not one text")
        if buffer < 1:
            raise InvalidSettingError(field="buffer", value=buffer, problem="at least one event must find room")
        if keep < 0:
            raise InvalidSettingError(field="keep", value=keep, problem="give how many copies are kept, or 0 for all")
        if stream and not stream.startswith("@"):
            raise InvalidSettingError(field="stream", value=stream, problem="begin it with @, so that it is no agent's")
        self.name = name
        self.seen = self.failed = 0
        self._types = tuple(types)
        self._stream = stream
        self._keep = keep
        self._buffer = buffer
        self._level = level
        self._subscription: BusSubscription | None = None
        self._thread: threading.Thread | None = None

    def start(self, ctx: PluginContext, bus: EventBus) -> None:
        """Begins to listen."""
        subscription = bus.subscribe(*self._types, buffer=self._buffer, name=f"plug-in {self.name}")
        self._subscription = subscription
        self._thread = threading.Thread(
            target=self._run, args=(subscription, ctx), name=f"ares-{self.name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Writes what was seen, for at most three seconds, and ends."""
        subscription, thread = self._subscription, self._thread
        self._subscription = self._thread = None
        if subscription is not None and thread is not None:
            subscription.end()
            thread.join(_FLUSH.total_seconds())

    def _run(self, subscription: BusSubscription, ctx: PluginContext) -> None:
        while events := subscription.take(_BATCH):
            self.seen += len(events)
            if self._level:
                for event in events:
                    ctx.logger.log(
                        self._level,
                        "%s %s %s",
                        event.stream_id,
                        event.type,
                        dict(event.payload),
                        extra={"agent_id": event.stream_id, "event_type": event.type},
                    )
            if self._stream and ctx.events is not None:
                self._store(ctx.events, events, ctx.logger)

    def _store(self, store: EventStore, events: Sequence[Event], log: logging.Logger) -> None:
        try:
            last = store.append(self._stream, [_copy(event) for event in events])[-1].version
            if self._keep and last // _TRIM_EVERY > (last - len(events)) // _TRIM_EVERY:
                store.trim_before(self._stream, last - self._keep)
        except Exception:
            self.failed += len(events)
            log.exception("observer %s: %d events could not be stored", self.name, len(events))


def _copy(event: Event) -> NewEvent:
    """Where it came from is in the metadata; an id belongs to one event alone."""
    source = {"stream_id": event.stream_id, "version": event.version, "id": event.id, "epoch": event.epoch}
    return NewEvent(event.type, event.payload, {"source": source, "time": event.time.isoformat()})
