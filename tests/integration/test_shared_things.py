"""Agents of one process share what its modules registered; real agents, a real store, a real end of the process."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from ares_celery.agents.mcp_servers import mcp_server
from ares_celery.agents.resources import worker_resource
from ares_celery.agents.tools import tool
from ares_celery.errors import FencedSignal
from ares_celery.model.agent import AgentSpec
from ares_celery.plugins.bus import PluginBus
from ares_celery.plugins.tools import ToolPlugin
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = pytest.mark.integration

LOG: list[str] = []


@worker_resource("it-llm")
async def llm(it_words: dict[str, int]) -> AsyncIterator[dict[str, int]]:
    """A client on the loop that needs a table."""
    LOG.append("llm opened")
    yield it_words
    LOG.append("llm closed")


@worker_resource("it_words")
def words() -> Iterator[dict[str, int]]:
    """A table for all threads."""
    LOG.append("words opened")
    yield {"hello": 5}
    LOG.append("words closed")


class Session:
    def __init__(self) -> None:
        self.calls = 0

    async def list_tools(self) -> list[str]:
        return ["search"]

    async def call_tool(self, name: str) -> str:
        self.calls += 1
        if name == "break":
            raise ConnectionResetError(name)
        return f"{name} {self.calls}"


@mcp_server("it-github")
async def github() -> AsyncIterator[Session]:
    """Connects."""
    LOG.append("github connected")
    yield Session()
    LOG.append("github disconnected")


@tool("it-count", replay="safe")
def count(text: str) -> int:
    """A plain tool."""
    return len(text)


class Asker:
    """Async: uses all of it in one message."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: Any, message: str) -> Any:
        table = await ctx.resource(llm)
        return [table[message], await ctx.tool("it-count")(message), await ctx.mcp("it-github").tools()]


class Breaker:
    """Dies of a lost connection until it is told to stop."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: Any) -> None:
        if ctx.incarnation == 1:
            await ctx.mcp("it-github").call_tool("break")
        await ctx.emit("found", {"answer": await ctx.mcp("it-github").call_tool("search")})

    async def process(self, ctx: Any, message: str) -> None: ...


@tool("it-mark")
def mark(agent_id: str) -> None:
    """Leaves a trace outside."""
    LOG.append(f"{agent_id} marked")


class Stubborn:
    """Async: goes on after it was told that it is over."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: Any) -> None:
        while True:
            try:
                await ctx.sleep(0.02)
            except BaseException:
                LOG.append(f"{self.agent_id} is over")
                with suppress(FencedSignal):
                    await ctx.tool("it-mark")(self.agent_id)
                with suppress(FencedSignal):
                    await ctx.mcp("it-github").tools()
                with suppress(FencedSignal):
                    await ctx.resource("it-llm")
                raise


class PlainStubborn:
    """Plain: the same."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: Any) -> None:
        while True:
            try:
                ctx.sleep(0.02)
            except BaseException:
                LOG.append(f"{self.agent_id} is over")
                with suppress(FencedSignal):
                    ctx.tool("it-mark")(self.agent_id)
                with suppress(FencedSignal):
                    ctx.mcp("it-github").tools()
                with suppress(FencedSignal):
                    ctx.resource("it_words")
                raise


class PlainAsker:
    """Plain: the same, but for what lives on the loop."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: Any, message: str) -> Any:
        table = ctx.resource("it_words")
        server = ctx.mcp("it-github")
        return [table[message], ctx.tool(count)(message), server.tools(), server.call_tool("search")[:6]]


@contextmanager
def running(redis_server: RedisServer, namespace: str) -> Generator[Runtime]:
    """A runtime with a plug-in that records tools; the log is empty."""
    LOG.clear()
    with ExitStack() as stack:
        bus = PluginBus()
        bus.register(ToolPlugin())
        bus.start()
        stack.callback(bus.stop)
        made = stack.enter_context(Runtime(redis_server.url, namespace, bus=bus))
        for name, factory in (("asker", Asker), ("plain-asker", PlainAsker), ("breaker", Breaker)):
            made.register(name, factory)
        made.manager.start()
        yield made


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """One that ends with the test."""
    with running(redis_server, namespace) as made:
        yield made


def test_many_agents_use_one_of_each_until_the_process_ends(redis_server: RedisServer, namespace: str) -> None:
    """Twenty of both colours, asked at once; each thing is opened once, and all is closed in reverse order."""
    with running(redis_server, namespace) as runtime:
        _ask_twenty(runtime)
        opened, LOG[:] = list(LOG), []
        runtime.manager.stop()
        assert LOG == [], "agents come and go, what they share stays"
    ended = {"github connected": "github disconnected"}
    assert [ended.get(line, line.replace("opened", "closed")) for line in reversed(opened)] == LOG


def test_all_is_closed_before_a_process_is_ended_that_an_agent_holds_up(
    redis_server: RedisServer, namespace: str
) -> None:
    """Nothing ends a thread that hangs but the end of its process, which leaves no time for anything."""
    LOG.clear()
    hold, ended = threading.Event(), threading.Event()

    class Stuck:
        def __init__(self, agent_id: str) -> None: ...

        def start(self, ctx: Any) -> None:
            ctx.resource("it_words")
            hold.wait(20)

    def end() -> None:
        LOG.append("process ended")
        ended.set()

    with Runtime(redis_server.url, namespace, drain_timeout="300ms") as runtime:
        runtime.manager.start()
        runtime.host._on_stuck = end
        runtime.register("stuck", Stuck)
        runtime.manager.start_agent(AgentSpec(id="s", type="stuck"), wait="running")
        wait_until(lambda: LOG, "the table")
        runtime.host.drain()
        assert ended.wait(5)
        hold.set()
    assert LOG == ["words opened", "words closed", "process ended"]


def _ask_twenty(runtime: Runtime) -> None:
    """And look at what they answer."""
    kinds = {f"{kind}-{at}": kind for kind in ("asker", "plain-asker") for at in range(10)}
    for agent_id, kind in kinds.items():
        runtime.manager.start_agent(AgentSpec(id=agent_id, type=kind))
    answers: dict[str, Any] = {}

    def ask(agent_id: str) -> None:
        answers[agent_id] = runtime.manager.process(agent_id, "hello", timeout=10)

    askers = [threading.Thread(target=ask, args=(agent_id,)) for agent_id in kinds]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    for agent_id, kind in kinds.items():
        assert answers[agent_id] == [5, 5, ["search"]] + (["search"] if kind == "plain-asker" else [])
    assert sorted(LOG) == ["github connected", "llm opened", "words opened"]
    assert LOG.index("words opened") < LOG.index("llm opened")
    recorder = runtime.bus.plugins_by_capability("tool")[0] if runtime.bus else None
    assert isinstance(recorder, ToolPlugin)
    assert {(one.tool, one.agent_id) for one in recorder.calls()} == {("it-count", agent_id) for agent_id in kinds}


def test_a_lost_connection_is_no_charged_death_and_the_next_life_has_a_new_one(runtime: Runtime) -> None:
    """The agent lets the error pass and dies of it; its resurrection costs nothing of its budget."""
    runtime.manager.start_agent(AgentSpec(id="b", type="breaker"))
    found = runtime.until("b", "running", incarnation=2)
    assert (found.restarts, found.charged) == (1, 0)
    wait_until(lambda: runtime.events("b", "found"), "the answer of the new connection")
    assert LOG == ["github connected", "github disconnected", "github connected"]


@pytest.mark.parametrize("factory", [Stubborn, PlainStubborn], ids=["async", "plain"])
def test_an_incarnation_that_is_over_touches_nothing_outside(runtime: Runtime, factory: type[Any]) -> None:
    """Another may have followed it: tools, servers and resources are refused to it as writes are."""
    runtime.register("stubborn", factory)
    runtime.manager.start_agent(AgentSpec(id="s", type="stubborn"), wait="running", timeout=8)
    runtime.manager.stop_agent("s", force=True)
    wait_until(lambda: LOG, "the agent to learn of it")
    wait_until(lambda: not runtime.host.hosted(), "the incarnation to end")
    assert LOG == ["s is over"]
