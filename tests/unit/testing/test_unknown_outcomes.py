"""Steps that must not run twice: waited for, parked when they are cut off, settled by a person; in simulated time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from typing_extensions import override

from ares_celery import (
    AgentContext,
    AgentFailedError,
    AgentNotFoundError,
    AgentNotParkedError,
    AgentParkedError,
    InvalidSettingError,
    StepIntentNotFoundError,
    StepSettledError,
    step,
)
from ares_celery.manager import CoreManager
from ares_celery.testing import AgentHarness

RUNS: list[str] = []


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Each test counts from the start."""
    RUNS.clear()


@step(replay="never")
async def pay(seconds: float) -> dict[str, bool]:
    """Takes as long as it is told."""
    RUNS.append("begun")
    await asyncio.sleep(seconds)  # on purpose: simulated time
    RUNS.append("done")
    return {"paid": True}


@step(replay="never", timeout=3)
async def pay_in_time() -> None:
    """Takes longer than it may."""
    await pay(10_000)


class Payer:
    """Pays, and is done."""

    def __init__(self, agent_id: str, seconds: float = 1_000) -> None:
        self.agent_id, self.seconds = agent_id, seconds

    async def start(self, ctx: AgentContext) -> None:
        paid = await ctx.step("pay", pay, self.seconds)
        await ctx.sleep(60)
        if not ctx.stop_requested:
            await ctx.complete(paid)


class Hurried(Payer):
    """Gives up after a while; when asked, not by itself."""

    @override
    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(3600)

    async def process(self, ctx: AgentContext, message: object) -> object:
        return await ctx.step("pay", pay_in_time)


class Careless(Payer):
    """Leaves a step running behind its own failure."""

    @override
    async def start(self, ctx: AgentContext) -> None:
        async def fail() -> None:
            await asyncio.sleep(1)  # on purpose: simulated time
            raise ValueError("boom")

        await asyncio.gather(ctx.step("pay", pay, self.seconds), fail())


class Twice(Payer):
    """Pays two at once."""

    @override
    async def start(self, ctx: AgentContext) -> None:
        both = await asyncio.gather(ctx.step("one", pay, self.seconds), ctx.step("two", pay, self.seconds))
        await ctx.complete([bool(paid) for paid in both])


class Tireless(Payer):
    """Pays one after the other, and looks at nothing."""

    @override
    async def start(self, ctx: AgentContext) -> None:
        async with ctx.execution("work"):
            for number in range(12):
                await ctx.step(f"pay:{number}", pay, self.seconds)
        await ctx.complete("done")


class Served(Payer):
    """The same, when it is asked."""

    @override
    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(3600)

    async def process(self, ctx: AgentContext, message: object) -> object:
        for number in range(12):
            await ctx.step(f"pay:{number}", pay, self.seconds)
        return "done"


def stands(harness: AgentHarness) -> tuple[str, str, int, int]:
    """State, cause, open steps, charged deaths."""
    info = harness.info
    return info.state.value, info.cause, info.intents, info.charged


def say(harness: AgentHarness, **said: Any) -> None:
    """A person says what became of the step, and a worker takes the agent up."""
    harness._bench.manager.reconcile_agent("a", reason="looked it up", actor="ann", **said)
    if harness.info.state.value == "starting":
        harness._bench.bring_up()


@pytest.mark.parametrize("seconds", [15, 17.5])
def test_a_drain_waits_for_a_step_that_must_not_run_twice(seconds: float) -> None:
    """Longer than any other code may take (7 s), up to nearly drain_timeout (20 s): recorded, nobody is asked."""
    with AgentHarness(Payer, config={"seconds": seconds}) as harness:
        harness.advance(0.1)
        harness.drain()
        assert (stands(harness)[1:], RUNS) == (("", 0, 0), ["begun", "done"])
        harness.restart()
        harness.run_until("agent.completed", timeout=120)
        assert (harness.info.result, RUNS) == ({"paid": True}, ["begun", "done"])


@pytest.mark.parametrize("agent", [Tireless, Served])
def test_code_that_makes_one_step_after_the_other_ends_between_two_of_them(agent: type[Payer]) -> None:
    """No new one is begun when its own time (7 s) is over, or one would be cut off in the middle."""
    with AgentHarness(agent, config={"seconds": 2}) as harness:
        harness.send("all", message_id="m-1")
        harness.advance(1)
        harness.drain()
        assert stands(harness) == ("starting", "", 0, 0)
        begun = RUNS.count("begun")
        assert 0 < begun == RUNS.count("done") <= 5
        harness.restart()
        harness.advance(60)
        assert (RUNS.count("begun"), RUNS.count("done")) == (12, 12)
        assert stands(harness)[1:] == ("", 0, 0)


@pytest.mark.parametrize("how", ["stop", "pause"])
def test_a_stop_and_a_pause_wait_up_to_nearly_agent_stop_timeout(how: str) -> None:
    """10 s, of which other code may take 7."""
    with AgentHarness(Payer, config={"seconds": 8.5}) as harness:
        harness.advance(0.1)
        getattr(harness, how)()
        assert stands(harness)[:3] == ({"stop": "stopped", "pause": "paused"}[how], "", 0)
        assert RUNS == ["begun", "done"]


@pytest.mark.parametrize(
    ("how", "state"), [("drain", "starting"), ("stop", "stopped"), ("pause", "paused")], ids=["drain", "stop", "pause"]
)
def test_what_does_not_end_in_time_asks_a_person_and_goes_where_its_operator_wanted_it(how: str, state: str) -> None:
    """Uncharged, with the step in the reason; one word is enough."""
    with AgentHarness(Payer) as harness:
        harness.advance(0.1)
        getattr(harness, how)()
        assert (stands(harness), RUNS) == (("parked", "reconcile", 1, 0), ["begun"])
        for part in ("'pay'", "'main'", "pay(1000)", "2026-01-01", "ares agents reconcile a"):
            assert part in harness.info.reason
        assert harness._bench.manager.reconcile_agent("a", retry=True).state.value == state


def test_after_a_crash_no_code_runs_until_a_person_has_spoken_and_its_word_is_the_result() -> None:
    """The death is charged as any; that somebody is asked is not. The step does not run again."""
    with AgentHarness(Payer) as harness:
        harness.advance(0.1)
        harness.crash()
        with pytest.raises(AgentParkedError, match="'pay'"):
            harness.restart()
        assert (stands(harness), RUNS) == (("parked", "reconcile", 1, 1), ["begun"])
        say(harness, done={"paid": "by hand"})
        harness.run_until("agent.completed", timeout=120)
        assert (harness.info.result, harness.info.charged, RUNS) == ({"paid": "by hand"}, 1, ["begun"])


def test_a_step_that_did_not_happen_runs_again() -> None:
    """Once more, and is recorded then."""
    with AgentHarness(Payer, config={"seconds": 5}) as harness:
        harness.advance(0.1)
        harness.crash()
        with pytest.raises(AgentParkedError):
            harness.restart()
        say(harness, retry=True)
        harness.run_until("agent.completed", timeout=120)
        assert (harness.info.result, RUNS) == ({"paid": True}, ["begun", "begun", "done"])


def test_a_message_whose_step_timed_out_is_answered_with_what_the_person_says() -> None:
    """Its caller is told so, and asks again with the same id: nothing of it is lost and nothing runs twice."""
    with AgentHarness(Hurried) as harness:
        with pytest.raises(AgentParkedError, match="msg:m1"):
            harness.ask({"pay": 1}, message_id="m1", timeout=10)
        assert (stands(harness), RUNS) == (("parked", "reconcile", 1, 0), ["begun"])
        say(harness, done="by hand")
        assert (harness.ask({"pay": 1}, message_id="m1"), RUNS) == ("by hand", ["begun"])


def test_a_failure_beside_a_step_does_not_cut_it_off() -> None:
    """It comes to its end first; then the agent dies of the failure as always."""
    with AgentHarness(Careless, config={"seconds": 5}) as harness:
        with pytest.raises(AgentFailedError, match="boom"):
            harness.advance(7)
        assert (stands(harness)[1:], RUNS) == (("crash", 0, 1), ["begun", "done"])


def test_a_failure_beside_a_step_that_does_not_end_parks_and_is_told() -> None:
    """Uncharged: first somebody has to say what became of the step."""
    with AgentHarness(Careless) as harness:
        harness.run_until("agent.parked", timeout=120)
        assert (stands(harness), RUNS) == (("parked", "reconcile", 1, 0), ["begun"])
        assert "then its code failed: ValueError" in harness.info.reason


# -- what the Manager makes of a word ----------------------------------------------------------------------------------


def parked_twice(harness: AgentHarness) -> CoreManager:
    """Parked in the middle of two steps."""
    harness.advance(0.1)
    harness.crash()
    with pytest.raises(AgentParkedError):
        harness.restart()
    return harness._bench.manager


def test_where_several_steps_wait_for_a_word_the_one_that_is_meant_has_to_be_named() -> None:
    """The error lists them; a step's name alone will do, the last one needs none, and then the agent goes on."""
    with AgentHarness(Twice) as harness:
        manager = parked_twice(harness)
        with pytest.raises(
            InvalidSettingError, match=r"'one' of execution 'main'.*'two' of execution 'main'"
        ) as refused:
            manager.reconcile_agent("a", done=True)
        assert refused.value.open == [{"execution": "main", "step": "one"}, {"execution": "main", "step": "two"}]
        assert manager.reconcile_agent("a", step="two", done={"paid": True}, actor="ann").intents == 1
        assert stands(harness)[:3] == ("parked", "reconcile", 1)
        with pytest.raises(StepSettledError, match="as done, by ann"):
            manager.reconcile_agent("a", step="two", retry=True)
        say(harness, done=None)
        harness.run_until("agent.completed", timeout=60)
        assert (harness.info.result, RUNS) == ([False, True], ["begun", "begun"])
        told = [event.payload for event in harness.all_events if event.type == "step.reconciled"]
        assert [(one["step"], one["outcome"], one["actor"]) for one in told] == [
            ("two", "done", "ann"),
            ("one", "done", "ann"),
        ]
        with pytest.raises(StepSettledError, match=r"'one'.* by ann"):
            manager.reconcile_agent("a", retry=True)


def test_a_repeated_word_acts_once_also_where_no_step_is_named() -> None:
    """A task that comes twice: the second finds what the first has done, and not the step that is left."""
    with AgentHarness(Twice) as harness:
        manager = parked_twice(harness)
        manager.reconcile_agent("a", step="one", retry=True, op="task-1")
        assert manager.reconcile_agent("a", step="one", retry=True, op="task-1").intents == 1
        manager.reconcile_agent("a", retry=True, op="task-2")
        assert manager.reconcile_agent("a", retry=True, op="task-2").state.value == "starting"


@pytest.mark.parametrize("said", [{}, {"done": 1, "retry": True}, {"retry": "yes"}, {"done": 1, "reason": 7}])
def test_a_word_that_says_nothing_or_two_things_is_refused(said: dict[str, Any]) -> None:
    """Nothing is settled by it."""
    with AgentHarness(Payer) as harness:
        manager = parked_twice(harness)
        with pytest.raises(InvalidSettingError):
            manager.reconcile_agent("a", **said)
        assert stands(harness)[:3] == ("parked", "reconcile", 1)


def test_nobody_has_a_word_where_none_is_asked_for() -> None:
    """An unknown agent, one that runs, a step that there is not."""
    with AgentHarness(Payer) as harness:
        manager = harness._bench.manager
        with pytest.raises(AgentNotFoundError):
            manager.reconcile_agent("nobody", retry=True)
        harness.advance(0.1)
        with pytest.raises(AgentNotParkedError, match="is running"):
            manager.reconcile_agent("a", step="pay", execution="main", retry=True)
        parked_twice(harness)
        for name in ({"step": "typo"}, {"execution": "typo"}, {"step": "typo", "execution": "main"}):
            with pytest.raises(StepIntentNotFoundError, match="open are step 'pay'"):
                manager.reconcile_agent("a", retry=True, **name)
