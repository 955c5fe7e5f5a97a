"""The two servers on which the whole suite runs, and drivers that lose answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import fakeredis
import fakeredis.aioredis
import redis
from redis.exceptions import TimeoutError as DriverTimeoutError

from ares_celery.config import RuntimeConfig
from ares_celery.store.redis.connections import AsyncDriver, Driver
from ares_celery.store.redis.store import RedisStore


@dataclass
class Backend:
    """A server for one test: makes clients and stores, and closes them."""

    client: Callable[[], redis.Redis]
    async_client: Callable[[], AsyncDriver]
    namespace: str
    _stores: list[RedisStore] = field(default_factory=list[RedisStore])

    def open(
        self, config: RuntimeConfig | None = None, *, namespace: str = "", driver: Driver | None = None
    ) -> RedisStore:
        """A store of the test's namespace, or of another one, perhaps through a driver of the test's own."""
        client: Any = driver or self.client()
        store = RedisStore.from_client(
            client, namespace or self.namespace, config or RuntimeConfig(), async_client=self.async_client
        )
        self._stores.append(store)
        return store

    def close(self) -> None:
        """Closes every store that was opened."""
        for store in self._stores:
            store.close()


def fake_backend(namespace: str) -> Backend:
    """In memory, inside this process."""
    server = fakeredis.FakeServer()
    return Backend(
        client=lambda: fakeredis.FakeRedis(server=server),
        async_client=lambda: fakeredis.aioredis.FakeRedis(server=server),
        namespace=namespace,
    )


class LosingDriver:
    """A driver that can lose the answer to a call after the server has done what it says."""

    def __init__(self, driver: redis.Redis) -> None:
        self._driver: Any = driver
        self.lose_next = False
        self.sent = 0

    def execute_command(self, *args: Any) -> Any:
        self.sent += 1
        reply = self._driver.execute_command(*args)
        if self.lose_next:
            self.lose_next = False
            raise DriverTimeoutError("Timeout reading from socket")
        return reply

    def pipeline(self, transaction: bool = True) -> Any:  # noqa: FBT001, FBT002 - the driver's own signature
        return self._driver.pipeline(transaction=transaction)

    def pubsub(self, **kwargs: Any) -> Any:
        return self._driver.pubsub(**kwargs)

    def close(self) -> None:
        self._driver.close()
