"""A subscription for an event loop: does what following asks for, on a connection of its own."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final, Self

from ares_celery.clock import Clock
from ares_celery.errors import AresError, StoreUnavailableError
from ares_celery.model.arguments import check_timeout
from ares_celery.model.event import Event, EventFilter
from ares_celery.store.redis import feed_calls
from ares_celery.store.redis.background_tasks import keep_alive
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.client import AsyncRedisClient
from ares_celery.store.redis.cursors import read_cursor
from ares_celery.store.redis.following import Ask, Following, Found, Step, Wait, behind_all, shards_of
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.subscription import FIRST_PAUSE, LONGEST_PAUSE

__all__ = ["AsyncRedisSubscription"]

_log: Final = logging.getLogger(__name__)

#: Milliseconds of one wait on the server: safely below the socket's timeout.
BLOCK_MS: Final = 2_000


class AsyncRedisSubscription:
    """Implements :class:`~ares_celery.store.async_access.AsyncSubscription`."""

    def __init__(
        self, keys: Keys, wanted: EventFilter, cursor: str | None, *, client: AsyncRedisClient, clock: Clock
    ) -> None:
        """Begins at a cursor, or waits for :meth:`begin`; nothing is sent yet.

        Args:
            keys: Of the namespace.
            wanted: Which events.
            cursor: Where to begin; None = behind what is there when it begins.
            client: Only this subscription's, as it waits on the server; closed with it.
            clock: For deadlines.

        Raises:
            InvalidCursorError: The cursor is none, or one of another namespace.
        """
        self._keys = keys
        self._wanted = wanted
        self._client = client
        self._clock = clock
        self._closed = asyncio.Event()
        self._reading = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        #: What is asked of the server now; outlives a reader that is cancelled.
        self._asked: asyncio.Task[list[Any] | None] | None = None
        self._answer: list[Any] | None = None
        self._step: Step | None = None
        self._pid = os.getpid()
        self._pause = FIRST_PAUSE
        self._away = False
        self._following: Following | None = None
        if cursor is not None:
            self._following = Following(keys, wanted, read_cursor(cursor, keys.namespace, wanted))
        self._steps = self._following.steps() if self._following is not None else None

    @property
    def cursor(self) -> str:
        """Where it stands, the last event that it gave included; empty before it has begun."""
        return self._following.state.show(self._keys.namespace) if self._following is not None else ""

    @property
    def missed(self) -> int:
        """Events that had left the feed and were read from their streams."""
        return self._following.missed if self._following is not None else 0

    @property
    def lost(self) -> int:
        """Events that were trimmed before this subscriber came for them."""
        return self._following.lost if self._following is not None else 0

    @property
    def lagging(self) -> bool:
        """More waits than it takes at once."""
        return self._following is not None and self._following.lagging

    @property
    def closed(self) -> bool:
        """It gives nothing more."""
        return self._closed.is_set()

    async def begin(self) -> Self:
        """Takes its place behind what was appended so far, unless it has one."""
        async with self._reading:
            await self._demand_place()
        return self

    async def poll(self, timeout: timedelta | float | None = None) -> Event | None:
        """The next event; None when none came in time, or it was closed."""
        until = None if timeout is None else self._clock.monotonic() + check_timeout(timeout).total_seconds()
        async with self._reading:
            if self.closed:
                return None
            await self._demand_place()
            return await self._poll(until)

    async def close(self) -> None:
        """Ends the iteration, also of a task that waits; idempotent."""
        self._closed.set()
        await _close(self._client, self._asked)

    def __del__(self) -> None:
        """One that was dropped gives its connection back, too."""
        if self._loop is None or self._loop.is_closed() or self._pid != os.getpid() or self._closed.is_set():
            return
        client, asked = self._client, self._asked
        # Perhaps on a thread of the garbage collector's choice.
        self._loop.call_soon_threadsafe(lambda: keep_alive(asyncio.ensure_future(_close(client, asked))))

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

    async def _demand_place(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._following is not None:
            return
        shards = shards_of(self._keys, self._wanted)
        calls: list[Call[Any]] = [feed_calls.read_feed(self._keys, shard=shard) for shard in shards]
        if self._asked is None:
            self._asked = asyncio.create_task(_answers(self._client, Ask(calls)), name="ares-subscription")
        await asyncio.wait([self._asked])
        asked, self._asked = self._asked, None
        self._following = Following(self._keys, self._wanted, behind_all(shards, asked.result() or []))
        self._steps = self._following.steps()

    async def _poll(self, until: float | None) -> Event | None:
        while not self.closed:
            step = self._next_step()
            if isinstance(step, Found):
                self._step, self._answer = None, []
                if isinstance(step.item, AresError):
                    raise step.item
                return step.item
            answer = await self._do(step, until)
            if answer is not None:
                self._step, self._answer = None, answer
            elif until is not None and self._clock.monotonic() >= until:
                return None
        return None

    def _next_step(self) -> Step:
        """The step that is due; the same one until it has its answer, also when its reader was cancelled."""
        if self._step is None:
            assert self._steps is not None  # noqa: S101 - _demand_place() came before
            self._step = next(self._steps) if self._answer is None else self._steps.send(self._answer)
        return self._step

    async def _do(self, step: Ask | Wait, until: float | None) -> list[Any] | None:
        """The answer; None when there is none yet."""
        if self._asked is None:
            self._asked = asyncio.create_task(_answers(self._client, step), name="ares-subscription")
        left = None if until is None else max(0.0, until - self._clock.monotonic())
        await asyncio.wait([self._asked], timeout=left)
        if not self._asked.done():
            return None
        asked, self._asked = self._asked, None
        try:
            answer = asked.result()
        except StoreUnavailableError as error:
            if not self.closed:
                await self._wait_for_the_store(error, until)
            return None
        if self._away:
            _log.warning("a subscription to events goes on")
            self._away = False
        self._pause = FIRST_PAUSE
        return answer

    async def _wait_for_the_store(self, error: StoreUnavailableError, until: float | None) -> None:
        if not self._away:
            _log.warning("a subscription to events waits for the store: %s", error)
        self._away = True
        left = self._pause if until is None else min(self._pause, until - self._clock.monotonic())
        closing = asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait([closing], timeout=max(0.0, left))
        finally:
            closing.cancel()
        self._pause = min(2 * self._pause, LONGEST_PAUSE)


async def _answers(client: AsyncRedisClient, step: Ask | Wait) -> list[Any] | None:
    """What the server says; a task of its own, as the driver may swallow that a task is cancelled.

    (``asyncio.wait_for`` does, before Python 3.12, when what it waits for is done at that moment.)
    """
    if isinstance(step, Ask):
        return await client.run_many(step.calls)
    found = await client.run(step.call(block_ms=BLOCK_MS))
    return [found] if found else None


async def _close(client: AsyncRedisClient, asked: asyncio.Task[Any] | None) -> None:
    await client.aclose()
    if asked is not None:
        # It fails, as its connection is gone; nobody wants to know.
        await asyncio.wait([asked])
        if not asked.cancelled():
            asked.exception()
        # A connection that was being made meanwhile.
        await client.aclose()
