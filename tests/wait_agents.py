"""Agents that wait for people and for moments; workers of tests/fault/test_waits.py import them."""

from __future__ import annotations

from datetime import datetime

from ares_celery import AgentContext, SyncAgentContext, agent
from tests.step_agents import write


@agent("asker")
class Asker:
    """Does something, asks, and does something else; each effect is a line of its journal."""

    def __init__(self, agent_id: str, journal: str, *, release_slot: bool) -> None:
        self.journal, self.release_slot = journal, release_slot

    async def start(self, ctx: AgentContext) -> str:
        await ctx.step("before", write, self.journal, "before")
        word = await ctx.wait_for_approval("deploy", {"to": "prod"}, timeout="7d", release_slot=self.release_slot)
        await ctx.step("after", write, self.journal, f"after {word.decision}")
        return str(word.decision)


@agent("plain-asker")
class PlainAsker:
    """The same, plain."""

    def __init__(self, agent_id: str, journal: str, *, release_slot: bool) -> None:
        self.journal, self.release_slot = journal, release_slot

    def start(self, ctx: SyncAgentContext) -> str:
        ctx.step("before", write, self.journal, "before")
        word = ctx.wait_for_approval("deploy", {"to": "prod"}, timeout="7d", release_slot=self.release_slot)
        ctx.step("after", write, self.journal, f"after {word.decision}")
        return str(word.decision)


@agent("sleeper")
class Sleeper:
    """Does something, waits for a moment, and does something else."""

    def __init__(self, agent_id: str, journal: str, until: str, *, release_slot: bool) -> None:
        self.journal, self.until, self.release_slot = journal, datetime.fromisoformat(until), release_slot

    async def start(self, ctx: AgentContext) -> str:
        await ctx.step("before", write, self.journal, "before")
        await ctx.sleep_until(self.until, release_slot=self.release_slot)
        await ctx.step("after", write, self.journal, "after")
        return "woke"


@agent("plain-sleeper")
class PlainSleeper:
    """The same, plain."""

    def __init__(self, agent_id: str, journal: str, until: str, *, release_slot: bool) -> None:
        self.journal, self.until, self.release_slot = journal, datetime.fromisoformat(until), release_slot

    def start(self, ctx: SyncAgentContext) -> str:
        ctx.step("before", write, self.journal, "before")
        ctx.sleep_until(self.until, release_slot=self.release_slot)
        ctx.step("after", write, self.journal, "after")
        return "woke"
