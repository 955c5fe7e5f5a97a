"""Agents that tell what time they see; workers of tests/fault/test_moved_clock.py import them."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Any

from ares_celery import AgentContext, agent
from ares_celery.clock import SystemClock


@agent("alarm")
class Alarm:
    """Waits for a moment that it is told, and says what its own clock shows then."""

    def __init__(self, agent_id: str, until: str) -> None:
        self.until = datetime.fromisoformat(until)

    async def start(self, ctx: AgentContext) -> str:
        await ctx.sleep_until(self.until)
        await ctx.emit("woke", {"wall": SystemClock().wall() / 1e6})
        return "woke"


@agent("watch")
class Watch:
    """Tells the time, and counts without end."""

    def __init__(self, agent_id: str) -> None:
        self.ticks = 0

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.emit("ticked", {"n": self.ticks + 1})
            await ctx.sleep(0.05)

    def apply(self, event: Any) -> None:
        self.ticks += event.type == "ticked"

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        return {"wall": SystemClock().wall() / 1e6, "pid": os.getpid()}

    def snapshot(self) -> dict[str, object]:
        return {"ticks": self.ticks}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.ticks = int(state["ticks"])
