"""The port of those who follow events."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Protocol, Self

from ares_celery.model.event import Event

__all__ = ["Subscription"]


class Subscription(Protocol):
    """Events as they are appended, from a cursor on; an iterator, and a context that closes it.

    Events of one stream come in order, each once, and none is left out: whoever is slower than the writers gets later
    what was stored meanwhile. It outlives outages of the store and goes on where it was. One thread at a time may read
    it; any may close it.

    Raises:
        EventGapError: From an iteration: events were trimmed before they were read. Iterating on goes on after them.
        EventIntegrityError: From an iteration: an event is damaged. Iterating on goes on after it.
    """

    @property
    def cursor(self) -> str:
        """Where it stands, the last event that it gave included: a text to keep, to subscribe from there later."""
        ...

    @property
    def missed(self) -> int:
        """Events that had left the feed before this subscriber came for them; they were read from their streams."""
        ...

    @property
    def lost(self) -> int:
        """Events that were trimmed before this subscriber came for them; each EventGapError told some."""
        ...

    @property
    def lagging(self) -> bool:
        """More waits than it takes at once: it is slower than those who write."""
        ...

    @property
    def closed(self) -> bool:
        """It gives nothing more."""
        ...

    def poll(self, timeout: timedelta | float | None = None) -> Event | None:
        """The next event; None when none came within ``timeout`` (None = as long as it takes), or it was closed."""
        ...

    def close(self) -> None:
        """Ends the iteration, also one that waits in another thread, within half a second; idempotent."""
        ...

    def __iter__(self) -> Iterator[Event]:
        """The subscription itself."""
        ...

    def __next__(self) -> Event:
        """The next event, as long as it takes; ends the iteration once it is closed."""
        ...

    def __enter__(self) -> Self:
        """The subscription itself."""
        ...

    def __exit__(self, *exc: object) -> None:
        """Closes it."""
        ...
