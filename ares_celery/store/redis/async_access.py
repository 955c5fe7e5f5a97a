"""One event loop's own way to an open namespace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from weakref import WeakSet

from ares_celery.errors import UnreadableRecordError
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
