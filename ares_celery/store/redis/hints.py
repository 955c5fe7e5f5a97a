"""Waits of one event loop for news of messages, all on one connection that listens."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ares_celery.clock import Clock
from ares_celery.errors import AresError
from ares_celery.store.redis.batching import BatchingClient
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.connections import AsyncDriver
from ares_celery.store.redis.driver_errors import DriverErrors
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.mailbox_calls import Waiting

__all__ = ["HintedWaits"]

_log: Final = logging.getLogger(__name__)
T = TypeVar("T")

#: Seconds after which a wait looks although nothing was said: hints may be lost.
REPAIR: Final = 1.0
#: Seconds that a wait gives the connection to begin to listen.
FIRST_WORD: Final = 1.0
#: Seconds of one wait for a hint: below the socket's timeout.
POLL: Final = 2.0
#: Seconds until a broken connection is made anew; doubled each time, up to the second number.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0

#: An agent, and a message of it.
_Topic = tuple[str, str]


class HintedWaits:
    """Looks when the server says that there is news, and now and then anyway.

    Attributes:
        channel: On which the scripts tell this loop of its messages.
    """

    def __init__(
        self,
        client: BatchingClient,
        connect: Callable[[], AsyncDriver],
        keys: Keys,
        *,
        errors: DriverErrors,
        clock: Clock,
    ) -> None:
        """Binds it; nothing is opened.

        Args:
            client: For the looks.
            connect: Makes the driver that listens.
            keys: Of the namespace.
            errors: How the server is named in errors.
            clock: For deadlines.
        """
        self.channel = keys.caller_prefix + uuid.uuid4().hex
        self._client = client
        self._connect = connect
        self._keys = keys
        self._errors = errors
        self._clock = clock
        self._waits: dict[_Topic, set[asyncio.Event]] = defaultdict(set)
        self._agents: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._listening = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._closed = False

    async def ready(self) -> None:
        """Sees to it that hints are heard: before whoever asks tells others its channel.

        A connection that does not stand within a second is waited for no longer: the looks bring the same, later.
        """
        if not self._closed and (self._listener is None or self._listener.done()):
            self._listener = asyncio.create_task(self._listen_again_and_again(), name="ares-caller-hints")
        if not self._listening.is_set():
            await _until(self._listening, FIRST_WORD)

    async def until(
        self,
        agent_id: str,
        message_id: str,
        look: Call[T | Waiting],
        *,
        timeout: float,
    ) -> T | None:
        """Looks until there is something; None when there was nothing in time. Looks once at least."""
        until = self._clock.monotonic() + timeout
        topic, hinted = (agent_id, message_id), asyncio.Event()
        self._waits[topic].add(hinted)
        self._agents[agent_id].add(hinted)
        try:
            await self.ready()
            while True:
                hinted.clear()
                found = await self._client.run(look)
                if not isinstance(found, Waiting):
                    return found
                left = until - self._clock.monotonic()
                if left <= 0:
                    return None
                await _until(hinted, min(left, REPAIR))
        finally:
            _remove(self._waits, topic, hinted)
            _remove(self._agents, agent_id, hinted)

    def wake_all(self) -> None:
        """Lets every wait look now."""
        for waits in self._agents.values():
            for hinted in waits:
                hinted.set()

    async def aclose(self) -> None:
        """Ends the listening; idempotent."""
        self._closed = True
        if self._listener is not None and not self._listener.done():
            self._listener.cancel()
            await asyncio.wait([self._listener])

    async def _listen_again_and_again(self) -> None:
        pause = FIRST_PAUSE
        # The driver may swallow that the task is cancelled, hence the flag.
        while not self._closed:
            try:
                await self._listen()
            except Exception as error:  # noqa: BLE001 - whatever ended the listening, it begins anew
                if self._listening.is_set():
                    pause = FIRST_PAUSE
                self._listening.clear()
                # The stack of what is no error of ours is for whoever has to find out.
                trace = None if isinstance(error, AresError) else error
                _log.warning(
                    "no hints of answers for now, a look a second will do: %s; next try in %.1f s",
                    error,
                    pause,
                    exc_info=trace,
                )
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _listen(self) -> None:
        with self._errors:
            driver = self._connect()
            pubsub = driver.pubsub(ignore_subscribe_messages=False)
            try:
                await pubsub.subscribe(self.channel, self._keys.resting)
                while not self._closed:
                    message = await pubsub.get_message(timeout=POLL)
                    if message is not None:
                        self._hear(message)
            finally:
                await pubsub.aclose()
                await driver.aclose()

    def _hear(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            # The second answer of two: from here on nothing is missed.
            if int(message["data"]) > 1:
                self._listening.set()
                self.wake_all()
            return
        if message["type"] != "message":
            return
        text = bytes(message["data"]).decode(errors="replace")
        agent_id, bar, message_id = text.partition("|")
        waits = self._waits.get((agent_id, message_id)) if bar else self._agents.get(text)
        for hinted in waits or ():
            hinted.set()


async def _until(event: asyncio.Event, seconds: float) -> None:
    """Waits for the event, so long at most."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return


def _remove(waits: dict[Any, set[asyncio.Event]], name: object, hinted: asyncio.Event) -> None:
    some = waits.get(name)
    if some is not None:
        some.discard(hinted)
        if not some:
            del waits[name]
