"""Runs calls: the only code that waits for Redis. One client for threads, one for an event loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from redis.exceptions import NoScriptError
from typing_extensions import override

from ares_celery.errors import AresError, StoreUnavailableError
from ares_celery.store.redis.call import Call, Word
from ares_celery.store.redis.connections import AsyncDriver, Driver
from ares_celery.store.redis.driver_errors import DriverErrors
from ares_celery.store.redis.scripts import Scripts

__all__ = ["AsyncRedisClient", "GuardedClient", "RedisClient"]

T = TypeVar("T")


def _words(call: Call[Any], scripts: Scripts) -> tuple[Word, ...]:
    if not call.script:
        return call.args
    return ("EVALSHA", scripts.sha(call.script), len(call.keys), *call.keys, *call.args)


class RedisClient:
    """Runs calls, for any number of threads; a forked child gets connections of its own."""

    def __init__(self, driver: Driver, scripts: Scripts, errors: DriverErrors) -> None:
        self._driver = driver
        self._scripts = scripts
        self._errors = errors
        self._closed = False

    def run(self, call: Call[T]) -> T:
        """Sends one call and reads its answer; never twice.

        Raises:
            StoreUnavailableError: No answer came; whether the call took effect is unknown.
        """
        try:
            reply = self._send(call)
        except Exception as error:
            self._demand_open(error)
            with self._errors:  # entered for an error alone: a call in ten thousand has one
                raise
        return call.parse(reply)

    def run_many(self, calls: Iterable[Call[T]]) -> list[T]:
        """Sends many calls in one round trip. Each is atomic, all together are not.

        Raises:
            StoreUnavailableError: As for :meth:`run`; any part of the calls may have taken effect.
        """
        waiting = list(calls)
        if not waiting:
            return []
        try:
            replies = self._send_all(waiting)
        except Exception as error:
            self._demand_open(error)
            with self._errors:
                raise
        return [call.parse(reply) for call, reply in zip(waiting, replies, strict=True)]

    def run_pair(self, first: Call[Any], second: Call[T]) -> T | None:
        """Sends a call and one that waits behind it, in one write where the driver can; never twice.

        Returns:
            What the second gave; None when its answer was lost, though the first has taken effect.

        Raises:
            StoreUnavailableError: No answer to the first came; whether it took effect is unknown.
        """
        send = getattr(self._driver, "execute_pair", None)
        if send is None:
            self.run(first)
            return self.run(second)
        accepted: list[Any] = []

        def accept(answer: Any) -> None:  # noqa: ANN401 - what the driver gives
            accepted.append(first.parse(answer))

        self._demand_open()
        words = _words(first, self._scripts), _words(second, self._scripts)
        try:
            try:
                reply = send(*words, accept)
            except NoScriptError:
                self._load(first.script)
                reply = send(*words, accept)
        except AresError:
            raise
        except Exception as error:
            self._demand_open(error)
            if accepted:
                return None
            with self._errors:
                raise
        return second.parse(reply)

    def close(self) -> None:
        """Closes the connections; later calls raise StoreUnavailableError."""
        self._closed = True
        with self._errors:
            self._driver.close()

    def _send(self, call: Call[Any]) -> Any:  # noqa: ANN401 - what the driver gives
        self._demand_open()
        words = _words(call, self._scripts)
        try:
            return self._driver.execute_command(*words)
        except NoScriptError:
            # A script that is not there was not run: this is no repeat.
            self._load(call.script)
            return self._driver.execute_command(*words)

    def _send_all(self, waiting: Sequence[Call[Any]]) -> list[Any]:
        """Sends them, and once more those whose script was not there; the first error of an answer is raised."""
        replies = self._send_many(waiting)
        unloaded = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unloaded:
            for name in {waiting[number].script for number in unloaded}:
                self._load(name)
            again = self._send_many([waiting[number] for number in unloaded])
            for number, reply in zip(unloaded, again, strict=True):
                replies[number] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _send_many(self, calls: Sequence[Call[Any]]) -> list[Any]:
        self._demand_open()
        with self._driver.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.execute_command(*_words(call, self._scripts))
            replies: list[Any] = pipeline.execute(raise_on_error=False)
        return replies

    def _load(self, name: str) -> None:
        self._driver.execute_command("SCRIPT", "LOAD", self._scripts.text(name))

    def _demand_open(self, cause: Exception | None = None) -> None:
        """What a driver raises where another thread closes it under a call may be anything."""
        if self._closed:
            raise StoreUnavailableError(url=self._errors.url, problem="this store was closed") from cause


class GuardedClient(RedisClient):
    """Asks before each call whether this thread may block."""

    def __init__(self, driver: Driver, scripts: Scripts, errors: DriverErrors, guard: Callable[[], None]) -> None:
        """Binds it; ``guard`` refuses by raising."""
        super().__init__(driver, scripts, errors)
        self._guard = guard

    @override
    def run(self, call: Call[T]) -> T:
        """See :meth:`RedisClient.run`."""
        self._guard()
        return super().run(call)

    @override
    def run_many(self, calls: Iterable[Call[T]]) -> list[T]:
        """See :meth:`RedisClient.run_many`."""
        self._guard()
        return super().run_many(calls)

    @override
    def run_pair(self, first: Call[Any], second: Call[T]) -> T | None:
        """See :meth:`RedisClient.run_pair`."""
        self._guard()
        return super().run_pair(first, second)


class AsyncRedisClient:
    """Runs calls on one event loop."""

    def __init__(self, driver: AsyncDriver, scripts: Scripts, errors: DriverErrors) -> None:
        self._driver = driver
        self._scripts = scripts
        self._errors = errors
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """It runs nothing more."""
        return self._closed

    async def run(self, call: Call[T]) -> T:
        """See :meth:`RedisClient.run`."""
        try:
            reply = await self._send(call)
        except Exception as error:
            self._demand_open(error)
            with self._errors:
                raise
        return call.parse(reply)

    async def run_many(self, calls: Iterable[Call[T]]) -> list[T]:
        """See :meth:`RedisClient.run_many`."""
        waiting = list(calls)
        if not waiting:
            return []
        try:
            replies = await self._send_all(waiting)
        except Exception as error:
            self._demand_open(error)
            with self._errors:
                raise
        return [call.parse(reply) for call, reply in zip(waiting, replies, strict=True)]

    async def aclose(self) -> None:
        """Closes the connections; later calls raise StoreUnavailableError."""
        self._closed = True
        with self._errors:
            await self._driver.aclose()

    async def _send(self, call: Call[Any]) -> Any:  # noqa: ANN401 - what the driver gives
        self._demand_open()
        words = _words(call, self._scripts)
        try:
            return await self._driver.execute_command(*words)
        except NoScriptError:
            await self._load(call.script)
            return await self._driver.execute_command(*words)

    async def _send_all(self, waiting: Sequence[Call[Any]]) -> list[Any]:
        """Sends them, and once more those whose script was not there; the first error of an answer is raised."""
        replies = await self._send_many(waiting)
        unloaded = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unloaded:
            for name in {waiting[number].script for number in unloaded}:
                await self._load(name)
            again = await self._send_many([waiting[number] for number in unloaded])
            for number, reply in zip(unloaded, again, strict=True):
                replies[number] = reply
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def _send_many(self, calls: Sequence[Call[Any]]) -> list[Any]:
        self._demand_open()
        async with self._driver.pipeline(transaction=False) as pipeline:
            for call in calls:
                pipeline.execute_command(*_words(call, self._scripts))
            replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

    async def _load(self, name: str) -> None:
        await self._driver.execute_command("SCRIPT", "LOAD", self._scripts.text(name))

    def _demand_open(self, cause: Exception | None = None) -> None:
        if self._closed:
            raise StoreUnavailableError(url=self._errors.url, problem="this store was closed") from cause
