"""What is asked of the server before a write counts, and what its answers mean; a server that has WAITAOF is played."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError

from ares_celery.config import RuntimeConfig
from ares_celery.errors import InvalidSettingError, NotConfirmedError, StoreUnavailableError, UnsupportedServerError
from ares_celery.store.redis.bound import Bound
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.client import AsyncRedisClient, RedisClient
from ares_celery.store.redis.confirming import check_can_confirm, confirm, confirm_async
from ares_celery.store.redis.driver_errors import DriverErrors
from ares_celery.store.redis.keys import Keys


class Server:
    """Answers as it is told, and notes what it was asked."""

    def __init__(self, replicas: int = 0, disk: int = 0, error: str = "") -> None:
        self.answers: dict[str, Any] = {"SET": b"OK", "WAIT": replicas, "WAITAOF": [disk, 0]}
        self.error = error
        self.asked: list[Sequence[Any]] = []

    def _answer(self, call: Call[Any]) -> Any:
        self.asked.append(call.args)
        name = str(call.args[0])
        if self.error and name == "WAITAOF":
            with DriverErrors("redis://here"):
                raise ResponseError(self.error)
        return call.parse(self.answers[name])

    def run(self, call: Call[Any]) -> Any:
        return self._answer(call)

    def run_many(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return [self._answer(call) for call in calls]


class Loop(Server):
    """The same for an event loop."""

    async def run_many(self, calls: Sequence[Call[Any]]) -> list[Any]:  # type: ignore[explicit-override, override]
        return super().run_many(calls)


def bound(server: Server, **settings: Any) -> Bound:
    """A namespace on that server."""
    made = SimpleNamespace(waiting=server, keys=Keys("ns", 4), config=RuntimeConfig.parse(settings))
    return cast("Bound", made)


def of_threads(server: Server, **settings: Any) -> None:
    """The blocking way."""
    confirm(bound(server, **settings), 3)


def of_a_loop(server: Server, **settings: Any) -> None:
    """The awaited way."""
    loop = Loop()
    loop.__dict__.update(server.__dict__)
    asyncio.run(confirm_async(bound(server, **settings), cast("AsyncRedisClient", loop), 3))


WAYS = pytest.mark.parametrize("way", [of_threads, of_a_loop])
Way = Callable[..., None]


@WAYS
def test_a_write_of_the_same_connection_goes_first(way: Way) -> None:
    """WAIT and WAITAOF look at no other's; the key is the shard's, and ends."""
    server = Server(replicas=2, disk=1)
    way(server, confirm_replicas=2, confirm_fsync=True, confirm_timeout="1500ms")
    assert server.asked == [
        ("SET", "{ns:3}:confirmed", "1", "EX", 3600),
        ("WAIT", 2, 1500),
        ("WAITAOF", 1, 0, 1500),
    ]


@WAYS
def test_nothing_is_asked_where_nothing_is_wanted(way: Way) -> None:
    """The default."""
    server = Server()
    way(server)
    assert server.asked == []


@WAYS
@pytest.mark.parametrize(
    ("server", "settings", "problem"),
    [
        (Server(replicas=1), {"confirm_replicas": 2}, "1 of 2 replicas have it"),
        (Server(disk=0), {"confirm_fsync": True}, "it is not on the server's disk yet"),
        (
            Server(replicas=0, disk=0),
            {"confirm_replicas": 1, "confirm_fsync": True},
            "0 of 1 replicas have it and it is not on the server's disk yet",
        ),
    ],
)
def test_what_is_missing_is_said(way: Way, server: Server, settings: dict[str, Any], problem: str) -> None:
    """As an error after which asking again is safe."""
    with pytest.raises(NotConfirmedError) as missing:
        way(server, **settings)
    assert (missing.value.fields["problem"], missing.value.fields["seconds"]) == (problem, 2.0)
    assert isinstance(missing.value, StoreUnavailableError)


@WAYS
@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("unknown command 'WAITAOF', with args beginning with:", "no WAITAOF"),
        ("WAITAOF cannot be used when numlocal is set but appendonly is disabled.", "no append-only file"),
    ],
)
def test_a_server_that_lost_the_ability_is_named(way: Way, answer: str, problem: str) -> None:
    """It may be another one than the setting was made for."""
    with pytest.raises(UnsupportedServerError, match=f"confirm_fsync is on.*{problem}.*ares config set"):
        way(Server(error=answer), confirm_fsync=True)
    with pytest.raises(InvalidSettingError, match=problem):
        check_can_confirm(cast("RedisClient", Server(error=answer)), RuntimeConfig(confirm_fsync=True))
    with pytest.raises(StoreUnavailableError):
        check_can_confirm(cast("RedisClient", Server(error="LOADING it")), RuntimeConfig(confirm_fsync=True))
    check_can_confirm(cast("RedisClient", Server(error=answer)), RuntimeConfig())
    check_can_confirm(cast("RedisClient", Server()), RuntimeConfig(confirm_fsync=True))
