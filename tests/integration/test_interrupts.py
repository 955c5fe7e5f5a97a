"""Plug-ins that want a person's word before a step, and people who give it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ares_celery import (
    AgentContext,
    AgentSpec,
    AgentState,
    InterruptPlugin,
    InterruptResolvedError,
    LocalManager,
    Manager,
    PluginBus,
    RuntimeConfig,
    SyncAgentContext,
)
from ares_celery.agents.registry import Registry
from tests.hosting import FAST
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

RAN: list[str] = []


def pay(order: str) -> str:
    """What needs a word."""
    RAN.append(order)
    return f"paid {order}"


class Payer:
    """Pays in a step."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> str:
        return await ctx.step("pay", pay, self.agent_id)


class PlainPayer:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> str:
        return ctx.step("pay", pay, self.agent_id)


Opener = Callable[[InterruptPlugin], LocalManager]


@pytest.fixture
def opener(redis_server: RedisServer, namespace: str) -> Iterator[Opener]:
    """Opens a runtime in this process with a plug-in."""
    opened: list[LocalManager] = []

    def open_with(plugin: InterruptPlugin) -> LocalManager:
        registry = Registry()
        registry.register("payer", Payer)
        registry.register("plain", PlainPayer)
        bus = PluginBus()
        bus.register(plugin)
        bus.start()
        manager = Manager.local(
            RuntimeConfig.parse(FAST), redis_url=redis_server.url, namespace=namespace, registry=registry, bus=bus
        )
        opened.append(manager)
        manager.start()
        return manager

    yield open_with
    for manager in opened:
        manager.close()


def told(manager: LocalManager, agent_id: str) -> list[tuple[str, Any]]:
    """What the stream says of questions and steps."""
    events = manager.events.read(agent_id)
    return [
        (event.type, event.payload.get("decision", event.payload.get("name", event.payload.get("step"))))
        for event in events
        if event.type.startswith(("interrupt.", "step."))
    ]


@pytest.mark.spec(134)
@pytest.mark.parametrize("kind", ["payer", "plain"])
@pytest.mark.parametrize("release_slot", [False, True])
def test_a_step_waits_for_a_word_and_goes_on_with_a_yes(opener: Opener, kind: str, *, release_slot: bool) -> None:
    """The step does not run before; the question and its answer are in the stream, in this order."""
    agent_id = f"{kind}-{release_slot}"
    manager = opener(InterruptPlugin(["pay"], release_slot=release_slot))
    manager.start_agent(AgentSpec(id=agent_id, type=kind))
    (question,) = wait_until(lambda: manager.interrupts(agent_id), "the question")
    assert (question.name, question.state) == ("step:pay", "open")
    assert question.payload["step"] == "pay"
    if release_slot:
        manager.wait_for(agent_id, [AgentState.WAITING], timeout=10)
        assert manager.get_agent_info(agent_id).worker is None  # type: ignore[union-attr]
    assert agent_id not in RAN
    assert told(manager, agent_id) == [("interrupt.created", "step:pay")]
    manager.approve(agent_id, "step:pay", "yes")
    info = manager.wait_for(agent_id, [AgentState.COMPLETED], timeout=10)
    assert (info.result, info.restarts) == (f"paid {agent_id}", 0)
    assert RAN.count(agent_id) == 1
    steps = [("step.completed", "approval:step:pay"), ("step.completed", "pay")]
    assert told(manager, agent_id) == [("interrupt.created", "step:pay"), ("interrupt.resolved", "yes"), *steps]


@pytest.mark.spec(134)
def test_a_no_rejects_the_step(opener: Opener) -> None:
    """It raises in the agent, and never runs; a second word is too late."""
    manager = opener(InterruptPlugin(lambda step: {"why": "money"} if step.step_id == "pay" else None))
    manager.start_agent(AgentSpec(id="no-1", type="payer", restart="temporary"))
    (question,) = wait_until(lambda: manager.interrupts("no-1"), "the question")
    assert question.payload["why"] == "money"
    manager.approve("no-1", "step:pay", "reject", reason="too much")
    info = manager.wait_for("no-1", [AgentState.STOPPED, AgentState.PARKED], timeout=10)
    assert "StepRejectedError" in info.last_error
    assert "'reject'" in info.last_error
    assert "no-1" not in RAN
    with pytest.raises(InterruptResolvedError):
        manager.approve("no-1", "step:pay", "yes")
    assert ("interrupt.resolved", "reject") in told(manager, "no-1")


def test_steps_that_need_no_word_run_at_once(opener: Opener) -> None:
    """Nobody is asked."""
    manager = opener(InterruptPlugin(["refund", "mail:*"]))
    manager.start_agent(AgentSpec(id="free-1", type="payer"))
    assert manager.wait_for("free-1", [AgentState.COMPLETED], timeout=10).result == "paid free-1"
    assert manager.interrupts("free-1") == []
