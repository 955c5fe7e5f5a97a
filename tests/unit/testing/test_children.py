"""An agent under test that spawns others: the test plays them."""

from __future__ import annotations

from typing import Any

import pytest

from ares_celery import (
    AgentContext,
    AgentNotFoundError,
    AgentNotRunningError,
    AgentSpec,
    StepIdReusedError,
    SyncAgentContext,
)
from ares_celery.testing import AgentHarness


class Planner:
    """Has its work done by a child, and is told of another one's end."""

    def __init__(self, agent_id: str) -> None:
        self.told: list[Any] = []

    async def start(self, ctx: AgentContext) -> object:
        """Spawns, and waits."""
        await ctx.spawn(AgentSpec(id=f"{ctx.agent_id}-helper", type="helper"))
        asked = await ctx.spawn(AgentSpec(id=f"{ctx.agent_id}-child", type="searcher", config={"q": 1}), report=False)
        return await asked.result()

    async def process(self, ctx: AgentContext, message: object) -> object:
        """Notes what it is told."""
        self.told.append(message)
        return None


class PlainPlanner:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.told: list[Any] = []

    def start(self, ctx: SyncAgentContext) -> object:
        """Spawns, and waits."""
        ctx.spawn(AgentSpec(id=f"{ctx.agent_id}-helper", type="helper"))
        asked = ctx.spawn(AgentSpec(id=f"{ctx.agent_id}-child", type="searcher", config={"q": 1}), report=False)
        return asked.result()

    def process(self, ctx: SyncAgentContext, message: object) -> object:
        """Notes what it is told."""
        self.told.append(message)
        return None


@pytest.mark.parametrize("kind", [Planner, PlainPlanner])
def test_a_test_plays_the_children_of_its_agent(kind: type) -> None:
    """It lets them complete, or be given up on; the agent gets results and reports as from real ones."""
    with AgentHarness(kind, "p") as harness:
        harness.advance(0)
        assert [(child.id, child.type, child.state) for child in harness.children] == [
            ("p-helper", "helper", "starting"),
            ("p-child", "searcher", "starting"),
        ]
        harness.park_child("p-helper", "three tries")
        harness.advance(5)
        assert harness.agent.told == [
            {"child": "p-helper", "state": "parked", "cause": "attempts", "reason": "three tries"}
        ]
        harness.complete_child("p-child", {"found": 3})
        harness.advance(2)
        assert {child.id: child.state for child in harness.children} == {"p-helper": "parked", "p-child": "completed"}
        assert {child.id: child.result for child in harness.children}["p-child"] == {"found": 3}


def test_a_death_while_it_waits_spawns_nothing_twice() -> None:
    """The next life waits for the same children."""
    with AgentHarness(Planner, "p") as harness:
        harness.crash()
        harness.restart()
        harness.advance(0)
        harness.crash()
        harness.restart()
        harness.advance(0)
        assert len(harness.children) == 2
        assert [event.type for event in harness.all_events].count("child.spawned") == 2
        harness.complete_child("p-child", 7)
        harness.advance(2)
        assert {child.incarnation for child in harness.children if child.id == "p-child"} == {1}


def test_a_stop_takes_the_children_along() -> None:
    """Those that do not run are stopped at once; what is over cannot be played any more."""
    with AgentHarness(Planner, "p") as harness:
        harness.advance(0)
        harness.stop()
        assert {child.state for child in harness.children} == {"stopped"}
        with pytest.raises(AgentNotRunningError):
            harness.complete_child("p-child")
        with pytest.raises(AgentNotFoundError, match="has no child 'q'"):
            harness.complete_child("q")


class Patient:
    """Tells when a wait for its child fails."""

    def __init__(self, agent_id: str) -> None:
        self.failed = False

    async def start(self, ctx: AgentContext) -> None:
        """Waits."""
        child = await ctx.spawn(AgentSpec(id="c", type="searcher"))
        try:
            await child.result()
        except AgentNotRunningError:
            self.failed = True


def test_an_agent_that_is_stopped_with_its_child_sees_no_failure() -> None:
    """The wait ends in order, although the child is stopped first; one that somebody else stops is a failure."""
    with AgentHarness(Patient, "p") as harness:
        harness.advance(0)
        harness.stop()
        assert {child.state for child in harness.children} == {"stopped"}
        assert not harness.agent.failed
        assert harness.info.state == "stopped"
    with AgentHarness(Patient, "p") as harness:
        harness.advance(0)
        harness.manager.stop_agent("c", wait=False)
        harness.advance(2)
        assert harness.agent.failed


class Doubling:
    """Spawns and asks the same twice."""

    def __init__(self, agent_id: str) -> None:
        self.refused: list[str] = []

    async def start(self, ctx: AgentContext) -> None:
        """Keeps what it is told."""
        await ctx.spawn(AgentSpec(id="child", type="helper"), report=False)
        try:
            await ctx.spawn(AgentSpec(id="child", type="helper"), report=False)
        except StepIdReusedError as error:
            self.refused.append(str(error))
        await ctx.wait_for_approval("deploy")
        try:
            await ctx.wait_for_approval("deploy")
        except StepIdReusedError as error:
            self.refused.append(str(error))
        await ctx.sleep(60)


def test_the_same_child_or_question_twice_is_refused_in_its_own_words() -> None:
    """Nothing of steps, whose ids the agent does not give."""
    with AgentHarness(Doubling, "p") as harness:
        harness.advance(0)
        harness.approve("deploy", "yes")
        harness.advance(1)
        child, question = harness.agent.refused
        assert child.startswith("child 'child' was spawned already in execution 'main' of agent 'p'; keep the handle")
        assert "f'worker-{i}'" in child
        assert question.startswith(
            "question 'deploy' was asked already in execution 'main' of agent 'p'; keep the answer"
        )
        assert len(harness.children) == 1
