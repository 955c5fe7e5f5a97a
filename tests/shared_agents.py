"""Agents of a fleet that share a server in a process of its own; workers import this module by name."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from ares_celery import AgentContext, agent, mcp_server, worker_resource

#: Answers each line with its process id.
_SERVER = "import os, sys\nfor line in sys.stdin:\n    print(os.getpid(), flush=True)\n"


class Pipe:
    """A session with the server over its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def call_tool(self, name: str) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n".encode())
        answer = await self._process.stdout.readline()
        if not answer:
            raise ConnectionResetError("the server has ended")
        return int(answer)


@mcp_server("pids")
async def pids() -> AsyncIterator[Pipe]:
    """Starts the server, and ends it by the end of its input."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _SERVER, stdin=pipe, stdout=pipe)
    yield Pipe(process)
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()


@worker_resource("journal")
async def journal() -> AsyncIterator[str]:
    """Writes to a file when it is opened and closed, and in which process."""
    path = Path(os.environ["ARES_TEST_JOURNAL"])
    _write(path, "open")
    yield str(path)
    _write(path, "closed")


def _write(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(f"{line} {os.getpid()}\n")


@agent("sharer")
class Sharer:
    """Tells which process it is in, which server it talks to, and leaves a process of its own behind."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: str) -> object:
        await ctx.resource(journal)
        left = await asyncio.create_subprocess_exec("sleep", "60")
        return {"pid": os.getpid(), "server": await ctx.mcp("pids").call_tool("who"), "left": left.pid}
