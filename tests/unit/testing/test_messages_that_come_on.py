"""Messages whose handling dies again and again: those that come on are handled to their end, others are skipped."""

from __future__ import annotations

from typing import Any

import pytest

from ares_celery import AgentContext, SyncAgentContext
from ares_celery.testing import AgentHarness

#: The steps that ran, in all lives.
RAN: list[int] = []
STEPS = 12


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    """Each test counts from the start."""
    RAN.clear()


def work(number: int) -> int:
    """What a step does."""
    RAN.append(number)
    return number


class Worker:
    """Makes steps, some with an event of its own; stays where it is told to."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: int) -> int:
        for number in range(0, message, 2):
            await ctx.step(f"work:{number}", work, number)
            await ctx.emit("did", {"number": number + 1}, step=f"did:{number + 1}")
        if message < STEPS:
            await ctx.sleep(3600)
        return message


class PlainWorker:
    """The same on a thread."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: SyncAgentContext, message: int) -> int:
        for number in range(0, message, 2):
            ctx.step(f"work:{number}", work, number)
            ctx.emit("did", {"number": number + 1}, step=f"did:{number + 1}")
        if message < STEPS:
            ctx.sleep(3600)
        return message


WORKERS = pytest.mark.parametrize("worker", [Worker, PlainWorker], ids=["async", "plain"])


def harness_of(worker: type[Any]) -> AgentHarness:
    """An agent that may die as often as it likes."""
    return AgentHarness(worker, settings={"poison_after": 3}, spec={"max_restarts": 0})


@WORKERS
@pytest.mark.parametrize("moment", ["step.completed", "did"])
def test_a_message_that_records_something_in_each_life_is_never_poison(worker: type[Any], moment: str) -> None:
    """However often its process dies: what was recorded in between starts the count again, a step or an event."""
    with harness_of(worker) as harness:
        harness.pause()
        harness.send(STEPS, message_id="m-1")
        harness.resume()
        deaths = 0
        while deaths < 5:
            harness.crash(after=moment)
            deaths += 1
            harness.restart()
        assert harness.ask(STEPS, message_id="m-2") == STEPS
        assert list(harness.manager.dead_letters("a")) == []
        assert sorted(set(RAN)) == list(range(0, STEPS, 2))
        assert len(RAN) == STEPS  # each step once for each of the two messages


@WORKERS
@pytest.mark.parametrize("recorded", [0, 4])
def test_a_message_that_comes_no_further_is_poison(worker: type[Any], recorded: int) -> None:
    """From the third death after the last record on, or the third of all where there is none."""
    with harness_of(worker) as harness:
        harness.pause()
        harness.send(recorded, message_id="m-1")
        harness.resume()
        for _ in range(3):
            harness.advance(1)
            harness.crash()
            harness.restart()
        harness.advance(1)
        (letter,) = harness.manager.dead_letters("a")
        assert (letter.message_id, letter.reason, harness.info.incarnation) == ("m-1", "poison", 5)
        assert len(RAN) == recorded / 2
        assert harness.ask(STEPS) == STEPS
