"""Drivers for a store URL: bounded pools, bounded waits, and no retries that could do a thing twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from ares_celery.errors import OperationNotSupportedError
from ares_celery.store.redis.lean import LeanAsyncRedis, LeanPool, LeanRedis
from ares_celery.store.redis.urls import StoreUrl, Topology, parse_store_url, redact

__all__ = ["MOST_CONNECTIONS", "MOST_WAITING", "AsyncDriver", "Borrowed", "Connector", "Driver"]

#: Seconds until a server that does not answer counts as unreachable; a healthy one answers in milliseconds.
SOCKET_TIMEOUT: Final = 5.0
#: Seconds until a connection that cannot be made counts as failed; two of them fit into a heartbeat's patience.
CONNECT_TIMEOUT: Final = 2.0
#: Idle seconds after which a connection is tried with PING before it is used: firewalls forget silent ones.
HEALTH_CHECK_INTERVAL: Final = 30
#: Connections of one process: its threads share them, and wait for one when all are in use.
MOST_CONNECTIONS: Final = 32


#: Connections of one process that wait on the server for answers: each thread that asks an agent holds one meanwhile.
MOST_WAITING: Final = 256


class Driver(Protocol):
    """What we use of redis-py's client."""

    def execute_command(self, *args: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        """Sends a command and returns its answer."""
        ...

    def pipeline(self, transaction: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002 - the driver's own signature
        """Collects commands for one round trip."""
        ...

    def pubsub(self, **kwargs: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        """Listens to channels."""
        ...

    def close(self) -> None:
        """Closes the connections."""
        ...


class AsyncDriver(Protocol):
    """What we use of redis-py's client for asyncio."""

    async def execute_command(self, *args: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        """Sends a command and returns its answer."""
        ...

    def pipeline(self, transaction: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002 - the driver's own signature
        """Collects commands for one round trip."""
        ...

    def pubsub(self, **kwargs: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        """Listens to channels."""
        ...

    async def aclose(self) -> None:
        """Closes the connections."""
        ...


class Borrowed:
    """A driver that others use too: whoever borrowed it does not close it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def execute_command(self, *args: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        """Sends a command and returns its answer."""
        return self._driver.execute_command(*args)

    def pipeline(self, transaction: bool = True) -> Any:  # noqa: ANN401, FBT001, FBT002 - the driver's own signature
        """Collects commands for one round trip."""
        return self._driver.pipeline(transaction=transaction)

    def pubsub(self, **kwargs: Any) -> Any:  # noqa: ANN401 - the driver's own signature
        """Listens to channels."""
        return self._driver.pubsub(**kwargs)

    def close(self) -> None:
        """Leaves the driver to its owner."""


@dataclass(frozen=True, slots=True)
class Connector:
    """Makes drivers for one URL.

    Attributes:
        url: Where the server is.
        shown: The URL without its password, for errors and logs.
        patience: Seconds until a server that does not answer, or a pool that is used up, counts as unreachable.
    """

    url: StoreUrl
    shown: str
    patience: float = SOCKET_TIMEOUT

    @classmethod
    def to(cls, url: str, *, patience: float = SOCKET_TIMEOUT) -> Connector:
        """Reads one of our URL forms.

        Raises:
            InvalidSettingError: It is none of them.
            OperationNotSupportedError: It names a cluster, which this version does not speak to yet.
        """
        parsed = parse_store_url(url)
        if parsed.topology is Topology.CLUSTER:
            raise OperationNotSupportedError(
                operation="a store on a Redis Cluster",
                reason="this version knows redis, rediss, unix and sentinel URLs",
            )
        return cls(parsed, redact(url), patience)

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no error may show."""
        return tuple(secret for secret in (self.url.password, self.url.sentinel_password) if secret)

    def driver(self, *, connections: int = MOST_CONNECTIONS) -> Driver:
        """A client for threads; connects when it is first used, and anew in a forked child."""
        driver: Driver = self._build(redis, LeanRedis, Retry(NoBackoff(), 0), connections)
        return driver

    def async_driver(self, *, connections: int = MOST_CONNECTIONS) -> AsyncDriver:
        """A client for one event loop; connects when it is first used."""
        driver: AsyncDriver = self._build(redis.asyncio, LeanAsyncRedis, AsyncRetry(NoBackoff(), 0), connections)
        return driver

    def _build(self, library: Any, client: Any, retry: object, connections: int) -> Any:  # noqa: ANN401 - two twins
        options = self._options() | {"retry": retry}
        if self.url.topology is Topology.SENTINEL:
            nodes = [(node.host, node.port) for node in self.url.nodes]
            options |= {"max_connections": connections, "ssl": self.url.tls is not None}
            sentinel = library.Sentinel(nodes, sentinel_kwargs=self._sentinel_options() | {"retry": retry})
            return sentinel.master_for(self.url.master, redis_class=client, **options)
        pool_class: Any = LeanPool if library is redis else library.BlockingConnectionPool
        pool = pool_class(
            max_connections=connections,
            timeout=self.patience,
            connection_class=self._connection_class(library.connection),
            **options,
            **self._place(),
        )
        # The client owns its pool: closing one closes the other.
        return client.from_pool(pool)

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "db": self.url.db,
            "username": self.url.username,
            "password": self.url.password,
            "socket_timeout": self.patience,
            "socket_connect_timeout": min(CONNECT_TIMEOUT, self.patience),
            "health_check_interval": HEALTH_CHECK_INTERVAL,
            "retry_on_error": [],
            # Answers look the same for every version of driver and server that way.
            "protocol": 2,
        }
        return options | (self.url.tls.redis_options() if self.url.tls else {})

    def _sentinel_options(self) -> dict[str, Any]:
        return {
            "username": self.url.sentinel_username,
            "password": self.url.sentinel_password,
            "socket_timeout": min(CONNECT_TIMEOUT, self.patience),
            "socket_connect_timeout": min(CONNECT_TIMEOUT, self.patience),
        }

    def _place(self) -> dict[str, Any]:
        if self.url.topology is Topology.SOCKET:
            return {"path": self.url.path}
        (node,) = self.url.nodes
        return {"host": node.host, "port": node.port, "socket_keepalive": True}

    def _connection_class(self, kinds: Any) -> Any:  # noqa: ANN401 - redis.connection and its asyncio twin
        if self.url.topology is Topology.SOCKET:
            return kinds.UnixDomainSocketConnection
        return kinds.SSLConnection if self.url.tls else kinds.Connection
