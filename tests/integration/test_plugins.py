"""Plug-ins in a whole runtime: what observers see, and whose word decides whether an agent comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from ares_celery import (
    AgentContext,
    AgentInfo,
    AgentSpec,
    AgentState,
    BasicRecoveryPlugin,
    Event,
    Failure,
    Manager,
    PluginBus,
    RuntimeConfig,
)
from ares_celery.agents.registry import Registry
from ares_celery.clock import SystemClock
from ares_celery.plugins.contract import PluginContext
from ares_celery.plugins.judge import Allowance, BusJudge
from ares_celery.runtime.commits import Committer
from ares_celery.supervision.contact import ContactWindow
from ares_celery.supervision.sweep import Sweeper
from tests.hosting import FAST, Runtime
from tests.redis_server import RedisServer
from tests.unit.plugins.sample import Fake, FakeJudge, Gate
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class Counter:
    """Counts two for each message."""

    def __init__(self, agent_id: str, fails_in_recovery: bool = False) -> None:  # noqa: FBT001, FBT002 - a spec's config
        self.total = 0
        self._fails = fails_in_recovery

    async def process(self, ctx: AgentContext, message: object) -> object:
        await ctx.emit_many([("counted", {"n": self.total + 1}), ("counted", {"n": self.total + 2})])
        return self.total

    def apply(self, event: Event) -> None:
        self.total += 1

    def snapshot(self) -> dict[str, object]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, object]) -> None:
        if self._fails:
            raise ValueError("no disk")
        self.total = int(str(state["total"]))


class Mortal:
    """Dies as soon as a flag is set, once for each time it is set."""

    doom = threading.Event()

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            if Mortal.doom.is_set() and ctx.incarnation == 1:
                raise ValueError("doomed")
            await ctx.sleep(0.02)


@pytest.fixture
def bus() -> Iterator[PluginBus]:
    """A bus that runs."""
    made = PluginBus(PluginContext(worker="here"))
    made.start()
    yield made
    made.stop()


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str, bus: PluginBus) -> Iterator[Runtime]:
    """A running runtime with the bus."""
    Mortal.doom.clear()
    with Runtime(redis_server.url, namespace, bus=bus) as made:
        made.register("counter", Counter)
        made.register("mortal", Mortal)
        made.manager.start()
        yield made


def start(runtime: Runtime, *agent_ids: str, kind: str = "mortal", **spec: Any) -> None:
    """Starts agents and waits until they run."""
    for agent_id in agent_ids:
        runtime.manager.start_agent(AgentSpec(id=agent_id, type=kind, **spec))
    for agent_id in agent_ids:
        runtime.until(agent_id, "running")


def info_of(runtime: Runtime, agent_id: str) -> AgentInfo:
    """The agent; fails when it does not exist."""
    info = runtime.manager.get_agent_info(agent_id)
    assert info is not None
    return info


def test_a_subscriber_sees_the_events_of_this_process_as_they_are_stored(runtime: Runtime, bus: PluginBus) -> None:
    """What the runtime says and what agents emit: each once, with id, version, time and payload of the store."""
    before = bus.subscribe("nothing.of.this.kind")
    heard = bus.subscribe(buffer=1_000)
    start(runtime, "c", kind="counter")
    assert runtime.manager.process("c", "count", timeout=5) == 2
    runtime.manager.restart_agent("c")
    runtime.until("c", "running", incarnation=2)
    runtime.manager.stop_agent("c")
    runtime.until("c", "stopped")
    stored = runtime.events("c")
    assert [event.type for event in stored][:3] == ["agent.started", "counted", "counted"]
    assert stored[-1].type == "agent.stopped"
    seen: list[Event] = []

    def all_heard() -> bool:
        seen.extend(heard.take(100, timedelta(0)))
        return len(seen) >= len(stored)

    wait_until(all_heard, "all to be heard")
    assert sorted(seen, key=lambda event: event.version) == stored
    assert before.take(1, timedelta(0)) == []


@pytest.mark.spec(133)
def test_the_allow_list_decides_whether_an_agent_comes_back(runtime: Runtime, bus: PluginBus) -> None:
    """Unknown: no; allowed: yes; revoked: no. The answer is the verdict, seen in state, events and counters."""
    plugin = BasicRecoveryPlugin()
    bus.register(plugin)
    step = Failure("allowed", "mortal", "step", step_id="charge")
    assert plugin.should_recover(step) is False
    plugin.allow("charge")
    assert plugin.should_recover(step) is True
    plugin.revoke("charge")
    assert plugin.should_recover(step) is False

    for agent_id in ("allowed", "revoked"):
        plugin.allow(agent_id)
    plugin.revoke("revoked")
    start(runtime, "allowed", "unknown", "revoked")
    Mortal.doom.set()
    runtime.until("allowed", "running", incarnation=2)
    for agent_id in ("unknown", "revoked"):
        info = runtime.until(agent_id, "parked")
        assert (info.cause, info.restarts, info.incarnation) == ("plugin", 0, 1)
        assert info.reason == "ValueError: doomed (plug-in basic_recovery refuses to recover it)"
        assert runtime.types(agent_id) == ["agent.started", "agent.stopped", "agent.parked"]
    assert runtime.types("allowed")[-3:] == ["agent.stopped", "failover.triggered", "failover.completed"]
    counters = runtime.store.counters()
    assert (counters["deaths"], counters["parked"], counters["restarts"]) == (3, 2, 1)
    runtime.manager.restart_agent("unknown")
    assert runtime.until("unknown", "running", incarnation=2).cause == "", "a person may still bring it back"


def test_recovery_plugins_are_asked_about_a_failed_try_too(runtime: Runtime, bus: PluginBus) -> None:
    """With what is known of it; the answer parks the agent, and the failover is closed as failed."""
    asked: list[Failure] = []

    def first_only(failure: Failure) -> bool:
        asked.append(failure)
        return failure.stage == "death"

    start(runtime, "c", kind="counter", config={"fails_in_recovery": True})
    runtime.manager.process("c", "count", timeout=5)
    runtime.store.snapshots.save("c", {"total": 2})
    bus.register(FakeJudge("strict", first_only))
    runtime.manager.notify_agent_dead("c", "seen dead", epoch=info_of(runtime, "c").epoch)
    info = runtime.until("c", "parked")
    assert info.cause == "plugin"
    assert "no disk" in info.reason
    assert [(failure.stage, failure.attempt, failure.restarts) for failure in asked] == [
        ("death", 0, 0),
        ("attempt", 1, 1),
    ]
    assert runtime.types("c")[-3:] == ["failover.triggered", "failover.failed", "agent.parked"]


def panic(failure: Failure) -> bool:
    """Raises what nobody expects."""
    raise SystemExit(9)


@pytest.mark.parametrize("answer", [panic, "maybe", None])
def test_an_agent_comes_back_when_a_recovery_plugin_fails(runtime: Runtime, bus: PluginBus, answer: object) -> None:
    """Raising and rubbish count as yes; the plug-in is named and counted."""
    bus.register(FakeJudge("bad", answer))
    start(runtime, "m")
    Mortal.doom.set()
    runtime.until("m", "running", incarnation=2)
    assert bus.counts == {"plugin_failures": 1}


@contextmanager
def lost_host(runtime: Runtime) -> Generator[None]:
    """The process that hosts now renews no lease any more, as if its machine were gone; another takes its place."""
    lost, runtime.host = runtime.host, runtime.new_host()
    lost._keeper.close()
    yield
    for incarnation in lost._hosted.all():
        incarnation.ask("fenced")
    lost.close()


def shared_sweeper(runtime: Runtime, bus: PluginBus, limit: float, allowance: float) -> Sweeper:
    """A sweep as a worker's: its thread serves every agent, so plug-ins have little time."""
    clock = SystemClock()
    judge = BusJudge(lambda: bus, timedelta(seconds=limit), clock, allowance=Allowance(allowance, 600, clock))
    committer = Committer(runtime.store, runtime.config, runtime.launcher, judge=judge, listener=bus)
    return Sweeper(runtime.store, committer, runtime.config, contact=ContactWindow(runtime.config.lease_ttl))


def sweep_until(sweeper: Sweeper, condition: Callable[[], object], what: str) -> None:
    """Sweeps, judging leases, until it is there."""

    def swept() -> object:
        sweeper.sweep_once(judge_leases=True)
        return condition()

    wait_until(swept, what, timeout=20)


def test_a_death_that_the_sweep_finds_is_asked_about(runtime: Runtime, bus: PluginBus) -> None:
    """The lease of a lost process runs out: allowed comes back, the other is parked."""
    bus.register(BasicRecoveryPlugin(allow=["yes"]))
    start(runtime, "yes", "no")
    sweeper = shared_sweeper(runtime, bus, 1, 5)

    def judged() -> bool:
        return info_of(runtime, "no").state is AgentState.PARKED and runtime.types("yes")[-1] == "failover.completed"

    with lost_host(runtime):
        sweep_until(sweeper, judged, "both verdicts")
    assert info_of(runtime, "no").cause == "plugin"


def test_a_hanging_recovery_plugin_does_not_stop_the_sweep(runtime: Runtime, bus: PluginBus) -> None:
    """It costs one short wait; then every lost agent comes back unasked."""
    gate = Gate()
    bus.register(FakeJudge("stuck", gate))
    agents = [f"m{number}" for number in range(5)]
    start(runtime, *agents)
    sweeper = shared_sweeper(runtime, bus, 0.3, 0.3)

    def all_back() -> bool:
        return all(runtime.types(agent_id)[-1] == "failover.completed" for agent_id in agents)

    with lost_host(runtime):
        sweep_until(sweeper, all_back, "all to come back")
    assert gate.entered.is_set()
    assert bus.counts == {"plugin_timeouts": 5}
    gate.open()


def test_an_observer_that_is_slow_costs_agents_nothing(runtime: Runtime, bus: PluginBus) -> None:
    """Its queue is full and events are dropped and counted; no emit waits."""
    slow = bus.subscribe("counted", buffer=1)
    bus.register(Fake("idle"))
    start(runtime, "c", kind="counter")
    for _ in range(5):
        runtime.manager.process("c", "count", timeout=5)
    assert slow.dropped == 9
    assert bus.counts == {"plugin_events_dropped": 9}


def test_a_local_manager_takes_a_bus(redis_server: RedisServer, bus: PluginBus) -> None:
    """Plug-ins observe and decide without a worker, too."""
    bus.register(BasicRecoveryPlugin())
    heard = bus.subscribe("agent.*")
    registry = Registry()
    registry.register("mortal", Mortal)
    Mortal.doom.set()
    config = RuntimeConfig.parse(FAST)
    with Manager.local(config, redis_url=redis_server.url, registry=registry, bus=bus) as manager:
        manager.start()
        handle = manager.start_agent(AgentSpec(id="m", type="mortal"))
        handle.wait("parked", timeout=10)
        assert handle.info().cause == "plugin"
        manager.stop()
    assert [event.type for event in heard.take(9)] == ["agent.started", "agent.stopped", "agent.parked"]
