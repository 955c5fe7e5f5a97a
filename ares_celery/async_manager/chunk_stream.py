"""A streamed answer as a coroutine reads it."""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any, Final, Self

from typing_extensions import override

from ares_celery.errors import AresError, ProcessTimeoutError, StoreUnavailableError, StreamGapError
from ares_celery.ids import AgentId
from ares_celery.model.message import Chunk
from ares_celery.runtime.chunk_stream import BEYOND, OUTAGE_PAUSE, SIGN
from ares_celery.store.async_access import AsyncAccess

__all__ = ["AsyncChunkStream"]

log: Final = logging.getLogger(__name__)


class AsyncChunkStream(AsyncIterator[Chunk]):
    """Gives the chunks of one answer, in order, each once; made by ``AsyncManager.process_stream``.

    The agent is asked when the stream is awaited, entered (``async with``) or first read. It ends behind the final
    chunk. To close it, to leave its ``async with`` block, to drop it and to cancel the task that reads it end the
    stream in the agent, unless it is detached. For one task at a time.

    Example:
        ``async with manager.process_stream("writer-1", "rain") as chunks: first = await anext(chunks)``
    """

    def __init__(
        self,
        open_access: Callable[[], Awaitable[AsyncAccess]],
        agent_id: AgentId,
        message: object,
        *,
        message_id: str,
        timeout: float,
        detached: bool,
    ) -> None:
        """Binds a stream; nothing is sent yet.

        Args:
            open_access: Gives what the answer is read from, on the running loop.
            agent_id: Whom to ask.
            message: What to ask.
            message_id: Of the message.
            timeout: Longest wait for each chunk, in seconds.
            detached: The stream goes on without its caller.
        """
        self._open_access = open_access
        self._agent_id = agent_id
        self._message = message
        self._is_sent = False
        self._timeout = timeout
        self._detached = detached
        self._access: AsyncAccess | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signs: asyncio.Task[None] | None = None
        self._chunks: deque[Chunk] = deque()
        self._seq = 0
        self._is_over = False
        self._pid = os.getpid()
        #: Names the message; the same id again reads the same stream.
        self.message_id = message_id

    @property
    def seq(self) -> int:
        """The seq of the chunk that was read last; 0 before the first."""
        return self._seq - len(self._chunks)

    @property
    def is_over(self) -> bool:
        """There is nothing more to come: its end was read, it failed, or it was closed."""
        return self._is_over and not self._chunks

    @override
    def __aiter__(self) -> Self:
        """Itself."""
        return self

    @override
    async def __anext__(self) -> Chunk:
        """The next chunk.

        Raises:
            StopAsyncIteration: Behind the final one. ProcessTimeoutError: None came in time; the stream goes on.
            StreamGapError: Some are no longer kept; the next call goes on behind them.
            AgentFailedError and others: What the stream ended with.
        """
        if not self._chunks:
            if self._is_over:
                raise StopAsyncIteration
            try:
                await self._begin()
                await self._fetch()
            except asyncio.CancelledError:
                # As of a generator: whoever is stopped in the middle has left. Told by another task, as this one ends.
                self._leave()
                raise
        return self._chunks.popleft()

    async def begin(self) -> Self:
        """Asks the agent now, unless that is done; what it refuses is raised here. The stream itself."""
        try:
            await self._begin()
        except asyncio.CancelledError:
            self._leave()
            raise
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        """Asks the agent now; the stream itself."""
        return self.begin().__await__()

    async def __aenter__(self) -> Self:
        """Asks the agent; the stream itself."""
        return await self.begin()

    async def __aexit__(self, *exc: object) -> None:
        """Leaves the stream."""
        await self.close()

    async def close(self) -> None:
        """Leaves the stream: unless it is detached, or over, it ends in the agent. Idempotent; raises nothing."""
        told = self._leave()
        if told is not None:
            await asyncio.shield(told)

    def __del__(self) -> None:
        """A stream that was dropped was left."""
        loop, access = getattr(self, "_loop", None), self._access
        if loop is None or access is None or loop.is_closed() or self._pid != os.getpid() or self._is_over:
            return
        if not self._detached:
            # Perhaps on a thread of the garbage collector's choice.
            loop.call_soon_threadsafe(access.leave, self._agent_id, self.message_id)

    async def _begin(self) -> None:
        if self._access is None:
            self._access = await self._open_access()
            self._loop = asyncio.get_running_loop()
        if not self._is_sent:
            await self._send(self._access)
            self._signs = asyncio.create_task(_show_presence(weakref.ref(self)), name="ares-open-stream")

    async def _send(self, access: AsyncAccess) -> None:
        try:
            await access.mailbox.send(
                self._agent_id,
                self._message,
                message_id=self.message_id,
                wants_reply=True,
                stream=True,
                detached=self._detached,
            )
        except AresError as error:
            # When nobody knows whether it was sent, the next read sends it again, under the same id.
            self._is_over = not isinstance(error, ConnectionError)
            raise
        self._is_sent, self._message = True, None

    async def _fetch(self) -> None:
        try:
            found = await self._read()
        except StreamGapError as error:
            self._seq = int(error.fields["last"])
            raise
        except AresError as error:
            # What is away comes back.
            if not isinstance(error, ConnectionError):
                self._end()
            raise
        if not found:
            raise ProcessTimeoutError(agent_id=self._agent_id, message_id=self.message_id, timeout=self._timeout)
        self._chunks.extend(found)
        self._seq = found[-1].seq
        if found[-1].final:
            self._end()

    async def _read(self) -> tuple[Chunk, ...] | None:
        """Reads; while the store is away, again and again until the time for a chunk is over."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout
        while True:
            # Asked for again each time: a manager that was closed meanwhile says so.
            mailbox = (await self._open_access()).mailbox
            left = max(until - loop.time(), 0)
            try:
                return await mailbox.read_chunks(self._agent_id, self.message_id, after=self._seq, timeout=left)
            except StoreUnavailableError:
                if left <= 0:
                    raise
                await asyncio.sleep(OUTAGE_PAUSE)

    def _end(self) -> None:
        self._is_over = True
        if self._signs is not None:
            self._signs.cancel()

    def _leave(self) -> asyncio.Future[None] | None:
        """Ends it here; what tells the agent so, if that is needed."""
        is_left = not self._is_over and not self._detached and self._pid == os.getpid()
        self._end()
        self._chunks.clear()
        return self._access.leave(self._agent_id, self.message_id) if is_left and self._access is not None else None

    async def show_presence(self) -> None:
        """Says that the caller is still there, between two reads."""
        if self._access is not None:
            await self._access.mailbox.read_chunks(self._agent_id, self.message_id, after=BEYOND, timeout=0)


async def _show_presence(stream: weakref.ref[AsyncChunkStream]) -> None:
    """A caller may be busy for long with what it got; only one that is gone has left."""
    while True:
        await asyncio.sleep(SIGN)
        found = stream()
        if found is None or found.is_over:
            return
        try:
            await found.show_presence()
        except AresError as error:
            # Whoever reads it learns the same; a store that is away ends nobody's stream for seconds.
            log.debug("stream %s: %s", found.message_id, error)
        del found
