"""Agents of the suite's own fleets; workers import this module by name."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from ares_celery import AgentContext, Event, StreamResult, SyncAgentContext, agent


@agent("ticker")
class Ticker:
    """Counts its own events; the state must always equal the fold of what was acknowledged."""

    def __init__(self, agent_id: str, every: float = 0.05, events: int = 0, journal: str = "") -> None:
        self.agent_id, self.every, self.events, self.journal = agent_id, every, events, journal
        self.ticks: list[int] = []
        self.total = 0

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested and not (self.events and self.total >= self.events):
            await ctx.emit("ticked", {"n": self.total + 1, "incarnation": ctx.incarnation})
            if self.journal:
                _write(self.journal, f"{self.agent_id} {ctx.incarnation} {self.total} {time.monotonic():.3f}")
            await ctx.sleep(self.every)

    def apply(self, event: Event) -> None:
        if event.type == "ticked":
            self.total += 1

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        return {"total": self.total, "incarnation": ctx.incarnation, "pid": os.getpid(), "echo": message}

    def snapshot(self) -> dict[str, object]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.total = int(state["total"])


@agent("plain-ticker")
class PlainTicker:
    """The same with plain methods."""

    def __init__(self, agent_id: str, every: float = 0.05, events: int = 0) -> None:
        self.agent_id, self.every, self.events, self.total = agent_id, every, events, 0

    def start(self, ctx: SyncAgentContext) -> None:
        while not ctx.stop_requested and not (self.events and self.total >= self.events):
            ctx.emit("ticked", {"n": self.total + 1, "incarnation": ctx.incarnation})
            ctx.sleep(self.every)

    def apply(self, event: Event) -> None:
        if event.type == "ticked":
            self.total += 1

    def process(self, ctx: SyncAgentContext, message: Any) -> Any:
        return {"total": self.total, "incarnation": ctx.incarnation, "pid": os.getpid(), "echo": message}

    def snapshot(self) -> dict[str, object]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.total = int(state["total"])


@agent("idler")
class Idler:
    """Waits, and answers."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(3600)

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        return {"echo": message, "incarnation": ctx.incarnation, "pid": os.getpid()}


@agent("server")
class Server:
    """Has no main loop: only answers."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        if message == "fail":
            raise ValueError("asked to fail")
        return {"echo": message, "incarnation": ctx.incarnation}


@agent("short-lived")
class ShortLived:
    """Dies a while after each start."""

    def __init__(self, agent_id: str, lives: float = 2.0) -> None:
        self.lives = lives

    async def start(self, ctx: AgentContext) -> None:
        await ctx.sleep(self.lives)
        if not ctx.stop_requested:
            raise RuntimeError("as it always does")


@agent("unrestorable")
class Unrestorable:
    """Cannot come back: its constructor raises while the flag file exists."""

    def __init__(self, agent_id: str, flag: str = "", journal: str = "") -> None:
        if journal:
            _write(journal, f"{time.monotonic():.3f} {os.getpid()}")
        if flag and Path(flag).exists():
            raise RuntimeError("cannot be made")

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(3600)


@agent("stubborn")
class Stubborn:
    """Does not end when it is asked to."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> None:
        while True:
            try:
                time.sleep(3600)  # on purpose: a call that blocks outside of anybody's reach
            except Exception:  # noqa: BLE001, S112 - on purpose: eats what it can
                continue


@agent("raiser")
class Raiser:
    """Ends in the way that its config names."""

    def __init__(self, agent_id: str, how: str = "exception") -> None:
        self.how = how

    async def start(self, ctx: AgentContext) -> None:
        match self.how:
            case "memory":
                raise MemoryError("too much")
            case "exit":
                sys.exit(9)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case _:
                raise RuntimeError("on purpose")


@agent("poison")
class Poison:
    """Ends its process by SIGKILL at a step of its work."""

    def __init__(self, agent_id: str, step: int = 3) -> None:
        self.step, self.total = step, 0

    async def start(self, ctx: AgentContext) -> None:
        for _ in range(self.step):
            await ctx.emit("ticked", {"n": self.total + 1})
        os.kill(os.getpid(), signal.SIGKILL)

    def apply(self, event: Event) -> None:
        self.total += 1


@agent("exiting")
class Exiting:
    """Ends its process while that seems healthy."""

    def __init__(self, agent_id: str, after: float = 0.2) -> None:
        self.after = after

    async def start(self, ctx: AgentContext) -> None:
        await ctx.sleep(self.after)
        os._exit(9)


@agent("parent")
class Parent:
    """Starts a process that it never ends."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.child = 0

    async def start(self, ctx: AgentContext) -> None:
        code = "import time; time.sleep(600)"
        self.child = subprocess.Popen([sys.executable, "-c", code]).pid  # noqa: ASYNC220 - on purpose: left behind
        while not ctx.stop_requested:
            await ctx.sleep(3600)

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        return {"child": self.child, "pid": os.getpid()}


@agent("counter")
class Counter:
    """The sample of the documentation, as it is printed there."""

    def __init__(self, agent_id: str, step: int = 1) -> None:
        self.agent_id, self.step, self.total = agent_id, step, 0

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.emit("counter.ticked", {"by": self.step})
            await ctx.sleep(0.1)

    def apply(self, event: Event) -> None:
        if event.type == "counter.ticked":
            self.total += event.payload["by"]

    async def process(self, ctx: AgentContext, message: object) -> object:
        return {"total": self.total}

    def snapshot(self) -> dict[str, object]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, object]) -> None:
        self.total = int(str(state["total"]))


@agent("finisher")
class Finisher:
    """Does its work for a while, and then it is done."""

    def __init__(self, agent_id: str, lives: float = 1.0) -> None:
        self.lives = lives

    async def start(self, ctx: AgentContext) -> None:
        await ctx.sleep(self.lives)


@agent("slow-maker")
class SlowMaker:
    """Takes its time to be made once a flag file exists; says in a journal that it lives."""

    def __init__(self, agent_id: str, flag: str, journal: str, takes: float = 2.0) -> None:
        self.journal = journal
        if Path(flag).exists():
            _write(journal, f"making {os.getpid()}")
            time.sleep(takes)  # on purpose: recovery that is under way when something else happens

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            _write(self.journal, f"alive {os.getpid()}")
            await ctx.sleep(0.1)


@agent("slow-stopper")
class SlowStopper:
    """Takes its time to end."""

    def __init__(self, agent_id: str, takes: float = 1.0) -> None:
        self.takes = takes

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(3600)

    async def stop(self, ctx: AgentContext) -> None:
        await asyncio.sleep(self.takes)  # on purpose: an end that others have to wait for

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        return {"incarnation": ctx.incarnation, "pid": os.getpid()}


def _write(path: str, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(line + "\n")


@agent("streamer")
class Streamer:
    """Streams numbers; takes long over its first message."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        """Takes its time in its first life, then answers."""
        await ctx.emit("handled", {"message": message})
        if ctx.incarnation == 1:
            await ctx.sleep(60)
        return {"pid": os.getpid(), "incarnation": ctx.incarnation, "echo": message}

    async def process_stream(self, ctx: AgentContext, message: dict[str, Any]) -> AsyncIterator[Any]:
        """Yields as many numbers as asked for, with a pause between."""
        yield {"pid": os.getpid()}
        for number in range(int(message["count"])):
            yield number
            await ctx.sleep(message["pause"])
        yield StreamResult({"count": message["count"]})
