"""The ports of those who wait on an event loop: for answers, states and events, without a thread for each wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from typing import Protocol, Self

from ares_celery.ids import AgentId
from ares_celery.model.event import Event, EventFilter
from ares_celery.store.base import AgentRead
from ares_celery.store.messages import AsyncMailbox

__all__ = ["AsyncAccess", "AsyncSubscription"]


class AsyncSubscription(Protocol):
    """Events as they are appended, from a cursor on; what :class:`Subscription` is for threads.

    Without a cursor it begins behind everything that was appended when it is awaited, entered (``async with``) or first
    iterated, whichever comes first. One task at a time may read it; a task that is cancelled in a read loses nothing.

    Raises:
        EventGapError: From an iteration: events were trimmed before they were read. Iterating on goes on after them.
        EventIntegrityError: From an iteration: an event is damaged. Iterating on goes on after it.
    """

    @property
    def cursor(self) -> str:
        """Where it stands, the last event that it gave included; empty before it has begun without one."""
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

    async def begin(self) -> Self:
        """Takes its place behind what was appended so far, unless it has one; idempotent. Returns itself."""
        ...

    async def poll(self, timeout: timedelta | float | None = None) -> Event | None:
        """The next event; None when none came within ``timeout`` (None = as long as it takes), or it was closed."""
        ...

    async def close(self) -> None:
        """Ends the iteration and gives the connection back; idempotent."""
        ...

    def __aiter__(self) -> AsyncIterator[Event]:
        """The subscription itself."""
        ...

    async def __anext__(self) -> Event:
        """The next event, as long as it takes; ends the iteration once it is closed."""
        ...

    async def __aenter__(self) -> Self:
        """The subscription itself, begun."""
        ...

    async def __aexit__(self, *exc: object) -> None:
        """Closes it."""
        ...


class AsyncAccess(Protocol):
    """One event loop's own way to an open namespace: few connections, however many wait.

    Belongs to the loop that first uses it.
    """

    @property
    def mailbox(self) -> AsyncMailbox:
        """Messages and their answers."""
        ...

    async def states(self, agent_ids: Sequence[AgentId]) -> list[str | None]:
        """The words for the states of many agents, in few round trips; None for one that does not exist."""
        ...

    async def read(self, agent_id: AgentId) -> AgentRead:
        """Reads an agent. Raises UnreadableRecordError."""
        ...

    def leave(self, agent_id: AgentId, message_id: str) -> asyncio.Future[None]:
        """Tells that the caller of a stream has left: see :meth:`AsyncMailbox.cancel`; needs no waiting, never fails.

        What could not be told before the loop ends is told by :meth:`aclose`.
        """
        ...

    def subscribe(self, wanted: EventFilter | None = None, *, cursor: str | None = None) -> AsyncSubscription:
        """Follows events on a connection of its own; see :class:`AsyncSubscription`. Raises InvalidCursorError."""
        ...

    async def aclose(self) -> None:
        """Closes its connections and ends its subscriptions, on the loop that used them; idempotent."""
        ...
