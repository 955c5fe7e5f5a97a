"""The cases of the Go runtime's own tests, by number: what holds here, in one process, through Manager.local().

A case whose outcome differs says so in its docstring; the reason is in docs/adr/0008. The table of legal states is
in tests/property/test_lifecycle.py (one enum, every change a cell of the transition table), the recovery plug-in's
cases are in tests/unit/plugins, the larger pools of the end-to-end test in tests/fault.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from typing_extensions import override

from ares_celery import AgentContext, AgentSpec, Event, LocalManager, Manager, NewEvent, RuntimeConfig
from ares_celery.agents.registry import Registry
from ares_celery.errors import (
    AgentAlreadyRegisteredError,
    AgentNotFoundError,
    AgentNotRunningError,
    NilAgentError,
    NilFactoryError,
    RuntimeAlreadyStartedError,
    RuntimeStoppedError,
    StoreUnavailableError,
)
from ares_celery.model.event import ReadOptions
from tests.hosting import FAST
from tests.redis_server import RedisServer
from tests.wait import assert_stays, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

SETTINGS = RuntimeConfig.parse({**FAST, "snapshot_interval": "60s", "restore_backoff": "50ms"})


class Mock:
    """The Go tests' mock agent: counts what is done to it."""

    def __init__(self, agent_id: str, counts: dict[str, int]) -> None:
        self.agent_id = agent_id
        self.counts = counts
        self._count("made")

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    async def start(self, ctx: AgentContext) -> None:
        self._count("started")
        self._count("live")
        try:
            while not ctx.stop_requested:
                await ctx.sleep(60)
        finally:
            self.counts["live"] -= 1

    async def stop(self, ctx: AgentContext) -> None:
        self._count("stopped")


class Stateful(Mock):
    """A mock that is told its state and its events."""

    def __init__(self, agent_id: str, counts: dict[str, int], seen: dict[str, Any]) -> None:
        super().__init__(agent_id, counts)
        self.seen = seen

    def restore_state(self, state: dict[str, Any]) -> None:
        self.seen["state"] = state

    def replay_events(self, events: list[Event]) -> None:
        self.seen["events"] = [event.type for event in events]

    def snapshot(self) -> dict[str, object]:
        return {"kept": True}


class World:
    """A manager and a mock that it hosts."""

    def __init__(self, manager: LocalManager) -> None:
        self.manager = manager
        self.counts: dict[str, int] = {}
        self.seen: dict[str, Any] = {}

    def register(self, agent_id: str = "a", factory: Callable[[], Any] | None = None) -> None:
        """RegisterAgent(agent, factory)."""
        self.manager.register_agent(Mock(agent_id, {}), factory or (lambda: Mock(agent_id, self.counts)))

    def run(self, agent_id: str = "a", factory: Callable[[], Any] | None = None, **fields: Any) -> int:
        """Registers and starts an agent; gives its epoch."""
        kind = f"{agent_id}-type"
        self.manager._registry.replace(kind, _of(factory or (lambda: Mock(agent_id, self.counts))))
        spec = AgentSpec(id=agent_id, type=kind, **fields)
        return self.manager.start_agent(spec, wait="running").info().epoch

    def state(self, agent_id: str = "a") -> str:
        """Where it is."""
        info = self.manager.get_agent_info(agent_id)
        assert info is not None
        return info.state.value

    def until(self, state: str, agent_id: str = "a", *, incarnation: int = 1) -> None:
        """Waits for it."""

        def there() -> bool:
            info = self.manager.get_agent_info(agent_id)
            return info is not None and info.state == state and info.incarnation >= incarnation

        wait_until(there, f"{agent_id} to be {state}", timeout=10)

    def events(self, agent_id: str = "a") -> list[str]:
        """The types of its events."""
        return [event.type for event in self.manager.events.read(agent_id, ReadOptions())]


def _of(factory: Callable[[], Any]) -> Callable[..., Any]:
    def make(agent_id: str) -> Any:
        return factory()

    return make


@pytest.fixture
def fresh(redis_server: RedisServer) -> Iterator[World]:
    """A runtime that nobody has started."""
    with Manager.local(SETTINGS, redis_url=redis_server.url, registry=Registry()) as manager:
        yield World(manager)


@pytest.fixture
def world(fresh: World) -> World:
    """A running one."""
    fresh.manager.start()
    return fresh


def go(*numbers: int | str) -> pytest.MarkDecorator:
    """Names the cases that a test shows: ``-k "go12."`` runs that of case 12."""
    return pytest.mark.parametrize("case", ["".join(f"go{number}." for number in numbers)])


# -- runtime_test.go ---------------------------------------------------------------------------------------------------


@go(1, 2, 3)
def test_a_registration_is_tracked_and_what_is_absent_is_refused(fresh: World, case: str) -> None:
    """Absent agent, absent factory: an error here, where Go only logs; nothing is tracked either way."""
    fresh.register()
    with pytest.raises(NilAgentError):
        fresh.manager.register_agent(None, lambda: Mock("b", {}))
    with pytest.raises(NilFactoryError):
        fresh.manager.register_agent(Mock("b", {}))
    assert [info.id for info in fresh.manager.list_agents()] == ["a"]


@go(4, 5, 6, 7, 8, 17, 44, 45)
def test_start_and_stop_of_one_agent(world: World, case: str) -> None:
    """Start once, ready, active; nil and doubled starts refused; stop once, offline, none active; lookups."""
    manager = world.manager
    world.run()
    info = manager.get_agent_info("a")
    assert info is not None
    assert (world.counts["started"], info.status, manager.stats().active_agents) == (1, "ready", 1)
    assert manager.stats().uptime.total_seconds() > 0
    with pytest.raises(NilAgentError):
        manager.start_agent(None)
    with pytest.raises(AgentAlreadyRegisteredError):
        manager.start_agent("a")
    assert manager.get_agent("a") is not None
    assert manager.get_agent("nobody") is None
    manager.stop_agent("a")
    info = manager.get_agent_info("a")
    assert info is not None
    assert (world.counts["stopped"], info.status, manager.stats().active_agents) == (1, "offline", 0)
    with pytest.raises(AgentNotFoundError):
        manager.stop_agent("nobody")


@go(9, 10, 12, 42, 46)
def test_restarts_restores_and_what_is_counted(world: World, case: str) -> None:
    """A restart stops the old one once and counts one; a restore makes a new instance and counts none."""
    manager = world.manager
    world.run("a")
    world.run("b")
    manager.stop_agent("b")
    assert manager.stats().active_agents == 1
    manager.restart_agent("a")
    world.until("running", incarnation=2)
    stats = manager.stats()
    assert (stats.total_restarts, stats.active_agents) == (1, 1)
    with pytest.raises(AgentNotFoundError):
        manager.restart_agent("nobody")
    handle, before = manager.get_agent("a"), world.counts["made"]
    assert handle is not None
    manager.restore_agent("a", lambda: Mock("a", world.counts))
    world.until("running", incarnation=3)
    assert (world.counts["made"], handle.incarnation) == (before + 1, 3)
    stats = manager.stats()
    assert (stats.total_restarts, stats.active_agents) == (1, 1)


@go(11)
def test_a_reported_death_calls_the_factory(world: World, case: str) -> None:
    """Go: at least once, within 200 ms. Here exactly once; how fast it is, bench/ measures."""
    epoch, made = world.run(), world.counts["made"]
    world.manager.notify_agent_dead("a", "no pulse", epoch=epoch)
    wait_until(lambda: world.counts["made"] > made, "the factory to be called", timeout=5)
    wait_until(lambda: world.manager.events.read("a")[-1].type == "failover.completed", "it to run", timeout=5)
    assert world.counts["made"] == made + 1


@go(13, 14, 32)
def test_a_restore_replays_what_the_agent_emitted(world: World, case: str) -> None:
    """Go replays all each time, and failover.triggered too; here none that a snapshot covers.

    session.created restores session_id, as in Go. The runtime's own events are replayed to those who ask for them.
    """
    for agent_id, lifecycle in (("a", False), ("b", True)):
        world.seen.clear()
        told = [NewEvent("session.created", {"session_id": "s-1"}), NewEvent("told", {})]
        world.manager.events.append(agent_id, told)
        factory = partial(Stateful, agent_id, world.counts, world.seen)
        world.run(agent_id, factory=factory, replay_lifecycle=lifecycle)
        assert world.seen == {"state": {"session_id": "s-1"}, "events": ["session.created", "told"]}
        world.seen.clear()
        world.manager.restore_agent(agent_id)
        world.until("running", agent_id, incarnation=2)
        assert world.seen["state"] == {"kept": True}
        replayed = world.seen.get("events", [])
        assert replayed == (["agent.stopped", "failover.triggered"] if lifecycle else [])


@go(15)
def test_a_restore_without_any_factory_is_refused(world: World, case: str) -> None:
    """None is the agent's own type here; with a type that nobody knows any more it is NilFactoryError."""
    world.run()
    before = world.events()
    world.manager._registry._types.clear()
    world.manager._local.store._bound.client.run(_forget_types(world))
    with pytest.raises(NilFactoryError):
        world.manager.restore_agent("a")
    assert world.events() == before


def _forget_types(world: World) -> Any:
    from ares_celery.store.redis.call import Call

    return Call(lambda _: None, args=("UNLINK", world.manager._local.store._bound.keys.types))


@go(16, 25)
def test_notifications_at_once_are_one_death(world: World, case: str) -> None:
    """Five without a cap, ten with a cap of three: one resurrection each."""
    for agent_id, count, cap in (("a", 5, 0), ("b", 10, 3)):
        epoch = world.run(agent_id, max_restarts=cap)
        with ThreadPoolExecutor(count) as pool:
            for done in [
                pool.submit(world.manager.notify_agent_dead, agent_id, "dead", epoch=epoch) for _ in range(count)
            ]:
                done.result()
        world.until("running", agent_id, incarnation=2)
        info = world.manager.get_agent_info(agent_id)
        assert info is not None
        assert info.restarts == 1


@go(18, 19, 20, 28, 29, 37, 40)
def test_the_runtimes_own_start_and_stop(fresh: World, case: str) -> None:
    """Stop before start: nothing; start twice: an error; stop ends five, twice is nothing, and then nothing starts.

    Go's start without a context has no counterpart.
    """
    manager = fresh.manager
    manager.stop()
    manager.start()
    with pytest.raises(RuntimeAlreadyStartedError):
        manager.start()
    epochs = {f"n{number}": fresh.run(f"n{number}") for number in range(5)}
    manager.stop()
    manager.stop()
    assert {info.state for info in manager.list_agents()} == {"stopped"}
    assert (fresh.counts["live"], fresh.counts["stopped"], manager.stats().active_agents) == (0, 5, 0)
    with pytest.raises(RuntimeStoppedError):
        manager.start_agent(AgentSpec(id="late", type="n0-type"))
    made = fresh.counts["made"]
    manager.notify_agent_dead("n0", "cannot be", epoch=epochs["n0"])
    assert fresh.counts["made"] == made


@go(21, 27)
def test_an_agent_that_fails_in_start_harms_nobody(world: World, case: str) -> None:
    """start_agent succeeds; the process lives; the death is reported with its text."""

    class Panics(Mock):
        @override
        async def start(self, ctx: AgentContext) -> None:
            raise SystemExit("panic: at once")

    world.manager._registry.register("panics", _of(lambda: Panics("p", world.counts)))
    handle = world.manager.start_agent(AgentSpec(id="p", type="panics", max_restarts=1))
    world.until("parked", "p")
    assert "panic: at once" in handle.info().reason
    world.run()
    assert world.state() == "running"


@go(22)
def test_a_stop_of_the_runtime_reaches_the_agents_context(world: World, case: str) -> None:
    """It sees stop_requested, and its code ends."""
    world.run()
    world.manager.stop()
    assert (world.counts["live"], world.state()) == (0, "stopped")


@go(24, 38)
def test_a_death_without_a_factory_is_not_resurrected_without_end(world: World, case: str) -> None:
    """Go ignores it and counts nothing. Here it is a death, counted, and waits until somebody knows the type again."""
    epoch = world.run()
    world.manager._registry._types.clear()
    world.manager.notify_agent_dead("a", "dead", epoch=epoch)
    wait_until(lambda: world.state() == "resurrecting", timeout=5)
    assert_stays(lambda: world.counts.get("live", 0) == 0, "nothing runs", seconds=0.3)
    assert world.counts["made"] == 1


@go(26)
def test_a_used_up_cap_calls_no_factory(world: World, case: str) -> None:
    """Cap 1 and one restart used; here the agent is parked and says so."""
    epoch = world.run(max_restarts=1)
    world.manager.notify_agent_dead("a", "first", epoch=epoch)
    world.until("running", incarnation=2)
    info = world.manager.get_agent_info("a")
    assert info is not None
    made = world.counts["made"]
    world.manager.notify_agent_dead("a", "second", epoch=info.epoch)
    world.until("parked", incarnation=2)
    assert world.counts["made"] == made
    assert world.events()[-1] == "agent.exhausted"


@go(30, 31)
def test_a_start_and_a_death_before_the_runtime_runs(fresh: World, case: str) -> None:
    """Stored, nothing launched; start() launches it once."""
    fresh.manager._registry.register("mock", _of(lambda: Mock("a", fresh.counts)))
    fresh.manager.start_agent(AgentSpec(id="a", type="mock"))
    fresh.manager.notify_agent_dead("a", "cannot be")
    assert (fresh.state(), fresh.counts) == ("registered", {})
    fresh.manager.start()
    fresh.until("running")
    assert fresh.counts["made"] == 1


class Memory:
    """One session with two messages; or an error."""

    def __init__(self, fails: bool) -> None:  # noqa: FBT001 - a test's own
        self.fails = fails

    def latest_session(self, agent_id: str) -> str | None:
        if self.fails:
            raise OSError("memory is away")
        return "s-9"

    def messages(self, agent_id: str, session_id: str) -> list[dict[str, str]]:
        if self.fails:
            raise OSError("memory is away")
        return [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]


@go(33, 36)
@pytest.mark.parametrize("fails", [False, True])
def test_memory_is_asked_and_may_fail(redis_server: RedisServer, case: str, fails: bool) -> None:  # noqa: FBT001
    """session_id and two messages; when memory fails, session_id from events and no history."""
    memory: Any = Memory(fails)
    with Manager.local(SETTINGS, redis_url=redis_server.url, registry=Registry(), memory=memory) as manager:
        manager.start()
        world = World(manager)
        manager.events.append("a", [NewEvent("session.created", {"session_id": "s-1"}), NewEvent("told", {})])
        world.run(factory=lambda: Stateful("a", world.counts, world.seen))
        assert world.seen["state"]["session_id"] == "s-1"
        assert len(world.seen["state"].get("conversation_history", [])) == (0 if fails else 2)
        assert world.seen["events"] == ["session.created", "told"]


@go(23, 34)
def test_an_agent_without_state_is_restored_without_recovery(world: World, case: str) -> None:
    """Nothing is replayed into it. There is always an event store here."""
    world.run()
    world.manager.events.append("a", [NewEvent("told", {})])
    world.manager.restore_agent("a")
    world.until("running", incarnation=2)
    assert world.counts["started"] == 2


@go(35)
def test_a_store_that_does_not_answer_is_waited_for(world: World, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Go runs the agent without its state; here it begins when the store answers, with all of it."""
    store, away = world.manager._local.store, [3]
    claim = store.claim

    def fails(*args: Any, **kwargs: Any) -> Any:
        if away[0]:
            away[0] -= 1
            raise StoreUnavailableError(url="test", problem="away")
        return claim(*args, **kwargs)

    monkeypatch.setattr(store, "claim", fails)
    world.manager.events.append("a", [NewEvent("session.created", {"session_id": "s-1"})])
    world.run(factory=lambda: Stateful("a", world.counts, world.seen))
    assert (away, world.counts["made"]) == ([0], 1)
    assert world.seen == {"state": {"session_id": "s-1"}, "events": ["session.created"]}


@go(39)
def test_a_stop_of_all_races_with_a_stop_of_one(world: World, case: str) -> None:
    """None is active afterwards, and neither raises."""
    world.run("a")
    world.run("b")
    with ThreadPoolExecutor(2) as pool:
        for done in (pool.submit(world.manager.stop), pool.submit(world.manager.stop_agent, "a")):
            done.result()
    assert world.manager.stats().active_agents == 0
    assert world.counts["live"] == 0


@go(41)
def test_an_agent_slow_to_stop_does_not_hold_the_runtime(redis_server: RedisServer, case: str) -> None:
    """Limits 100 ms and 500 ms: stop returns in less than five seconds."""
    hold = threading.Event()

    class Slow(Mock):
        @override
        async def stop(self, ctx: AgentContext) -> None:
            while not hold.is_set():
                await ctx.sleep(1)

    short = {"agent_stop_timeout": "100ms", "overall_stop_timeout": "500ms"}
    config = RuntimeConfig.parse({**FAST, **short})
    with Manager.local(config, redis_url=redis_server.url, registry=Registry()) as manager:
        manager.start()
        world = World(manager)
        world.run(factory=lambda: Slow("a", world.counts))
        stopper = threading.Thread(target=manager.stop, daemon=True)
        stopper.start()
        stopper.join(5)
        assert not stopper.is_alive()
        assert manager.stats().active_agents == 0
        hold.set()


@go(43)
def test_stats_hold_while_agents_come_and_go(world: World, case: str) -> None:
    """Fifty calls from five threads; no value is negative."""
    world.run()

    def look(_: int) -> bool:
        stats = world.manager.stats()
        return min([stats.active_agents, stats.total_restarts, *stats.by_state.values()]) >= 0

    with ThreadPoolExecutor(5) as pool:
        looks = [pool.submit(look, number) for number in range(50)]
        world.manager.stop_agent("a")
        world.run()
        assert all(done.result() for done in looks)


# -- runtime_core_test.go ----------------------------------------------------------------------------------------------


@go("core")
def test_the_core_cases(fresh: World, case: str) -> None:
    """Register; initial stats zero; get and get missing; start then stop; stop a registered agent."""
    manager = fresh.manager
    stats = manager.stats()
    assert (stats.active_agents, stats.total_restarts, stats.uptime.total_seconds()) == (0, 0, 0)
    fresh.register()
    assert manager.get_agent("a") is not None
    assert manager.get_agent("b") is None
    manager.stop_agent("a")
    manager.start()
    assert_stays(lambda: fresh.state() == "stopped", "what was stopped before start stays so", seconds=0.3)
    manager.stop()
    assert fresh.counts.get("started", 0) == 0


# -- resurrection_race_test.go -----------------------------------------------------------------------------------------


@go("race-a")
def test_a_late_restore_of_a_stopped_agent_leaves_it_stopped(world: World, case: str) -> None:
    """Go returns nil and does nothing; here it is an error, and nothing is done either."""
    world.run()
    world.manager.stop_agent("a")
    with pytest.raises(AgentNotRunningError):
        world.manager.restore_agent("a")
    assert (world.state(), world.counts["live"]) == ("stopped", 0)


@go("race-b")
def test_a_stop_ten_milliseconds_after_a_death_leaves_no_live_instance(world: World, case: str) -> None:
    """Instances are counted, which Go's test does not do."""
    epoch = world.run()
    world.manager.notify_agent_dead("a", "dead", epoch=epoch)
    threading.Event().wait(0.01)
    world.manager.stop_agent("a")
    wait_until(lambda: world.counts["live"] == 0, timeout=5)
    assert_stays(lambda: (world.state(), world.counts["live"]) == ("stopped", 0), "none lives", seconds=0.5)


# -- e2e_chaos_recovery_test.go ----------------------------------------------------------------------------------------


@go("e2e")
def test_half_of_eight_agents_reported_dead_run_again_within_eight_seconds(world: World, case: str) -> None:
    """Four factory calls for four deaths, eight live instances; the larger pools are killed for real elsewhere."""
    epochs = {f"n{number}": world.run(f"n{number}") for number in range(8)}
    made = world.counts["made"]
    for agent_id in list(epochs)[:4]:
        world.manager.notify_agent_dead(agent_id, "killed", epoch=epochs[agent_id])
    for agent_id in list(epochs)[:4]:
        world.until("running", agent_id, incarnation=2)
    wait_until(lambda: world.counts["live"] == 8, timeout=8)
    assert world.counts["made"] == made + 4
    assert world.manager.stats().total_restarts == 4
