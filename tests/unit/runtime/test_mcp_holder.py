"""The shared connection to an MCP server: made once, given up when it breaks, made again for all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from typing_extensions import override

from ares_celery.agents.mcp_servers import MCPServerRegistry, mcp_server, override_mcp
from ares_celery.clock import SystemClock
from ares_celery.errors import FencedSignal, MCPConnectionLostError, MCPServerError
from ares_celery.model.causes import cause_of
from ares_celery.model.restart import DeathCause
from ares_celery.runtime.mcp_holder import MCPHolder, is_connection_lost
from ares_celery.runtime.shared_access import AsyncAccess
from ares_celery.runtime.shared_things import Limits, Registries, SharedThings
from ares_celery.runtime.tool_calls import ToolCaller
from tests.unit.runtime.test_shared_things import LOOPS, OnLoop


class Session:
    """What a connected client looks like."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_cut = False
        self.protocol = "2025"

    async def list_tools(self, *, cursor: str = "") -> Any:
        return Page([f"tool-{self.number}"], "") if cursor else Page(["search"], "more")

    async def call_tool(self, name: str, arguments: Any = None) -> Any:
        if self.is_cut:
            raise ConnectionResetError("connection closed")
        match name:
            case "hang":
                await asyncio.Event().wait()
            case "late":
                raise TimeoutError("no answer in 2 s")
            case "bug":
                raise KeyError(name)
            case "exit":
                raise SystemExit(name)
            case "drop":
                raise asyncio.CancelledError
            case _:
                pass
        return self.number, name, arguments


class Page:
    def __init__(self, tools: list[str], next_cursor: str) -> None:
        self.tools, self.next_cursor = tools, next_cursor


class HandClock(SystemClock):
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    @override
    def monotonic(self) -> float:
        return self.now


class World:
    """One server, and what became of its connections."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.closed: list[int] = []
        LOOPS.append(asyncio.get_running_loop())
        self.refusals = 0
        self.clock = HandClock()
        self.registry = MCPServerRegistry()
        self.registry.register("github", self.connect)
        self.things = SharedThings(
            OnLoop,
            registries=Registries(servers=self.registry),
            limits=Limits(open=1, slack=0, close=0.1, close_all=0.5),
            clock=self.clock,
        )
        self.mcp = AsyncAccess(self.things, ToolCaller("a", "test", self.clock)).mcp("github")

    async def connect(self) -> AsyncIterator[Session]:
        if self.refusals:
            self.refusals -= 1
            raise FileNotFoundError("no such server")
        task = asyncio.current_task()
        session = Session(len(self.sessions) + 1)
        self.sessions.append(session)
        yield session
        assert asyncio.current_task() is task
        self.closed.append(session.number)

    @property
    def holder(self) -> MCPHolder:
        found = self.things.mcp("github")
        assert isinstance(found, MCPHolder)
        return found


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Closed at the end."""
    made = World()
    yield made
    await asyncio.to_thread(made.things.close)


async def test_all_agents_share_one_connection_and_its_tools(world: World) -> None:
    """Made at the first call; methods are the session's, and its list is read to the last page."""
    answers = await asyncio.gather(*(world.mcp.call_tool("search", arguments=n) for n in range(20)))
    assert answers == [(1, "search", n) for n in range(20)]
    assert await world.mcp.tools() == ["search", "tool-1"]
    assert (await world.mcp.session()).protocol == "2025"
    assert world.mcp.name == "github"
    assert len(world.sessions) == 1
    await asyncio.to_thread(world.things.close)
    assert world.closed == [1]
    with pytest.raises(MCPConnectionLostError, match="this process is ending"):
        await world.mcp.call_tool("search")


async def test_a_break_reaches_each_caller_uncharged_and_one_new_connection_serves_all(world: World) -> None:
    """The old one is closed, the tools are listed again, and the cause of death is the server's."""
    await world.mcp.call_tool("search")
    world.sessions[0].is_cut = True
    errors = await asyncio.gather(*(world.mcp.call_tool("search") for _ in range(5)), return_exceptions=True)
    for error in errors:
        assert isinstance(error, MCPConnectionLostError)
        assert error.fields["server"] == "github"
        assert error.fields["problem"] == "ConnectionResetError: connection closed"
        assert cause_of(error) is DeathCause.MCP
    answers = await asyncio.gather(*(world.mcp.call_tool("search") for _ in range(5)))
    assert {number for number, *_ in answers} == {2}
    assert await world.mcp.tools() == ["search", "tool-2"]
    assert (len(world.sessions), world.closed) == (2, [1])


async def test_a_cut_ends_calls_in_flight_at_once(world: World) -> None:
    """What the fault does: nobody waits for an answer that cannot come, and none connects before its end."""
    hanging = asyncio.create_task(world.mcp.call_tool("hang"))
    await world.mcp.tools()
    await asyncio.sleep(0)
    world.holder.cut(for_seconds=3600)
    with pytest.raises(MCPConnectionLostError, match="closed during the call"):
        await hanging
    with pytest.raises(MCPConnectionLostError, match="no connection within 1 s"):
        await world.mcp.call_tool("search")
    assert len(world.sessions) == 1


@pytest.mark.parametrize(
    ("tool", "error"), [("late", TimeoutError), ("bug", KeyError), ("exit", SystemExit)], ids=["late", "bug", "exit"]
)
async def test_other_errors_are_the_callers_and_the_connection_stays(
    world: World, tool: str, error: type[BaseException]
) -> None:
    """After a timeout the same session works again; a server's or our own bug is no lost connection."""
    with pytest.raises(error):
        await world.mcp.call_tool(tool)
    assert (await world.mcp.call_tool("search"))[0] == 1


async def test_a_client_that_cancels_the_calls_of_a_lost_connection_has_lost_it(world: World) -> None:
    """Nobody asked the agent to end: it learns of the connection, and the next call makes another."""
    with pytest.raises(MCPConnectionLostError, match="the client cancelled the call"):
        await world.mcp.call_tool("drop")
    assert (await world.mcp.call_tool("search"))[0] == 2
    with (
        world.registry.override("github", Session(0)),
        pytest.raises(MCPConnectionLostError, match="cancelled the call"),
    ):
        await world.things.mcp("github").call("call_tool", ("drop",), {})
    with world.registry.override("github", Session(0)):
        hanging = asyncio.create_task(world.things.mcp("github").call("call_tool", ("hang",), {}))
        await asyncio.sleep(0)
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging


async def test_a_caller_that_is_cancelled_takes_nothing_along(world: World) -> None:
    """The call ends, the connection stays."""
    hanging = asyncio.create_task(world.mcp.call_tool("hang"))
    await world.mcp.tools()
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    assert (await world.mcp.call_tool("search"))[0] == 1


async def test_tries_in_a_row_wait_longer_and_a_good_connection_forgets_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0, 0.5, 1, 2 … at most 30 s; those who ask meanwhile share the pause and the try."""
    pauses: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
            world.clock.now += seconds
        await real(0)

    monkeypatch.setattr("ares_celery.runtime.mcp_holder.asyncio.sleep", sleep)
    world.refusals = 9
    for _ in range(9):
        failed = await asyncio.gather(*(world.mcp.call_tool("search") for _ in range(3)), return_exceptions=True)
        assert {str(error) for error in failed} == {
            "the connection to MCP server 'github' is lost: FileNotFoundError: no such server"
        }
    assert (await world.mcp.call_tool("search"))[0] == 1
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]

    world.clock.now += 11
    pauses.clear()
    for number in (2, 3):
        world.sessions[-1].is_cut = True
        with pytest.raises(MCPConnectionLostError):
            await world.mcp.call_tool("search")
        assert (await world.mcp.call_tool("search"))[0] == number
    assert pauses == [0.5], "the first break after a good connection costs no pause, the second soon after does"


async def test_a_connection_that_ends_by_itself_is_made_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """As when its pumps die in a task group of their own: the owner is cancelled, and nobody else."""
    await world.mcp.tools()
    opening = world.holder.opening
    assert opening is not None
    with caplog.at_level(logging.WARNING, "ares_celery.runtime"):
        opening._cancel()
        await asyncio.wait_for(asyncio.wrap_future(opening.over), 5)
    assert "ended by itself" in caplog.text
    assert (await world.mcp.call_tool("search"))[0] == 2


async def test_a_session_without_that_method_is_an_error_of_the_code(world: World) -> None:
    """And an unknown server one of the configuration."""
    with pytest.raises(AttributeError, match="'github' has no method 'serach'"):
        await world.mcp.serach()
    with pytest.raises(AttributeError):
        await world.mcp.protocol()
    with pytest.raises(MCPServerError, match="known: github"):
        world.things.mcp("gitlab")


async def test_a_function_that_gives_no_connection_is_named() -> None:
    """It is no lost connection: waiting does not help."""
    registry = MCPServerRegistry()
    registry.register("odd", lambda: "text")
    things = SharedThings(OnLoop, registries=Registries(servers=registry))
    with pytest.raises(MCPServerError, match="gave a str"):
        await things.mcp("odd").session()


async def test_a_test_replaces_a_server_by_a_session_of_its_own(world: World) -> None:
    """Nothing is connected; what a lost connection raises is told as one."""
    fake = Session(99)
    mcp_server("holder-fake")(lambda: fake)
    with override_mcp("holder-fake", fake):
        handle = AsyncAccess(SharedThings(OnLoop), ToolCaller("a", "t", world.clock)).mcp("holder-fake")
        assert await handle.call_tool("x") == (99, "x", None)
        assert await handle.tools() == ["search", "tool-99"]
        assert await handle.session() is fake
        fake.is_cut = True
        with pytest.raises(MCPConnectionLostError):
            await handle.call_tool("x")
        fake.is_cut = False
        with pytest.raises(KeyError):
            await handle.call_tool("bug")
    assert world.sessions == []


class _Answer(Exception):
    def __init__(self, code: int) -> None:
        self.error = type("Data", (), {"code": code})()


def _mcp_error(code: int) -> Exception:
    made = type("MCPError", (_Answer,), {"__module__": "mcp.shared.exceptions"})
    error: Exception = made(code)
    return error


class ClosedResourceError(Exception): ...


def _late_inside_the_client() -> BaseException:
    """A builtin TimeoutError that passed through the library's code."""
    scope: dict[str, Any] = {"__name__": "mcp.client.session"}
    exec("def wait():\n    raise TimeoutError", scope)  # noqa: S102 - the text here
    try:
        scope["wait"]()
    except TimeoutError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "is_lost"),
    [
        (_mcp_error(-32000), True),
        (_mcp_error(-32001), False),
        (_mcp_error(408), False),
        (_mcp_error(-32602), False),
        (BrokenPipeError(), True),
        (EOFError(), True),
        (ClosedResourceError(), True),
        (MCPConnectionLostError(server="s"), True),
        (TimeoutError(), False),
        (_late_inside_the_client(), False),
        (ValueError(), False),
        (FencedSignal(), False),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_a_lost_connection(error: BaseException, is_lost: bool) -> None:  # noqa: FBT001 - a table
    """Closed is; a timeout, a refusal of the server and a bug are not."""
    assert is_connection_lost(error) is is_lost


def test_nothing_of_the_mcp_package_is_imported(forbidden: Callable[[str], list[str]]) -> None:
    """The core has no dependency on it."""
    assert forbidden("mcp") == []


@pytest.fixture
def forbidden() -> Callable[[str], list[str]]:
    """The modules of a package that importing ours has loaded, in a process of its own."""
    import subprocess
    import sys

    def ask(package: str) -> list[str]:
        code = "import sys, ares_celery.runtime.host; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return [name for name in done.stdout.split() if name.partition(".")[0] == package]

    return ask
