"""A tree of agents shares one budget, on a real store in which its members lie in different shards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from ares_celery.agents.context import AgentContext, SyncAgentContext
from ares_celery.agents.tools import tool
from ares_celery.errors import AgentParkedError, StoreUnavailableError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentSpec
from ares_celery.model.command import Update
from ares_celery.model.plan import Plan
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = pytest.mark.integration

CHILDREN = ("child-1", "child-2", "child-3")


@tool("it-budget-look", replay="safe")
def look() -> str:
    """What may be refused."""
    return "seen"


class Member:
    """Asks for a tool, then charges."""

    def __init__(self, agent_id: str) -> None:
        pass

    async def process(self, ctx: Any, message: dict[str, int]) -> object:
        """Gives what it has spent."""
        await ctx.tool(look)()
        return await ctx.charge(**message)


class PlainMember:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        pass

    def process(self, ctx: Any, message: dict[str, int]) -> object:
        """As above."""
        ctx.tool(look)()
        return ctx.charge(**message)


@pytest.fixture(params=[Member, PlainMember], ids=["async", "plain"])
def runtime(request: pytest.FixtureRequest, redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A top with 100 tokens and 300 steps, and three members below it; all run."""
    with Runtime(redis_server.url, namespace, hints=True, shards=16) as made:
        made.manager.start()
        made.register("member", request.param)
        made.manager.start_agent(AgentSpec(id="top", type="member", budget={"tokens": 100, "steps": 300}))
        for child in CHILDREN:
            made.manager.register_agent(AgentSpec(id=child, type="member", budget={"usd": 5}))
            put_below(made, child, "top")
            made.manager.start_agent(child)
        for agent_id in ("top", *CHILDREN):
            made.until(agent_id, "running")
        yield made


def put_below(runtime: Runtime, agent_id: str, root: str) -> None:
    """Makes an agent that does not run yet a member of a tree."""
    read = runtime.store.read(AgentId(agent_id))
    assert read.record is not None
    plan = Plan(Update(), read.record, replace(read.record, root=root))
    runtime.store.commit(plan, read, op=uuid4().hex)


def ask(runtime: Runtime, agent_id: str, **charge: int) -> Any:
    """Has an agent spend something."""
    return runtime.manager.process(agent_id, charge, timeout=10)


def parkings(runtime: Runtime, agent_id: str) -> list[str]:
    """Why it was parked, each time."""
    found = runtime.store.events.read(agent_id)
    return [str(event.payload["detail"]) for event in found if event.type == "agent.parked"]


@pytest.mark.pain("P40")
def test_three_children_share_the_budget_of_the_top(runtime: Runtime) -> None:
    """What a sibling has used up is noticed within a second; each is parked, and told whose budget it was."""
    shards = {runtime.store._bound.keys.shard_of(agent_id) for agent_id in ("top", *CHILDREN)}
    assert len(shards) > 1
    for child in CHILDREN:
        ask(runtime, child, tokens=20)
    ask(runtime, "top", tokens=30)
    top = runtime.manager.get_agent_info("top")
    assert top is not None
    assert (top.spent["tokens"], top.spent_below) == (30, {"tokens": 60, "usd": 0.0, "steps": 3})
    ask(runtime, "child-1", tokens=10)

    def refusal(agent_id: str) -> str:
        try:
            ask(runtime, agent_id)
        except AgentParkedError as error:
            return str(error)
        return ""

    said: dict[str, str] = {}

    def is_refused(agent_id: str) -> bool:
        said[agent_id] = refusal(agent_id)
        return bool(said[agent_id])

    for agent_id in ("child-2", "child-1", "child-3", "top"):
        wait_until(partial(is_refused, agent_id), "the refusal", timeout=3)
        parked = f"agent {agent_id!r} is parked (budget): the tokens of agent 'top' are used up (100 of 100)"
        assert said[agent_id].startswith(parked)
    for agent_id in ("top", *CHILDREN):
        info = runtime.until(agent_id, "parked")
        assert (info.cause, info.charged, info.deaths) == ("budget", 0, {})


@pytest.mark.pain("P40")
def test_the_children_go_on_when_the_top_is_allowed_more(runtime: Runtime) -> None:
    """One that is un-parked before is parked again at its next step, with the message that it was refused for."""
    ask(runtime, "child-1", tokens=200)
    with pytest.raises(AgentParkedError):
        ask(runtime, "child-1", tokens=1)
    before = runtime.until("child-1", "parked").incarnation
    runtime.manager.unpark_agent("child-1")
    wait_until(lambda: len(parkings(runtime, "child-1")) == 2, "the second parking")
    assert runtime.until("child-1", "parked").incarnation == before + 1
    assert "200 of 100" in parkings(runtime, "child-1")[-1]
    runtime.manager.update_agent("top", budget={"tokens": 1_000})
    runtime.manager.unpark_agent("child-1")
    runtime.until("child-1", "running")
    assert ask(runtime, "child-1", tokens=1)["tokens"] == 202


def test_charges_at_once_from_all_members_add_up(runtime: Runtime) -> None:
    """None is lost, none counts twice."""

    def spend(child: str) -> None:
        for _ in range(4):
            ask(runtime, child, steps=1, usd=1)

    threads = [threading.Thread(target=spend, args=(child,)) for child in CHILDREN]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    top = runtime.manager.get_agent_info("top")
    assert top is not None
    assert top.spent_below == {"tokens": 0, "usd": 12.0, "steps": 24}


def test_what_was_not_told_is_told_at_the_end(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """A telling that is lost costs nothing: the end of the incarnation makes it good, and so does the next charge."""
    told = type(runtime.store).share_spending

    def lost(*_: object) -> object:
        raise StoreUnavailableError(url="nowhere", problem="lost on the way")

    host = runtime.store.charge(
        AgentId("child-1"),
        runtime.store.read(AgentId("child-1")).record.fence,  # type: ignore[union-attr]
        _spent(7),
        op="a charge whose telling is lost",
    )
    assert host.own.tokens == 7
    assert runtime.manager.get_agent_info("top").spent_below is None  # type: ignore[union-attr]
    runtime.manager.stop_agent("child-1")
    runtime.until("child-1", "stopped")

    def is_told() -> bool:
        return runtime.manager.get_agent_info("top").spent_below == {"tokens": 7, "usd": 0.0, "steps": 0}  # type: ignore[union-attr]

    wait_until(is_told, "the end to tell it")
    monkeypatch.setattr(type(runtime.store), "share_spending", lost)
    runtime.manager.stop_agent("child-2")
    runtime.until("child-2", "stopped")
    monkeypatch.setattr(type(runtime.store), "share_spending", told)
    ask(runtime, "child-3", tokens=1)
    below = runtime.manager.get_agent_info("top").spent_below  # type: ignore[union-attr]
    assert below is not None
    assert below["tokens"] == 8


def _spent(tokens: int) -> Any:
    from ares_celery.model.budget import Spent

    return Spent(tokens=tokens)


def test_a_tree_without_its_top_goes_on(runtime: Runtime) -> None:
    """Each by its own budget."""
    runtime.manager.stop_agent("top")
    runtime.until("top", "stopped")
    runtime.manager.delete_agent("top")
    assert ask(runtime, "child-1", tokens=500)["tokens"] == 500
    ask(runtime, "child-1", usd=5)
    with pytest.raises(AgentParkedError, match="usd of agent 'child-1' are used up"):
        ask(runtime, "child-1", tokens=1)
    assert runtime.manager.get_agent_info("top") is None


class Parent:
    """Has others do the work."""

    def __init__(self, agent_id: str) -> None:
        pass

    async def process(self, ctx: Any, message: list[str]) -> object:
        """Spawns one for each name; without any it only looks."""
        if not message:
            return await ctx.tool(look)()
        return [(await ctx.spawn(AgentSpec(id=name, type="worker"), report=False)).id for name in message]


class Worker:
    """Is expensive."""

    def __init__(self, agent_id: str) -> None:
        pass

    async def start(self, ctx: Any) -> object:
        """Has spent by its end what it says."""
        return await ctx.charge(tokens=40)


@pytest.mark.pain("P40")
def test_spawned_agents_open_no_allowance_of_their_own(redis_server: RedisServer, namespace: str) -> None:
    """Three of them have used up what their parent had, and it can do no more."""
    with Runtime(redis_server.url, namespace, hints=True, shards=16) as runtime:
        runtime.manager.start()
        runtime.register("parent", Parent)
        runtime.register("worker", Worker)
        runtime.manager.start_agent(AgentSpec(id="p", type="parent", budget={"tokens": 100}))
        runtime.until("p", "running")
        assert runtime.manager.process("p", list(CHILDREN), timeout=10) == list(CHILDREN)
        for child in CHILDREN:
            runtime.until(child, "completed")
        below = runtime.manager.get_agent_info("p").spent_below  # type: ignore[union-attr]
        assert below == {"tokens": 120, "usd": 0.0, "steps": 0}

        def is_refused() -> bool:
            try:
                runtime.manager.process("p", [], timeout=10)
            except AgentParkedError as error:
                return "tokens of agent 'p' are used up (120 of 100)" in str(error)
            return False

        wait_until(is_refused, "the refusal", timeout=3)
        runtime.until("p", "parked")


class Grower:
    """Spawns the child that a message names, or charges the tokens it says."""

    def __init__(self, agent_id: str) -> None:
        pass

    async def process(self, ctx: AgentContext, message: str | int) -> object:
        """Gives how many tokens it has spent."""
        if isinstance(message, str):
            await ctx.spawn(AgentSpec(id=message, type="grower"))
            return None
        await ctx.tool(look)()
        return (await ctx.charge(tokens=message))["tokens"]


class PlainGrower:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        pass

    def process(self, ctx: SyncAgentContext, message: str | int) -> object:
        """As above."""
        if isinstance(message, str):
            ctx.spawn(AgentSpec(id=message, type="grower"))
            return None
        ctx.tool(look)()
        return ctx.charge(tokens=message)["tokens"]


@pytest.mark.parametrize("made", [Grower, PlainGrower], ids=["async", "plain"])
@pytest.mark.pain("P40")
def test_who_is_spawned_by_a_child_draws_on_the_budget_of_the_top(
    made: type[Any], redis_server: RedisServer, namespace: str
) -> None:
    """However deep: what the last one spends is told to the first, and its budget holds them all."""
    with Runtime(redis_server.url, namespace, hints=True, shards=16) as runtime:
        runtime.manager.start()
        runtime.register("grower", made)
        runtime.manager.start_agent(AgentSpec(id="top", type="grower", budget={"tokens": 50}))
        for parent, child in (("top", "middle"), ("middle", "leaf")):
            runtime.until(parent, "running")
            runtime.manager.process(parent, child, timeout=10)
        runtime.until("leaf", "running")
        assert runtime.manager.process("middle", 20, timeout=10) == 20
        assert runtime.manager.process("leaf", 30, timeout=10) == 30
        top = runtime.manager.get_agent_info("top")
        assert top is not None
        assert top.spent_below is not None
        assert (top.spent_below["tokens"], top.spent["tokens"]) == (50, 0)
        for agent_id in ("leaf", "top"):
            wait_until(partial(_is_refused_for_top, runtime, agent_id), "the refusal", timeout=3)
            info = runtime.until(agent_id, "parked")
            assert (info.cause, info.charged, info.deaths) == ("budget", 0, {})


def _is_refused_for_top(runtime: Runtime, agent_id: str) -> bool:
    try:
        runtime.manager.process(agent_id, 0, timeout=10)
    except AgentParkedError as error:
        return "the tokens of agent 'top' are used up (50 of 50)" in str(error)
    return False
