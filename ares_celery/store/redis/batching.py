"""Calls of many tasks of one event loop, sent together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from ares_celery.errors import StoreUnavailableError
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.client import AsyncRedisClient

__all__ = ["BatchingClient"]

T = TypeVar("T")

#: Calls of one round trip: more would only make the first ones wait.
MOST_CALLS: Final = 100
#: Bytes of one round trip, a single larger call apart.
MOST_BYTES: Final = 1 << 20
#: Round trips at the same time, each on a connection of its own.
MOST_TRIPS: Final = 4

_Item = tuple["Call[Any]", "asyncio.Future[Any]"]


class BatchingClient:
    """Runs calls of any number of tasks on a handful of connections.

    A lone call goes out at once; what comes while round trips are under way leaves with the next one. A task that is
    cancelled leaves its call to its end, and breaks no connection.
    """

    def __init__(self, client: AsyncRedisClient) -> None:
        """Binds it.

        Args:
            client: Only this one's; closed with it.
        """
        self._client = client
        self._queue: deque[_Item] = deque()
        self._trips: set[asyncio.Task[None]] = set()
        self._closed = False

    async def run(self, call: Call[T]) -> T:
        """Sends one call and reads its answer; never twice.

        Raises:
            StoreUnavailableError: No answer came; whether the call took effect is unknown.
        """
        if self._closed:
            return await self._client.run(call)  # which says so
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append((call, answer))
        if len(self._trips) < MOST_TRIPS:
            trip = asyncio.create_task(self._travel(), name="ares-store-trip")
            self._trips.add(trip)
            trip.add_done_callback(self._trips.discard)
        return await answer

    async def run_many(self, calls: Sequence[Call[T]]) -> list[T]:
        """Sends many calls, in as few round trips as they need."""
        return await asyncio.gather(*(self.run(call) for call in calls))

    async def aclose(self) -> None:
        """Closes the connections; whoever waits for an answer gets StoreUnavailableError, and so do later calls."""
        self._closed = True
        # The connections first: trips then end with the error that says so, and hand it on.
        await self._client.aclose()
        if self._trips:
            await asyncio.wait(self._trips)
            # A connection that was being made meanwhile.
            await self._client.aclose()

    async def _travel(self) -> None:
        while self._queue:
            batch = self._take()
            try:
                outcomes = await self._ask([call for call, _ in batch])
            except BaseException:
                # The loop ends: nobody brings these answers any more.
                for _, answer in batch:
                    answer.cancel()
                raise
            for (_, answer), outcome in zip(batch, outcomes, strict=True):
                if answer.done():
                    continue
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)

    def _take(self) -> list[_Item]:
        batch, size = [self._queue.popleft()], 0
        size = _size(batch[0][0])
        while self._queue and len(batch) < MOST_CALLS:
            size += _size(self._queue[0][0])
            if size > MOST_BYTES:
                break
            batch.append(self._queue.popleft())
        return batch

    async def _ask(self, calls: Sequence[Call[Any]]) -> list[Any]:
        """The answer of each call, or the error that it stands for."""
        if len(calls) == 1:
            return [await self._ask_one(calls[0])]
        try:
            return await self._client.run_many(_contained(call) for call in calls)
        except StoreUnavailableError as error:
            # One for each, as who raises an error writes its own way into it.
            return [StoreUnavailableError(error.fields) for _ in calls]
        except Exception:  # noqa: BLE001 - one call that the server refuses must not be everybody's
            return [await self._ask_one(call) for call in calls]

    async def _ask_one(self, call: Call[Any]) -> Any:  # noqa: ANN401 - answers are anything
        try:
            return await self._client.run(call)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            return error


def _size(call: Call[Any]) -> int:
    return sum(len(word) for word in call.args if not isinstance(word, int))


def _contained(call: Call[Any]) -> Call[Any]:
    """The same call, whose answer may be an error as a value."""
    return msgspec.structs.replace(call, parse=_Contained(call.parse))


class _Contained:
    def __init__(self, parse: Callable[[Any], Any]) -> None:
        self._parse = parse

    def __call__(self, reply: Any) -> Any:  # noqa: ANN401 - what the driver gave
        try:
            return self._parse(reply)
        except Exception as error:  # noqa: BLE001 - it is the caller's
            return error
