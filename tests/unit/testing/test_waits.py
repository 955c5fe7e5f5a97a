"""Waits of agents in simulated time: timers, approvals, deploys in between."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ares_celery import AgentContext, Approval, SyncAgentContext
from ares_celery.model.agent import AgentState
from ares_celery.testing import AgentHarness

WEEK = timedelta(days=7)
#: When simulated time begins.
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


class Sleeper:
    """Waits a week for a moment that it knows."""

    def __init__(self, agent_id: str, *, release_slot: bool = False) -> None:
        self.release_slot, self.lives = release_slot, 0

    async def start(self, ctx: AgentContext) -> str:
        await ctx.emit("began")
        try:
            await ctx.sleep_until(BEGINNING + WEEK, release_slot=self.release_slot)
        finally:
            self.lives += 1
        await ctx.emit("woke")
        return "done"


class PlainSleeper:
    """The same, plain."""

    def __init__(self, agent_id: str, *, release_slot: bool = False) -> None:
        self.release_slot, self.lives = release_slot, 0

    def start(self, ctx: SyncAgentContext) -> str:
        ctx.emit("began")
        try:
            ctx.sleep_until(BEGINNING + WEEK, release_slot=self.release_slot)
        finally:
            self.lives += 1
        ctx.emit("woke")
        return "done"


class Deployer:
    """Asks before it deploys."""

    def __init__(self, agent_id: str, *, release_slot: bool = False, timeout: str | None = None) -> None:
        self.options: dict[str, Any] = {"release_slot": release_slot, "timeout": timeout}
        self.word: Approval | None = None

    async def start(self, ctx: AgentContext) -> str:
        self.word = await ctx.wait_for_approval("deploy", {"to": "prod"}, **self.options)
        await ctx.emit("deployed" if self.word else "left", {"by": self.word.actor})
        return str(self.word.decision)


class PlainDeployer:
    """The same, plain."""

    def __init__(self, agent_id: str, *, release_slot: bool = False, timeout: str | None = None) -> None:
        self.options: dict[str, Any] = {"release_slot": release_slot, "timeout": timeout}
        self.word: Approval | None = None

    def start(self, ctx: SyncAgentContext) -> str:
        self.word = ctx.wait_for_approval("deploy", {"to": "prod"}, **self.options)
        ctx.emit("deployed" if self.word else "left", {"by": self.word.actor})
        return str(self.word.decision)


def types(harness: AgentHarness) -> list[str]:
    """The types of all its events."""
    return [event.type for event in harness.all_events]


@pytest.mark.parametrize("kind", [Sleeper, PlainSleeper])
@pytest.mark.parametrize("release_slot", [False, True])
def test_a_week_passes(kind: type[Any], *, release_slot: bool) -> None:
    """It wakes when the moment has come, and not before."""
    with AgentHarness(kind, config={"release_slot": release_slot}) as harness:
        harness.advance(timedelta(seconds=1))
        assert harness.is_waiting is release_slot
        harness.advance(WEEK - timedelta(seconds=2))
        assert "woke" not in types(harness)
        woke = harness.run_until("woke", timeout=2)
        assert woke.time - (BEGINNING + WEEK) < timedelta(seconds=1)
        assert harness.info.state is AgentState.COMPLETED
        assert harness.info.restarts == 0


@pytest.mark.parametrize("kind", [Deployer, PlainDeployer])
@pytest.mark.parametrize("release_slot", [False, True])
def test_a_decision_brings_it_on(kind: type[Any], *, release_slot: bool) -> None:
    """With what was decided."""
    with AgentHarness(kind, config={"release_slot": release_slot}) as harness:
        harness.advance(timedelta(days=3))
        assert harness.is_waiting is release_slot
        assert [(one.name, one.state, one.payload) for one in harness.interrupts] == [
            ("deploy", "open", {"to": "prod"})
        ]
        harness.approve("deploy", "yes", {"window": "now"})
        harness.run_until("deployed", timeout=5)
        assert harness.agent.word.payload == {"window": "now"}
        assert harness.info.result == "yes"
        assert types(harness).count("interrupt.created") == types(harness).count("interrupt.resolved") == 1
