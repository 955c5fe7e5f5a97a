"""Blocks of an execution that the agent's code leaves because it was asked to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ares_celery import AgentContext, SyncAgentContext
from ares_celery.testing import AgentHarness

ran: list[int] = []


def note(number: int) -> int:
    """One piece of the work."""
    ran.append(number)
    return number


class Worker:
    """Works off five pieces, a second each, and leaves when it should."""

    def __init__(self, agent_id: str) -> None:
        ran.clear()

    async def start(self, ctx: AgentContext) -> object:
        async with ctx.execution("work"):
            for number in range(5):
                if ctx.stop_requested:
                    return None
                await ctx.step(f"piece:{number}", note, number)
                await ctx.sleep(1)
        return "all done"


class PlainWorker:
    """The same on a thread."""

    def __init__(self, agent_id: str) -> None:
        ran.clear()

    def start(self, ctx: SyncAgentContext) -> object:
        with ctx.execution("work"):
            for number in range(5):
                if ctx.stop_requested:
                    return None
                ctx.step(f"piece:{number}", note, number)
                ctx.sleep(1)
        return "all done"


COLOURS = pytest.mark.parametrize("kind", [Worker, PlainWorker])


@COLOURS
def test_a_block_that_is_left_to_stop_goes_on_in_the_next_life(kind: Callable[..., Any]) -> None:
    """To leave it is a yield, as a return is: the next incarnation enters it again and does the rest."""
    with AgentHarness(kind) as harness:
        harness.advance(1.5)
        done = list(ran)
        harness.stop()
        assert 0 < len(done) < 5
        harness.restart()
        harness.run_until(lambda: harness.info.state == "completed")
        assert harness.info.result == "all done"
        assert [*done, *ran] == [0, 1, 2, 3, 4]


@COLOURS
def test_a_block_that_is_left_at_its_end_is_finished(kind: Callable[..., Any]) -> None:
    """As nobody has asked it to stop."""
    with AgentHarness(kind) as harness:
        harness.run_until(lambda: harness.info.state == "completed")
        assert [event.type for event in harness.manager.events.read("a")].count("execution.completed") == 1


class Done:
    """Says that it is done after it has seen that it should stop."""

    def __init__(self, agent_id: str) -> None: ...

    async def start(self, ctx: AgentContext) -> None:
        async with ctx.execution("work"):
            while not ctx.stop_requested:
                await ctx.sleep(1)
            await ctx.step("last", len, "xyz")
            await ctx.complete("done")


def test_a_block_of_an_agent_that_says_it_is_done_is_finished() -> None:
    """Nobody would enter it again."""
    with AgentHarness(Done) as harness:
        harness.advance(1)
        harness.stop()
        assert harness.info.result == "done"
        assert "execution.completed" in [event.type for event in harness.manager.events.read("a")]
