"""Agents of the harness's own tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ares_celery import AgentContext, Event, SyncAgentContext


class Totals:
    """Adds up; what both colours share."""

    def __init__(self, agent_id: str, step: int = 1) -> None:
        self.agent_id, self.step, self.total = agent_id, step, 0
        self.unwound = ""

    def apply(self, event: Event) -> None:
        if event.type == "ticked":
            self.total += event.payload["by"]

    def snapshot(self) -> dict[str, Any]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


class Counter(Totals):
    """Ticks once an hour."""

    async def start(self, ctx: AgentContext) -> None:
        try:
            while not ctx.stop_requested:
                await ctx.emit("ticked", {"by": self.step})
                await ctx.sleep(3600)
        finally:
            self.unwound = "yes"

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        if isinstance(message, dict):
            return await ctx.send(message["forward"], {"total": self.total})
        if message == "fail":
            raise ValueError("no such thing")
        if message == "slow":
            await asyncio.sleep(30)  # on purpose: simulated time
        return {"total": self.total}


class PlainCounter(Totals):
    """The same, plain."""

    def start(self, ctx: SyncAgentContext) -> None:
        try:
            while not ctx.stop_requested:
                ctx.emit("ticked", {"by": self.step})
                ctx.sleep(3600)
        finally:
            self.unwound = "yes"

    def process(self, ctx: SyncAgentContext, message: Any) -> Any:
        if isinstance(message, dict):
            return ctx.send(message["forward"], {"total": self.total})
        if message == "fail":
            raise ValueError("no such thing")
        if message == "slow":
            ctx.sleep(30)
        return {"total": self.total}


def stubborn(hold: Callable[[], None]) -> type[Totals]:
    """An agent whose code goes on without ever waiting."""

    class Stubborn(Totals):
        async def start(self, ctx: AgentContext) -> None:
            await ctx.sleep(1)
            hold()

    return Stubborn
