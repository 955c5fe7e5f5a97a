"""The Manager against a real Redis and a real host in this process: behaviours A to F, statement by statement."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from ares_celery import AgentContext, AgentSpec, Event, EventFilter, EventType, SyncAgentContext
from ares_celery.background import start_detached
from ares_celery.errors import (
    AgentAlreadyRegisteredError,
    AgentNotParkedError,
    AgentNotRunningError,
    AgentParkedError,
    InvalidConfigError,
    InvalidSettingError,
    LLMUnavailableError,
    MCPConnectionLostError,
    RuntimeStoppedError,
    UnknownAgentTypeError,
    VersionConflictError,
)
from ares_celery.ids import AgentId
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import assert_stays, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class Plain:
    """Waits, counts its instances and its calls, and answers."""

    made = 0
    live = 0
    starts = 0
    stops = 0
    asked = 0

    def __init__(self, agent_id: str) -> None:
        type(self).made += 1
        self.number = type(self).made
        self.total = 0

    async def start(self, ctx: AgentContext) -> None:
        type(self).starts += 1
        type(self).live += 1
        try:
            while not ctx.stop_requested:
                await ctx.sleep(60)
        finally:
            type(self).live -= 1

    async def stop(self, ctx: AgentContext) -> None:
        type(self).stops += 1

    async def process(self, ctx: AgentContext, message: object) -> object:
        await ctx.emit("asked", {})
        return {"number": self.number, "total": self.total}

    def is_alive(self) -> bool:
        type(self).asked += 1
        return True

    def apply(self, event: Event) -> None:
        self.total += 1

    def snapshot(self) -> dict[str, object]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


@pytest.fixture
def plain() -> type[Plain]:
    """A class with counts of its own."""
    return type("OwnPlain", (Plain,), {"made": 0, "live": 0, "starts": 0, "stops": 0, "asked": 0})


@pytest.fixture
def fresh(redis_server: RedisServer, namespace: str, plain: type[Plain]) -> Iterator[Runtime]:
    """A runtime that nobody has started."""
    with Runtime(redis_server.url, namespace) as made:
        made.register("plain", plain)
        yield made


@pytest.fixture
def runtime(fresh: Runtime) -> Runtime:
    """A running one."""
    fresh.manager.start()
    return fresh


def spec(agent_id: str = "a", **fields: Any) -> AgentSpec:
    """A plain agent."""
    return AgentSpec(id=agent_id, type="plain", **fields)


def run(runtime: Runtime, agent_id: str = "a", **fields: Any) -> None:
    """Starts a plain agent and waits until its code runs."""
    runtime.manager.start_agent(spec(agent_id, **fields), wait="running")


# -- registration and start --------------------------------------------------------------------------------------------


@pytest.mark.spec(7)
def test_an_agent_registered_before_the_runtime_runs_starts_with_it(fresh: Runtime, plain: type[Plain]) -> None:
    """Listed and not running; launched by start(); one that was stopped in between is not."""
    fresh.manager.register_agent(spec("a"))
    fresh.manager.register_agent(spec("b"))
    fresh.manager.stop_agent("b")
    assert [(i.id, i.state) for i in fresh.manager.list_agents()] == [("a", "registered"), ("b", "stopped")]
    assert plain.made == 0

    fresh.manager.start()

    fresh.until("a", "running")
    assert fresh.manager.get_agent_info("b").state == "stopped"  # type: ignore[union-attr]


def test_an_agent_registered_while_the_runtime_runs_waits_for_start_agent(runtime: Runtime) -> None:
    """Desired stopped: nothing that restarts starts it."""
    runtime.manager.register_agent(spec())
    runtime.sweep()
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (info.state, info.desired) == ("registered", "stopped")
    runtime.manager.start_agent("a", wait="running")


@pytest.mark.spec(9)
def test_a_second_registration_keeps_the_instance_and_its_next_one_is_made_anew(
    runtime: Runtime, plain: type[Plain]
) -> None:
    """The factory that was registered last makes the next resurrection; in the seed's form."""

    class Newer(Plain):
        made = 0

    instance: Any = plain("a")
    instance.agent_id = "a"
    runtime.manager.register_agent(instance, plain)
    runtime.manager.start_agent("a", wait="running")
    number = runtime.manager.process("a", "x")["number"]

    runtime.manager.register_agent(instance, Newer)
    assert (runtime.manager.process("a", "x")["number"], Newer.made) == (number, 0)
    made = plain.made

    epoch = runtime.manager.get_agent_info("a").epoch  # type: ignore[union-attr]
    runtime.manager.notify_agent_dead("a", "dead", epoch=epoch)
    runtime.until("a", "running", incarnation=2)
    assert (plain.made, Newer.made) == (made, 1)


@pytest.mark.spec(10)
def test_a_started_agent_runs_once_and_is_ready(runtime: Runtime, plain: type[Plain]) -> None:
    """Start runs once, status ready, one active."""
    run(runtime)
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    wait_until(lambda: plain.starts, "its code, which begins behind the word that it runs")
    assert (info.status, plain.starts, runtime.manager.stats().active_agents) == ("ready", 1, 1)


@pytest.mark.spec(12)
def test_a_running_agent_is_not_started_again(runtime: Runtime, plain: type[Plain]) -> None:
    """AgentAlreadyRegisteredError, or what if_exists asks for."""
    run(runtime)
    with pytest.raises(AgentAlreadyRegisteredError, match="if_exists"):
        runtime.manager.start_agent(spec())
    assert runtime.manager.start_agent(spec(), if_exists="return").id == "a"
    runtime.manager.start_agent(spec(labels={"x": "y"}), if_exists="update")
    assert plain.made == 1
    assert runtime.manager.get_agent_info("a").labels == {"x": "y"}  # type: ignore[union-attr]
    runtime.manager.start_agent(spec(), if_exists="restart")
    runtime.until("a", "running", incarnation=2)


@pytest.mark.spec(13)
def test_a_stopped_agent_starts_again_with_its_state_and_counters_at_zero(runtime: Runtime) -> None:
    """Go cannot do that."""
    run(runtime)
    runtime.manager.process("a", "x")
    runtime.manager.restart_agent("a")
    runtime.until("a", "running", incarnation=2)
    runtime.manager.stop_agent("a")

    run(runtime)

    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (info.restarts, info.manual_restarts, info.charged) == (0, 0, 0)
    assert runtime.manager.process("a", "x")["total"] == 2


@pytest.mark.spec(14)
def test_an_agent_started_before_the_runtime_is_stored_and_launches_with_it(fresh: Runtime, plain: type[Plain]) -> None:
    """No event is written until then."""
    fresh.manager.start_agent(spec())
    assert fresh.types("a") == []
    assert plain.made == 0
    fresh.manager.start()
    fresh.until("a", "running")


@pytest.mark.spec(17)
def test_each_of_three_registered_agents_says_once_that_it_started(fresh: Runtime) -> None:
    """agent.started with agent_id and type."""
    for agent_id in "abc":
        fresh.manager.register_agent(spec(agent_id))
    fresh.manager.start()
    for agent_id in "abc":
        fresh.until(agent_id, "running")
    started = [event for agent_id in "abc" for event in fresh.events(agent_id, "agent.started")]
    assert [(e.payload["agent_id"], e.payload["type"]) for e in started] == [
        ("a", "plain"),
        ("b", "plain"),
        ("c", "plain"),
    ]


@pytest.mark.spec(18)
def test_an_agent_that_fails_at_once_does_not_fail_its_start(runtime: Runtime) -> None:
    """start_agent succeeds; the death is told by events."""

    class Fails:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            raise LookupError("nothing to do")

    runtime.register("fails", Fails)
    runtime.manager.start_agent(AgentSpec(id="f", type="fails", max_restarts=1))
    info = runtime.until("f", "parked")
    assert info.reason.startswith("LookupError: nothing to do")


@pytest.mark.spec(21)
def test_an_agent_without_a_main_loop_serves(runtime: Runtime) -> None:
    """Its start is absent, and it answers: alive by rule."""

    class Serves:
        def __init__(self, agent_id: str) -> None: ...

        async def process(self, ctx: AgentContext, message: object) -> object:
            return message

    runtime.register("serves", Serves)
    runtime.manager.start_agent(AgentSpec(id="s", type="serves"), wait="running")
    assert runtime.manager.process("s", 7) == 7
    runtime.manager.stop_agent("s")


# -- stop, restart, pause ----------------------------------------------------------------------------------------------


@pytest.mark.spec(22)
@pytest.mark.spec(24)
def test_a_stop_ends_the_agent_once_and_for_good(runtime: Runtime, plain: type[Plain]) -> None:
    """Context told, stop called once, offline, none active; one agent.stopped, and no resurrection follows."""
    run(runtime)
    runtime.manager.stop_agent("a", reason="enough", actor="me")

    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (info.status, info.state, info.reason, info.actor) == ("offline", "stopped", "enough", "me")
    assert (plain.stops, plain.live, runtime.manager.stats().active_agents) == (1, 0, 0)
    assert [e.payload["reason"] for e in runtime.events("a", "agent.stopped")] == ["explicit_stop"]

    def still_stopped() -> bool:
        runtime.sweep()
        return plain.made == 1

    assert_stays(still_stopped, "the agent stays stopped", seconds=0.7)  # three health intervals


@pytest.mark.spec(25)
def test_a_stop_that_raises_or_takes_too_long_counts_as_stopped_within_the_limit(runtime: Runtime) -> None:
    """1.5 s here; the call returns at most a second later."""

    class Slow(Plain):
        @override
        async def stop(self, ctx: AgentContext) -> None:
            raise OSError("will not")

    hold = threading.Event()

    class Stuck:
        def __init__(self, agent_id: str) -> None: ...

        def start(self, ctx: SyncAgentContext) -> None:
            hold.wait(20)

    runtime.register("slow", Slow)
    runtime.register("stuck", Stuck)
    for agent_id in ("slow", "stuck"):
        runtime.manager.start_agent(AgentSpec(id=agent_id, type=agent_id), wait="running")
        ended = threading.Event()

        def stop(agent_id: str = agent_id, ended: threading.Event = ended) -> None:
            runtime.manager.stop_agent(agent_id)
            ended.set()

        threading.Thread(target=stop, daemon=True).start()
        assert ended.wait(1.5 + 1.0), agent_id
        assert runtime.manager.get_agent_info(agent_id).state == "stopped"  # type: ignore[union-attr]
    hold.set()


@pytest.mark.spec(26)
def test_a_second_stop_succeeds_and_says_nothing(runtime: Runtime) -> None:
    """Idempotent."""
    run(runtime)
    runtime.manager.stop_agent("a")
    before = runtime.types("a")
    runtime.manager.stop_agent("a")
    assert runtime.types("a") == before


@pytest.mark.spec(27)
@pytest.mark.spec(30)
def test_a_restart_by_hand_makes_a_new_instance_and_is_not_charged(runtime: Runtime, plain: type[Plain]) -> None:
    """Old stop once, factory once, total 1, active 1; the budget is untouched."""
    run(runtime, max_restarts=1)
    runtime.manager.restart_agent("a")
    runtime.until("a", "running", incarnation=2)
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (plain.stops, plain.made, info.charged, info.manual_restarts) == (1, 2, 0, 1)
    stats = runtime.manager.stats()
    assert (stats.total_restarts, stats.active_agents) == (1, 1)
    assert runtime.manager.process("a", "x")["number"] == 2
    # The whole budget of one is still there for a death; the total counts both.
    runtime.manager.notify_agent_dead("a", "dead", epoch=info.epoch)
    info = runtime.until("a", "running", incarnation=3)
    assert (info.restarts, info.charged, info.manual_restarts) == (1, 1, 1)
    assert runtime.manager.stats().total_restarts == 2


@pytest.mark.spec(29)
def test_a_restart_that_no_factory_could_follow_is_refused_and_the_instance_goes_on(
    runtime: Runtime, plain: type[Plain]
) -> None:
    """Type unknown, or a config that the factory no longer takes: an error before anything ends."""
    run(runtime)
    runtime.store.report_types({"other": {"open": True, "names": [], "required": []}})
    runtime.registry._types.clear()
    with pytest.raises(UnknownAgentTypeError, match="plain"):
        runtime.manager.restart_agent("a")

    class Pickier(Plain):
        def __init__(self, agent_id: str, must: int) -> None: ...

    runtime.registry.register("plain", Pickier)
    with pytest.raises(InvalidConfigError, match="must"):
        runtime.manager.restart_agent("a")
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (info.state, info.incarnation, plain.stops) == ("running", 1, 0)
    assert runtime.manager.process("a", "x")["number"] == 1
    assert runtime.types("a") == ["agent.started", "asked"]


@pytest.mark.spec(29)
def test_a_factory_that_fails_after_a_restart_is_tried_again_and_then_parked_for_a_person(
    runtime: Runtime, plain: type[Plain]
) -> None:
    """The old one has ended by then, as two never overlap; no state is lost. The first failure is a charged death."""
    run(runtime)
    assert runtime.manager.process("a", "x")["total"] == 1
    broken = [True]

    class Breaks(Plain):
        def __init__(self, agent_id: str) -> None:
            if broken[0]:
                raise OSError("no disk")
            super().__init__(agent_id)

    runtime.registry.replace("plain", Breaks)
    runtime.manager.restart_agent("a")
    info = runtime.until("a", "parked", timeout=15)
    assert (info.cause, info.charged) == ("attempts", 1)
    assert "no disk" in info.last_error

    broken[0] = False
    runtime.manager.restart_agent("a")
    runtime.until("a", "running")
    assert runtime.manager.process("a", "x")["total"] == 2


@pytest.mark.spec(31)
def test_a_stopped_runtime_neither_restarts_nor_resumes(runtime: Runtime) -> None:
    """RuntimeStoppedError."""
    run(runtime)
    runtime.manager.pause_agent("a")
    runtime.until("a", "paused")
    runtime.manager.stop()
    with pytest.raises(RuntimeStoppedError):
        runtime.manager.restart_agent("a")
    with pytest.raises(RuntimeStoppedError):
        runtime.manager.resume_agent("a")


@pytest.mark.spec(32)
@pytest.mark.spec(33)
def test_a_paused_agent_rests_and_resumes_with_its_state(runtime: Runtime, plain: type[Plain]) -> None:
    """Listed as paused, not resurrected; resumed with state intact, no restart counted, and it says so."""
    run(runtime)
    runtime.manager.process("a", "x")
    runtime.manager.pause_agent("a")
    runtime.until("a", "paused")
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (info.paused, plain.live) == (True, 0)
    runtime.manager.notify_agent_dead("a", "nothing there")
    asked = plain.asked

    def rests() -> bool:
        runtime.sweep(judge=True)
        return (plain.live, plain.asked, runtime.manager.get_agent_info("a").state) == (0, asked, "paused")  # type: ignore[union-attr]

    assert_stays(rests, "nobody asks it, nobody revives it", seconds=0.7)  # three health intervals
    runtime.manager.send("a", "kept until it resumes")

    runtime.manager.resume_agent("a")
    runtime.until("a", "running", incarnation=2)

    wait_until(lambda: len(runtime.events("a", "asked")) == 2, "the message of its pause to be answered")
    assert runtime.manager.process("a", "x")["total"] == 3
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (info.restarts, info.manual_restarts, info.paused) == (0, 0, False)
    assert runtime.events("a", "agent.started")[-1].payload["reason"] == "resume"
    runtime.manager.resume_agent("a")
    assert runtime.manager.get_agent_info("a").incarnation == 2  # type: ignore[union-attr]


@pytest.mark.spec(35)
def test_stopped_and_paused_exclude_each_other(runtime: Runtime) -> None:
    """A stop of a paused one is a stop; a pause of a stopped one an error."""
    run(runtime)
    runtime.manager.pause_agent("a")
    runtime.until("a", "paused")
    runtime.manager.stop_agent("a")
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (info.state, info.paused) == ("stopped", False)
    with pytest.raises(AgentNotRunningError):
        runtime.manager.pause_agent("a")


# -- death and resurrection --------------------------------------------------------------------------------------------


@pytest.mark.spec(36)
@pytest.mark.spec(53)
@pytest.mark.spec(54)
def test_a_reported_death_is_followed_by_a_resurrection_and_said_in_order(runtime: Runtime, plain: type[Plain]) -> None:
    """agent.stopped with reason and auto_restore, failover.triggered, failover.completed with the type."""
    run(runtime)
    wait_until(lambda: _notified(runtime, "no pulse"), "the report to be taken")

    runtime.until("a", "running", incarnation=2)

    assert plain.made == 2
    told = [(e.type, e.payload.get("reason") or e.payload.get("type")) for e in runtime.events("a")][-3:]
    assert told == [
        ("agent.stopped", "no pulse"),
        ("failover.triggered", "no pulse"),
        ("failover.completed", "plain"),
    ]
    assert runtime.events("a", "agent.stopped")[-1].payload["auto_restore"] is True


def _notified(runtime: Runtime, reason: str) -> bool:
    """Reports a death; one within a second of the claim is not meant for this incarnation."""
    runtime.manager.notify_agent_dead("a", reason)
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    return info.state != "running" or info.incarnation > 1


@pytest.mark.spec(37)
@pytest.mark.spec(38)
def test_ten_reports_at_once_are_one_death(runtime: Runtime, plain: type[Plain]) -> None:
    """By epoch, from ten threads: one resurrection, one restart counted."""
    run(runtime, max_restarts=3)
    epoch = runtime.manager.get_agent_info("a").epoch  # type: ignore[union-attr]
    with ThreadPoolExecutor(10) as pool:
        reports = [pool.submit(runtime.manager.notify_agent_dead, "a", "dead", epoch=epoch) for _ in range(10)]
        for report in reports:
            report.result()

    info = runtime.until("a", "running", incarnation=2)

    assert (info.restarts, info.charged, plain.made) == (1, 1, 2)


class Dies:
    """Dies as often as it is told to, and counts its instances."""

    left = 0
    made = 0

    def __init__(self, agent_id: str) -> None:
        type(self).made += 1

    async def start(self, ctx: AgentContext) -> None:
        if type(self).left:
            type(self).left -= 1
            raise RuntimeError("as told")
        while not ctx.stop_requested:
            await ctx.sleep(60)


@pytest.mark.pain("P11")
@pytest.mark.spec(39)
@pytest.mark.spec(40)
def test_a_used_up_budget_parks_the_agent_and_a_person_revives_it(runtime: Runtime) -> None:
    """Cap 1 and one restart used: event, state and counter; start is refused with the cause, restart un-parks."""
    dies: Any = type("Dies1", (Dies,), {"left": 2, "made": 0})
    alarms = runtime.manager.events.subscribe(EventFilter(types=[EventType.AGENT_EXHAUSTED]))
    runtime.register("dies", dies)
    runtime.manager.start_agent(AgentSpec(id="d", type="dies", max_restarts=1))

    info = runtime.until("d", "parked")

    assert (info.cause, info.charged, info.incarnation, info.status) == ("cap", 1, 2, "offline")
    assert dies.made == 2, "the factory is not called for a third"
    (exhausted,) = runtime.events("d", "agent.exhausted")
    assert (exhausted.payload["reason"], exhausted.payload["detail"]) == ("cap", "RuntimeError: as told")
    assert [(one.id, one.state) for one in runtime.manager.list_agents(states=["parked"])] == [("d", "parked")]
    stats = runtime.manager.stats()
    assert (stats.counters["parked"], stats.by_state) == (1, {"parked": 1})
    with pytest.raises(AgentParkedError, match="as told"):
        runtime.manager.start_agent(AgentSpec(id="d", type="dies"))
    with pytest.raises(AgentParkedError):
        runtime.manager.send("d", "x")
    runtime.manager.notify_agent_dead("d", "again")
    runtime.sweep(judge=True)
    assert alarms.poll(timeout=5).payload["detail"] == "RuntimeError: as told"  # type: ignore[union-attr]
    assert alarms.poll(timeout=0.3) is None, "whoever listens hears it once"
    assert (len(runtime.events("d", "agent.exhausted")), dies.made) == (1, 2), "told once"
    runtime.manager.restart_agent("d")
    runtime.until("d", "running")
    assert dies.made == 3


@pytest.mark.spec(46)
def test_when_all_attempts_are_used_up_it_is_told_and_a_person_revives_the_agent(
    redis_server: RedisServer, namespace: str
) -> None:
    """failover.failed, agent.exhausted (attempts), state parked; restart_agent brings it back once it can recover."""
    broken = [False]

    class Fragile(Dies):
        def __init__(self, agent_id: str) -> None:
            super().__init__(agent_id)
            if broken[0]:
                raise OSError("no disk")

    with Runtime(redis_server.url, namespace, restore_backoff="10ms", restore_backoff_max="10ms") as runtime:
        runtime.manager.start()
        runtime.register("fragile", Fragile)
        runtime.manager.start_agent(AgentSpec(id="f", type="fragile", restore_attempts=3), wait="running")
        broken[0] = True
        epoch = runtime.manager.get_agent_info("f").epoch  # type: ignore[union-attr]
        runtime.manager.notify_agent_dead("f", "dead", epoch=epoch)

        info = runtime.until("f", "parked")

        assert (info.cause, info.restarts, Fragile.made) == ("attempts", 1, 4)
        assert runtime.types("f")[-2:] == ["failover.failed", "agent.exhausted"]
        assert runtime.events("f")[-1].payload["reason"] == "attempts"
        broken[0] = False
        runtime.manager.restart_agent("f")
        runtime.until("f", "running")


@pytest.mark.pain("P10")
@pytest.mark.parametrize("colour", ["async", "plain"])
def test_a_model_that_refuses_costs_nothing_of_the_budget(
    redis_server: RedisServer, namespace: str, colour: str
) -> None:
    """Three such deaths with a cap of one, then a crash: counted apart, and only the crash is charged."""
    errors: list[Exception] = [
        ValueError("bug"),
        LLMUnavailableError(reason="429"),
        RuntimeError("wrapped"),
        type("RateLimitError", (Exception,), {"__module__": "openai"})("429"),
    ]
    errors[2].__cause__ = MCPConnectionLostError(server="github")

    class Asks:
        def __init__(self, agent_id: str) -> None:
            self.error = errors.pop() if errors else None

        async def start(self, ctx: AgentContext) -> None:
            await ctx.emit("began", {})
            if self.error is not None:
                raise self.error
            while not ctx.stop_requested:
                await ctx.sleep(60)

    class AsksPlainly:
        def __init__(self, agent_id: str) -> None:
            self.error = errors.pop() if errors else None

        def start(self, ctx: SyncAgentContext) -> None:
            if self.error is not None:
                raise self.error
            while not ctx.stop_requested:
                ctx.sleep(60)

    with Runtime(redis_server.url, namespace, restore_backoff="10ms", restore_backoff_max="20ms") as runtime:
        runtime.manager.start()
        runtime.register("asks", Asks if colour == "async" else AsksPlainly)
        runtime.manager.start_agent(AgentSpec(id="a", type="asks", max_restarts=1))

        info = runtime.until("a", "running", incarnation=5)

        assert (info.restarts, info.charged, info.deaths) == (4, 1, {"llm": 2, "mcp": 1, "crash": 1})
        counters = runtime.manager.stats().counters
        assert {name: count for name, count in counters.items() if name.startswith("deaths")} == {
            "deaths": 4,
            "deaths.llm": 2,
            "deaths.mcp": 1,
            "deaths.crash": 1,
        }
        told = [event.payload["cause"] for event in runtime.events("a", "failover.triggered")]
        assert told == ["llm", "mcp", "llm", "crash"]


@pytest.mark.spec(3)
def test_without_a_cap_twelve_deaths_are_twelve_resurrections(redis_server: RedisServer, namespace: str) -> None:
    """max_restarts 0."""
    with Runtime(redis_server.url, namespace, restore_backoff="10ms", restore_backoff_max="20ms") as runtime:
        runtime.manager.start()
        runtime.register("dies", type("Dies12", (Dies,), {"left": 12}))
        runtime.manager.start_agent(AgentSpec(id="d", type="dies", max_restarts=0))
        info = runtime.until("d", "running", incarnation=13)
        assert (info.restarts, info.charged) == (12, 12)


@pytest.mark.spec(45)
@pytest.mark.spec(59)
def test_a_factory_that_fails_twice_costs_one_death(runtime: Runtime) -> None:
    """Failed attempts wait and are not charged; the supervisor survives what the factory raises."""
    failures = [0]

    class Fragile(Dies):
        left = 1

        def __init__(self, agent_id: str) -> None:
            if failures[0]:
                failures[0] -= 1
                raise OSError("no disk")

    runtime.register("fragile", Fragile)
    failures[0] = 0
    Fragile.left = 0
    runtime.manager.start_agent(AgentSpec(id="f", type="fragile"), wait="running")
    failures[0] = 2
    epoch = runtime.manager.get_agent_info("f").epoch  # type: ignore[union-attr]
    runtime.manager.notify_agent_dead("f", "dead", epoch=epoch)

    info = runtime.until("f", "running", incarnation=4)

    assert (info.restarts, info.charged) == (1, 1)
    assert runtime.manager.stats().counters["failed_attempts"] == 2


@pytest.mark.spec(47)
def test_an_attempt_that_takes_too_long_is_abandoned(redis_server: RedisServer, namespace: str) -> None:
    """restore_timeout: the next attempt runs, and the half-built instance never does."""
    hold, slow = threading.Event(), [False]
    lived: list[int] = []

    class Slow(Plain):
        made = 0

        def __init__(self, agent_id: str) -> None:
            super().__init__(agent_id)
            if slow[0]:
                slow[0] = False
                hold.wait(20)

        @override
        async def start(self, ctx: AgentContext) -> None:
            lived.append(self.number)
            await super().start(ctx)

    with Runtime(redis_server.url, namespace, restore_timeout="300ms", lease_ttl="400ms") as runtime:
        runtime.manager.start()
        runtime.register("slow", Slow)
        runtime.manager.start_agent(AgentSpec(id="s", type="slow"), wait="running")
        slow[0] = True
        epoch = runtime.manager.get_agent_info("s").epoch  # type: ignore[union-attr]
        runtime.manager.notify_agent_dead("s", "dead", epoch=epoch)

        runtime.until("s", "running", incarnation=3, judge=True)

        hold.set()
        assert_stays(lambda: lived == [1, 3], "only whole instances live", seconds=0.5)


@pytest.mark.spec(48)
def test_a_stopped_runtime_starts_no_pending_resurrection(runtime: Runtime, plain: type[Plain]) -> None:
    """The next attempt waits in Redis; stop() calls it off."""
    dies: Any = type("Dies2", (Dies,), {"left": 100, "live": 0})
    runtime.register("dies", dies)
    runtime.manager.start_agent(AgentSpec(id="d", type="dies"))
    runtime.until("d", "resurrecting", incarnation=2)

    runtime.manager.stop()
    left = dies.left

    def nothing_started() -> bool:
        runtime.sweep()
        return bool(dies.left == left)

    assert_stays(nothing_started, "no instance starts", seconds=0.7)
    assert runtime.types("d")[-1] in {"agent.stopped", "failover.aborted"}


@pytest.mark.spec(49)
def test_a_stop_while_resurrecting_leaves_no_live_instance(runtime: Runtime, plain: type[Plain]) -> None:
    """Instances counted, unlike the Go test."""
    run(runtime)
    epoch = runtime.manager.get_agent_info("a").epoch  # type: ignore[union-attr]
    runtime.manager.notify_agent_dead("a", "dead", epoch=epoch)
    runtime.manager.stop_agent("a")

    wait_until(lambda: plain.live == 0, "no instance to live", timeout=5)

    def none_lives() -> bool:
        runtime.sweep()
        return plain.live == 0

    assert_stays(none_lives, "none lives", seconds=0.5)
    assert runtime.manager.get_agent_info("a").state == "stopped"  # type: ignore[union-attr]


@pytest.mark.spec(50)
def test_a_restart_while_resurrecting_leaves_exactly_one_instance(runtime: Runtime, plain: type[Plain]) -> None:
    """The one of the newer generation."""
    run(runtime)
    epoch = runtime.manager.get_agent_info("a").epoch  # type: ignore[union-attr]
    runtime.manager.notify_agent_dead("a", "dead", epoch=epoch)
    runtime.manager.restart_agent("a")

    info = runtime.until("a", "running", incarnation=2)

    def one_lives() -> bool:
        runtime.sweep()
        return plain.live == 1

    wait_until(one_lives, "one instance to be left")
    assert_stays(one_lives, "one lives", seconds=0.5)
    assert info.epoch > epoch


@pytest.mark.spec(51)
@pytest.mark.spec(57)
def test_of_two_restores_at_once_one_wins(runtime: Runtime) -> None:
    """The other gets a conflict, as the first is under way; one live instance; no restart is counted."""
    both_asked = threading.Event()

    class Reluctant(Plain):
        made = live = 0

        @override
        async def stop(self, ctx: AgentContext) -> None:
            await asyncio.to_thread(both_asked.wait, 5)

    runtime.register("reluctant", Reluctant)
    runtime.manager.start_agent(AgentSpec(id="a", type="reluctant"), wait="running")
    outcomes: list[str] = []

    def restore(_: int) -> None:
        try:
            runtime.manager.restore_agent("a")
            outcomes.append("done")
        except VersionConflictError:
            outcomes.append("conflict")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(restore, range(2)))
    both_asked.set()

    info = runtime.until("a", "running", incarnation=2)
    assert sorted(outcomes) == ["conflict", "done"]
    assert (info.incarnation, info.restarts, info.charged) == (2, 0, 0)
    wait_until(lambda: Reluctant.live == 1, "one instance to live")
    stats = runtime.manager.stats()
    assert (stats.active_agents, stats.total_restarts) == (1, 0)
    assert len(runtime.events("a", "failover.completed")) == 1


@pytest.mark.spec(55)
def test_a_restore_of_a_stopped_agent_is_an_error(runtime: Runtime) -> None:
    """Not a silent success."""
    run(runtime)
    runtime.manager.stop_agent("a")
    with pytest.raises(AgentNotRunningError):
        runtime.manager.restore_agent("a")


@pytest.mark.spec(42)
def test_a_report_before_start_or_after_stop_launches_nothing(fresh: Runtime, plain: type[Plain]) -> None:
    """And start() launches the agent once."""
    fresh.manager.register_agent(spec())
    fresh.manager.notify_agent_dead("a", "cannot be")
    assert plain.made == 0
    fresh.manager.start()
    fresh.until("a", "running")
    fresh.manager.stop()
    fresh.manager.notify_agent_dead("a", "cannot be")
    fresh.sweep()
    assert (plain.made, plain.starts) == (1, 1)


@pytest.mark.spec(52)
@pytest.mark.spec(120)
def test_a_late_write_of_a_declared_dead_incarnation_is_refused(runtime: Runtime) -> None:
    """Fenced by its generation: append, snapshot and reply alike."""
    from ares_celery.errors import FencedError
    from ares_celery.ids import Version
    from ares_celery.model.event import NewEvent

    run(runtime)
    record = runtime.store.read(AgentId("a")).record
    assert record is not None
    runtime.manager.stop_agent("a", force=True)
    with pytest.raises(FencedError):
        runtime.store.append(record.id, record.fence, [NewEvent("late", {})], op="x", expected=record.version)
    with pytest.raises(FencedError):
        runtime.store.save_snapshot(record.id, record.fence, {}, version=Version(1), schema=1)
    assert runtime.events("a", "late") == []


# -- the whole runtime -------------------------------------------------------------------------------------------------


@pytest.mark.spec(69)
def test_a_stop_of_what_does_not_run_has_no_effect(fresh: Runtime) -> None:
    """Before start, and twice."""
    fresh.manager.stop()
    fresh.manager.start()
    fresh.manager.stop()
    fresh.manager.stop()
    fresh.manager.start()
    run(fresh)
    assert fresh.manager.stats().active_agents == 1


@pytest.mark.spec(70)
@pytest.mark.spec(73)
def test_five_agents_stop_with_the_runtime_each_told_once(runtime: Runtime) -> None:
    """One agent.stopped with reason shutdown each; a stop_agent meanwhile does no harm."""
    ids = [f"n{number}" for number in range(5)]
    for agent_id in ids:
        run(runtime, agent_id)
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(runtime.manager.stop_agent, "n0")
        runtime.manager.stop()
        stopped.result()
    assert runtime.manager.stats().active_agents == 0
    assert {info.state for info in runtime.manager.list_agents()} == {"stopped"}
    for agent_id in ids[1:]:
        assert [e.payload["reason"] for e in runtime.events(agent_id, "agent.stopped")] == ["shutdown"]


def test_a_stopped_runtime_holds_and_starts_again_what_ran(runtime: Runtime) -> None:
    """What is desired of agents is not touched by stop()."""
    run(runtime, "a")
    run(runtime, "b")
    runtime.manager.stop_agent("b")
    runtime.manager.stop()
    runtime.manager.start()
    runtime.until("a", "running", incarnation=2)
    assert runtime.manager.get_agent_info("b").state == "stopped"  # type: ignore[union-attr]


@pytest.mark.spec(71)
def test_the_final_snapshot_is_taken_before_the_agent_ends(runtime: Runtime) -> None:
    """State of the last event, taken at a settled point; the code of the agent was asked, and never cancelled."""
    told: list[str] = []

    class Tells(Plain):
        @override
        async def start(self, ctx: AgentContext) -> None:
            try:
                while not ctx.stop_requested:
                    await ctx.sleep(60)
                told.append("asked")
                await ctx.emit("last words", {})
            except BaseException as error:
                told.append(repr(error))
                raise

        @override
        def snapshot(self) -> dict[str, object]:
            told.append(f"snapshot {self.total}")
            return super().snapshot()

    runtime.register("tells", Tells)
    runtime.manager.start_agent(AgentSpec(id="a", type="tells"), wait="running")
    runtime.manager.process("a", "x")
    runtime.manager.stop()
    assert [one for one in told if one != "snapshot 0"][-2:] == ["asked", "snapshot 2"]
    assert runtime.store.snapshots.load("a") == {"total": 2}
    assert runtime.types("a")[-1] == "agent.stopped"


@pytest.mark.spec(72)
def test_stop_returns_in_time_whatever_agents_do(redis_server: RedisServer, namespace: str) -> None:
    """One ignores cancellation, one never ends: limits 0.1 s and 0.5 s, and it returns."""
    hold = threading.Event()

    class Deaf:
        def __init__(self, agent_id: str) -> None: ...

        def start(self, ctx: SyncAgentContext) -> None:
            hold.wait(20)

    class Stubborn:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            while not hold.is_set():
                try:
                    await asyncio.wait_for(asyncio.Event().wait(), 0.02)
                except (asyncio.CancelledError, TimeoutError):
                    continue

    with Runtime(redis_server.url, namespace, agent_stop_timeout="100ms", overall_stop_timeout="500ms") as runtime:
        runtime.manager.start()
        runtime.register("deaf", Deaf)
        runtime.register("stubborn", Stubborn)
        runtime.manager.start_agent(AgentSpec(id="d", type="deaf"), wait="running")
        runtime.manager.start_agent(AgentSpec(id="s", type="stubborn"), wait="running")
        stopper = threading.Thread(target=runtime.manager.stop, daemon=True)
        stopper.start()
        stopper.join(5)
        assert not stopper.is_alive()
        assert runtime.manager.stats().active_agents == 0
        hold.set()


@pytest.mark.spec(74)
def test_a_snapshot_that_raises_keeps_nobody_from_stopping(runtime: Runtime) -> None:
    """The others are snapshotted and stopped."""

    class Broken(Plain):
        @override
        def snapshot(self) -> dict[str, object]:
            raise OSError("no state")

    class Empty(Plain):
        @override
        def snapshot(self) -> dict[str, object]:
            return {}

    runtime.register("broken", Broken)
    runtime.register("empty", Empty)
    runtime.manager.start_agent(AgentSpec(id="b", type="broken"), wait="running")
    runtime.manager.start_agent(AgentSpec(id="e", type="empty"), wait="running")
    run(runtime, "a")
    runtime.manager.process("a", "x")
    runtime.manager.process("e", "x")
    runtime.manager.stop()
    assert {info.state for info in runtime.manager.list_agents()} == {"stopped"}
    assert runtime.store.snapshots.load("a") == {"total": 1}
    # Nothing is not stored: the events bring back what there was.
    assert runtime.store.stored_snapshots(AgentId("e")) == []
    runtime.manager.start()
    assert runtime.manager.process("e", "x")["total"] == 2


@pytest.mark.spec(75)
def test_stats_count_active_agents_restarts_and_uptime(runtime: Runtime) -> None:
    """Two running, one stopped; paused and never started ones apart; uptime grows while it runs, then stands still."""
    for agent_id in "abcp":
        run(runtime, agent_id)
    runtime.manager.stop_agent("c")
    runtime.manager.pause_agent("p")
    runtime.until("p", "paused")
    runtime.manager.register_agent(spec("never"))
    runtime.manager.restart_agent("a")
    runtime.until("a", "running", incarnation=2)
    stats = runtime.manager.stats()
    assert (stats.active_agents, stats.paused_agents, stats.registered_agents) == (2, 1, 1)
    assert stats.by_state == {"running": 2, "stopped": 1, "paused": 1, "registered": 1}
    assert stats.total_restarts == 1
    wait_until(lambda: runtime.manager.stats().uptime > stats.uptime, "uptime to grow")
    runtime.manager.stop()
    frozen = runtime.manager.stats().uptime
    assert frozen > stats.uptime
    assert runtime.manager.stats().uptime == frozen
    # The next run is counted for itself, and freezes at its own end.
    runtime.manager.start()
    assert timedelta(0) < runtime.manager.stats().uptime < frozen
    runtime.manager.stop()
    assert timedelta(0) < runtime.manager.stats().uptime < frozen


@pytest.mark.spec(77)
def test_detached_work_is_counted_by_label_until_it_ends(runtime: Runtime) -> None:
    """Of this process as it is, of the others as they said; absent at zero; the map is a copy."""
    assert runtime.manager.stats().background_tasks == {}
    hold = threading.Event()
    threads = [start_detached("unit-tidying", lambda: hold.wait(20)) for _ in range(2)]
    runtime.store.report_hosts("another", "w@there")
    runtime.store.report_background("another", {"unit-tidying": 1, "compaction": 1})

    stats = runtime.manager.stats()
    assert stats.background_tasks == {"unit-tidying": 3, "compaction": 1}
    stats.background_tasks.clear()
    assert runtime.manager.stats().background_tasks == {"unit-tidying": 3, "compaction": 1}

    runtime.store.report_background("another", {})
    hold.set()
    for thread in threads:
        thread.join(10)
    assert runtime.manager.stats().background_tasks == {}


@pytest.mark.spec(76)
def test_stats_hold_under_churn(runtime: Runtime) -> None:
    """A hundred calls while agents come and go: no error, nothing negative."""
    ended = threading.Event()

    def churn() -> None:
        while not ended.is_set():
            runtime.manager.start_agent(spec("churn"), if_exists="return", wait="running")
            runtime.manager.stop_agent("churn")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        with ThreadPoolExecutor(10) as pool:
            for call in [pool.submit(runtime.manager.stats) for _ in range(100)]:
                stats = call.result()
                assert stats.active_agents >= 0
                assert stats.total_restarts >= 0
                assert min(stats.by_state.values(), default=0) >= 0
    finally:
        ended.set()
        thread.join(20)


@pytest.mark.spec(149)
def test_lists_and_lookups_tell_each_agents_state(runtime: Runtime) -> None:
    """id, type, status, restarts, paused; unknown gives nothing."""
    run(runtime, "running")
    run(runtime, "paused")
    run(runtime, "stopped")
    runtime.manager.pause_agent("paused")
    runtime.until("paused", "paused")
    runtime.manager.stop_agent("stopped")
    listed = {info.id: (info.type, info.status, info.restarts, info.paused) for info in runtime.manager.list_agents()}
    assert listed == {
        "running": ("plain", "ready", 0, False),
        "paused": ("plain", "offline", 0, True),
        "stopped": ("plain", "offline", 0, False),
    }
    assert [info.id for info in runtime.manager.list_agents(states=["paused", "stopped"])] == ["paused", "stopped"]
    assert runtime.manager.get_agent_info("none") is None
    assert runtime.manager.get_agent("none") is None
    handle = runtime.manager.get_agent("running")
    assert handle is not None
    number = handle.process("x")["number"]
    runtime.manager.restore_agent("running")
    runtime.until("running", "running", incarnation=2)
    assert handle.incarnation == 2
    restored = runtime.manager.get_agent("running")
    assert restored is not None
    assert restored.process("x")["number"] > number  # answered by the new instance
    assert (restored.info().type, restored.info().restarts) == ("plain", 0)


@pytest.mark.spec(2)
def test_without_any_state_agents_live_and_die_all_the_same(runtime: Runtime) -> None:
    """No snapshot, no fold, no memory manager: recovery has nothing to do."""
    runtime.register("dies", type("Dies3", (Dies,), {"left": 2}))
    runtime.manager.start_agent(AgentSpec(id="d", type="dies"))
    assert runtime.until("d", "running", incarnation=3).restarts == 2


def test_only_a_parked_agent_is_unparked(runtime: Runtime) -> None:
    """A stopped one stays stopped, a running one is left alone."""
    run(runtime)
    with pytest.raises(AgentNotParkedError, match="running"):
        runtime.manager.unpark_agent("a")
    runtime.manager.stop_agent("a")
    with pytest.raises(AgentNotParkedError, match="stopped"):
        runtime.manager.unpark_agent("a")
    assert runtime.manager.get_agent_info("a").state == "stopped"  # type: ignore[union-attr]


def test_an_unparked_agent_that_goes_on_dying_is_parked_again(runtime: Runtime) -> None:
    """It gets a full budget first: two more incarnations with a cap of one."""
    runtime.register("dies", type("Dies4", (Dies,), {"left": 100}))
    runtime.manager.start_agent(AgentSpec(id="d", type="dies", max_restarts=1))
    assert runtime.until("d", "parked").incarnation == 2
    runtime.manager.unpark_agent("d")
    assert runtime.until("d", "parked", incarnation=4).incarnation == 4


def test_a_resurrection_that_waits_says_for_what_and_until_when(runtime: Runtime) -> None:
    """Backoff is no lack of slots."""
    runtime.register("dies", type("Dies5", (Dies,), {"left": 100}))
    runtime.manager.start_agent(AgentSpec(id="d", type="dies", backoff=60, backoff_max=60))
    wait_until(lambda: runtime.manager.get_agent_info("d").waiting_on == "backoff")  # type: ignore[union-attr]
    info = runtime.manager.get_agent_info("d")
    assert info is not None
    assert info.next_attempt is not None
    assert info.pid is None
    run(runtime)
    assert runtime.manager.get_agent_info("a").pid == os.getpid()  # type: ignore[union-attr]


def test_an_unknown_if_exists_is_refused_before_anything_is_stored(runtime: Runtime) -> None:
    """The error names the field and what it may be."""
    with pytest.raises(InvalidSettingError, match="if_exists"):
        runtime.manager.start_agent(spec(), if_exists="ignore")  # type: ignore[arg-type]
    assert runtime.manager.list_agents() == []


def test_a_message_id_used_twice_gets_the_first_answer(runtime: Runtime) -> None:
    """A retried call is not handled twice."""
    run(runtime)
    first = runtime.manager.process("a", "x", message_id="m1")
    again = runtime.manager.process("a", "x", message_id="m1")
    assert first == again
    assert len(runtime.events("a", "asked")) == 1


def test_a_deleted_agent_leaves_nothing_behind(runtime: Runtime, redis_server: RedisServer) -> None:
    """No key carries its id, but for those that end by themselves."""
    from tests.key_leaks import keys_of_agent

    run(runtime)
    runtime.manager.process("a", "x")
    runtime.manager.stop_agent("a")
    runtime.manager.delete_agent("a")
    client = redis_server.client()
    left = [key for key in keys_of_agent(client, runtime.store.namespace, "a") if client.ttl(key) == -1]
    assert left == []
    assert runtime.manager.get_agent_info("a") is None
    run(runtime)
    assert runtime.manager.process("a", "x")["total"] == 1


def test_the_seeds_form_of_registration_works_in_this_process(runtime: Runtime, tmp_path: Path) -> None:
    """An instance and a factory that takes nothing: the type is the class's, the config the instance's."""

    class Seeded:
        def __init__(self) -> None:
            self.agent_id = "seeded"

        async def process(self, ctx: AgentContext, message: object) -> object:
            return {"said": message}

    handle = runtime.manager.register_agent(Seeded(), Seeded)
    runtime.manager.start_agent("seeded", wait="running")
    assert handle.process("hello") == {"said": "hello"}
