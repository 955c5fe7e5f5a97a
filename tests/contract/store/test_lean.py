"""The short ways of hot calls through the driver: what they must not lose, on a server that does whatever it likes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    AresError,
    MailboxFullError,
    MessageIdReusedError,
    StoreUnavailableError,
)
from ares_celery.ids import AgentId
from ares_celery.model.command import Complete
from ares_celery.store.base import Reply
from ares_celery.store.redis import connections
from ares_celery.store.redis.connections import Connector
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from ares_celery.store.redis.wire import DONE, unpack
from tests.contract.store.acting import AGENT, act, run, run_namespace, start
from tests.contract.store.backends import Backend
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = pytest.mark.contract

#: Seconds; whoever waits for the end of a block on the server takes two.
AT_ONCE = 1.0


@pytest.fixture
def real(redis_server: RedisServer, namespace: str) -> Iterator[RedisStore]:
    """A store on a real server, over the drivers that the product uses; its inboxes hold one message."""
    connector = Connector.to(redis_server.url)
    found = Backend(client=connector.driver, async_client=connector.async_driver, namespace=namespace)  # type: ignore[arg-type]
    yield run_namespace(found.open(RuntimeConfig(max_inbox=1)))
    found.close()


def ask(store: RedisStore, message_id: str = "m", body: object = 1, agent_id: AgentId = AGENT) -> Reply | None:
    """Asks, as a caller does."""
    return store.send_and_wait(agent_id, body, message_id=message_id, timeout=30)


@pytest.mark.parametrize("size", [1, 900_000])
def test_a_question_and_its_answer_are_one_write_and_what_is_read(real: RedisStore, size: int) -> None:
    """Small or large: the connection is as good afterwards as before."""
    fence = run(real)
    with ThreadPoolExecutor(1) as callers:
        for number in range(3):
            body = {"number": number, "text": "x" * size}
            asked = callers.submit(ask, real, f"m{number}", body)
            wait_until(lambda: real.inbox(AGENT), "the question")
            (message,) = real.inbox(AGENT)
            real.reply(AGENT, fence, message, Reply(message.message_id, message.body))
            assert asked.result(10) == Reply(f"m{number}", body)


def test_a_question_without_an_answer_ends_with_the_block(real: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's word that there is none is shorter than what wakes nobody; the connection serves the next one."""
    monkeypatch.setattr("ares_celery.store.redis.mailbox.BLOCK_MS", 100)
    run(real)
    for _ in range(2):
        began = time.monotonic()
        assert ask(real) is None
        assert time.monotonic() - began < AT_ONCE


def refused_missing(store: RedisStore) -> None:
    """There is no such agent."""
    ask(store, agent_id=AgentId("nobody"))


def refused_full(store: RedisStore) -> None:
    """Its inbox has no room."""
    start(store)
    store.send(AGENT, 1, message_id="first", wants_reply=True)
    ask(store)


def refused_reused(store: RedisStore) -> None:
    """The id belongs to another message."""
    start(store)
    store.send(AGENT, 2, message_id="m", wants_reply=True)
    ask(store)


def refused_resting(store: RedisStore) -> None:
    """It answers nobody now."""
    act(store, Complete(fence=run(store)))
    ask(store)


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (refused_missing, AgentNotFoundError),
        (refused_full, MailboxFullError),
        (refused_reused, MessageIdReusedError),
        (refused_resting, AgentNotRunningError),
    ],
)
def test_every_refusal_of_a_question_comes_at_once(
    real: RedisStore, refused: Callable[[RedisStore], None], error: type[AresError]
) -> None:
    """None of them is as short as the word that wakes nobody."""
    began = time.monotonic()
    with pytest.raises(error):
        refused(real)
    assert time.monotonic() - began < AT_ONCE


def test_a_connection_that_was_idle_is_tried_before_it_asks(real: RedisStore) -> None:
    """The answer to the trial is short, and wakes all the same."""
    fence = run(real)
    real.send(AGENT, 1, message_id="m", wants_reply=True)
    real.reply(AGENT, fence, real.inbox(AGENT)[0], Reply("m", "there"))
    driver: Any = real._bound.waiting._driver
    connection = driver.connection_pool.take()
    connection.next_health_check = 1e-9
    driver.connection_pool.give_back(connection)
    began = time.monotonic()
    assert ask(real) == Reply("m", "there")
    assert time.monotonic() - began < AT_ONCE
    assert connection.next_health_check > 1


def test_scripts_that_the_server_forgot_are_loaded_for_a_question(real: RedisStore, redis_server: RedisServer) -> None:
    """Nothing was put before, so nothing is put twice."""
    fence = run(real)
    real.send(AGENT, 1, message_id="m", wants_reply=True)
    real.reply(AGENT, fence, real.inbox(AGENT)[0], Reply("m", "there"))
    client = redis_server.client()
    client.script_flush()
    client.close()
    assert ask(real) == Reply("m", "there")


def test_who_asks_a_server_that_stalls_learns_it_and_the_next_one_gets_its_own(
    make_redis_server: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch, namespace: str
) -> None:
    """What the server answers later is nobody's."""
    monkeypatch.setattr(connections, "SOCKET_TIMEOUT", 0.3)
    server = make_redis_server()
    connector = Connector.to(server.url, patience=0.3)
    found = Backend(client=connector.driver, async_client=connector.async_driver, namespace=namespace)  # type: ignore[arg-type]
    store = run_namespace(found.open())
    fence = run(store)
    store.send(AGENT, 1, message_id="old", wants_reply=True)
    store.reply(AGENT, fence, store.inbox(AGENT)[0], Reply("old", "old"))
    assert ask(store, "old") == Reply("old", "old")
    driver: Any = store._bound.waiting._driver
    (connection,) = [one for one in driver.connection_pool.pool.queue if one is not None]
    server.pause()
    with pytest.raises(StoreUnavailableError):
        ask(store, "old")
    assert connection._sock is None
    server.resume()
    assert ask(store, "old") == Reply("old", "old")
    found.close()


def test_the_mark_of_a_rest_goes_with_the_rest(store: RedisStore, raw: redis.Redis) -> None:
    """Whoever asks a restarted agent waits for its answer alone; who waited before was told."""
    rest = Keys(store.namespace, store.config.shards).rest(AGENT)
    fence = run(store)
    assert not raw.exists(rest)
    act(store, Complete(fence=fence))
    assert raw.exists(rest)
    start(store)
    assert not raw.exists(rest)


# -- on an event loop -----------------------------------------------------------------------------------------------

_Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def driver_of(serve: _Serve, *, patience: float = 5.0) -> AsyncGenerator[Any]:
    """A driver with one connection to a server that greets politely and then serves scripts as it likes."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while b"EVALSHA" not in (read := await reader.read(1 << 16)) and read:
                at = 0
                while at < len(read):
                    words, at = unpack(read, at)
                    writer.write(b"+PONG\r\n" if words == [b"PING"] else b"+OK\r\n")
            await serve(reader, writer)

    server = await asyncio.start_server(greet, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    driver: Any = Connector.to(f"redis://127.0.0.1:{port}/0", patience=patience).async_driver(connections=1)
    try:
        await driver.execute_command("PING")
        yield driver
    finally:
        await driver.aclose()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ([DONE], [b"done"]),
        ([DONE[:9], DONE[9:]], [b"done"]),
        ([b"*2\r\n$4\r\ndone", b"\r\n:7", b"\r\n"], [b"done", 7]),
        ([b"*-1\r\n"], None),
    ],
)
async def test_an_answer_may_come_in_pieces(pieces: list[bytes], answer: Any) -> None:
    """The short way and the stock way read the same; the connection is at hand again afterwards."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                for _ in range(10):  # turns in which the other side reads it
                    await asyncio.sleep(0)
            await reader.read(1 << 16)

    async with driver_of(serve) as driver:
        for _ in range(2):
            assert await driver.execute_command("EVALSHA", "sha", 0) == answer
            assert len(driver.connection_pool._available_connections) == 1


async def test_a_server_that_stays_silent_is_given_up_in_time() -> None:
    """As with the stock driver; its connection is closed, so a late answer is nobody's."""

    async def serve(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)

    async with driver_of(serve, patience=0.2) as driver:
        began = time.monotonic()
        with pytest.raises(redis.TimeoutError, match="Timeout reading"):
            await driver.execute_command("EVALSHA", "sha", 0)
        assert time.monotonic() - began < AT_ONCE
        (connection,) = driver.connection_pool._available_connections
        assert not connection.is_connected


async def test_a_server_that_hangs_up_is_no_silence() -> None:
    """It says so."""

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with driver_of(serve) as driver:
        with pytest.raises(redis.ConnectionError):
            await driver.execute_command("EVALSHA", "sha", 0)


async def test_a_call_that_is_cut_off_leaves_no_answer_to_the_next(redis_server: RedisServer) -> None:
    """The answer is still to come when the connection is given back: it is closed."""
    driver: Any = Connector.to(redis_server.url).async_driver(connections=1)
    sha = await driver.execute_command("SCRIPT", "LOAD", "for i = 1, 3e6 do end return {'done'}")
    slow = asyncio.create_task(driver.execute_command("EVALSHA", sha, 0))
    await asyncio.sleep(0)
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    assert await driver.execute_command("XRANGE", "nothing", "-", "+") == []
    await driver.aclose()


async def test_who_waits_for_a_connection_gets_the_one_that_is_given_back(redis_server: RedisServer) -> None:
    """The short way back tells nobody, so it is not taken."""
    driver: Any = Connector.to(redis_server.url).async_driver(connections=1)
    sha = await driver.execute_command("SCRIPT", "LOAD", "return {'done'}")
    first = asyncio.create_task(driver.execute_command("EVALSHA", sha, 0))
    await asyncio.sleep(0)
    second = asyncio.create_task(driver.execute_command("EVALSHA", sha, 0))
    async with asyncio.timeout(AT_ONCE):
        assert list(await asyncio.gather(first, second)) == [[b"done"], [b"done"]]
    await driver.aclose()
