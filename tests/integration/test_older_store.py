"""The store comes back older in the middle of steps: noticed, and nothing that must not run twice does so silently."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from threading import Event as Flag
from typing import Any

import pytest
import redis

from ares_celery.model.agent import AgentSpec
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

RAN: Counter[str] = Counter()
SAVED, OLDER = Flag(), Flag()


@pytest.fixture
def runtime(make_redis_server: Callable[..., RedisServer], namespace: str) -> Iterator[Runtime]:
    """A running namespace on a server of its own."""
    RAN.clear()
    SAVED.clear()
    OLDER.clear()
    with Runtime(make_redis_server(appendonly=False).url, namespace, snapshot_interval="1h", lease_ttl="10s") as made:
        made.manager.start()
        yield made


def pay(what: str) -> str:
    """Must not run twice."""
    RAN[what] += 1
    return what


async def until(flag: Flag) -> None:
    """Waits, without a word to the store."""
    await asyncio.to_thread(flag.wait, 20)


class Payer:
    """Async: pays once before the moment to which the store goes back, and once after it."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: Any) -> Any:
        never = ctx.step.with_options(replay="never")
        await never("early", pay, "early")
        RAN["ready"] += 1
        await until(SAVED)
        async with ctx.execution("order-1"):
            late = await never("late", pay, "late")
        RAN["paid"] += 1
        await until(OLDER)
        return [late, await ctx.step("last", pay, "last")]


class PlainPayer:
    """Plain: the same."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: Any) -> Any:
        never = ctx.step.with_options(replay="never")
        never("early", pay, "early")
        RAN["ready"] += 1
        SAVED.wait(20)
        with ctx.execution("order-1"):
            late = never("late", pay, "late")
        RAN["paid"] += 1
        OLDER.wait(20)
        return [late, ctx.step("last", pay, "last")]


class Rounds:
    """Async: makes steps in blocks, and says nothing else."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: Any) -> Any:
        for number in range(3):
            async with ctx.execution(f"round:{ctx.incarnation}:{number}"):
                await ctx.step("one", pay, "one")
        RAN["ready"] += 1
        await until(SAVED)
        for number in range(3):
            await ctx.step(f"lost:{number}", pay, "lost")
        RAN["paid"] += 1
        await until(OLDER)
        return await ctx.step("last", pay, "last")


def go_back(runtime: Runtime, before: dict[bytes, bytes]) -> None:
    """The server has again what it had then, and nothing else."""
    with redis.Redis.from_url(runtime.url).pipeline(transaction=True) as pipe:
        pipe.flushall()
        for key, value in before.items():
            pipe.restore(key, 0, value)
        pipe.execute()


def kept(runtime: Runtime) -> dict[bytes, bytes]:
    """All that the server has now."""
    client: Any = redis.Redis.from_url(runtime.url)
    dumped = {key: client.dump(key) for key in client.keys("*")}
    return {key: value for key, value in dumped.items() if value is not None}


def runs_into_an_older_store(runtime: Runtime, factory: type[Any]) -> None:
    """Starts agent `a`; what it does after the first moment is lost by the second."""
    runtime.register("older", factory)
    runtime.manager.start_agent(AgentSpec(id="a", type="older"), wait="running")
    wait_until(lambda: RAN["ready"], "the first part to be done")
    before = kept(runtime)
    SAVED.set()
    wait_until(lambda: RAN["paid"], "the second part to be done")
    go_back(runtime, before)
    OLDER.set()


@pytest.mark.parametrize("factory", [Payer, PlainPayer])
def test_what_must_not_run_twice_is_settled_by_a_person_where_the_store_has_forgotten_it(
    runtime: Runtime, factory: type[Any]
) -> None:
    """The process that ran it knows, and says so before the next life begins; nothing is charged."""
    runs_into_an_older_store(runtime, factory)

    info = runtime.until("a", "parked", timeout=15)

    assert (info.cause, info.charged, info.intents, RAN["late"]) == ("reconcile", 0, 1, 1)
    (intent,) = runtime.store.checkpoints.intents("a")
    assert (intent.execution, intent.step, intent.function) == ("order-1", "late", "pay")
    assert "store.rolled_back" in runtime.types("a")
    runtime.manager.reconcile_agent("a", done="late", actor="ann")
    info = runtime.until("a", "completed", timeout=15)
    assert (info.result, RAN["early"], RAN["late"]) == (["late", "last"], 1, 1)


def test_an_agent_whose_steps_are_in_blocks_notices_it_too(runtime: Runtime) -> None:
    """The ends of blocks are told by events that it has not written itself; they hide nothing from it."""
    runs_into_an_older_store(runtime, Rounds)

    info = runtime.until("a", "completed", timeout=15)

    assert "store.rolled_back" in runtime.types("a")
    assert (info.incarnation, info.charged, RAN["lost"]) == (2, 0, 6)
