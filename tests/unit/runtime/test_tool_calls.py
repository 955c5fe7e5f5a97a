"""Tools are called by name, within their limit, with their key; plug-ins are told, and what they raise passes on."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ares_celery.agents.tools import ToolRegistry
from ares_celery.background import work_in_progress
from ares_celery.clock import SystemClock
from ares_celery.errors import FencedSignal, OperationNotSupportedError, ToolError, ToolTimeoutError
from ares_celery.plugins.bus import PluginBus
from ares_celery.plugins.tools import ToolPlugin
from ares_celery.runtime.loop_thread import LoopThread
from ares_celery.runtime.shared_access import AsyncAccess, SyncAccess, things_without_loop
from ares_celery.runtime.shared_things import Registries, SharedThings
from ares_celery.runtime.tool_calls import ToolCaller
from tests.wait import wait_until

REQUEST: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="")


class DeclinedError(Exception):
    """Of the tool's own code."""


class World:
    """Registered tools and two agents that call them."""

    def __init__(self) -> None:
        self.tools = ToolRegistry()
        self.loop = LoopThread(SystemClock(), hung_after=60)
        self.bus = PluginBus()
        self.recorder = ToolPlugin({"refund": "gives money back"})
        self.things = SharedThings(lambda: self.loop, registries=Registries(tools=self.tools))
        caller = ToolCaller("agent-1", "clerk", SystemClock(), self.bus)
        self.ctx = AsyncAccess(self.things, caller)
        self.plain = SyncAccess(self.things, caller, lambda: None)

    def record(self) -> None:
        """Has the shipped plug-in record the calls."""
        self.bus.register(self.recorder)
        self.bus.start()


@pytest.fixture
def world() -> Iterator[World]:
    """Its loop and bus end with the test."""
    made = World()
    yield made
    made.bus.stop()
    made.things.close()
    made.loop.close()


async def test_tools_of_both_colours_are_called_by_name_or_function(world: World) -> None:
    """With all their arguments; a plain one runs beside the loop and sees the caller's context."""
    threads: list[threading.Thread] = []

    async def fetch(url: str, *, page: int = 1) -> str:
        return f"{url}?{page}"

    def refund(order: str, *amounts: int) -> str:
        threads.append(threading.current_thread())
        return f"{order} {sum(amounts)} {REQUEST.get()}"

    world.tools.register("fetch", fetch)
    world.tools.register("refund", refund)
    REQUEST.set("r-1")
    assert await world.ctx.tool("fetch")("site", page=2) == await world.ctx.tool(fetch)("site", page=2) == "site?2"
    assert await world.ctx.tool("refund")("o-1", 3, 4) == "o-1 7 r-1"
    assert threads != [threading.current_thread()]
    assert world.plain.tool("refund")("o-2", 5) == "o-2 5 r-1"
    assert threads[1] is threading.current_thread()
    with pytest.raises(ToolError, match="known: fetch, refund"):
        world.ctx.tool("refnud")
    with pytest.raises(TypeError, match="order"):
        await world.ctx.tool("refund")()


def test_a_plain_agent_calls_async_tools_on_the_loop(world: World) -> None:
    """And gets their errors; without a loop it is told so."""

    async def fetch(url: str) -> str:
        await asyncio.sleep(0)
        if url == "bad":
            raise DeclinedError(url)
        return threading.current_thread().name

    world.tools.register("fetch", fetch)
    assert world.plain.tool("fetch")("site") == "ares-agents-loop"
    with pytest.raises(DeclinedError):
        world.plain.tool("fetch")("bad")
    alone = things_without_loop()
    with pytest.raises(OperationNotSupportedError, match="no event loop"):
        alone.loop()


def test_a_plain_agent_gets_the_value_of_a_tool_whose_plain_wrapper_hides_that_it_is_async(world: World) -> None:
    """As decorators make them; also within a limit, and their errors."""

    async def fetch(url: str) -> str:
        await asyncio.sleep(0)
        if url == "bad":
            raise DeclinedError(url)
        return threading.current_thread().name

    def plain(url: str) -> Any:
        return fetch(url)

    world.tools.register("fetch", plain)
    limited = world.plain.tool("fetch").with_options(timeout=5)
    for call in (world.plain.tool("fetch"), limited):
        assert call("site") == "ares-agents-loop"
        with pytest.raises(DeclinedError):
            call("bad")


@pytest.mark.parametrize("error", [DeclinedError, TimeoutError, SystemExit], ids=lambda error: error.__name__)
async def test_what_a_tool_raises_is_raised_as_it_is(world: World, error: type[BaseException]) -> None:
    """Its class and its text; also a timeout of its own within our limit."""

    async def fetch() -> None:
        raise error("no")

    def refund() -> None:
        raise error("no")

    for name, function in (("fetch", fetch), ("refund", refund)):
        world.tools.register(name, function, timeout=30)
        with pytest.raises(error, match="no") as caught:
            await world.ctx.tool(name)()
        assert type(caught.value) is error
        with pytest.raises(error, match="no") as caught:
            world.plain.tool(name)()
        assert type(caught.value) is error


async def test_a_keyed_tool_gets_a_new_key_with_each_call_unless_it_is_given_one(world: World) -> None:
    """The others get none."""

    def refund(idempotency_key: str = "") -> str:
        return idempotency_key

    world.tools.register("keyed", refund, replay="keyed")
    world.tools.register("safe", refund, replay="safe")
    keys = {await world.ctx.tool("keyed")(), await world.ctx.tool("keyed")(), world.plain.tool("keyed")()}
    assert len(keys) == 3
    assert all(key.startswith("agent-1:") for key in keys)
    assert await world.ctx.tool("keyed")(idempotency_key="mine") == "mine"
    assert await world.ctx.tool("safe")() == ""


async def test_a_call_that_takes_too_long_is_given_up(world: World) -> None:
    """An async one is cancelled; the thread of a plain one goes on, and is counted as long as it does."""
    ended: list[str] = []
    free = threading.Event()

    async def fetch() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    def refund() -> None:
        free.wait(10)

    world.tools.register("fetch", fetch, timeout=0.02)
    world.tools.register("refund", refund)
    with pytest.raises(ToolTimeoutError, match=r"'fetch' of agent 'agent-1' did not return within 0\.02 s"):
        await world.ctx.tool("fetch")()
    with pytest.raises(ToolTimeoutError):
        await world.ctx.tool("refund").with_options(timeout="20ms")()
    assert work_in_progress()["tool"] == 1
    with pytest.raises(ToolTimeoutError) as caught:
        world.plain.tool("refund").with_options(timeout=0.02)()
    assert isinstance(caught.value, TimeoutError)
    with pytest.raises(ToolTimeoutError):
        await asyncio.to_thread(world.plain.tool("fetch"))
    wait_until(lambda: len(ended) == 2, "the coroutine of the plain agent's call to be cancelled")
    free.set()
    wait_until(lambda: "tool" not in work_in_progress(), "the tool's threads to end")
    with pytest.raises(ToolError, match="timeout"):
        world.ctx.tool("fetch").with_options(timeout=0)


async def test_a_plain_tool_that_hangs_holds_up_nobody_else(world: World) -> None:
    """The loop turns, and an agent that is cancelled leaves it behind."""
    free = threading.Event()

    def refund() -> None:
        free.wait(10)

    world.tools.register("refund", refund)
    hanging = asyncio.create_task(_call(world, "refund"))
    await asyncio.sleep(0)
    assert not hanging.done()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    free.set()
    wait_until(lambda: "tool" not in work_in_progress(), "the tool's thread to end")


async def _call(world: World, name: str) -> Any:
    return await world.ctx.tool(name)()


def test_a_plain_agent_whose_incarnation_is_over_waits_no_longer(world: World) -> None:
    """What runs on the loop is cancelled."""
    ended = threading.Event()

    async def fetch() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def fenced() -> None:
        raise FencedSignal

    world.tools.register("fetch", fetch)
    with pytest.raises(FencedSignal):
        SyncAccess(world.things, ToolCaller("a", "t", SystemClock()), fenced, lambda: None).tool("fetch")()
    assert ended.wait(5)


async def test_plug_ins_are_told_of_each_call(world: World) -> None:
    """Name, agent, outcome and time, by the shipped recorder; without plug-ins nothing is told or waited for."""

    async def fetch(url: str) -> str:
        return url

    def refund() -> None:
        raise DeclinedError("too late")

    world.tools.register("fetch", fetch)
    world.tools.register("refund", refund)
    await world.ctx.tool("fetch")("before anybody listens")
    world.record()
    await world.ctx.tool("fetch")("site")
    with pytest.raises(DeclinedError):
        await world.ctx.tool("refund")()
    wait_until(lambda: len(world.recorder.calls()) == 2, "the failed call to be told")
    with pytest.raises(DeclinedError):
        world.plain.tool("refund")()
    calls = world.recorder.calls()
    assert [(one.tool, one.agent_id, one.step_id, one.registered, one.error) for one in calls] == [
        ("fetch", "agent-1", "tool:fetch:1", False, ""),
        ("refund", "agent-1", "tool:refund:2", True, "DeclinedError: too late"),
        ("refund", "agent-1", "tool:refund:3", True, "DeclinedError: too late"),
    ]
