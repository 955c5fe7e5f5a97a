"""Calls of an async context that were not awaited: noticed where they are used, or dropped, and by tests."""

from __future__ import annotations

import asyncio
import inspect
import logging
import timeit
from collections.abc import Callable
from typing import Any

import pytest

from ares_celery.agents.tools import tool
from ares_celery.errors import AwaitMissingError
from ares_celery.model.agent import AgentState
from ares_celery.runtime.awaited import Awaited
from ares_celery.testing import AgentHarness

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


async def note(what: str) -> str:
    """Notes that it ran."""
    RAN.append(what)
    return what


@tool("aw-note", replay="safe")
async def note_tool(what: str) -> str:
    """The same, as a tool."""
    return await note(what)


def agent_of(body: Any) -> type[Any]:
    """An async agent's class with this main loop."""

    class Made:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        async def start(self, ctx: Any) -> Any:
            return await body(ctx)

    return Made


def ended(harness: AgentHarness) -> Any:
    """Runs it to its end; what it returned."""
    harness.run_until(lambda: harness.info.state is AgentState.COMPLETED, timeout=600)
    return harness.info.result


def calls(ctx: Any) -> dict[str, Callable[[], Any]]:
    """Every call that has to be awaited, by the words in which it is told."""
    return {
        "ctx.step('s', …)": lambda: ctx.step("s", note, "s"),
        "ctx.step('o', …)": lambda: ctx.step.with_options(retries=1)("o", note, "s"),
        "ctx.tool('aw-note')(…)": lambda: ctx.tool("aw-note")("t"),
        "ctx.emit('e')": lambda: ctx.emit("e", {}),
        "ctx.emit_many(…)": lambda: ctx.emit_many([("e", {})]),
        "ctx.charge(…)": lambda: ctx.charge(tokens=5),
        "ctx.wait_for_approval('d')": lambda: ctx.wait_for_approval("d"),
        "ctx.sleep(3)": lambda: ctx.sleep(3),
        "ctx.sleep_until(…)": lambda: ctx.sleep_until(None),
        "ctx.snapshot(…)": lambda: ctx.snapshot(),  # noqa: PLW0108 - ctx may be None
        "ctx.send('b')": lambda: ctx.send("b", 1),
        "ctx.spawn(…)": lambda: ctx.spawn(None),
    }


def first_of(made: Any) -> Any:
    """An item of what should be a list."""
    return made[0]


CALLS = sorted(calls(None))


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_taken_for_its_result_is_refused_with_the_cure(call: str) -> None:
    """In a condition, a loop or an index, and by its attributes: a deployment that nobody allowed does not happen."""

    async def body(ctx: Any) -> str:
        with pytest.raises(AwaitMissingError) as refused:
            RAN.append("deployed" if calls(ctx)[call]() else "not deployed")
        assert isinstance(refused.value, TypeError)
        assert str(refused.value) == f"await is missing: await {call}"
        for misuse in (list, len, first_of):
            with pytest.raises(TypeError, match="await is missing"):
                misuse(calls(ctx)[call]())
        made = calls(ctx)[call]()
        with pytest.raises(AttributeError, match="await is missing"):
            _ = made.decision
        made.close()
        return "refused"

    with AgentHarness(agent_of(body)) as harness:
        assert ended(harness) == "refused"
        assert (RAN, harness.events, harness.steps(), harness.interrupts, harness.sent) == ([], [], {}, [], [])


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_dropped_is_an_error_in_the_log_and_in_the_test(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Once each; the agent itself goes on."""

    async def body(ctx: Any) -> str:
        await ctx.sleep(1)
        calls(ctx)[call]()
        return "went on"

    with caplog.at_level(logging.ERROR), AgentHarness(agent_of(body)) as harness:
        with pytest.raises(AwaitMissingError) as noticed:
            harness.advance(5)
        assert (noticed.value.call, noticed.value.agent_id) == (call, "a")
        assert ended(harness) == "went on"
    (record,) = caplog.records
    assert (record.levelname, record.__dict__["agent_id"]) == ("ERROR", "a")
    # A worker of another test may have set up that lines name their agent.
    told = record.getMessage().removesuffix(" [agent=a]")
    assert told == f"agent a: {call} was never awaited, so nothing was done: write await {call}"


def test_an_agent_that_forgets_at_once_is_noticed_where_the_test_begins() -> None:
    """As its code runs there already."""

    async def body(ctx: Any) -> None:
        ctx.emit("lost")

    with pytest.raises(AwaitMissingError, match=r"await ctx.emit\('lost'\)"):
        AgentHarness(agent_of(body))


def test_whatever_takes_a_coroutine_takes_a_call() -> None:
    """Tasks, groups, gather, shield, time limits; also one that is cancelled before it begins, which is no mistake."""

    async def body(ctx: Any) -> list[Any]:
        made = ctx.step("0", note, "0")
        assert inspect.isawaitable(made)
        assert asyncio.iscoroutine(made)
        found = [await made, await asyncio.create_task(ctx.step("1", note, "1"))]
        async with asyncio.TaskGroup() as group:
            two = group.create_task(ctx.step("2", note, "2"), name="two")
            assert "two" in repr(two)
        found += [two.result(), *await asyncio.gather(ctx.step("3", note, "3"), ctx.tool("aw-note")("4"))]
        found += [await asyncio.wait_for(ctx.step("5", note, "5"), 5), await asyncio.shield(ctx.step("6", note, "6"))]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ctx.sleep(60), 1)
        cancelled = asyncio.create_task(ctx.step("never", note, "never"))
        cancelled.cancel()
        await asyncio.wait([cancelled])
        return found

    with AgentHarness(agent_of(body)) as harness:
        assert ended(harness) == list("0123456") == RAN


def test_what_a_call_raises_comes_out_of_it_and_where_it_waits_is_seen() -> None:
    """An agent's own line is named, also behind a step."""

    async def waits() -> None:
        await asyncio.Event().wait()  # here

    async def body(ctx: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            await ctx.step("bad", lambda: 1 // 0)
        await ctx.step("waits", waits)

    with AgentHarness(agent_of(body)) as harness:
        harness.advance(1)
        with pytest.raises(AssertionError, match=r"in waits: await asyncio\.Event"):
            harness.run_until("never", timeout=1)


def test_it_costs_a_step_next_to_nothing() -> None:
    """Beside the step's own round trip, of a tenth of a millisecond and more: 2 µs at most, on an idle machine."""

    class Flags:
        agent_id, fenced, forgotten = "a", False, list[str]()

    async def nothing() -> None: ...

    def bare() -> None:
        for _ in nothing().__await__():
            raise AssertionError

    def wrapped() -> None:
        for _ in Awaited(nothing(), Flags(), "ctx.step({}, …)", "s").__await__():  # type: ignore[arg-type]
            raise AssertionError

    cost = min(timeit.repeat(wrapped, number=2_000, repeat=7)) - min(timeit.repeat(bare, number=2_000, repeat=7))
    assert cost / 2_000 < 10e-6, "a bound with room for a machine that is busy"
