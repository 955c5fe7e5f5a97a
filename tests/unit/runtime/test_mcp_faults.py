"""An MCP server that one agent loses: its calls end, its neighbours go on, and it is told as degraded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from typing_extensions import override

from ares_celery.errors import AgentSignal, MCPConnectionLostError
from ares_celery.ids import AgentId
from ares_celery.model.event import NewEvent
from ares_celery.model.fault import FaultKind
from ares_celery.runtime.fault_points import AsyncFaultPoints
from ares_celery.runtime.faults import FaultWatch
from ares_celery.runtime.mcp_holder import is_connection_lost
from ares_celery.runtime.shared_access import AsyncAccess
from ares_celery.runtime.tool_calls import ToolCaller
from ares_celery.store.faults import FaultUse
from tests.unit.runtime.test_faults import OFFSET, Faults, fault
from tests.unit.runtime.test_lease_keeper import incarnation
from tests.unit.runtime.test_mcp_holder import Session, World


class AsyncFaults(Faults):
    """Awaited where it counts."""

    @override
    async def use_fault(self, agent_id: AgentId, fault_id: str, *, op: str = "") -> FaultUse:  # type: ignore[override]
        return super().use_fault(agent_id, fault_id, op=op)


class One:
    """An agent of the process."""

    def __init__(self, world: World, agent_id: str, server: str = "github") -> None:
        self.incarnation = incarnation(agent_id, f"7|{agent_id}")
        self.store, self.clock = AsyncFaults(), world.clock
        self.told: list[tuple[str, list[tuple[str, Any]]]] = []
        points = AsyncFaultPoints(
            self.incarnation,
            world.clock,
            lambda: "op",
            store=cast("Any", self.store),
            wait=self.wait,
            refuse=self.refuse,
        )
        caller = ToolCaller(agent_id, "test", world.clock)
        self.mcp = AsyncAccess(world.things, caller, points=points, tell=self.tell).mcp(server)

    async def tell(self, text: str, events: list[NewEvent]) -> None:
        """What the store and the stream would be told."""
        self.told.append((text, [(event.type, event.payload) for event in events]))

    async def wait(self, seconds: float) -> None:
        """Nothing here waits."""
        raise AssertionError(seconds)

    async def refuse(self, signal: AgentSignal) -> Any:
        """Nor is anything over."""
        raise signal

    async def disturb(self, **fields: Any) -> None:
        """A fault on its connections; none: they are healed."""
        self.store.active = (fault(FaultKind.MCP, "f", seconds=10**6, **fields),) if fields else ()
        FaultWatch(self.store, self.clock).look(self.incarnation, OFFSET)
        for _ in range(3):
            await asyncio.sleep(0)


async def closed(world: World, count: int) -> None:
    """Waits until so many connections are closed."""
    async with asyncio.timeout(5):
        while len(world.closed) < count:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Closed at the end."""
    made = World()
    yield made
    await asyncio.to_thread(made.things.close)


@pytest.mark.spec(136)
async def test_a_fault_cuts_off_one_agent_and_its_neighbour_keeps_the_connection(world: World) -> None:
    """Calls in flight end at once, later ones fail, also where nothing is called; after it all is as before."""
    a, b = One(world, "a"), One(world, "b")
    flying = [asyncio.create_task(one.mcp.call_tool("hang")) for one in (a, b)]
    await a.mcp.tools()
    await b.mcp.tools()
    await a.disturb(server="github")
    with pytest.raises(MCPConnectionLostError, match="closed during the call"):
        await flying[0]
    with pytest.raises(MCPConnectionLostError, match=r"cut off on purpose \(fault f\)"):
        await a.mcp.call_tool("search")
    with pytest.raises(MCPConnectionLostError):
        await a.mcp.tools()
    with pytest.raises(MCPConnectionLostError):
        await a.mcp.session()
    assert (await b.mcp.call_tool("search"))[0] == 1
    assert not flying[1].done()
    await a.disturb()
    assert (await a.mcp.call_tool("search"))[0] == 1
    assert (len(world.sessions), world.closed) == (1, [])
    flying[1].cancel()


async def test_a_connection_that_only_the_disturbed_agent_uses_is_really_closed(world: World) -> None:
    """The session itself ends, whoever holds it; the next call after the fault makes another and lists its tools."""
    a, b = One(world, "a"), One(world, "b")
    await b.mcp.call_tool("search")
    world.things.connections.leave(b.incarnation.fence)
    await a.mcp.call_tool("search")
    await a.disturb(server="")
    await closed(world, 1)
    assert world.closed == [1]
    with pytest.raises(MCPConnectionLostError):
        await a.mcp.call_tool("search")
    assert (await b.mcp.call_tool("search"))[0] == 2, "whoever comes meanwhile is not held up"
    await a.disturb()
    assert (await a.mcp.call_tool("search"))[0] == 2
    assert await a.mcp.tools() == ["search", "tool-2"]


async def test_a_fault_that_spares_calls_is_on_a_connection_of_its_agents_own(world: World) -> None:
    """Which is closed with each call that it affects, and for good when it is over; that of the others stays."""
    a, b = One(world, "a"), One(world, "b")
    await asyncio.gather(a.mcp.tools(), b.mcp.tools())
    await a.disturb(probability=0.5)
    a.store.hits = [False, True, False]
    assert (await a.mcp.call_tool("search"))[0] == 2
    with pytest.raises(MCPConnectionLostError, match="cut off on purpose"):
        await a.mcp.call_tool("search")
    assert (await a.mcp.call_tool("search"))[0] == 3
    assert (await b.mcp.call_tool("search"))[0] == 1
    await a.disturb()
    assert (await a.mcp.call_tool("search"))[0] == 1
    await closed(world, 2)
    assert world.closed == [2, 3]


@pytest.mark.pain("P37")
async def test_an_agent_that_loses_a_server_is_told_as_degraded_once_and_as_whole_once(world: World) -> None:
    """Also when the server is gone by itself; it goes on, and a call that works ends it."""
    a = One(world, "a")
    await a.mcp.call_tool("search")
    assert a.told == []
    world.sessions[0].is_cut = True
    world.refusals = 1
    for _ in range(2):
        with pytest.raises(MCPConnectionLostError):
            await a.mcp.call_tool("search")
    problem = "ConnectionResetError: connection closed"
    lost = {"agent_id": "a", "server": "github", "problem": problem}
    assert a.told == [(f"MCP server 'github' is not connected: {problem}", [("mcp.disconnected", lost)])]
    world.clock.now += 60
    assert (await a.mcp.call_tool("search"))[0] == 2
    await a.mcp.call_tool("search")
    assert a.told[1:] == [("", [("mcp.connected", {"agent_id": "a", "server": "github"})])]


# -- calls that are made once more ------------------------------------------------------------------------------------


class Flaky(Session):
    """Loses its connection with the first call of each method."""

    calls: list[str]

    @override
    async def list_tools(self, *, cursor: str = "") -> Any:
        self.calls.append("list_tools")
        return [_tool("look", read_only_hint=True), _tool("pay"), _tool("put", idempotentHint=True)]

    @override
    async def call_tool(self, name: str, arguments: Any = None) -> Any:
        self.calls.append(name)
        self._break_at_first()
        return self.number

    async def read_resource(self, uri: str) -> Any:
        self.calls.append(uri)
        self._break_at_first()
        return self.number

    def _break_at_first(self) -> None:
        if self.number == 1:
            raise _gone() if self.calls[-1] == "gone" else ConnectionResetError


def _tool(name: str, **hints: bool) -> Any:
    about = type("Annotations", (), hints)()
    return type("Tool", (), {"name": name, "annotations": about})()


def _gone(words: str = "Session not found", code: int = -32600) -> Exception:
    told = type("Data", (), {"code": code, "message": words})()
    error: Exception = type("MCPError", (Exception,), {"__module__": "mcp.shared.exceptions", "error": told})()
    return error


@pytest.mark.parametrize(
    ("call", "repeats"),
    [
        (("call_tool", "look"), True),
        (("call_tool", "put"), True),
        (("call_tool", "pay"), False),
        (("call_tool", "unknown"), False),
        (("read_resource", "file"), True),
        (("call_tool", "gone"), True),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else str(value),
)
async def test_a_call_is_made_once_more_only_where_that_does_no_harm(
    world: World,
    call: tuple[str, str],
    repeats: bool,  # noqa: FBT001 - a table
) -> None:
    """It only reads, the server says that it may be repeated, or that it knows no such session and so ran nothing."""
    calls: list[str] = []

    async def connect() -> AsyncIterator[Flaky]:
        session = Flaky(len(world.sessions) + 1)
        session.calls = calls
        world.sessions.append(session)
        yield session

    world.registry.register("flaky", connect)
    handle = One(world, "a", "flaky").mcp
    method, what = call
    made = getattr(handle, method)(what)
    if repeats:
        assert await made == 2
        assert calls == ["list_tools", what, "list_tools", what]
    else:
        with pytest.raises(MCPConnectionLostError, match="ConnectionResetError"):
            await made
        assert calls == ["list_tools", what]


async def test_a_call_that_a_fault_cuts_off_is_not_made_once_more(world: World) -> None:
    """However harmless it is: it would go through over the connection that the fault has just taken."""
    reads: list[str] = []

    async def read_resource(uri: str) -> None:
        reads.append(uri)
        await asyncio.Event().wait()

    a = One(world, "a")
    await a.mcp.tools()
    cast("Any", world.sessions[0]).read_resource = read_resource
    flying = asyncio.create_task(a.mcp.read_resource("file"))
    async with asyncio.timeout(5):
        while not reads:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
    await a.disturb(server="")
    with pytest.raises(MCPConnectionLostError, match="closed during the call"):
        await flying
    assert (reads, len(world.sessions)) == (["file"], 1)


async def test_a_call_that_fails_twice_is_not_made_a_third_time(world: World) -> None:
    """One repeat: whoever knows more of the call may write a step with retries."""
    await world.mcp.tools()
    world.sessions[0].is_cut = True
    world.refusals = 1
    seen: list[str] = []

    async def count(**_: Any) -> Any:
        seen.append("list")
        raise ConnectionResetError

    cast("Any", world.sessions[0]).list_tools = count
    with pytest.raises(MCPConnectionLostError, match="no such server"):
        await world.mcp.list_tools()
    assert seen == ["list"]


async def test_the_list_of_tools_is_read_again_after_a_while(world: World) -> None:
    """A server that keeps no sessions comes back as another one, and no connection breaks."""
    assert await world.mcp.tools() == ["search", "tool-1"]
    world.sessions[0].number = 7
    world.clock.now += 29
    assert await world.mcp.tools() == ["search", "tool-1"]
    world.clock.now += 2
    assert await world.mcp.tools() == ["search", "tool-7"]
    assert len(world.sessions) == 1


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (_gone(), True),
        (_gone("Session terminated"), True),
        (_gone("Session terminated", 32600), True),
        (_gone("no such tool"), False),
        (_gone("Session not found", -32602), False),
    ],
    ids=["not found", "terminated", "first version", "other words", "other code"],
)
def test_a_session_that_the_server_has_forgotten_is_a_lost_connection(error: Exception, is_lost: bool) -> None:  # noqa: FBT001 - a table
    """It was started anew: without this, every call would fail for ever."""
    assert is_connection_lost(error) is is_lost
