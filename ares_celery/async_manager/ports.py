"""The ports of a Manager, awaitable: events, snapshots, executions, conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from ares_celery.async_manager.calls import Calls
from ares_celery.ids import Version
from ares_celery.model.conversation import ConversationMessage
from ares_celery.model.event import ANY, Event, EventFilter, ExpectedVersion, NewEvent, ReadOptions
from ares_celery.model.execution import Execution, ExecutionCommand
from ares_celery.model.step import StepIntent, StepRecord
from ares_celery.model.summary import Summary
from ares_celery.store.async_access import AsyncSubscription

__all__ = ["AsyncCheckpoints", "AsyncEventSubscription", "AsyncEvents", "AsyncMemory", "AsyncSnapshots"]


class AsyncEventSubscription:
    """A subscription that opens the namespace when it begins; an async iterator, and a context that closes it.

    Implements :class:`~ares_celery.store.async_access.AsyncSubscription`. ``await`` it, enter it or iterate on it: it
    begins then, behind what was appended so far, unless it has a cursor.
    """

    def __init__(self, calls: Calls, wanted: EventFilter | None, cursor: str | None) -> None:
        """Binds it; nothing is opened."""
        self._calls = calls
        self._wanted = wanted
        self._given = cursor
        self._begun: AsyncSubscription | None = None
        self._closed = False

    @property
    def cursor(self) -> str:
        """Where it stands, the last event that it gave included; empty before it has begun without one."""
        return self._begun.cursor if self._begun is not None else self._given or ""

    @property
    def missed(self) -> int:
        """Events that had left the feed before this subscriber came for them; they were read from their streams."""
        return self._begun.missed if self._begun is not None else 0

    @property
    def lost(self) -> int:
        """Events that were trimmed before this subscriber came for them; each EventGapError told some."""
        return self._begun.lost if self._begun is not None else 0

    @property
    def lagging(self) -> bool:
        """More waits than it takes at once: it is slower than those who write."""
        return self._begun is not None and self._begun.lagging

    @property
    def closed(self) -> bool:
        """It gives nothing more."""
        return self._closed or (self._begun is not None and self._begun.closed)

    async def begin(self) -> Self:
        """Takes its place behind what was appended so far, unless it has one; idempotent. Returns itself."""
        if self._begun is None and not self._closed:
            access = await self._calls.access()
            begun = access.subscribe(self._wanted, cursor=self._given)
            try:
                await begun.begin()
            except BaseException:
                await begun.close()
                raise
            self._begun = begun
        return self

    async def poll(self, timeout: timedelta | float | None = None) -> Event | None:
        """The next event; None when none came within ``timeout`` (None = as long as it takes), or it was closed."""
        await self.begin()
        return None if self._begun is None else await self._begun.poll(timeout)

    async def close(self) -> None:
        """Ends the iteration and gives the connection back; idempotent."""
        self._closed = True
        if self._begun is not None:
            await self._begun.close()

    def __await__(self) -> Generator[Any, None, Self]:
        """Begins; gives the subscription itself."""
        return self.begin().__await__()

    def __aiter__(self) -> AsyncIterator[Event]:
        """The subscription itself."""
        return self

    async def __anext__(self) -> Event:
        """The next event, as long as it takes."""
        event = await self.poll()
        if event is None:
            raise StopAsyncIteration
        return event

    async def __aenter__(self) -> Self:
        """The subscription itself, begun."""
        return await self.begin()

    async def __aexit__(self, *exc: object) -> None:
        """Closes it."""
        await self.close()


class AsyncEvents:
    """The streams of events; see :class:`~ares_celery.store.base.EventStore`, whose names these are, awaitable."""

    def __init__(self, calls: Calls) -> None:
        """Binds it; nothing is opened."""
        self._calls = calls

    async def append(
        self, stream_id: str, events: Sequence[NewEvent], expected_version: ExpectedVersion = ANY
    ) -> tuple[Event, ...]:
        """Appends from outside an incarnation, all or none. Raises VersionConflictError, UnserialisableError."""
        return await self._calls.run(lambda: self._calls.core.events.append(stream_id, events, expected_version))

    async def read(self, stream_id: str, options: ReadOptions | None = None) -> tuple[Event, ...]:
        """Reads part of a stream; an unknown stream is empty, one that was all trimmed gives its summaries."""
        return await self._calls.run(lambda: self._calls.core.events.read(stream_id, options))

    async def read_all(self, options: ReadOptions | None = None) -> tuple[Event, ...]:
        """Reads all streams, ordered by (time, version); events only, no summaries."""
        return await self._calls.run(lambda: self._calls.core.events.read_all(options))

    async def stream_version(self, stream_id: str) -> Version:
        """The last version; 0 for an unknown stream."""
        return await self._calls.run(lambda: self._calls.core.events.stream_version(stream_id))

    def subscribe(self, wanted: EventFilter | None = None, *, cursor: str | None = None) -> AsyncEventSubscription:
        """Follows events as they are appended, on one connection and no thread.

        Args:
            wanted: Which events; None = all.
            cursor: Where to begin: None = behind everything that was appended when it begins (see
                :class:`AsyncEventSubscription`), BEGINNING, or what ``cursor`` of an earlier one gave, in whichever
                process.

        Example:
            ``async for event in manager.events.subscribe(EventFilter(streams={"counter-1"})): print(event.type)``
        """
        return AsyncEventSubscription(self._calls, wanted, cursor)

    async def close(self) -> None:
        """Every later call raises EventStoreClosedError; subscriptions of threads end."""
        # `events` itself may block: it is asked for on the thread.
        await self._calls.run(lambda: self._calls.core.events.close())  # noqa: PLW0108

    async def summaries(self, stream_id: str) -> tuple[Summary, ...]:
        """The kept summaries of a stream, oldest first."""
        return await self._calls.run(lambda: self._calls.core.events.summaries(stream_id))

    async def summarised_version(self, stream_id: str) -> Version:
        """The last version that a summary covers; 0 when there is none."""
        return await self._calls.run(lambda: self._calls.core.events.summarised_version(stream_id))

    async def save_summary(self, summary: Summary, *, after: Version) -> Summary:
        """Stores a summary. Raises VersionConflictError, StreamNotFoundError."""
        return await self._calls.run(lambda: self._calls.core.events.save_summary(summary, after=after))

    async def prune_summaries(self, stream_id: str) -> int:
        """Drops summaries that are too old, but never the newest; gives how many."""
        return await self._calls.run(lambda: self._calls.core.events.prune_summaries(stream_id))

    async def trim_before(self, stream_id: str, version: int) -> int:
        """Removes the events up to a version, inclusive, as far as recovery allows; gives how many."""
        return await self._calls.run(lambda: self._calls.core.events.trim_before(stream_id, version))

    async def streams(self) -> Mapping[str, Version]:
        """All streams with their last versions, sorted by id."""
        return await self._calls.run(lambda: self._calls.core.events.streams())  # noqa: PLW0108 - as for close()


class AsyncSnapshots:
    """The newest states; see :class:`~ares_celery.store.base.SnapshotStore`, whose names these are, awaitable."""

    def __init__(self, calls: Calls) -> None:
        """Binds it; nothing is opened."""
        self._calls = calls

    async def save(self, agent_id: str, state: Mapping[str, Any]) -> None:
        """Stores a deep copy; the last write wins."""
        await self._calls.run(lambda: self._calls.core.snapshots.save(agent_id, state))

    async def load(self, agent_id: str) -> Mapping[str, Any] | None:
        """The newest state that is intact; None when there is none."""
        return await self._calls.run(lambda: self._calls.core.snapshots.load(agent_id))

    async def delete(self, agent_id: str) -> None:
        """Forgets; of nothing is no error."""
        await self._calls.run(lambda: self._calls.core.snapshots.delete(agent_id))


class AsyncCheckpoints:
    """Executions of agents; see :class:`~ares_celery.store.checkpoints.CheckpointStore`, whose names these are."""

    def __init__(self, calls: Calls) -> None:
        """Binds it; nothing is opened."""
        self._calls = calls

    async def load(self, agent_id: str, execution_id: str) -> Execution | None:
        """One execution; None when there is none, or it was finished longer ago than ``checkpoint_retention``."""
        return await self._calls.run(lambda: self._calls.core.checkpoints.load(agent_id, execution_id))

    async def list_executions(self, agent_id: str) -> tuple[Execution, ...]:
        """All unfinished executions of an agent and the last finished ones, sorted by id."""
        return await self._calls.run(lambda: self._calls.core.checkpoints.list_executions(agent_id))

    async def apply(
        self, agent_id: str, execution_id: str, *commands: ExecutionCommand, fence: str, op: str
    ) -> Execution | None:
        """Applies commands, all or none, and says what they come to; see the port."""
        return await self._calls.run(
            lambda: self._calls.core.checkpoints.apply(agent_id, execution_id, *commands, fence=fence, op=op)
        )

    async def recover(self, agent_id: str, *, fence: str, op: str, lost: bool = True) -> tuple[Execution, ...]:
        """Gives back what earlier incarnations of the agent held; see the port."""
        return await self._calls.run(
            lambda: self._calls.core.checkpoints.recover(agent_id, fence=fence, op=op, lost=lost)
        )

    async def steps(self, agent_id: str, execution_id: str) -> tuple[StepRecord, ...]:
        """What an execution has recorded, in the order of recording; empty for one that does not exist."""
        return await self._calls.run(lambda: self._calls.core.checkpoints.steps(agent_id, execution_id))

    async def intents(self, agent_id: str) -> tuple[StepIntent, ...]:
        """The steps that were begun, must not be repeated, and whose outcome is not known, oldest first."""
        return await self._calls.run(lambda: self._calls.core.checkpoints.intents(agent_id))


class AsyncMemory:
    """What agents said and were told; see :class:`~ares_celery.store.base.MemoryManager`, awaitable."""

    def __init__(self, calls: Calls) -> None:
        """Binds it; nothing is opened."""
        self._calls = calls

    async def open_session(self, agent_id: str, session_id: str | None = None) -> str:
        """Begins a session, or finds it begun; returns its id, a fresh one for None."""
        return await self._calls.run(lambda: self._calls.core.memory.open_session(agent_id, session_id))

    async def latest_session(self, agent_id: str) -> str | None:
        """The id of the session that began last; None when there is none."""
        return await self._calls.run(lambda: self._calls.core.memory.latest_session(agent_id))

    async def add_message(
        self, agent_id: str, session_id: str, message: ConversationMessage, *, message_id: str = ""
    ) -> None:
        """Adds a message to a session; the same ``message_id`` again changes nothing."""
        await self._calls.run(
            lambda: self._calls.core.memory.add_message(agent_id, session_id, message, message_id=message_id)
        )

    async def messages(self, agent_id: str, session_id: str) -> Sequence[ConversationMessage]:
        """The messages of a session, oldest first; none of an unknown one."""
        return await self._calls.run(lambda: self._calls.core.memory.messages(agent_id, session_id))
