"""Drivers for a store URL: bounded pools, bounded waits, and no retries that could do a thing twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty
from typing import Any, Final, Protocol

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry
from typing_extensions import override

from ares_celery.errors import OperationNotSupportedError
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


class LeanPool(redis.BlockingConnectionPool):
    """The stock pool, with a short way to a connection that stands: the stock one keeps clocks and counters each time.

    Whatever is not in order goes the stock way: a connection to be made, a broken one, a pool that is used up.
    """

    def take(self) -> Any | None:  # noqa: ANN401 - the driver's connection
        """A connection that is ready to send, to be given back; None when there is none at hand."""
        stock: Any = self
        stock._checkpid()  # noqa: SLF001 - a forked child must not use its parent's connections
        try:
            connection = stock.pool.get_nowait()
        except Empty:
            return None
        ready = False
        try:
            ready = _is_ready(connection)
        finally:
            if not ready:
                self.give_back(connection)
        return connection if ready else None

    def give_back(self, connection: Any) -> None:  # noqa: ANN401 - the driver's connection
        """Ends the use of a connection that was taken, broken or not."""
        stock: Any = self
        stock.pool.put_nowait(connection)


def _is_ready(connection: Any) -> bool:  # noqa: ANN401 - the driver's connection, or None where one is to be made
    """It is connected, nobody left an answer unread, and the server has not hung up."""
    if connection is None or connection._sock is None:  # noqa: SLF001 - the driver has no question for it
        return False
    try:
        return not connection.can_read()
    except (redis.ConnectionError, redis.TimeoutError, OSError):
        return False


class LeanRedis(redis.Redis):
    """redis-py's client without what it wraps around each command (retries, metrics, callbacks), for the hot calls.

    What is left costs an append a fifth less; errors, timeouts and health checks are the connection's own.
    """

    @override
    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Sends a command and returns its answer."""
        pool: Any = self.connection_pool
        connection = pool.take() if args[0] in _HOT and isinstance(pool, LeanPool) else None
        if connection is None:
            stock: Any = super()
            return stock.execute_command(*args, **options)
        try:
            connection.send_command(*args)
            return connection.read_response()
        finally:
            pool.give_back(connection)

    def execute_pair(self, first: Sequence[Any], second: Sequence[Any], accept: Callable[[Any], None]) -> Any:  # noqa: ANN401 - as above
        """Sends two commands in one write; returns the second's answer, if ``accept`` raises nothing for the first's.

        Where it does, the second may still wait on the server: its connection is given up.
        """
        pool: Any = self.connection_pool
        connection = pool.take() if isinstance(pool, LeanPool) else None
        if connection is None:
            accept(self.execute_command(*first))
            return self.execute_command(*second)
        try:
            connection.send_packed_command(connection.pack_commands([first, second]))
            try:
                accept(connection.read_response())
            except BaseException:
                connection.disconnect()
                raise
            return connection.read_response()
        finally:
            pool.give_back(connection)


class LeanAsyncRedis(redis.asyncio.Redis):
    """The same for an event loop: a connection that stands is used without asking the pool's lock and the retries."""

    @override
    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Sends a command and returns its answer."""
        pool: Any = self.connection_pool
        connection = _standing(pool) if args[0] in _HOT else None
        if connection is None:
            stock: Any = super()
            return await stock.execute_command(*args, **options)
        try:
            # Cut off in the middle, either closes the connection: no answer is left for the next command.
            if not _written(connection, args):
                await connection.send_command(*args)
            return await connection.read_response()
        finally:
            await pool.release(connection)


def _written(connection: Any, args: Sequence[Any]) -> bool:  # noqa: ANN401 - the driver's connection
    """Hands a command to the socket at once, where it takes it whole; False: nothing was written, go the stock way.

    The stock way puts each write on a task of its own, for its timeout, and so waits for another turn of the loop.
    """
    writer = connection._writer  # noqa: SLF001 - the driver has no question for it
    if writer.transport.is_closing() or writer.transport.get_write_buffer_size():
        return False
    if asyncio.get_running_loop().time() > connection.next_health_check > 0:
        return False
    writer.writelines(connection.pack_command(*args))
    return True


def _standing(pool: Any) -> Any | None:  # noqa: ANN401 - the driver's pool and connection
    """A free connection of a pool that is connected, with nothing left unread; None goes the stock way."""
    if type(pool) is not redis.asyncio.BlockingConnectionPool:
        return None
    stock: Any = pool
    free: Any = getattr(stock, "_available_connections", None)
    if not free:
        return None
    reader = getattr(free[-1], "_reader", None)
    if reader is None or reader.at_eof() or getattr(reader, "_buffer", True):
        return None
    connection = free.pop()
    stock._in_use_connections.add(connection)  # noqa: SLF001 - the driver has no question for it
    return connection


#: Commands whose answers we read as they come: scripts, and pages of a stream.
_HOT: Final = frozenset({"EVALSHA", "XRANGE", "XREVRANGE"})


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
