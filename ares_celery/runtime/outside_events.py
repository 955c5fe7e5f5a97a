"""The streams as those see them who are not the runtime: they read everything and append what is theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ares_celery.errors import UnserialisableError
from ares_celery.ids import Version
from ares_celery.model.event import ANY, Event, EventFilter, ExpectedVersion, NewEvent, ReadOptions, why_reserved
from ares_celery.model.summary import Summary
from ares_celery.store.base import EventStore
from ares_celery.store.subscriptions import Subscription

__all__ = ["OutsideEvents"]


class OutsideEvents:
    """Implements :class:`~ares_celery.store.base.EventStore`: the given one, without the runtime's own events.

    A forged ``agent.started`` would be taken for true by whoever follows the stream.

    Args:
        store: The streams.
    """

    def __init__(self, store: EventStore) -> None:
        self._store = store

    def append(
        self, stream_id: str, events: Sequence[NewEvent], expected_version: ExpectedVersion = ANY
    ) -> tuple[Event, ...]:
        """Appends from outside an incarnation, all or none.

        Raises:
            UnserialisableError: A type, or ``metadata["module"]``, is the runtime's own; nothing was stored.
            VersionConflictError, StreamNotFoundError: See the port.
        """
        for event in events:
            problem = why_reserved(event.type, event.metadata)
            if problem:
                raise UnserialisableError(what="an event", agent_id=stream_id, problem=problem)
        return self._store.append(stream_id, events, expected_version)

    def read(self, stream_id: str, options: ReadOptions | None = None) -> tuple[Event, ...]:
        """Reads part of a stream."""
        return self._store.read(stream_id, options)

    def read_all(self, options: ReadOptions | None = None) -> tuple[Event, ...]:
        """Reads all streams."""
        return self._store.read_all(options)

    def stream_version(self, stream_id: str) -> Version:
        """The last version; 0 for an unknown stream."""
        return self._store.stream_version(stream_id)

    def subscribe(self, wanted: EventFilter | None = None, *, cursor: str | None = None) -> Subscription:
        """Follows events from a cursor on; None = from now."""
        return self._store.subscribe(wanted, cursor=cursor)

    def close(self) -> None:
        """Every later call raises EventStoreClosedError; subscriptions end."""
        self._store.close()

    def summaries(self, stream_id: str) -> tuple[Summary, ...]:
        """The kept summaries of a stream, oldest first."""
        return self._store.summaries(stream_id)

    def summarised_version(self, stream_id: str) -> Version:
        """The last version that a summary covers."""
        return self._store.summarised_version(stream_id)

    def save_summary(self, summary: Summary, *, after: Version) -> Summary:
        """Stores a summary."""
        return self._store.save_summary(summary, after=after)

    def prune_summaries(self, stream_id: str) -> int:
        """Drops summaries that are too old; gives how many."""
        return self._store.prune_summaries(stream_id)

    def trim_before(self, stream_id: str, version: int) -> int:
        """Removes the events up to a version, inclusive; gives how many."""
        return self._store.trim_before(stream_id, version)

    def streams(self) -> Mapping[str, Version]:
        """All streams with their last versions, sorted by id."""
        return self._store.streams()
