"""The port to streams of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ares_celery.ids import Version
from ares_celery.model.event import ANY, Event, EventFilter, ExpectedVersion, NewEvent, ReadOptions
from ares_celery.store.subscriptions import Subscription
from ares_celery.store.summaries import SummaryStore

__all__ = ["EventReader", "EventStore"]


class EventReader(Protocol):
    """What those need who only read a stream."""

    def read(self, stream_id: str, options: ReadOptions | None = None) -> tuple[Event, ...]:
        """Reads part of a stream; an unknown stream is empty, one that was all trimmed gives its summaries."""
        ...


class EventStore(EventReader, SummaryStore, Protocol):
    """Streams of events; one an agent, named by its id."""

    def append(
        self, stream_id: str, events: Sequence[NewEvent], expected_version: ExpectedVersion = ANY
    ) -> tuple[Event, ...]:
        """Appends from outside an incarnation.

        Raises:
            VersionConflictError. StreamNotFoundError: The id is empty. AgentForkingError: Its history is not whole yet.
        """
        ...

    def read_all(self, options: ReadOptions | None = None) -> tuple[Event, ...]:
        """Reads all streams, ordered by (time, version); events only, no summaries."""
        ...

    def stream_version(self, stream_id: str) -> Version:
        """The last version; 0 for an unknown stream."""
        ...

    def subscribe(self, wanted: EventFilter | None = None, *, cursor: str | None = None) -> Subscription:
        """Follows events as they are appended; costs those who append nothing.

        Args:
            wanted: Which events; None = all.
            cursor: Where to begin: None = behind everything appended so far, BEGINNING = before all that is kept, or
                what ``Subscription.cursor`` gave to a subscription with the same filter, in whichever process.

        Raises:
            InvalidCursorError.
        """
        ...

    def close(self) -> None:
        """Every later call raises EventStoreClosedError; subscriptions end."""
        ...
