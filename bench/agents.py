"""Agents of the measurements; workers import this module by name."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ares_celery import AgentContext, Event, agent


@agent("bench-failover")
class Failover:
    """Writes the monotonic time at which its code runs; recovers from a snapshot of 10 kB and 100 events after it."""

    def __init__(self, agent_id: str, journal: str) -> None:
        self.journal, self.count = journal, 0
        self.ballast = "x" * 10_000

    async def start(self, ctx: AgentContext) -> None:
        line = f"{time.monotonic()} {os.getpid()} {self.count}\n"
        with Path(self.journal).open("a") as file:  # noqa: ASYNC230 - the time of this line is what is measured
            file.write(line)
        if self.count == 0:
            await ctx.snapshot()
            await ctx.emit_many([("counted", {"text": "y" * 200}) for _ in range(100)])
        while not ctx.stop_requested:
            await ctx.sleep(3600)
        if ctx.stopping_reason == "stop":
            with Path(self.journal + ".stopped").open("a") as file:  # noqa: ASYNC230 - as above
                file.write(f"{time.monotonic()}\n")

    def apply(self, event: Event) -> None:
        self.count += 1

    def snapshot(self) -> dict[str, Any]:
        return {"count": self.count, "ballast": self.ballast}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


@agent("bench-idle")
class Idle:
    """Does nothing, for a long time."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(3600)


@agent("bench-echo")
class Echo:
    """Answers what it is asked, and streams the monotonic time."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: object) -> object:
        return {"echo": message}

    async def process_stream(self, ctx: AgentContext, message: dict[str, Any]) -> AsyncIterator[Any]:
        for _ in range(message["chunks"]):
            yield time.monotonic()
            await asyncio.sleep(message["pause"])
