"""How the store behaves with servers that are gone, too old, full, stalled, restarted; and in a forked child."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.errors import (
    AresError,
    InvalidSettingError,
    OperationNotSupportedError,
    StoreUnavailableError,
    UnsupportedServerError,
)
from ares_celery.ids import AgentId, Version
from ares_celery.model.agent import AgentState, RuntimeState
from ares_celery.model.command import Die, Stop
from ares_celery.store.base import Lease
from ares_celery.store.redis import connections
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.open import open_store
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, append, record_of, run, run_namespace, start, take, ticks
from tests.redis_server import RedisServer, free_port
from tests.wait import wait_until

pytestmark = pytest.mark.contract

SECRET = "s3cret-pass"  # noqa: S105 - what must not be shown


@contextmanager
def opened(url: str, namespace: str = "ns", config: RuntimeConfig | None = None) -> Generator[RedisStore]:
    """A store at a URL, closed at the end."""
    store = open_store(ProcessSettings(redis_url=url, namespace=namespace), config or RuntimeConfig())
    try:
        yield store
    finally:
        store.close()


@pytest.mark.parametrize("scheme", ["redis://u:{secret}@127.0.0.1:{port}/0", "sentinel://:{secret}@127.0.0.1:{port}/m"])
def test_nobody_there_is_an_error_within_seconds(scheme: str) -> None:
    """It names the place, not the password, anywhere in its chain."""
    url = scheme.format(secret=SECRET, port=free_port())
    began = time.monotonic()
    with pytest.raises(StoreUnavailableError) as error, opened(url):
        pass
    assert time.monotonic() - began < 5
    chain: BaseException | None = error.value
    while chain is not None:
        assert SECRET not in str(chain)
        chain = chain.__cause__ or chain.__context__
    assert "127.0.0.1" in error.value.url
    assert "ARES_REDIS_URL" in str(error.value)


def test_a_listener_that_never_answers_is_an_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that accepts and stays silent ends at the socket's timeout."""
    monkeypatch.setattr(connections, "SOCKET_TIMEOUT", 0.3)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(StoreUnavailableError), opened(f"redis://127.0.0.1:{listener.getsockname()[1]}/0"):
            pass


def test_a_wrong_password_is_not_shown(make_redis_server: Callable[..., RedisServer]) -> None:
    """Neither the one that was tried nor a driver's error."""
    server = make_redis_server()
    client = server.client()
    client.config_set("requirepass", "right")
    client.close()
    with pytest.raises(StoreUnavailableError) as error, opened(f"redis://:{SECRET}@127.0.0.1:{server.port}/0"):
        pass
    assert SECRET not in str(error.value)
    with opened(f"redis://:right@127.0.0.1:{server.port}/0") as store:
        assert store.list_ids() == []


def test_urls_that_lead_nowhere_are_refused() -> None:
    """A scheme that is none, and a topology that is not spoken yet."""
    with pytest.raises(InvalidSettingError), opened("http://127.0.0.1:1/0"):
        pass
    with pytest.raises(OperationNotSupportedError, match="Cluster"), opened("cluster://127.0.0.1:1"):
        pass


class OldServer:
    """A driver of a server with another version than the real one."""

    def __init__(self, client: redis.Redis, **info: str) -> None:
        self._client: Any = client
        self._info = info

    def execute_command(self, *args: object) -> object:
        return self._info if args[0] == "INFO" else self._client.execute_command(*args)

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)


@pytest.mark.parametrize(
    ("info", "accepted"),
    [
        ({"redis_version": "6.0.16"}, False),
        ({"redis_version": "5.0.14"}, False),
        ({"redis_version": "6.2.5"}, True),
        ({"redis_version": "7.0.15"}, True),
        ({"redis_version": "8.2.1"}, True),
        ({"redis_version": "7.2.4", "valkey_version": "7.2.6", "server_name": "valkey"}, True),
        ({"redis_version": "7.2.4", "valkey_version": "7.0.1", "server_name": "valkey"}, False),
    ],
)
def test_servers_older_than_needed_are_refused(
    redis_server: RedisServer, namespace: str, info: dict[str, str], *, accepted: bool
) -> None:
    """Redis 6.2 and Valkey 7.2 are the oldest; nothing is made in an older one."""
    client = redis_server.client()
    driver: Any = OldServer(client, **info)
    if accepted:
        RedisStore.from_client(driver, namespace, RuntimeConfig())
    else:
        with pytest.raises(UnsupportedServerError) as error:
            RedisStore.from_client(driver, namespace, RuntimeConfig())
        assert error.value.version == info.get("valkey_version", info["redis_version"])
        assert not client.exists(Keys(namespace, 16).meta)
    client.close()


def test_a_server_that_takes_no_writes_can_be_read(make_redis_server: Callable[..., RedisServer]) -> None:
    """As one whose disk is full, or that misses its replicas: people look first, and then mend."""
    server = make_redis_server()
    client = server.client()
    if int(client.info("server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("scripts have flags since Redis 7")
    with opened(server.url) as store:
        run_namespace(store)
        fence = run(store)
        client.config_set("min-replicas-to-write", "1")
        with pytest.raises(StoreUnavailableError, match="NOREPLICAS"):
            append(store, fence, 1, expected=1)
        assert record_of(store).state is AgentState.RUNNING
        assert store.checkpoints.steps(AGENT, "e1") == ()
        assert store.interrupts(AGENT) == []
        assert store.runtime().state is RuntimeState.RUNNING
        assert len(store.due()) == store.config.shards
        assert store.refresh_config() == store.config
        assert store.sweep_age_ms() == -1


def test_at_maxmemory_agents_still_end_but_do_not_grow(make_redis_server: Callable[..., RedisServer]) -> None:
    """Renewal, verdict, claim, stop and sweep work; appends, snapshots and messages are refused as a whole."""
    server = make_redis_server()
    client = server.client()
    if int(client.info("server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("scripts have flags since Redis 7")
    with opened(server.url) as store:
        run_namespace(store)
        fence = run(store)
        append(store, fence, 1, expected=1)
        client.config_set("maxmemory", "1mb")
        refused = (
            lambda: append(store, fence, 2, expected=2),
            lambda: append(store, fence, 2, 3, expected=2),
            lambda: store.save_snapshot(AGENT, fence, {"n": 1}, version=Version(2), schema=0),
            lambda: store.send(AGENT, 1, message_id="m1", wants_reply=False),
            lambda: store.events.append("other", ticks(1)),
        )
        for write in refused:
            with pytest.raises(StoreUnavailableError, match="memory"):
                write()
        assert store.events.stream_version(AGENT) == 2
        assert len(store.events.read(AGENT)) == 2
        assert store.renew([Lease(AGENT, fence, 0)]).changes == ()
        assert store.elect("p1", ttl_ms=1000)
        store.report_sweep("p1")
        act(store, Die(epoch=record_of(store).epoch, reason="killed", proof=True))
        again = take(store, record_of(store).epoch, claimer="t2")
        assert [event.version for event in again.events] == [1, 2, 3, 4]
        act(store, Stop())
        assert record_of(store).state is AgentState.STOPPING
        client.config_set("maxmemory", "0")
        assert append(store, again.record.fence, 2, expected=4) == [5]
    client.close()


def test_an_append_whose_server_stalls_is_stored_once(
    make_redis_server: Callable[..., RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frozen beyond the socket's timeout, the server does all it was sent afterwards; the op tells the repeats."""
    monkeypatch.setattr(connections, "SOCKET_TIMEOUT", 0.3)
    server = make_redis_server(appendonly=True)
    with opened(server.url) as store:
        fence = run(run_namespace(store))
        append(store, fence, 1, expected=1)
        server.pause()
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                store.append(AGENT, fence, ticks(2), op="stalled", expected=Version(2))
        server.resume()
        (event,) = store.append(AGENT, fence, ticks(2), op="stalled", expected=Version(2))
        assert event.version == 3
        assert [found.payload.get("n") for found in store.events.read(AGENT)] == [None, 1, 2]
        server.kill()
        with pytest.raises(StoreUnavailableError):
            store.read(AGENT)
        server.start()
        assert append(store, fence, 3, expected=3) == [4]  # its scripts are gone with the old process
        assert store.due()[0].due == ()


def test_hints_come_again_after_a_restart(make_redis_server: Callable[..., RedisServer]) -> None:
    """The listener connects anew by itself."""
    server = make_redis_server(appendonly=True)
    with opened(server.url) as store:
        run_namespace(store)
        start(store)
        heard: list[AgentId] = []
        wakeups = store.wakeups("p1")
        wakeups.listen(heard.append)
        wait_until(lambda: wakeups.is_listening, "the subscription")
        server.kill()
        wait_until(lambda: not wakeups.is_listening, "the loss")
        server.start()
        wait_until(lambda: wakeups.is_listening, "the subscription after the restart", timeout=15)
        client = server.client()
        client.publish(store.wake_channel("p1"), AGENT)
        client.close()
        wait_until(lambda: heard == [AGENT], "the hint")
        wakeups.close()


def test_a_forked_child_has_connections_of_its_own(redis_server: RedisServer, namespace: str) -> None:
    """Parent and child speak at the same time and get their own answers."""
    with opened(redis_server.url, namespace) as store:
        fence = run(run_namespace(store))
        others = [AgentId(f"agent-{number}") for number in range(5)]
        for agent_id in others:
            start(store, agent_id)
        child = os.fork()
        if child == 0:
            fine = all((read := store.read(agent_id).record) and read.id == agent_id for agent_id in others * 40)
            os._exit(0 if fine else 1)
        versions = [append(store, fence, number, expected=1) for number in range(200)]
        assert versions == [[number] for number in range(2, 202)]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_connection_that_the_server_closed_is_made_anew(redis_server: RedisServer, namespace: str) -> None:
    """As servers and firewalls close idle ones: the next append finds it out before it sends, and is no error."""
    client: Any = redis_server.client()
    with opened(redis_server.url, namespace) as store:
        fence = run(run_namespace(store))
        for number in range(1, 4):
            assert append(store, fence, number, expected=number) == [number + 1]
            assert client.execute_command("CLIENT", "KILL", "TYPE", "normal")
    client.close()


def test_an_answer_that_nobody_read_is_taken_for_no_other(redis_server: RedisServer) -> None:
    """Whoever was stopped between sending and reading leaves an answer; the next caller gets its own all the same."""
    driver: Any = connections.Connector.to(redis_server.url).driver(connections=1)
    driver.execute_command("PING")
    pool = driver.connection_pool
    stopped = pool.take()
    stopped.send_command("ECHO", "not for you")
    wait_until(stopped.can_read)
    pool.give_back(stopped)
    assert driver.execute_command("XRANGE", "nothing", "-", "+") == []
    driver.close()


def test_a_pool_that_is_used_up_is_waited_for(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller gets the connection that another gives back, and an error when none does in time."""
    monkeypatch.setattr(connections, "SOCKET_TIMEOUT", 0.3)
    driver: Any = connections.Connector.to(redis_server.url).driver(connections=1)
    driver.execute_command("PING")
    pool = driver.connection_pool
    taken = pool.take()
    assert pool.take() is None
    with pytest.raises(redis.ConnectionError, match="No connection available"):
        driver.execute_command("XRANGE", "nothing", "-", "+")
    with ThreadPoolExecutor(1) as others:
        waiting = others.submit(driver.execute_command, "XRANGE", "nothing", "-", "+")
        pool.give_back(taken)
        assert waiting.result(timeout=5) == []
    driver.close()


def test_a_key_of_somebody_else_is_no_outage(redis_server: RedisServer, namespace: str) -> None:
    """A call that the server refuses will not get better by repeating it: another error than an outage's."""
    client = redis_server.client()
    with opened(redis_server.url, namespace) as store:
        client.set(Keys(namespace, 16).agent(AGENT), "not a hash")
        with pytest.raises(AresError, match="WRONGTYPE") as error:
            store.read(AGENT)
        assert not isinstance(error.value, StoreUnavailableError)
    client.close()


def test_waiting_callers_do_not_keep_leases_from_being_renewed(
    redis_server: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that wait on the server have a pool of their own."""
    monkeypatch.setattr(connections, "SOCKET_TIMEOUT", 1.0)
    with opened(redis_server.url, namespace) as store:
        fence = run(run_namespace(store))
        waiters = [
            threading.Thread(target=lambda: store.wait_reply(AGENT, "m", timeout=0.8))
            for _ in range(connections.MOST_CONNECTIONS)
        ]
        for waiter in waiters:
            waiter.start()
        began = time.monotonic()
        assert store.renew([Lease(AGENT, fence, 0)]).changes == ()
        assert time.monotonic() - began < 0.7
        for waiter in waiters:
            waiter.join()
