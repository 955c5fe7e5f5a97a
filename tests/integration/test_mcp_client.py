"""The real MCP client and real servers: what is said of lost connections holds for the library itself."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentContext, AgentSpec, SyncAgentContext, mcp_server
from ares_celery.agents.mcp_servers import MCPServerRegistry
from ares_celery.clock import SystemClock
from ares_celery.errors import MCPConnectionLostError
from ares_celery.model.causes import cause_of
from ares_celery.model.restart import DeathCause
from ares_celery.runtime.loop_thread import LoopThread
from ares_celery.runtime.shared_access import AsyncAccess, SyncAccess
from ares_celery.runtime.shared_things import Registries, SharedThings
from ares_celery.runtime.tool_calls import ToolCaller
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

mcp: Any = pytest.importorskip("mcp")
stdio: Any = pytest.importorskip("mcp.client.stdio")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

#: A server of four tools; over HTTP with a port, and with as many tools more as it is told.
_SERVER = """
import asyncio, os, sys
from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("pids")

@server.tool()
def pid() -> int:
    return os.getpid()

@server.tool()
async def hang() -> int:
    await asyncio.sleep(60)
    return 0

@server.tool()
def bug() -> int:
    raise ValueError("of the tool")

@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look() -> int:
    await asyncio.sleep(0.3)
    return os.getpid()

if len(sys.argv) == 1:
    server.run("stdio")
else:
    for number in range(int(sys.argv[2])):
        server.tool(name=f"new-{number}")(lambda: 0)
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
"""


def test_the_library_itself_is_held_and_connected_again(tmp_path: Path) -> None:
    """Shared by callers; a kill ends calls in flight at once and uncharged; a timeout and an error of a tool do not."""
    script = tmp_path / "server.py"
    script.write_text(_SERVER)
    servers = MCPServerRegistry()

    async def connect() -> AsyncIterator[Any]:
        server = stdio.StdioServerParameters(command=sys.executable, args=[str(script)])
        async with mcp.Client(stdio.stdio_client(server)) as session:
            yield session

    servers.register("pids", connect)
    loop = LoopThread(SystemClock(), hung_after=60)
    things = SharedThings(lambda: loop, registries=Registries(servers=servers))
    caller = ToolCaller("a", "test", SystemClock())
    try:
        last = loop.submit(_use(AsyncAccess(things, caller))).result(50)
        plain = SyncAccess(things, caller, lambda: None).mcp("pids")
        assert _number(plain.call_tool("pid", {})) == last
        assert sorted(tool.name for tool in plain.tools()) == ["bug", "hang", "look", "pid"]
    finally:
        things.close()
        loop.close()
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


async def _use(ctx: AsyncAccess) -> int:
    handle = ctx.mcp("pids")
    first, second = await asyncio.gather(handle.call_tool("pid", {}), handle.call_tool("pid", {}))
    pid = _number(first)
    assert _number(second) == pid

    assert (await handle.call_tool("bug", {})).is_error
    late: Any = None
    try:
        await handle.call_tool("hang", {}, read_timeout_seconds=0.2)
    except mcp.MCPError as error:
        late = error
    assert not isinstance(late, MCPConnectionLostError)
    assert cause_of(late) is DeathCause.MCP, "an agent that dies of it is not charged either"
    assert _number(await handle.call_tool("pid", {})) == pid, "after a timeout the session goes on"

    hanging = asyncio.create_task(handle.call_tool("hang", {}))
    await handle.call_tool("pid", {})
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(MCPConnectionLostError) as caught:
        await asyncio.wait_for(hanging, 5)
    assert cause_of(caught.value) is DeathCause.MCP
    again = _number(await handle.call_tool("pid", {}))
    assert again != pid

    looking = asyncio.create_task(handle.call_tool("look", {}))
    await handle.call_tool("pid", {})
    os.kill(again, signal.SIGKILL)
    last = _number(await asyncio.wait_for(looking, 10))
    assert last != again, "a tool that only reads is called once more over the new connection"
    return last


def _number(result: Any) -> int:
    return int(result.content[0].text)


# -- over HTTP --------------------------------------------------------------------------------------------------------


class _Server:
    """A server of its own port, which a test may start anew."""

    def __init__(self, script: Path) -> None:
        self._script = script
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            self.port = int(taken.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, more_tools: int = 0) -> int:
        """Starts it, and waits until it listens; gives its process id."""
        command = [sys.executable, str(self._script), str(self.port), str(more_tools)]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        wait_until(self._listens, "the server to listen", timeout=20)
        return self._process.pid

    def stop(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


@pytest.fixture
def http_server(tmp_path: Path) -> Iterator[_Server]:
    """Ended with the test."""
    script = tmp_path / "http_server.py"
    script.write_text(_SERVER)
    server = _Server(script)
    yield server
    server.stop()


@pytest.mark.pain("P37")
@pytest.mark.parametrize("mode", ["legacy", "auto"], ids=["with sessions", "without sessions"])
def test_a_server_over_http_that_was_started_anew_is_used_again(
    http_server: _Server, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sessions are unknown to it: the call is made over a new one, and its new tools are listed."""
    servers = MCPServerRegistry()
    monkeypatch.setattr("ares_celery.runtime.mcp_holder._FRESH", 0.0)

    async def connect() -> AsyncIterator[Any]:
        async with mcp.Client(f"http://127.0.0.1:{http_server.port}/mcp", mode=mode) as session:
            yield session

    servers.register("pids", connect)
    loop = LoopThread(SystemClock(), hung_after=60)
    things = SharedThings(lambda: loop, registries=Registries(servers=servers))
    first = http_server.start()
    try:
        handle = SyncAccess(things, ToolCaller("a", "test", SystemClock()), lambda: None).mcp("pids")
        assert _number(handle.call_tool("pid", {})) == first
        http_server.stop()
        second = http_server.start(more_tools=1)
        assert _number(handle.call_tool("pid", {})) == second
        assert "new-0" in [tool.name for tool in handle.tools()]

        http_server.stop()
        with pytest.raises(MCPConnectionLostError) as caught:
            handle.call_tool("pid", {})
        assert cause_of(caught.value) is DeathCause.MCP
        third = http_server.start()
        assert _number(handle.call_tool("pid", {})) == third
    finally:
        things.close()
        loop.close()


# -- faults on purpose -------------------------------------------------------------------------------------------------

#: How the agents below connect, by the name of their server; a test puts it there.
CONNECTS: dict[str, Any] = {}


@mcp_server("real-pids")
async def real_pids() -> AsyncIterator[Any]:
    """A real server, as a test has it."""
    async with CONNECTS["real-pids"]() as session:
        yield session


class Caller:
    """Calls a real server for each message, and says so when it is gone."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: str) -> object:
        """The server's process, or its tools."""
        try:
            if message == "tools":
                return sorted(tool.name for tool in await ctx.mcp("real-pids").tools())
            return _number(await ctx.mcp("real-pids").call_tool(message, {}))
        except MCPConnectionLostError:
            return "lost"


class PlainCaller:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: SyncAgentContext, message: str) -> object:
        """As above."""
        try:
            if message == "tools":
                return sorted(tool.name for tool in ctx.mcp("real-pids").tools())
            return _number(ctx.mcp("real-pids").call_tool(message, {}))
        except MCPConnectionLostError:
            return "lost"


@pytest.fixture(params=[Caller, PlainCaller], ids=["async", "plain"])
def runtime(request: pytest.FixtureRequest, redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """Two agents of one process, in a namespace that allows faults."""
    with Runtime(redis_server.url, namespace, hints=True, chaos=True) as made:
        made.register("caller", request.param)
        made.manager.start()
        for agent_id in ("a", "b"):
            made.manager.start_agent(AgentSpec(id=agent_id, type="caller"))
            made.until(agent_id, "running")
        yield made


def is_gone(pid: int) -> bool:
    """The process has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def connections_to(port: int) -> int:
    """Established connections of this machine to a port of it."""
    rows = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    return sum(1 for row in rows if row[3] == "01" and int(row[2].split(":")[1], 16) == port)


def assert_degraded_and_whole_again(runtime: Runtime) -> int:
    """Under the fault its calls fail and it lives on; its neighbour is not disturbed; gives what is called after it."""
    ask = runtime.manager.process
    assert ask("a", "pid", timeout=10) == "lost"
    assert ask("a", "tools", timeout=10) == "lost"
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert info.degraded.startswith("MCP server 'real-pids' is not connected: it is cut off on purpose")
    assert (info.state, info.incarnation, info.restarts, info.charged) == ("running", 1, 0, 0)
    beside = ask("b", "pid", timeout=20)
    assert isinstance(beside, int)
    runtime.manager.heal("a")
    wait_until(lambda: ask("a", "pid", timeout=20) != "lost", "the server to be back")
    after = ask("a", "pid", timeout=10)
    assert after == beside, "one connection, shared by both again"
    assert "look" in ask("a", "tools", timeout=10)
    healed = runtime.manager.get_agent_info("a")
    assert healed is not None
    assert (healed.degraded, healed.incarnation, healed.restarts, healed.charged) == ("", 1, 0, 0)
    told = [kind for kind in runtime.types("a") if kind.startswith(("mcp.", "fault.", "failover."))]
    assert told == ["fault.injected", "mcp.disconnected", "fault.healed", "mcp.connected"]
    assert [kind for kind in runtime.types("b") if kind.startswith("mcp.")] == []
    return int(after)


@pytest.mark.spec(136)
@pytest.mark.spec(139)
@pytest.mark.pain("P37")
def test_a_disconnection_on_purpose_ends_a_server_of_a_process_of_its_own(runtime: Runtime, tmp_path: Path) -> None:
    """Over stdio: the session is closed, so the server's process ends; afterwards there is another one."""
    script = tmp_path / "server.py"
    script.write_text(_SERVER)
    parameters = stdio.StdioServerParameters(command=sys.executable, args=[str(script)])
    CONNECTS["real-pids"] = lambda: mcp.Client(stdio.stdio_client(parameters))
    before = runtime.manager.process("a", "pid", timeout=20)
    runtime.manager.disconnect_mcp("a", "10m")
    wait_until(lambda: is_gone(before), "the server's process to end", timeout=15)
    after = assert_degraded_and_whole_again(runtime)
    assert after != before


@pytest.mark.spec(136)
@pytest.mark.spec(139)
@pytest.mark.pain("P37")
def test_a_disconnection_on_purpose_closes_the_connection_to_a_server_over_http(
    runtime: Runtime, http_server: _Server
) -> None:
    """The server, which others may use, lives on; nothing is connected to it any more."""
    before = http_server.start()
    CONNECTS["real-pids"] = lambda: mcp.Client(f"http://127.0.0.1:{http_server.port}/mcp", mode="legacy")
    assert runtime.manager.process("a", "pid", timeout=20) == before
    assert connections_to(http_server.port) > 0
    runtime.manager.disconnect_mcp("a", "10m", server="real-pids")
    wait_until(lambda: connections_to(http_server.port) == 0, "the connection to be closed", timeout=15)
    assert assert_degraded_and_whole_again(runtime) == before
