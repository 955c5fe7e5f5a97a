"""Every lasting fault of a scenario and of a survival run, against a real manager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ares_celery import AgentContext, AgentSpec
from ares_celery.arena.loading import parse_scenario
from ares_celery.arena.runner import run_scenario
from ares_celery.arena.survival import SurvivalRun
from ares_celery.arena.verdict.journal import Outcome, Phase, RunStatus
from tests.hosting import Runtime
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

KINDS = {
    "slow_agent": {"delay": "1s", "count": 3},
    "tool_timeout": {"timeout": "1s"},
    "network_partition": {"duration": "30s"},
    "memory_corrupt": {"seed": 7},
    "mcp_disconnect": {"server": "github"},
    "llm_failure": {"error_type": "overloaded", "retry_after": 2},
}


class Idle:
    """Does nothing, so that no fault ends it while it is looked at."""

    def __init__(self, agent_id: str) -> None:
        """Nothing."""

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(60)


def made(server: RedisServer, namespace: str, *, chaos: bool) -> Iterator[Runtime]:
    """A runtime with one agent."""
    with Runtime(server.url, namespace, chaos=chaos) as runtime:
        runtime.register("idle", Idle)
        runtime.manager.start()
        runtime.manager.start_agent(AgentSpec(id="a", type="idle"))
        runtime.until("a", "running")
        yield runtime


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """One agent, in a namespace that allows faults."""
    yield from made(redis_server, namespace, chaos=True)


@pytest.fixture
def guarded(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """One agent, in a namespace that does not."""
    yield from made(redis_server, namespace, chaos=False)


def scenario(*kinds: str, target: str = "a", **expects: Any) -> Any:
    """A scenario in the seed's form."""
    steps = [
        {"action": {"id": one, "type": one, "target_id": target, "metadata": KINDS[one]}, **expects} for one in kinds
    ]
    return parse_scenario({"name": "n", "actions": steps})


def test_each_lasting_fault_is_injected_and_healed_with_the_end_of_the_run(runtime: Runtime) -> None:
    """By the names of the seed, with what its metadata say; each is an event of the agent."""
    report = run_scenario(runtime.manager, scenario(*KINDS, expect_success=True))
    assert [(one.name, one.problem) for one in report.activities if one.outcome is not Outcome.SUCCEEDED] == []
    assert report.status is RunStatus.COMPLETED
    injected = [event.payload["kind"] for event in runtime.events("a", "fault.injected")]
    assert injected == ["slow", "tool_timeout", "partition", "memory", "mcp", "llm"]
    assert len(report.of(Phase.ROLLBACK)) == 6
    assert runtime.manager.list_faults() == ()
    assert [event.payload["kind"] for event in runtime.events("a", "fault.healed")] == injected[::-1]


def test_an_unknown_agent_is_a_failure_that_may_be_expected(runtime: Runtime) -> None:
    """And says that it does not exist."""
    report = run_scenario(runtime.manager, scenario("slow_agent", target="b", expect_failure="does not exist"))
    assert (report.status, report.verified) == (RunStatus.COMPLETED, True)


def test_where_chaos_is_off_a_run_says_so_and_does_nothing(guarded: Runtime) -> None:
    """A scenario and a survival run alike: a precondition, not a deviation."""
    report = run_scenario(guarded.manager, scenario("slow_agent", "llm_failure"))
    assert report.status is RunStatus.PRECONDITION
    assert "chaos is off" in report.partial_because
    survival = SurvivalRun(guarded.manager, seed=7, duration="1s", interval="100ms", faults=["slow_agent"]).run()
    assert survival.status is RunStatus.PRECONDITION
    assert "chaos is off" in survival.reasons[0]
    assert (report.activities, survival.activities) == ((), ())


def test_a_survival_run_of_lasting_faults_leaves_none(runtime: Runtime) -> None:
    """Each is drawn with arguments that the manager takes."""
    faults = ["slow_agent", "tool_timeout", "disconnect_mcp", "inject_llm_failure"]
    report = SurvivalRun(runtime.manager, seed=3, duration="500ms", interval="25ms", faults=faults).run()
    assert [one.problem for one in report.of(Phase.METHOD) if one.problem] == []
    assert {one.fault for one in report.of(Phase.METHOD)} == set(faults)
    assert report.status is RunStatus.COMPLETED
    assert runtime.manager.list_faults() == ()
