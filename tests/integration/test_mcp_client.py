"""The real MCP client and a real server over stdio: what is said of lost connections holds for the library itself."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ares_celery.agents.mcp_servers import MCPServerRegistry
from ares_celery.clock import SystemClock
from ares_celery.errors import MCPConnectionLostError
from ares_celery.model.causes import cause_of
from ares_celery.model.restart import DeathCause
from ares_celery.runtime.loop_thread import LoopThread
from ares_celery.runtime.shared_access import AsyncAccess, SyncAccess
from ares_celery.runtime.shared_things import Registries, SharedThings
from ares_celery.runtime.tool_calls import ToolCaller

mcp: Any = pytest.importorskip("mcp")
stdio: Any = pytest.importorskip("mcp.client.stdio")

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

#: A server of three tools.
_SERVER = """
import asyncio, os
from mcp.server import MCPServer

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

server.run("stdio")
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
        assert sorted(tool.name for tool in plain.tools()) == ["bug", "hang", "pid"]
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
    return again


def _number(result: Any) -> int:
    return int(result.content[0].text)
