"""redis-py's clients without what they wrap around each command (retries, locks, metrics), for the hot calls.

Whatever is not in order goes the stock way, and so does everything where the driver looks different from what is known.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Any, Final

import redis
import redis.asyncio
from typing_extensions import override

from ares_celery.store.redis.wire import DONE, Incomplete, pack, unpack

__all__ = ["LeanAsyncRedis", "LeanPool", "LeanRedis"]

#: Commands whose answers we read as they come: scripts, and pages of a stream.
_HOT: Final = frozenset({"EVALSHA", "XRANGE", "XREVRANGE"})
#: Bytes of one read of a socket: more than an answer has, as a rule.
_READ_SIZE: Final = 64 << 10


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
            connection.send_packed_command([pack(args)])
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
            return _ask_pair(connection, pack(first, second), accept)
        finally:
            pool.give_back(connection)


def _ask_pair(connection: Any, packed: bytes, accept: Callable[[Any], None]) -> Any:  # noqa: ANN401 - the driver's own
    """Both answers of two commands; whatever goes wrong on the way, the connection is given up."""
    done = False
    try:
        connection.send_packed_command([packed])
        # That the first is done wakes nobody: the answer that is waited for comes later, and a process that wakes for
        # this one alone takes the processor from the one that has to give it. Not before the commands are sent: a
        # health check that goes first has a shorter answer.
        _wake_for(connection, len(DONE) + 1)
        answer, unread = _read_one(connection, b"")
        accept(answer)
        _wake_for(connection, 1)
        answer, _ = _read_one(connection, unread)
        done = True
    finally:
        if not done:
            connection.disconnect()
    return answer


def _wake_for(connection: Any, size: int) -> None:  # noqa: ANN401 - the driver's connection
    """Who waits for answers is woken when so many bytes are there; where the system cannot do that, at once."""
    try:
        connection._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)  # noqa: SLF001 - as above
    except (AttributeError, OSError):
        return


def _read_one(connection: Any, data: bytes) -> tuple[Any, bytes]:  # noqa: ANN401 - the driver's connection
    """One answer, and what was read behind it."""
    while True:
        try:
            answer, end = unpack(data)
        except Incomplete:
            more = connection._sock.recv(max(_READ_SIZE, len(data)))  # noqa: SLF001 - as above
            if not more:
                raise redis.ConnectionError("Connection closed by server.") from None
            data += more
            continue
        if isinstance(answer, Exception):
            raise answer
        return answer, data[end:]


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
            return await _answer(connection)
        finally:
            if not _given_back(pool, connection):
                await pool.release(connection)


async def _answer(connection: Any) -> Any:  # noqa: ANN401 - the driver's connection
    """The answer; what is more than the usual word goes the stock way: a dozen coroutines, and a timeout's context."""
    unread: Any = getattr(getattr(connection, "_parser", None), "_chunks", None)
    seconds = connection.socket_timeout
    if unread != [] or not seconds:
        return await connection.read_response()
    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds, connection._writer.transport.abort)  # noqa: SLF001 - as above
    try:
        data = await connection._reader.read(_READ_SIZE)  # noqa: SLF001 - as above
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        timer.cancel()
    if data == DONE:
        return [b"done"]
    if not data and loop.time() >= timer.when():
        await connection.disconnect(nowait=True)
        raise redis.TimeoutError("Timeout reading from socket")
    unread.append(data)
    return await connection.read_response()


def _written(connection: Any, args: Sequence[Any]) -> bool:  # noqa: ANN401 - the driver's connection
    """Hands a command to the socket at once, where it takes it whole; False: nothing was written, go the stock way.

    The stock way puts each write on a task of its own, for its timeout, and so waits for another turn of the loop.
    """
    writer = connection._writer  # noqa: SLF001 - the driver has no question for it
    if writer.transport.is_closing() or writer.transport.get_write_buffer_size():
        return False
    if asyncio.get_running_loop().time() > connection.next_health_check > 0:
        return False
    writer.write(pack(args))
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


def _given_back(pool: Any, connection: Any) -> bool:  # noqa: ANN401 - the driver's pool and connection
    """Ends the use of a connection, unless somebody waits for one: the stock way takes a lock, and counts."""
    condition = getattr(pool, "_condition", None)
    if condition is None or getattr(condition, "_waiters", True) or condition.locked():
        return False
    should_reconnect = getattr(connection, "should_reconnect", None)  # older drivers know nothing of it
    if should_reconnect is not None and should_reconnect():
        return False
    pool._in_use_connections.remove(connection)  # noqa: SLF001 - as above
    pool._available_connections.append(connection)  # noqa: SLF001 - as above
    return True
