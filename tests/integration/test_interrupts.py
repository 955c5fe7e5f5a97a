"""Plug-ins that want a person's word before a step, and people who give it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ares_celery import (
    AgentContext,
    AgentFailedError,
    AgentParkedError,
    AgentSpec,
    AgentState,
    InterruptPlugin,
    InterruptResolvedError,
    LocalManager,
    Manager,
    PluginBus,
    RuntimeConfig,
    StepRejectedError,
    SyncAgentContext,
)
from ares_celery.agents.registry import Registry
from ares_celery.cli.agent_words import standing
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


class Buyer:
    """Pays twice at once."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> list[str]:
        orders = (f"{self.agent_id}-{number}" for number in (1, 2))
        return await asyncio.gather(*(ctx.step(f"pay-{order}", pay, order) for order in orders))


class PlainPayer:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> str:
        return ctx.step("pay", pay, self.agent_id)


class Giver:
    """Goes on without its first step."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> list[str]:
        try:
            gift = await ctx.step("gift", pay, "gift")
        except StepRejectedError:
            gift = "no gift"
        return [gift, await ctx.step("pay", pay, self.agent_id)]


class Clerk:
    """Pays when it is told to."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, order: str) -> str:
        return await ctx.step("pay", pay, order)


class PlainClerk:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: SyncAgentContext, order: str) -> str:
        return ctx.step("pay", pay, order)


class Bold:
    """Pays inside of a step that must not be repeated."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> str:
        return await ctx.step.with_options(replay="never")("outer", self.outer, ctx)

    async def outer(self, ctx: AgentContext) -> str:
        return await ctx.step("pay", pay, self.agent_id)


Opener = Callable[[InterruptPlugin], LocalManager]


@pytest.fixture
def opener(redis_server: RedisServer, namespace: str) -> Iterator[Opener]:
    """Opens a runtime in this process with a plug-in."""
    opened: list[LocalManager] = []

    def open_with(plugin: InterruptPlugin) -> LocalManager:
        registry = Registry()
        registry.register("payer", Payer)
        registry.register("buyer", Buyer)
        registry.register("plain", PlainPayer)
        registry.register("giver", Giver)
        registry.register("bold", Bold)
        registry.register("clerk", Clerk)
        registry.register("plain-clerk", PlainClerk)
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
    assert (info.state, info.cause) == (AgentState.PARKED, "step_rejected")
    assert "step 'pay' of agent 'no-1' was not allowed: 'reject' by" in info.reason
    assert "no-1" not in RAN
    with pytest.raises(InterruptResolvedError):
        manager.approve("no-1", "step:pay", "yes")
    assert ("interrupt.resolved", "reject") in told(manager, "no-1")


@pytest.mark.parametrize("kind", ["payer", "plain"])
def test_a_no_that_nobody_catches_parks_and_unparking_asks_anew(opener: Opener, kind: str) -> None:
    """No restart is used up. Each un-parking asks once more, under a new id; the yes runs the step, once."""
    agent_id = f"again-{kind}"
    manager = opener(InterruptPlugin(["pay"]))
    manager.start_agent(AgentSpec(id=agent_id, type=kind))
    ids: list[str] = []
    for go_on in (manager.unpark_agent, manager.restart_agent):
        (question,) = wait_until(lambda: asked(manager, agent_id, ids), "the question")
        ids.append(question.id)
        manager.approve(agent_id, "step:pay", "no", actor="ann")
        info = manager.wait_for(agent_id, [AgentState.PARKED], timeout=10)
        assert (info.cause, info.restarts, info.charged, info.deaths) == ("step_rejected", 0, 0, {})
        assert "'no' by ann" in info.reason
        with pytest.raises(AgentParkedError, match=f"ares agents unpark {agent_id}` to have the same question asked"):
            manager.start_agent(agent_id)
        assert "has the question asked again" in standing(info)
        assert agent_id not in RAN
        go_on(agent_id)
    (question,) = wait_until(lambda: asked(manager, agent_id, ids), "the question")
    manager.approve(agent_id, "step:pay", "yes")
    info = manager.wait_for(agent_id, [AgentState.COMPLETED], timeout=10)
    assert (info.result, RAN.count(agent_id)) == (f"paid {agent_id}", 1)
    said = [word for kind_, word in told(manager, agent_id) if kind_ == "interrupt.resolved"]
    assert said == ["no", "no", "yes"]


def asked(manager: LocalManager, agent_id: str, before: list[str]) -> list[Any]:
    """What it asks and has not asked before."""
    return [one for one in manager.interrupts(agent_id) if one.state == "open" and one.id not in before]


def test_a_no_that_the_code_catches_holds_in_all_its_lives(opener: Opener) -> None:
    """Also after somebody said no to another step, and un-parked the agent: only that one is asked anew."""
    manager = opener(InterruptPlugin(["gift", "pay"]))
    manager.start_agent(AgentSpec(id="giver-1", type="giver"))
    wait_until(lambda: asked(manager, "giver-1", []), "the first question")
    manager.approve("giver-1", "step:gift", "no")
    (pay_question,) = wait_until(lambda: asked(manager, "giver-1", []), "the second question")
    manager.approve("giver-1", "step:pay", "no")
    manager.wait_for("giver-1", [AgentState.PARKED], timeout=10)
    manager.unpark_agent("giver-1")
    (question,) = wait_until(lambda: asked(manager, "giver-1", [pay_question.id]), "the same question")
    assert question.name == "step:pay"
    manager.approve("giver-1", "step:pay", "yes")
    info = manager.wait_for("giver-1", [AgentState.COMPLETED], timeout=10)
    assert info.result == ["no gift", "paid giver-1"]
    assert [name for kind, name in told(manager, "giver-1") if kind == "interrupt.created"] == [
        "step:gift",
        "step:pay",
        "step:pay",
    ]


@pytest.mark.parametrize("kind", ["clerk", "plain-clerk"])
def test_a_no_to_a_step_of_a_message_is_its_answer(opener: Opener, kind: str) -> None:
    """The agent goes on, and the next message asks for itself."""
    agent_id = f"desk-{kind}"
    manager = opener(InterruptPlugin(["pay"]))
    manager.start_agent(AgentSpec(id=agent_id, type=kind))
    with ThreadPoolExecutor(1) as pool:
        for word in ("no", "yes"):
            answer = pool.submit(manager.process, agent_id, f"{agent_id} {word}", timeout=20)
            wait_until(lambda: asked(manager, agent_id, []), "the question")
            manager.approve(agent_id, "step:pay", word)
            if word == "yes":
                assert answer.result(10) == f"paid {agent_id} yes"
            else:
                with pytest.raises(AgentFailedError, match="was not allowed: 'no'"):
                    answer.result(10)
    info = manager.get_agent_info(agent_id)
    assert info is not None
    assert (info.state, info.deaths) == (AgentState.RUNNING, {})
    assert f"{agent_id} no" not in RAN


def test_a_no_inside_of_a_never_step_leaves_it_to_a_person(opener: Opener) -> None:
    """It is not the outcome of the step around it; where that may run again, people are asked anew."""
    manager = opener(InterruptPlugin(["outer/pay"]))
    manager.start_agent(AgentSpec(id="bold-1", type="bold"))
    (first,) = wait_until(lambda: asked(manager, "bold-1", []), "the question")
    manager.approve("bold-1", first.name, "no")
    assert manager.wait_for("bold-1", [AgentState.PARKED], timeout=10).cause == "step_rejected"
    manager.unpark_agent("bold-1")
    wait_until(lambda: told_cause(manager, "bold-1") == "reconcile", "the question what became of the outer step")
    manager.reconcile_agent("bold-1", retry=True, reason="nothing was paid")
    (again,) = wait_until(lambda: asked(manager, "bold-1", [first.id]), "the same question")
    manager.approve("bold-1", again.name, "yes")
    info = manager.wait_for("bold-1", [AgentState.COMPLETED], timeout=10)
    assert (info.result, info.deaths) == ("paid bold-1", {})


def told_cause(manager: LocalManager, agent_id: str) -> str:
    """Why it is parked."""
    info = manager.get_agent_info(agent_id)
    return info.cause if info is not None and info.state is AgentState.PARKED else ""


def test_steps_that_need_no_word_run_at_once(opener: Opener) -> None:
    """Nobody is asked."""
    manager = opener(InterruptPlugin(["refund", "mail:*"]))
    manager.start_agent(AgentSpec(id="free-1", type="payer"))
    assert manager.wait_for("free-1", [AgentState.COMPLETED], timeout=10).result == "paid free-1"
    assert manager.interrupts("free-1") == []


@pytest.mark.parametrize("release_slot", [False, True])
def test_two_steps_at_once_are_asked_about_at_once(opener: Opener, *, release_slot: bool) -> None:
    """Neither question waits for the answer to the other, also without the slot; each step runs once."""
    agent_id = f"two-{release_slot}"
    manager = opener(InterruptPlugin(["pay-*"], release_slot=release_slot))
    manager.start_agent(AgentSpec(id=agent_id, type="buyer"))
    wait_until(lambda: len(manager.interrupts(agent_id)) == 2, "both questions")
    if release_slot:
        manager.wait_for(agent_id, [AgentState.WAITING], timeout=10)
    for number in (2, 1):
        manager.approve(agent_id, f"step:pay-{agent_id}-{number}", "yes")
    info = manager.wait_for(agent_id, [AgentState.COMPLETED], timeout=10)
    assert info.result == [f"paid {agent_id}-{number}" for number in (1, 2)]
    assert [RAN.count(f"{agent_id}-{number}") for number in (1, 2)] == [1, 1]
    assert info.restarts == 0
