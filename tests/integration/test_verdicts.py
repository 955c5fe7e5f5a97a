"""Who is declared dead and who is not: health checks, long calls, wishes of operators, agents without a factory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ares_celery import AgentContext, AgentSpec, SyncAgentContext
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import assert_stays, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class Judged:
    """Says of itself what a test puts down, and counts its instances."""

    made = 0
    asked = 0
    alive = True

    def __init__(self, agent_id: str) -> None:
        type(self).made += 1

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(60)

    def heartbeat(self) -> None: ...

    def is_alive(self) -> bool:
        type(self).asked += 1
        return type(self).alive


@pytest.fixture
def judged() -> Any:
    """A class with an opinion of its own."""
    return type("OwnJudged", (Judged,), {"made": 0, "asked": 0, "alive": True})


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str, judged: Any) -> Iterator[Runtime]:
    """A running one."""
    with Runtime(redis_server.url, namespace, restore_backoff="10ms", restore_backoff_max="20ms") as made:
        made.register("judged", judged)
        made.manager.start()
        yield made


def swept(runtime: Runtime) -> bool:
    """One sweep with its verdicts, as part of a condition."""
    runtime.sweep(judge=True)
    return True


@pytest.mark.spec(65)
@pytest.mark.parametrize("wish", ["stopped", "paused"])
def test_a_health_check_asks_nothing_of_an_agent_that_was_stopped_or_paused(
    runtime: Runtime, judged: Any, wish: str
) -> None:
    """It would say that it is not alive: nobody asks, no death, no restart, for five checks."""
    runtime.manager.start_agent(AgentSpec(id="a", type="judged"), wait="running")
    wait_until(lambda: judged.asked > 0, "a check of the agent while it runs")
    runtime.manager.stop_agent("a") if wish == "stopped" else runtime.manager.pause_agent("a")
    runtime.until("a", wish)
    judged.alive, asked = False, judged.asked
    before = runtime.types("a")

    assert_stays(lambda: swept(runtime) and judged.asked == asked, "nobody asks", seconds=1.0)

    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (info.state, info.restarts, info.incarnation, judged.made) == (wish, 0, 1, 1)
    assert runtime.types("a") == before


@pytest.mark.spec(64)
@pytest.mark.parametrize("status", ["offline", "stopping"])
def test_an_agent_without_heartbeats_is_dead_by_its_status(runtime: Runtime, status: str) -> None:
    """Either word: a death whose reason names it, and a resurrection."""

    class Statused:
        made = 0

        def __init__(self, agent_id: str) -> None:
            Statused.made += 1
            self.status = status if Statused.made == 1 else "ready"

        async def start(self, ctx: AgentContext) -> None:
            while not ctx.stop_requested:
                await ctx.sleep(60)

    runtime.register("statused", Statused)
    runtime.manager.start_agent(AgentSpec(id="s", type="statused"))

    info = runtime.until("s", "running", incarnation=2)

    (stopped,) = runtime.events("s", "agent.stopped")
    assert (stopped.payload["reason"], stopped.payload["cause"]) == (f"health check: status={status}", "unhealthy")
    assert (info.charged, info.deaths) == (1, {"unhealthy": 1})


@pytest.mark.spec(68)
@pytest.mark.parametrize("colour", ["async", "plain"])
@pytest.mark.parametrize("leases", [0.7, 2.5])
def test_a_long_call_without_heartbeats_is_no_death(runtime: Runtime, colour: str, leases: float) -> None:
    """Shorter than the lease, and longer too: its process renews, whatever the agent's code does meanwhile."""
    busy, done = threading.Event(), threading.Event()
    seconds = runtime.config.lease_ttl.total_seconds() * leases

    def long_call() -> None:
        busy.set()
        threading.Event().wait(seconds)
        done.set()

    class Busy:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            long_call()
            while not ctx.stop_requested:
                await ctx.sleep(60)

    class PlainlyBusy:
        def __init__(self, agent_id: str) -> None: ...

        def start(self, ctx: SyncAgentContext) -> None:
            long_call()
            while not ctx.stop_requested:
                ctx.sleep(60)

    runtime.register("busy", Busy if colour == "async" else PlainlyBusy)
    runtime.manager.start_agent(AgentSpec(id="b", type="busy"))
    assert busy.wait(10)

    wait_until(lambda: swept(runtime) and done.is_set(), "the call to return")
    assert_stays(lambda: swept(runtime), "sweeps", seconds=0.3)

    info = runtime.manager.get_agent_info("b")
    assert info is not None
    assert (info.state, info.incarnation, info.restarts) == ("running", 1, 0)
    assert runtime.types("b") == ["agent.started"]


@pytest.mark.spec(41)
def test_a_report_about_an_agent_that_nobody_can_make_changes_nothing_but_the_log(
    redis_server: RedisServer, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is known, no factory of its type exists, so it never ran: a warning, nothing else; total restarts 0."""
    with Runtime(redis_server.url, namespace) as runtime:
        runtime.manager.start()
        runtime.manager.register_agent(AgentSpec(id="a", type="made-by-nobody"))
        with caplog.at_level(logging.WARNING):
            runtime.manager.notify_agent_dead("a", "cannot be")
        runtime.sweep(judge=True)
        assert [record.levelname for record in caplog.records if "the report of its death" in record.message] == [
            "WARNING"
        ]
        assert runtime.manager.stats().total_restarts == 0
        assert runtime.types("a") == []
        assert runtime.manager.get_agent_info("a").state == "registered"  # type: ignore[union-attr]


@pytest.mark.spec(66)
def test_a_failed_check_of_an_agent_whose_factory_is_gone_restores_nothing(runtime: Runtime, judged: Any) -> None:
    """The factory belongs to the worker, not to the agent: the tries are used up, it is parked, and says why."""
    runtime.manager.start_agent(AgentSpec(id="a", type="judged", restore_attempts=2), wait="running")
    del runtime.registry._types["judged"]
    judged.alive = False

    info = runtime.until("a", "parked")

    assert (info.cause, info.restarts, judged.made) == ("attempts", 1, 1)
    assert "judged" in info.last_error
    assert "failover.completed" not in runtime.types("a")


@pytest.mark.pain("P13")
def test_what_an_operator_wanted_survives_the_restart_of_every_process(
    redis_server: RedisServer, namespace: str, judged: Any
) -> None:
    """Stopped and paused stay so; a stop of an agent whose process vanished succeeds, again and again, and holds."""
    first = Runtime(redis_server.url, namespace)
    first.register("judged", judged)
    first.manager.start()
    for agent_id in ("stopped", "paused", "runs", "vanished"):
        first.manager.start_agent(AgentSpec(id=agent_id, type="judged"), wait="running")
    first.manager.stop_agent("stopped")
    first.manager.pause_agent("paused")
    first.until("paused", "paused")
    first.close()

    with Runtime(redis_server.url, namespace) as second:
        second.register("judged", judged)
        for _ in range(2):
            second.manager.stop_agent("vanished", timeout=0.1)
        info = second.until("runs", "running", incarnation=2, judge=True)
        assert info.restarts == 1

        def states() -> dict[str, str]:
            second.sweep(judge=True)
            return {one.id: one.state.value for one in second.manager.list_agents()}

        wanted = {"stopped": "stopped", "paused": "paused", "runs": "running", "vanished": "stopped"}
        assert_stays(lambda: states() == wanted, "every wish to hold", seconds=1.0)
        assert {one.id: one.desired.value for one in second.manager.list_agents()} == wanted
        assert judged.made == 5
