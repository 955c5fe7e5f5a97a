"""Several waits of one agent at the same time: each ends when it should, whoever gives the slot back first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ares_celery import AgentContext, ApprovalTimeoutError, SyncAgentContext
from ares_celery.model.agent import AgentState
from ares_celery.testing import AgentHarness

#: When simulated time begins.
BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
BOTH = [(True, True), (True, False), (False, True), (False, False)]


def told(harness: AgentHarness, *kinds: str) -> list[tuple[Any, timedelta]]:
    """What the agent has said first of each thing, and when."""
    found: dict[Any, timedelta] = {}
    for event in harness.all_events:
        if event.type in kinds:
            found.setdefault(event.payload.get("what", event.type), event.time - BEGINNING)
    return list(found.items())


def minutes(value: float) -> timedelta:
    """So many."""
    return timedelta(minutes=value)


async def all_of(kind: str, *waits: Awaitable[Any]) -> None:
    """The two ways to wait for several things."""
    if kind == "gather":
        await asyncio.gather(*waits)
        return
    async with asyncio.TaskGroup() as group:
        for wait in waits:
            group.create_task(_of(wait))


async def _of(wait: Awaitable[Any]) -> Any:
    return await wait


class Questions:
    """Asks two things at once."""

    def __init__(self, agent_id: str, release: list[bool], kind: str) -> None:
        self.release, self.kind = release, kind

    async def start(self, ctx: AgentContext) -> None:
        async def ask(name: str, *, release_slot: bool) -> None:
            word = await ctx.wait_for_approval(name, release_slot=release_slot)
            await ctx.emit("heard", {"what": f"{name} {word.decision}"})

        asked = [ask(name, release_slot=leaves) for name, leaves in zip("ab", self.release, strict=True)]
        await all_of(self.kind, *asked)


@pytest.mark.parametrize("kind", ["gather", "TaskGroup"])
@pytest.mark.parametrize("release", BOTH)
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_two_questions_are_asked_at_once_and_each_word_is_heard(kind: str, release: Any, order: str) -> None:
    """Whoever gives the slot back: both are asked before, each word wakes the agent, and nothing is asked twice."""
    with AgentHarness(Questions, config={"release": list(release), "kind": kind}) as harness:
        harness.advance(60)
        assert sorted(one.name for one in harness.interrupts) == ["a", "b"]
        assert harness.is_waiting is any(release)
        harness.approve(order[0], "yes")
        harness.advance(1)
        assert told(harness, "heard") == [(f"{order[0]} yes", minutes(1))]
        assert next((one.name, one.state) for one in harness.interrupts) == (order[1], "open")
        harness.approve(order[1], "no")
        harness.advance(1)
        assert harness.info.state is AgentState.COMPLETED
        assert harness.info.restarts == 0
        kinds = [event.type for event in harness.all_events]
        assert (kinds.count("interrupt.created"), kinds.count("step.completed")) == (2, 2)


class Mixed:
    """Asks, and waits for a moment."""

    def __init__(self, agent_id: str, release: list[bool], *, timeout: str | None = None, asks_first: bool) -> None:
        self.release, self.timeout, self.asks_first = release, timeout, asks_first

    async def start(self, ctx: AgentContext) -> None:
        async def ask() -> None:
            try:
                word = await ctx.wait_for_approval("a", timeout=self.timeout, release_slot=self.release[0])
            except ApprovalTimeoutError:
                await ctx.emit("heard", {"what": "nothing"})
            else:
                await ctx.emit("heard", {"what": word.decision})

        async def sleep() -> None:
            await ctx.sleep_until(BEGINNING + timedelta(hours=1), release_slot=self.release[1])
            await ctx.emit("woke")

        both = [ask(), sleep()]
        await asyncio.gather(*(both if self.asks_first else reversed(both)))


@pytest.mark.parametrize("asks_first", [True, False])
@pytest.mark.parametrize("release", BOTH)
def test_a_question_and_a_moment_do_not_wait_for_each_other(release: Any, *, asks_first: bool) -> None:
    """The moment comes in time while nobody has decided, and the word is heard at once before the moment."""
    config = {"release": list(release), "asks_first": asks_first}
    with AgentHarness(Mixed, config=config) as harness:
        harness.advance(60)
        assert harness.is_waiting is any(release)
        harness.advance("2h")
        assert told(harness, "heard", "woke") == [("woke", minutes(60))]
        harness.approve("a", "yes")
        harness.advance(1)
        assert told(harness, "heard", "woke")[1] == ("yes", minutes(121))
        assert harness.info.state is AgentState.COMPLETED
    with AgentHarness(Mixed, config=config) as harness:
        harness.advance(60)
        harness.approve("a", "yes")
        harness.advance("2h")
        assert told(harness, "heard", "woke") == [("yes", minutes(1)), ("woke", minutes(60))]
        assert harness.info.state is AgentState.COMPLETED


@pytest.mark.parametrize("asks_first", [True, False])
@pytest.mark.parametrize("release", BOTH)
def test_what_nobody_decides_in_time_ends_in_time_beside_a_moment(release: Any, *, asks_first: bool) -> None:
    """The end of the one is not taken for that of the other: the moment is still to come."""
    config = {"release": list(release), "asks_first": asks_first, "timeout": "10m"}
    with AgentHarness(Mixed, config=config) as harness:
        harness.advance("2h")
        assert told(harness, "heard", "woke") == [("nothing", minutes(10)), ("woke", minutes(60))]
        assert harness.info.state is AgentState.COMPLETED


class Sleepers:
    """Waits for several moments at once; it says nothing of each, or does."""

    def __init__(self, agent_id: str, hours: list[int], *, says: bool) -> None:
        self.hours, self.says = hours, says
        self.woke: dict[int, timedelta] = {}

    async def start(self, ctx: AgentContext) -> None:
        clock: Any = vars(ctx)["_clock"]

        async def sleep(hours: int) -> None:
            await ctx.sleep_until(BEGINNING + timedelta(hours=hours), release_slot=True)
            if self.says:
                await ctx.emit("woke", {"what": hours})
            self.woke[hours] = timedelta(seconds=clock.monotonic())

        await asyncio.gather(*(sleep(one) for one in self.hours))


@pytest.mark.parametrize("hours", [[1, 2], [2, 1], [3, 1, 2], [2, 2, 1], [1, 3, 2]])
@pytest.mark.parametrize("says", [True, False])
def test_no_moment_comes_early_beside_an_earlier_one(hours: list[int], *, says: bool) -> None:
    """In whatever order the code waits for them; each life waits for what is left."""
    with AgentHarness(Sleepers, config={"hours": hours, "says": says}) as harness:
        harness.advance("4h")
        assert harness.info.state is AgentState.COMPLETED
        assert harness.info.incarnation == 1 + len(set(hours))
        assert all(woke >= timedelta(hours=one) for one, woke in harness.agent.woke.items()), harness.agent.woke
        if says:
            assert sorted(told(harness, "woke")) == [(one, timedelta(hours=one)) for one in sorted(set(hours))]


class Reckons:
    """Waits at once for moments that it reckons anew in each life, as one should not."""

    def __init__(self, agent_id: str, hours: list[int]) -> None:
        self.hours = hours

    async def start(self, ctx: AgentContext) -> None:
        clock: Any = vars(ctx)["_clock"]
        now = BEGINNING + timedelta(seconds=clock.monotonic())
        await asyncio.gather(*(ctx.sleep_until(now + timedelta(hours=one), release_slot=True) for one in self.hours))


@pytest.mark.parametrize("hours", [[1, 2], [2, 1], [1, 1]])
def test_moments_that_are_reckoned_anew_come_to_an_end_at_once_too(hours: list[int]) -> None:
    """In each life the next of them counts as over."""
    with AgentHarness(Reckons, config={"hours": hours}) as harness:
        harness.advance("4h")
        assert harness.info.state is AgentState.COMPLETED


class Worker:
    """Works in a step beside its question."""

    def __init__(self, agent_id: str) -> None:
        self.began = 0

    async def start(self, ctx: AgentContext) -> None:
        await asyncio.gather(ctx.wait_for_approval("go", release_slot=True), self.branch(ctx))

    async def branch(self, ctx: AgentContext) -> None:
        await ctx.step("first", self.work, ctx)
        await ctx.step("second", self.work, ctx)
        await ctx.wait_for_approval("then", release_slot=True)

    async def work(self, ctx: AgentContext) -> str:
        self.began += 1
        await ctx.sleep(60)
        return "done"


def test_steps_that_run_beside_a_wait_come_to_their_end_first() -> None:
    """They are not cut off and begun again, and what comes behind them is asked for as well."""
    with AgentHarness(Worker) as harness:
        harness.advance(100)
        assert harness.is_running
        harness.advance(60)
        assert harness.is_waiting
        assert harness.agent.began == 2
        assert sorted(one.name for one in harness.interrupts) == ["go", "then"]
        for name in ("go", "then"):
            harness.approve(name)
        harness.advance(1)
        assert harness.info.state is AgentState.COMPLETED


def test_a_word_is_heard_while_a_step_beside_keeps_the_slot() -> None:
    """Nobody has to wait for the step."""
    with AgentHarness(Worker) as harness:
        harness.advance(10)
        harness.approve("go")
        harness.advance(1)
        assert [event.payload["step"] for event in harness.all_events if event.type == "step.completed"] == [
            "approval:go"
        ]
        assert harness.info.incarnation == 1


class Inside:
    """Asks inside of a step that may be repeated."""

    def __init__(self, agent_id: str) -> None: ...

    async def start(self, ctx: AgentContext) -> str:
        return await ctx.step("outer", self.outer, ctx)

    async def outer(self, ctx: AgentContext) -> str:
        await ctx.sleep_until(BEGINNING + timedelta(hours=1), release_slot=True)
        return str((await ctx.wait_for_approval("go", release_slot=True)).decision)


def test_the_step_around_a_wait_does_not_keep_the_slot() -> None:
    """It begins again in the next life."""
    with AgentHarness(Inside) as harness:
        harness.advance(60)
        assert harness.is_waiting
        harness.advance("2h")
        assert harness.info.waiting_on == "approval:go"
        harness.approve("go", "yes")
        harness.advance(1)
        assert harness.info.result == "yes"


class First:
    """Takes what comes first."""

    def __init__(self, agent_id: str) -> None: ...

    async def start(self, ctx: AgentContext) -> str:
        word = asyncio.ensure_future(ctx.wait_for_approval("go", release_slot=True))
        moment = asyncio.ensure_future(ctx.sleep_until(BEGINNING + timedelta(hours=1), release_slot=True))
        done, _ = await asyncio.wait({word, moment}, return_when=asyncio.FIRST_COMPLETED)
        return str(word.result().decision) if word in done else "nobody said a word"


@pytest.mark.parametrize(("said", "result"), [("yes", "yes"), ("", "nobody said a word")])
def test_the_first_of_a_word_and_a_moment_decides(said: str, result: str) -> None:
    """That the slot was given back is taken for neither."""
    with AgentHarness(First) as harness:
        harness.advance("30m")
        assert harness.is_waiting
        if said:
            harness.approve("go", said)
        harness.advance(1 if said else "31m")
        assert harness.info.result == result


class Busy:
    """Answers messages, slowly, while it waits for a word."""

    def __init__(self, agent_id: str) -> None: ...

    async def start(self, ctx: AgentContext) -> None:
        await ctx.emit("heard", {"what": (await ctx.wait_for_approval("go")).decision})

    async def process(self, ctx: AgentContext, message: object) -> str:
        await ctx.sleep(10)
        return "answered"


class PlainBusy:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None: ...

    def start(self, ctx: SyncAgentContext) -> None:
        ctx.emit("heard", {"what": ctx.wait_for_approval("go").decision})

    def process(self, ctx: SyncAgentContext, message: object) -> str:
        ctx.sleep(10)
        return "answered"


@pytest.mark.parametrize("kind", [Busy, PlainBusy])
def test_a_word_that_comes_while_a_message_is_answered_is_heard_behind_it(kind: Callable[..., Any]) -> None:
    """A sleep in the message does not swallow it."""
    with AgentHarness(kind) as harness:
        harness.advance(1)
        harness.send({}, message_id="m1")
        harness.advance(3)
        harness._bench.manager.approve("a", "go", "yes", actor="ann")
        harness.advance(8)
        assert [what for what, _ in told(harness, "heard")] == ["yes"]
