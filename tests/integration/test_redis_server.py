"""The suite's own Redis server really goes through what the tests ask of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.redis_server import RedisServer, ServerDidNotStartError, free_port
from tests.wait import wait_until

pytestmark = pytest.mark.integration


def test_what_was_answered_outlives_a_kill(make_redis_server: Callable[..., RedisServer]) -> None:
    """With an append-only file, SIGKILL and a start on the same port lose nothing."""
    server = make_redis_server(appendonly=True)
    url = server.url
    server.client().set("k", "v")

    server.kill()
    with pytest.raises(redis.ConnectionError):
        server.client().ping()
    server.start()

    assert (server.url, server.client().get("k")) == (url, b"v")


def test_a_paused_server_answers_nothing_until_it_is_resumed(make_redis_server: Callable[..., RedisServer]) -> None:
    """SIGSTOP keeps the connection open and the answer away."""
    server = make_redis_server()
    client = server.client(timeout=0.1)
    client.ping()

    server.pause()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    server.resume()

    assert wait_until(server.client().ping, "an answer")


def test_closing_a_paused_server_ends_its_process_and_removes_its_folder() -> None:
    """Nothing is left behind, whatever state the server was in."""
    with RedisServer() as server:
        server.pause()
    assert not server.is_running
    assert not server.folder.exists()


def test_a_setting_the_server_refuses_is_shown_in_the_error() -> None:
    """A server that ends at once is a failure with its own words, not a time-out."""
    server = RedisServer(options={"maxmemory-policy": "nonsense"})
    try:
        with pytest.raises(ServerDidNotStartError):
            server.start()
    finally:
        server.close()


def test_a_free_port_is_one_nobody_answers_on() -> None:
    """The suite starts servers of its own and never talks to one that is there already."""
    with pytest.raises(redis.ConnectionError):
        redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0)).ping()
