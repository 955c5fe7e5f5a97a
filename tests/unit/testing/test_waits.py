"""Waits of agents in simulated time: timers, approvals, deploys in between."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ares_celery import (
    AgentContext,
    AgentFailedError,
    Approval,
    InterruptResolvedError,
    InvalidSettingError,
    SyncAgentContext,
    agent,
)
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


@pytest.mark.parametrize("release_slot", [False, True])
@pytest.mark.pain("P39")
def test_an_approval_takes_a_week_and_three_deploys(*, release_slot: bool) -> None:
    """No restart is counted; without its slot it is hosted by nobody. The first decision wins, and resumes it."""
    with AgentHarness(Deployer, config={"release_slot": release_slot}) as harness:
        for _ in range(3):
            harness.advance(timedelta(days=2, hours=8))
            if not release_slot:
                harness.drain()
                harness.restart()
            assert harness.is_running is not release_slot
        assert len([one for one in harness.interrupts if one.state == "open"]) == 1
        began = harness.now
        harness.approve("deploy", "approve", reason="looked at it")
        with pytest.raises(InterruptResolvedError, match="decided already") as caught:
            harness.approve("deploy", "reject")
        assert caught.value.decision == "approve"
        harness.run_until("deployed", timeout=5)
        assert harness.now - began <= 5
        assert (harness.info.restarts, harness.info.charged, harness.info.deaths) == (0, 0, {})
        assert harness.info.state is AgentState.COMPLETED
        assert types(harness).count("interrupt.created") == 1


@pytest.mark.parametrize("kind", [Sleeper, PlainSleeper])
def test_a_wait_in_process_does_not_return_early(kind: type[Any]) -> None:
    """A deploy ends it by a signal, and the next incarnation waits for what is left."""
    with AgentHarness(kind) as harness:
        harness.advance(timedelta(days=3))
        began = harness.now
        harness.drain()
        assert harness.now - began < 1
        assert "woke" not in types(harness)
        harness.restart()
        harness.advance(timedelta(days=3, hours=23))
        assert "woke" not in types(harness)
        harness.run_until("woke", timeout="2h")


@pytest.mark.parametrize("kind", [Deployer, PlainDeployer])
@pytest.mark.parametrize("release_slot", [False, True])
def test_nobody_decides_in_time(kind: type[Any], *, release_slot: bool) -> None:
    """The agent gets an error that it may handle; who comes too late is told."""
    with AgentHarness(
        kind, config={"release_slot": release_slot, "timeout": "1h"}, spec={"max_restarts": 1}
    ) as harness:
        harness.advance(3_599)
        with pytest.raises(AgentFailedError, match="nobody decided about 'deploy'"):
            harness.advance(10)
        with pytest.raises(InterruptResolvedError, match="in time"):
            harness.approve("deploy")
        assert [one.state for one in harness.interrupts] == ["timeout"]


def test_a_no_is_an_answer() -> None:
    """The agent goes on with it."""
    with AgentHarness(Deployer, config={"release_slot": True}) as harness:
        harness.approve("deploy", "not today")
        harness.run_until("left", timeout=5)
        assert harness.info.result == "not today"


def test_it_is_paused_and_resumed_while_it_waits() -> None:
    """Paused, it does not wake; resumed, it begins from the top and waits again."""
    with AgentHarness(Sleeper, config={"release_slot": True}) as harness:
        harness.advance(60)
        assert (harness.info.state, harness.info.waiting_on) == (AgentState.WAITING, "timer")
        assert harness.info.waiting_until == BEGINNING + WEEK
        harness.pause()
        assert (harness.info.state, harness.info.waiting_on) == (AgentState.PAUSED, None)
        harness.advance(2 * WEEK)
        assert "woke" not in types(harness)
        harness.resume()
        harness.run_until("woke", timeout=1)


def test_it_is_stopped_while_it_waits() -> None:
    """Nothing wakes it; a start begins from the top."""
    with AgentHarness(Sleeper, config={"release_slot": True}) as harness:
        harness.advance(60)
        harness.stop()
        assert harness.info.state is AgentState.STOPPED
        harness.advance(2 * WEEK)
        assert "woke" not in types(harness)
        harness.restart()
        harness.run_until("woke", timeout=1)


class Ticker:
    """Computes its times anew in each life, as one should not."""

    def __init__(self, agent_id: str) -> None: ...

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            now = BEGINNING + timedelta(seconds=ctx_now(ctx))
            await ctx.sleep_until(now + timedelta(hours=1), release_slot=True)
            await ctx.emit("ticked")


def ctx_now(ctx: AgentContext) -> float:
    """Simulated seconds."""
    clock: Any = vars(ctx)["_clock"]
    return float(clock.monotonic())


def test_a_time_that_is_computed_anew_comes_to_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """The wait that it was woken after is behind it, with one warning; the next one is a wait again."""
    with AgentHarness(Ticker) as harness:
        harness.advance(timedelta(hours=5, minutes=30))
        assert len(harness.events) == 5
        assert sum("Compute the time in a step" in line for line in caplog.messages) == 5


class Clerk:
    """Asks a person about each message."""

    def __init__(self, agent_id: str) -> None:
        self.cleaned = 0

    async def process(self, ctx: AgentContext, message: dict[str, Any]) -> str:
        try:
            word = await ctx.wait_for_approval(f"pay:{message['n']}", message, release_slot=True)
        finally:
            self.cleaned += 1
        return str(word.decision)


def test_a_message_is_given_back_and_handled_again_from_the_top() -> None:
    """Its caller gets the answer in the end; nothing counts as met by a death."""
    with AgentHarness(Clerk) as harness:
        sent = harness.send({"n": 1}, message_id="m1")
        harness.advance(60)
        assert harness.is_waiting
        assert harness.info.waiting_on == "approval:pay:1"
        assert harness.agent.cleaned == 1
        harness.approve("pay:1", "yes")
        assert sent == "m1"
        harness.advance(1)
        assert harness.is_running
        assert harness.info.restarts == 0
        created = [event for event in harness.all_events if event.type == "interrupt.created"]
        assert len(created) == 1
        assert created[0].payload["execution"] == "msg:m1"


@pytest.mark.parametrize("t", [datetime(2026, 1, 2), "2026-01-02", 5.0, None])  # noqa: DTZ001 - that is the test
def test_what_is_no_moment_is_refused(t: Any) -> None:
    """The error says what to give."""

    class Wrong:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            await ctx.sleep_until(t)

    with AgentHarness(Wrong) as harness, pytest.raises(AgentFailedError, match="zone"):
        harness.advance(1)


class Beside:
    """Runs a step that must not be repeated while something else gives the slot back."""

    def __init__(self, agent_id: str, *, asks: str) -> None:
        self.asks, self.ran, self.cut = asks, 0, 0

    async def start(self, ctx: AgentContext) -> str:
        if self.asks == "process":
            value = await ctx.step.with_options(replay="never")("slow", self.slow, ctx)
            await ctx.emit("went", {"of": value})
            return value
        async with asyncio.TaskGroup() as group:
            step = group.create_task(ctx.step.with_options(replay="never")("slow", self.slow, ctx))
            group.create_task(ctx.wait_for_approval("go", release_slot=True))
        await ctx.emit("went", {"of": step.result()})
        return step.result()

    async def slow(self, ctx: AgentContext) -> str:
        self.ran += 1
        try:
            await ctx.sleep(2)
        except asyncio.CancelledError:
            self.cut += 1
            raise
        return "slow"

    async def process(self, ctx: AgentContext, message: object) -> str:
        return str((await ctx.wait_for_approval("go", release_slot=True)).decision)


@pytest.mark.parametrize("asks", ["process", "start"])
def test_a_slot_is_given_back_when_the_never_step_beside_has_ended(asks: str) -> None:
    """The step runs once and is recorded; nobody has to say how it came out."""
    with AgentHarness(Beside, config={"asks": asks}) as harness:
        if asks == "process":
            harness.send({}, message_id="m1")
        harness.advance(1)
        assert harness.is_running, "the step is not over"
        harness.advance(5)
        assert (harness.agent.ran, harness.agent.cut) == (1, 0)
        assert harness.is_waiting
        harness.approve("go", "yes")
        harness.advance(2)
        assert [event.payload for event in harness.all_events if event.type == "went"][-1] == {"of": "slow"}
        assert types(harness).count("step.started") == 1
        assert harness.info.restarts == 0


class Inside:
    """Gives the slot back inside of a step that must not be repeated."""

    def __init__(self, agent_id: str, *, how: str) -> None:
        self.how, self.said = how, ""

    async def start(self, ctx: AgentContext) -> str:
        return await ctx.step.with_options(replay="never")("pay", self.pay, ctx)

    async def pay(self, ctx: AgentContext) -> str:
        try:
            if self.how == "timer":
                await ctx.sleep_until(BEGINNING + WEEK, release_slot=True)
            else:
                await ctx.wait_for_approval("pay", release_slot=True)
        except InvalidSettingError as error:
            self.said = str(error)
        return "paid"


class PlainInside:
    """The same, plain."""

    def __init__(self, agent_id: str, *, how: str) -> None:
        self.how, self.said = how, ""

    def start(self, ctx: SyncAgentContext) -> str:
        return ctx.step.with_options(replay="never")("pay", self.pay, ctx)

    def pay(self, ctx: SyncAgentContext) -> str:
        try:
            if self.how == "timer":
                ctx.sleep_until(BEGINNING + WEEK, release_slot=True)
            else:
                ctx.wait_for_approval("pay", release_slot=True)
        except InvalidSettingError as error:
            self.said = str(error)
        return "paid"


@pytest.mark.parametrize("kind", [Inside, PlainInside])
@pytest.mark.parametrize("how", ["timer", "approval"])
def test_inside_a_never_step_the_slot_stays(kind: type[Any], how: str) -> None:
    """The wait is refused by name, before anything is asked."""
    with AgentHarness(kind, config={"how": how}) as harness:
        harness.advance(1)
        assert harness.info.result == "paid"
        assert "step 'pay' is a never step" in harness.agent.said
        assert "interrupt.created" not in types(harness)


@agent("two-at-once", concurrency=2)
class TwoAtOnce:
    """One message gives the slot back; another is answered meanwhile, and start begins what must not be repeated."""

    def __init__(self, agent_id: str) -> None:
        self.ran, self.cut = 0, 0

    async def start(self, ctx: AgentContext) -> None:
        await ctx.sleep(2)
        # It does not look whether it should stop.
        await ctx.step.with_options(replay="never")("late", self.late)
        await ctx.emit("went")

    async def late(self) -> str:
        self.ran += 1
        try:
            await asyncio.sleep(3)  # on purpose: simulated time
        except asyncio.CancelledError:
            self.cut += 1
            raise
        return "late"

    async def process(self, ctx: AgentContext, message: dict[str, Any]) -> str:
        if message["asks"]:
            await asyncio.sleep(1)  # on purpose: simulated time
            return str((await ctx.wait_for_approval("go", release_slot=True)).decision)
        await asyncio.sleep(3)  # on purpose: simulated time
        return "answered"


def test_a_never_step_that_begins_after_a_wait_is_not_cut_off() -> None:
    """Of several messages one waits, one is still answered: the step that start begins meanwhile is recorded."""
    with AgentHarness(TwoAtOnce) as harness:
        harness.send({"asks": True}, message_id="m1")
        harness.send({"asks": False}, message_id="m2")
        harness.advance(10)
        assert (harness.agent.ran, harness.agent.cut) == (1, 0)
        assert harness.is_waiting
        assert types(harness).count("step.started") == 1
        harness.approve("go", "yes")
        harness.run_until("went", timeout=5)
        assert harness.info.restarts == 0


class PlainClerk:
    """Sleeps in a step that must not be repeated; a message that comes meanwhile gives the slot back."""

    def __init__(self, agent_id: str) -> None:
        self.ran = 0

    def start(self, ctx: SyncAgentContext) -> None:
        ctx.step.with_options(replay="never")("slow", self.slow, ctx)
        ctx.emit("went")
        while not ctx.stop_requested:
            ctx.sleep(60)

    def slow(self, ctx: SyncAgentContext) -> str:
        self.ran += 1
        for _ in range(3):
            ctx.sleep(1)
        return "slow"

    def process(self, ctx: SyncAgentContext, message: object) -> str:
        return str(ctx.wait_for_approval("go", release_slot=True).decision)


def test_a_plain_agent_answers_no_message_inside_of_a_never_step() -> None:
    """The message is answered after it, and gives the slot back then."""
    with AgentHarness(PlainClerk) as harness:
        harness.send({}, message_id="m1")
        harness.advance(10)
        assert harness.agent.ran == 1
        assert harness.is_waiting
        order = [kind for kind in types(harness) if kind in {"step.completed", "interrupt.created"}]
        assert order[:2] == ["step.completed", "interrupt.created"]
        assert types(harness).count("step.started") == 1
