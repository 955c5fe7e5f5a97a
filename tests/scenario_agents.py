"""Agents that stand on everything a fault can take away; workers import this module by name."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from ares_celery import AgentContext, Event, agent, mcp_server, tool
from tests.shared_agents import Pipe

#: Answers each line with a number.
_SERVER = "import sys\nfor line in sys.stdin:\n    print(7, flush=True)\n"


@mcp_server("scales")
async def scales() -> AsyncIterator[Pipe]:
    """Starts the server, and ends it by the end of its input."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", _SERVER, stdin=pipe, stdout=pipe)
    yield Pipe(process)
    if process.stdin is not None:
        process.stdin.close()
    await process.wait()


@tool("weigh", replay="safe")
async def weigh(number: int) -> int:
    """Takes longer than the time that a fault leaves it."""
    await asyncio.sleep(0.2)  # on purpose: what tool_timeout cuts off
    return number


@agent("grocer")
class Grocer:
    """Works in rounds with a tool, a server and a model, and tells in events what each round met."""

    def __init__(self, agent_id: str, model: str = "") -> None:
        self.model, self.rounds = model, 0

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            began, number = time.monotonic(), self.rounds + 1
            met: dict[str, str] = {}
            async with ctx.execution(f"round-{ctx.incarnation}-{number}"):
                await _tried(met, "tool", lambda: ctx.tool("weigh")(number))  # noqa: B023 - called here and now
                await _tried(met, "server", lambda: ctx.mcp("scales").call_tool("weigh"))
                if self.model:
                    await _tried(met, "model", lambda: ctx.step("ask", self._ask, ctx))
            took = round(time.monotonic() - began, 3)
            await ctx.emit("round", {"number": number, "took": took, "met": met})
            await ctx.sleep(0.1)

    async def _ask(self, ctx: AgentContext) -> str:
        http: Any = ctx.llm_http_client()
        answer = await http.post(f"{self.model}/v1/messages", json={"model": "m"})
        answer.raise_for_status()
        return "answered"

    def apply(self, event: Event) -> None:
        if event.type == "round":
            self.rounds = event.payload["number"]

    def snapshot(self) -> dict[str, object]:
        return {"rounds": self.rounds}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.rounds = int(state["rounds"])


async def _tried(met: dict[str, str], what: str, call: Callable[[], Awaitable[object]]) -> None:
    """Notes how it failed, and with which status; nothing else of it matters here."""
    try:
        await call()
    except Exception as error:  # noqa: BLE001 - whatever a fault is like
        status = getattr(getattr(error, "response", None), "status_code", "")
        met[what] = f"{type(error).__name__} {status}".strip()
