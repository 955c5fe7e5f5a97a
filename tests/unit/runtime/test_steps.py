"""Steps of agents run once for their id, whatever dies; real host, real store in memory, manual clock."""

from __future__ import annotations

from typing import Any

import pytest

from ares_celery.agents.steps import step
from ares_celery.agents.tools import tool
from ares_celery.testing import AgentHarness

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


async def fetch(what: str) -> dict[str, Any]:
    """Safe."""
    RAN.append(f"fetch {what}")
    return {"got": what}


def plain(what: str) -> str:
    """Safe, and plain."""
    RAN.append(f"plain {what}")
    return what.upper()


@step(replay="keyed")
async def charge(order: str, idempotency_key: str = "") -> str:
    """Keyed."""
    RAN.append(f"charge {order} {idempotency_key}")
    return f"paid {order}"


@step(replay="never")
async def mail(to: str) -> str:
    """Never twice."""
    RAN.append(f"mail {to}")
    return f"told {to}"


@tool("st-refund", replay="keyed")
def refund(order: str, idempotency_key: str = "") -> str:
    """A keyed tool."""
    RAN.append(f"refund {order} {idempotency_key}")
    return f"refunded {order}"


@tool("st-look", replay="safe")
async def look(what: str) -> str:
    """A safe tool."""
    RAN.append(f"look {what}")
    return what


class Worker:
    """Async: does four things in its main loop."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: Any) -> Any:
        one = await ctx.step("fetch", fetch, "a")
        two = await ctx.step("plain", plain, "b")
        three = await ctx.step("charge", charge, "o-1")
        four = await ctx.step("mail", mail, "eve")
        return [one, two, three, four]


class PlainWorker:
    """Plain: the same."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: Any) -> Any:
        one = ctx.step("fetch", fetch, "a")
        two = ctx.step("plain", plain, "b")
        three = ctx.step("charge", charge, "o-1")
        four = ctx.step("mail", mail, "eve")
        return [one, two, three, four]


DONE = [{"got": "a"}, "B", "paid o-1", "told eve"]


@pytest.mark.parametrize("agent", [Worker, PlainWorker])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_was_recorded_is_not_run_again_after_a_death(agent: type[Any], count: int) -> None:
    """Whichever step it was; the effect of the one at hand may come twice, with the same key."""
    with AgentHarness(agent) as harness:
        harness.crash(before="step.completed", count=count)
        harness.restart()
        harness.run_until(lambda: harness.info.state.value == "completed")
        assert harness.info.result == DONE
        names = [line.split(" ", 1)[0] for line in RAN]
        twice = ["fetch", "plain", "charge"][count - 1]
        assert names == ["fetch", "plain", "charge", "mail"][:count] + names[count:]
        assert names.count(twice) == 2
        assert len(names) == 5
        assert len({line for line in RAN if line.startswith("charge")}) == 1, "one key in both lives"
        assert list(harness.steps().values()) == DONE
