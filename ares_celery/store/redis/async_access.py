"""One event loop's own way to an open namespace."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final
from weakref import WeakSet

from ares_celery.errors import AresError, UnreadableRecordError
from ares_celery.ids import AgentId
from ares_celery.model.event import EventFilter
from ares_celery.store.base import AgentRead
from ares_celery.store.redis import agent_calls
from ares_celery.store.redis.async_mailbox import AsyncRedisMailbox
from ares_celery.store.redis.async_subscription import AsyncRedisSubscription
from ares_celery.store.redis.batching import BatchingClient
from ares_celery.store.redis.bound import Bound
from ares_celery.store.redis.client import AsyncRedisClient
from ares_celery.store.redis.connections import AsyncDriver
from ares_celery.store.redis.driver_errors import DriverErrors
from ares_celery.store.redis.hints import HintedWaits
from ares_celery.store.redis.scripts import Scripts
from ares_celery.store.redis.settings_calls import read_generation, read_settings

__all__ = ["AsyncRedisAccess"]

log: Final = logging.getLogger(__name__)

#: Seconds that closing waits for the word that callers have left: without it their streams end later.
LAST_WORDS: Final = 1.0


class AsyncRedisAccess:
    """Implements :class:`~ares_celery.store.async_access.AsyncAccess`; belongs to the loop that first uses it.

    At most four connections for calls and one that listens; each subscription has one more.
    """

    def __init__(
        self, bound: Bound, connect: Callable[[], AsyncDriver], scripts: Scripts, errors: DriverErrors
    ) -> None:
        self._bound = bound
        self._connect = connect
        self._scripts = scripts
        self._errors = errors
        self._client = BatchingClient(AsyncRedisClient(connect(), scripts, errors))
        self._waits = HintedWaits(self._client, connect, bound.keys, errors=errors, clock=bound.clock)
        self._mailbox = AsyncRedisMailbox(bound, self._client, self._waits, refresh=self._refresh_settings)
        self._subscriptions: WeakSet[AsyncRedisSubscription] = WeakSet()
        #: Of subscriptions, those that were dropped and have not been closed yet as well.
        self._clients: set[AsyncRedisClient] = set()
        #: Streams whose callers have left, until that is told.
        self._left: dict[tuple[AgentId, str], asyncio.Task[None]] = {}

    @property
    def mailbox(self) -> AsyncRedisMailbox:
        """Messages and their answers."""
        return self._mailbox

    async def states(self, agent_ids: Sequence[AgentId]) -> list[str | None]:
        """The words for the states of many agents, in few round trips; None for one that does not exist."""
        keys = self._bound.keys
        return await self._client.run_many([agent_calls.read_state(keys, agent_id=agent_id) for agent_id in agent_ids])

    async def read(self, agent_id: AgentId) -> AgentRead:
        """Reads an agent."""
        read = await self._client.run(agent_calls.read_agent(self._bound.keys, agent_id=agent_id, op=""))
        if read.problem:
            raise UnreadableRecordError(agent_id=agent_id, problem=read.problem)
        return read

    def leave(self, agent_id: AgentId, message_id: str) -> asyncio.Future[None]:
        """Tells that the caller of a stream has left; needs no waiting, never fails."""
        told = asyncio.create_task(self._tell_left(agent_id, message_id), name="ares-left-stream")
        self._left[agent_id, message_id] = told
        return told

    async def _tell_left(self, agent_id: AgentId, message_id: str) -> None:
        try:
            await self._mailbox.cancel(agent_id, message_id)
        except AresError as error:
            # Without a sign of life it ends as well, seconds later.
            log.warning("agent %s: the end of stream %s was not told: %s", agent_id, message_id, error)
        self._left.pop((agent_id, message_id), None)

    def subscribe(self, wanted: EventFilter | None = None, *, cursor: str | None = None) -> AsyncRedisSubscription:
        """Follows events on a connection of its own."""
        client = AsyncRedisClient(self._connect(), self._scripts, self._errors)
        self._clients = {client, *(one for one in self._clients if not one.is_closed)}
        subscription = AsyncRedisSubscription(
            self._bound.keys, wanted or EventFilter(), cursor, client=client, clock=self._bound.clock
        )
        self._subscriptions.add(subscription)
        return subscription

    async def aclose(self) -> None:
        """Closes its connections and ends its subscriptions; idempotent."""
        # Left at the last moment: it is under way, or the loop's end has cancelled what should have told it.
        telling = [told for told in self._left.values() if not told.done()]
        if telling:
            await asyncio.wait(telling, timeout=LAST_WORDS)
        for agent_id, message_id in [topic for topic, told in self._left.items() if told.cancelled()]:
            await self._tell_left(agent_id, message_id)
        for subscription in list(self._subscriptions):
            await subscription.close()
        for client in self._clients:
            await client.aclose()
        await self._waits.aclose()
        await self._client.aclose()
        # They learn that it was closed.
        self._waits.wake_all()

    async def _refresh_settings(self) -> None:
        """Asks whether the settings have changed, when nobody did for a second."""
        bound = self._bound
        if bound.settings.is_due() and await self._client.run(read_generation(bound.keys)) != bound.settings.generation:
            stored = await self._client.run(read_settings(bound.keys))
            if stored.data is not None:
                bound.settings.take(bound.keys.namespace, stored.generation, stored.data)
