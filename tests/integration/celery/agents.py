"""Agent types that the fleets of these tests host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from threading import Event as Flag

from ares_celery.agents.context import AgentContext, SyncAgentContext
from ares_celery.agents.registry import agent
from ares_celery.model.event import Event
from ares_celery.model.message import StreamResult


@agent("counter")
class Counter:
    """Counts, durably."""

    def __init__(self, agent_id: str, step: int = 1) -> None:
        self.step, self.total = step, 0

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.emit("counter.ticked", {"by": self.step})
            await ctx.sleep(0.05)

    def apply(self, event: Event) -> None:
        if event.type == "counter.ticked":
            self.total += event.payload["by"]

    async def process(self, ctx: AgentContext, message: object) -> object:
        return {"total": self.total, "pid": os.getpid()}

    def snapshot(self) -> dict[str, object]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, object]) -> None:
        self.total = int(str(state["total"]))


@agent("plain")
class Plain:
    """A plain agent that looks at its context again and again."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> None:
        while not ctx.stop_requested:
            ctx.sleep(0.05)


@agent("slow")
class Slow:
    """Answers after a second and a half, or as long as it is told."""

    def __init__(self, agent_id: str, seconds: float = 1.5) -> None:
        self.agent_id, self.seconds = agent_id, seconds

    async def process(self, ctx: AgentContext, message: object) -> object:
        await ctx.sleep(self.seconds)
        return {"heard": message}


@agent("stuck")
class Stuck:
    """Blocks for good; only the end of its process ends it."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> None:
        while True:
            Flag().wait(600)


@agent("fragile")
class Fragile:
    """Runs once; every recovery fails."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> None:
        ctx.snapshot()
        while not ctx.stop_requested:
            ctx.sleep(0.05)

    def snapshot(self) -> dict[str, object]:
        return {"made": True}

    def restore_state(self, state: dict[str, object]) -> None:
        message = "cannot restore"
        raise ValueError(message)


@agent("exiting")
class Exiting:
    """Ends its process from within, as a crash of a C library does."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> None:
        if ctx.incarnation == 1:
            os._exit(7)
        while not ctx.stop_requested:
            ctx.sleep(0.05)


@agent("parent")
class Parent:
    """Starts a process of its own, and tells its id."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> None:
        child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait(120)"])
        ctx.emit("parent.started", {"pid": child.pid, "own": os.getpid()})
        while not ctx.stop_requested:
            ctx.sleep(0.05)


@agent("talker")
class Talker:
    """Answers in pieces, and fails in the middle when it is told to."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process_stream(self, ctx: AgentContext, message: dict[str, int]) -> AsyncIterator[object]:
        for number in range(message["pieces"]):
            if number == message.get("fails_at"):
                problem = "lost the thread"
                raise ValueError(problem)
            yield {"piece": number}
            await ctx.sleep(0.02)
        yield StreamResult({"pieces": message["pieces"]})
