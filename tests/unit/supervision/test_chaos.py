"""What a Manager does to agents on purpose: only where it is allowed, always with an end, healed at any time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import fakeredis
import pytest
from typing_extensions import override

from ares_celery.arena import actions
from ares_celery.arena.seed_types import SEED_TYPES
from ares_celery.celery_app.control_ports import ControlPorts
from ares_celery.celery_app.control_tasks import CONTROLS, as_json
from ares_celery.cli.chaos import chaos
from ares_celery.clock import SystemClock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    ChaosDisabledError,
    FaultNotFoundError,
    InvalidSettingError,
    OperationNotSupportedError,
    StoreUnavailableError,
)
from ares_celery.ids import AgentId
from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentSpec, Owner, RuntimeState
from ares_celery.model.command import Deadline
from ares_celery.model.event import ReadOptions
from ares_celery.model.fault import Fault, FaultKind
from ares_celery.model.fault_names import FAULT_ACTIONS
from ares_celery.model.plan import Nudge
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.ports import Launcher
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.redis.keys import Keys, deadline_member
from ares_celery.store.redis.store import RedisStore
from ares_celery.supervision.sweep import Sweeper
from ares_celery.web.flower_extension.faults import ACTIONS as ROUTES
from tests.contract.store.acting import run

#: Each fault of the seed: its kind, what it has of its own, and how somebody asks for that.
INJECTIONS: dict[str, tuple[FaultKind, dict[str, Any], tuple[Any, ...], dict[str, Any]]] = {
    "slow_agent": (FaultKind.SLOW, {"delay": 0.5}, ("500ms",), {}),
    "tool_timeout": (FaultKind.TOOL_TIMEOUT, {"timeout": 2.0}, (2,), {}),
    "partition_network": (FaultKind.PARTITION, {}, (), {}),
    "corrupt_memory": (FaultKind.MEMORY, {}, (), {}),
    "disconnect_mcp": (FaultKind.MCP, {"server": "git"}, (), {"server": "git"}),
    "inject_llm_failure": (
        FaultKind.LLM,
        {"error_type": "rate_limit", "retry_after": 7.0},
        (),
        {"retry_after": "7s"},
    ),
}
#: What belongs to faults, about an agent that does not exist.
ABOUT_A_GHOST: list[Callable[[CoreManager], Any]] = [
    lambda m: m.kill_agent("ghost"),
    lambda m: m.slow_agent("ghost", 0),
    lambda m: m.tool_timeout("ghost", 0),
    lambda m: m.pause_agent("ghost"),
    lambda m: m.heal("ghost"),
    lambda m: m.list_faults("ghost"),
]
#: What cannot be, and the argument that the error names.
REFUSED: list[tuple[str, Callable[[Any], Any]]] = [
    ("delay", lambda m: m.slow_agent("a", None)),
    ("delay", lambda m: m.slow_agent("a", -1)),
    ("delay", lambda m: m.slow_agent("a", "soon")),
    ("timeout", lambda m: m.tool_timeout("a", None)),
    ("timeout", lambda m: m.tool_timeout("a", "-1s")),
    ("duration", lambda m: m.slow_agent("a", 1, duration="25h")),
    ("duration", lambda m: m.partition_network("a", 0)),
    ("duration", lambda m: m.corrupt_memory("a", duration="x")),
    ("duration", lambda m: m.disconnect_mcp("a", "2d")),
    ("duration", lambda m: m.enable_chaos("25h")),
    ("duration", lambda m: m.enable_chaos(None)),
    ("duration", lambda m: m.enable_chaos(0)),
    ("error_type", lambda m: m.inject_llm_failure("a", "boom")),
    ("retry_after", lambda m: m.inject_llm_failure("a", retry_after="x")),
    ("server", lambda m: m.disconnect_mcp("a", server=3)),
    ("count", lambda m: m.disconnect_mcp("a", count=0)),
    ("probability", lambda m: m.slow_agent("a", 1, probability=2)),
    ("seed", lambda m: m.slow_agent("a", 1, seed=-1)),
    ("reason", lambda m: m.slow_agent("a", 1, reason=3)),
    ("op", lambda m: m.heal("a", op="x" * 401)),
    ("fault", lambda m: m.heal("a", 7)),
    ("actor", lambda m: m.disable_chaos(actor=None)),
]
each_fault = pytest.mark.parametrize("name", INJECTIONS)


class Nobody(Launcher):
    """No broker."""

    @override
    def launch(self, nudge: Nudge) -> None:
        """Forgets it."""

    @override
    def waiting(self, queue: str | None) -> int | None:
        """Nothing waits."""
        return 0


@dataclass
class World:
    """A manager over a Redis in this process, with agents ``a`` and ``b`` that run."""

    raw: fakeredis.FakeRedis
    store: RedisStore
    manager: CoreManager
    committer: Committer
    agents: list[AgentId] = field(default_factory=lambda: [AgentId("a"), AgentId("b")])

    def inject(self, name: str, agent_id: str = "a", **given: Any) -> Any:
        """Injects one of the faults above."""
        _, _, values, named = INJECTIONS[name]
        return getattr(self.manager, name)(agent_id, *values, **named, **given)

    def let_it_be_over(self, fault: Fault) -> None:
        """Its time has passed."""
        keys = Keys(self.store.namespace, self.store.config.shards)
        member = deadline_member(Deadline.FAULT, fault.agent_id, fault.id)
        assert self.raw.zadd(keys.deadlines(keys.shard_of(fault.agent_id)), {member: 1}, xx=True, ch=True) == 1

    def told(self, stream: str = "a") -> list[tuple[str, Any]]:
        """What a stream says of faults."""
        events = self.store.events.read(stream, ReadOptions())
        return [(e.type, e.payload.get("kind")) for e in events if e.type.startswith(("fault.", "chaos."))]


@pytest.fixture
def world(namespace: str) -> Iterator[World]:
    """Faults are not allowed yet."""
    raw = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    store = RedisStore.from_client(raw, namespace, RuntimeConfig())
    store.set_runtime(RuntimeState.RUNNING, only_from=(RuntimeState.NEW,), reason="test", actor="test")
    committer = Committer(store, lambda: store.config, Nobody())
    made = World(raw, store, CoreManager(ControlPorts(lambda _: (store, committer))), committer)
    # A process of this machine that is gone: what a kill here could hit.
    nobody = replace(ProcessIdentity.current(), pid=2**22 + 5, start_ticks=1)
    for agent_id in made.agents:
        run(store, agent_id, owner=Owner(nobody.encode(), "one@host", "task-1"))
    yield made
    store.close()


# -- who may, and whom -------------------------------------------------------------------------------------------------


@pytest.mark.spec(138)
@each_fault
def test_an_unknown_agent_is_an_error_for_every_fault(world: World, name: str) -> None:
    """Whether faults are allowed or not; also where zero would only clear."""
    for allowed in (False, True):
        if allowed:
            world.manager.enable_chaos("1m")
        with pytest.raises(AgentNotFoundError) as caught:
            world.inject(name, "ghost")
        assert caught.value.fields["agent_id"] == "ghost"
    assert world.manager.list_faults() == ()


@pytest.mark.spec(138)
@pytest.mark.parametrize("call", ABOUT_A_GHOST)
def test_an_unknown_agent_is_an_error_for_what_belongs_to_faults(
    world: World, call: Callable[[CoreManager], Any]
) -> None:
    """A kill, a pause, what clears, heals and lists."""
    with pytest.raises(AgentNotFoundError) as caught:
        call(world.manager)
    assert caught.value.fields["agent_id"] == "ghost"


@pytest.mark.pain("P46")
@each_fault
def test_a_fault_needs_leave(world: World, name: str) -> None:
    """By the settings for good, or for a time; without either the error says how to give it."""
    kills = (lambda: world.manager.kill_agent("a"), lambda: world.manager.kill_worker("one@host"))
    for taken in (lambda: world.inject(name), *kills):
        with pytest.raises(ChaosDisabledError) as caught:
            taken()
        assert "ares chaos enable --for 1h" in str(caught.value)
    assert world.manager.list_faults() == ()
    world.manager.enable_chaos("1h")
    assert world.inject(name).kind is INJECTIONS[name][0]
    world.manager.disable_chaos()
    with pytest.raises(ChaosDisabledError):
        world.inject(name)
    world.manager.set_config({"chaos": True})
    assert world.inject(name).kind is INJECTIONS[name][0]


def test_a_kill_is_allowed_for_a_time_too(world: World) -> None:
    """It goes on to the next question: who else lives there."""
    world.manager.enable_chaos("1h")
    with pytest.raises(OperationNotSupportedError, match="also hosts b"):
        world.manager.kill_agent("a")
    world.manager.disable_chaos()
    with pytest.raises(ChaosDisabledError):
        world.manager.kill_agent("a")


@pytest.mark.parametrize("name", ["partition_network", "corrupt_memory"])
def test_an_incarnation_has_to_be_there(world: World, name: str) -> None:
    """For what is done to one."""
    world.manager.enable_chaos("1h")
    world.manager.register_agent(AgentSpec(id="idle", type="t"))
    with pytest.raises(AgentNotRunningError, match="idle"):
        world.inject(name, "idle")


# -- what is injected --------------------------------------------------------------------------------------------------


@pytest.mark.pain("P46")
@each_fault
def test_a_fault_is_listed_as_it_was_asked_for(world: World, name: str) -> None:
    """By agent or for all, in what a person sees of the agent, and in a snapshot of the whole."""
    world.manager.enable_chaos("1h")
    kind, own, _, _ = INJECTIONS[name]
    before = world.store.server_time()
    fault = world.inject(name, duration="90s", reason="to see", actor="eve", op="op-1")
    assert fault.id == "op-1"
    assert {field: getattr(fault, field) for field in own} == own
    assert (fault.agent_id, fault.kind, fault.reason, fault.actor) == ("a", kind, "to see", "eve")
    assert fault.until - fault.since == timedelta(seconds=90)
    assert before <= world.store.server_time()
    assert world.inject(name, op="op-1") == fault
    assert world.manager.list_faults() == world.manager.list_faults("a") == (fault,)
    assert world.manager.list_faults("b") == ()
    infos = {info.id: info.faults for info in world.manager.list_agents()}
    assert infos == {"a": 1, "b": 0}
    chaos = world.manager.introspect().chaos
    assert chaos["faults"] == [fault.to_json()]
    assert (chaos["total"], chaos["allowed_until"]) == (1, world.store.chaos_state().until)
    assert as_json(fault)["kind"] == kind.value
    assert set(as_json(fault)) == set(fault.to_json())


@pytest.mark.parametrize("name", ["slow_agent", "tool_timeout", "disconnect_mcp", "inject_llm_failure"])
def test_a_fault_of_calls_has_count_probability_and_seed(world: World, name: str) -> None:
    """As they were given."""
    world.manager.enable_chaos("1h")
    fault = world.inject(name, count=3, probability=0.25, seed=7)
    assert (fault.count, fault.probability, fault.seed) == (3, 0.25, 7)


@pytest.mark.parametrize(("field", "call"), REFUSED)
def test_what_cannot_be_is_refused_by_name(world: World, field: str, call: Callable[[Any], Any]) -> None:
    """Before anything is written."""
    world.manager.enable_chaos("1h")
    with pytest.raises(InvalidSettingError) as caught:
        call(world.manager)
    assert caught.value.fields["field"] == field
    assert world.manager.list_faults() == ()


# -- how they end ------------------------------------------------------------------------------------------------------


@pytest.mark.spec(140)
@pytest.mark.parametrize("name", ["slow_agent", "tool_timeout"])
def test_zero_clears_what_slows_and_what_cuts_off(world: World, name: str) -> None:
    """That kind alone, also when faults are no longer allowed, and again without effect."""
    kind = INJECTIONS[name][0]
    world.manager.set_config({"chaos": True})
    others = [world.inject(other) for other in INJECTIONS if other != name]
    first = world.inject(name)
    assert first in world.manager.list_faults("a")
    world.manager.set_config({"chaos": False})
    for zero in (0, "0s", timedelta(0)):
        assert getattr(world.manager, name)("a", zero) is None
        assert {fault.id for fault in world.manager.list_faults("a")} == {fault.id for fault in others}
    assert world.told()[-1] == ("fault.healed", kind.value)
    assert [event for event, _ in world.told()].count("fault.healed") == 1


@pytest.mark.spec(139)
@each_fault
def test_whatever_is_healed_is_over(world: World, name: str) -> None:
    """By kind, by id, by agent, or all; the list shows what is left."""
    world.manager.enable_chaos("1h")
    for fault in (name, "kind", None):
        one, other = world.inject(name), world.inject(name, "b")
        assert world.manager.list_faults() == (one, other)
        named = {name: one.id, "kind": one.kind}.get(str(fault))
        assert world.manager.heal("a", named) == (one,)
        assert world.manager.list_faults() == world.manager.list_faults("b") == (other,)
        assert world.manager.list_faults("a") == ()
        if named == one.id:
            with pytest.raises(FaultNotFoundError, match=one.id):
                world.manager.heal("a", named)
        else:
            assert world.manager.heal("a", named) == ()
        assert world.manager.heal() == (other,)
        assert world.manager.list_faults() == ()
    assert [info.faults for info in world.manager.list_agents()] == [0, 0]


@each_fault
def test_a_kind_is_healed_by_any_of_its_names(world: World, name: str) -> None:
    """Of the kind, the command, the action, the type of a scenario, the route; with a dash or without, in any case."""
    world.manager.enable_chaos("1h")
    fault = world.inject(name)
    words = {fault.kind.value, name, *FAULT_ACTIONS[name]}
    words |= {route for route, action in ROUTES.items() if action.method == name}
    words |= {kind for kind, seed_type in SEED_TYPES.items() if seed_type.func == name}
    words |= {word for word in chaos.commands if word.replace("-", "_") in words}
    assert len(words) >= 2
    for word in sorted(words):
        for form in (word, word.replace("_", "-"), word.upper()):
            assert world.manager.heal("a", form) == (fault,), form
            fault = world.inject(name)


@pytest.mark.parametrize("word", ["blah", "kill", "pause", "0123456789abcdef0123456789abcdef"])
@pytest.mark.parametrize("agent_id", ["a", None])
def test_what_is_neither_a_kind_nor_the_id_of_an_active_fault_is_refused(
    world: World, word: str, agent_id: str | None
) -> None:
    """It names the kinds; the fault stays."""
    world.manager.enable_chaos("1h")
    fault = world.inject("disconnect_mcp")
    with pytest.raises(FaultNotFoundError) as caught:
        world.manager.heal(agent_id, word)
    assert word in str(caught.value)
    assert "partition, memory, mcp, llm, slow, tool_timeout" in str(caught.value)
    assert world.manager.list_faults() == (fault,)


def test_healing_tells_of_no_mistake_where_it_has_opened_a_limit(world: World) -> None:
    """Its fault has ended by its count."""
    world.manager.enable_chaos("1h")
    for word in ("llm-failure", None, "id"):
        fault = world.inject("inject_llm_failure", count=1)
        world.store.use_fault(AgentId("a"), fault.id)
        world.store.close_limit("account", timedelta(minutes=1), op=fault.id, by=fault)
        assert [one.fault for one in world.manager.closed_limits()] == [fault.id]
        assert world.manager.heal(None, fault.id if word == "id" else word) == ()
        assert world.manager.closed_limits() == ()


@pytest.mark.pain("P46")
@pytest.mark.spec(139)
@each_fault
def test_whatever_is_not_healed_ends_with_its_duration(world: World, name: str) -> None:
    """Not listed from that moment; the sweep of any worker tells of it, the injector may be long gone."""
    world.manager.enable_chaos("1h")
    fault = world.inject(name, duration="5m")
    lasting = world.inject(name, "b")
    assert world.manager.list_faults() == (fault, lasting)
    sweeper = Sweeper(world.store, world.committer, world.store.config)
    assert sweeper.sweep_once(judge_leases=False).applied == 0
    world.let_it_be_over(fault)
    assert world.manager.list_faults() == (lasting,)
    assert sweeper.sweep_once(judge_leases=False).applied == 1
    assert sweeper.sweep_once(judge_leases=False).applied == 0
    assert world.told() == [("fault.injected", fault.kind.value), ("fault.ended", fault.kind.value)]
    assert [info.faults for info in world.manager.list_agents()] == [0, 1]


def test_disabling_heals_all_that_are_active(world: World) -> None:
    """And says so; the time is over for good."""
    world.manager.enable_chaos("1h", reason="game day", actor="eve")
    faults = {world.inject(name, agent) for name in INJECTIONS for agent in ("a", "b")}
    healed = world.manager.disable_chaos(reason="enough", actor="bob", op="end-1")
    assert set(healed) == faults
    assert world.manager.list_faults() == ()
    assert world.manager.introspect().chaos == {}
    assert world.told("@chaos") == [("chaos.enabled", None), ("chaos.disabled", None)]
    noted = [(e.operation, e.actor, e.reason) for e in world.manager.audit() if e.operation.startswith("chaos")]
    assert noted == [("chaos.enable", "eve", "game day"), ("chaos.disable", "bob", "enough")]


def test_the_sweep_settles_when_faults_are_allowed_no_longer(world: World) -> None:
    """The deadline stands in the shard of the namespace's own stream, and is no agent's."""
    world.manager.enable_chaos(0.02)
    clock = SystemClock()
    until = clock.monotonic() + 10
    while world.store.chaos_state().until and clock.monotonic() < until:
        pass
    sweeper = Sweeper(world.store, world.committer, world.store.config)
    assert sweeper.sweep_once(judge_leases=False).applied == 1
    assert world.told("@chaos") == [("chaos.enabled", None), ("chaos.disabled", None)]
    assert [one for shard in world.store.due() for one in shard.due if one.kind is Deadline.FAULT] == []


# -- when the store is away --------------------------------------------------------------------------------------------


def test_a_lost_answer_is_asked_for_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same operation id: one fault, healed once."""
    world.manager.enable_chaos("1h")

    def lossy(method: str) -> None:
        real, lost = getattr(world.store, method), list[int]()

        def call(*args: Any, **kwargs: Any) -> Any:
            answer = real(*args, **kwargs)
            if not lost:
                lost.append(1)
                raise StoreUnavailableError(url="redis", problem="gone")
            return answer

        monkeypatch.setattr(world.store, method, call)

    lossy("inject")
    fault = world.inject("slow_agent")
    assert world.manager.list_faults() == (fault,)
    lossy("heal")
    assert world.manager.heal("a") == (fault,)
    assert world.told() == [("fault.injected", "slow"), ("fault.healed", "slow")]


def test_healing_all_tells_of_all_although_an_answer_is_lost(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whom the answer is lost has no fault any more when everybody is asked again."""
    world.manager.enable_chaos("1h")
    faults = tuple(world.inject("slow_agent", agent) for agent in ("a", "b"))
    real, lost = world.store.heal, list[str]()

    def lossy(agent_id: AgentId, **given: Any) -> Any:
        answer = real(agent_id, **given)
        if agent_id not in lost:
            lost.append(agent_id)
            raise StoreUnavailableError(url="redis", problem="gone")
        return answer

    monkeypatch.setattr(world.store, "heal", lossy)
    assert world.manager.heal() == faults
    assert world.manager.list_faults() == ()


def test_an_agent_that_is_deleted_meanwhile_keeps_nobody_from_being_healed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its faults are gone with it, and nobody has named it."""
    world.manager.enable_chaos("1h")
    faults = tuple(world.inject("slow_agent", agent) for agent in ("a", "b"))
    real = world.store.heal

    def late(agent_id: AgentId, **given: Any) -> Any:
        if agent_id == "a":
            raise AgentNotFoundError(agent_id=agent_id)
        return real(agent_id, **given)

    monkeypatch.setattr(world.store, "heal", late)
    assert world.manager.heal() == faults[1:]
    with pytest.raises(AgentNotFoundError):
        world.manager.heal("a")


# -- the other ways in -------------------------------------------------------------------------------------------------


def test_every_fault_has_a_task() -> None:
    """And what allows, lists and heals them."""
    tasks = {control.method for control in CONTROLS}
    assert {*INJECTIONS, "heal", "list_faults", "enable_chaos", "disable_chaos", "kill_agent", "kill_worker"} <= tasks


@each_fault
def test_an_action_of_the_arena_says_nothing_that_the_manager_does_not_take(name: str) -> None:
    """Both have the same parameters, but for who asks, and for an action that waits for what comes of it."""
    of_manager = set(inspect.signature(getattr(CoreManager, name)).parameters) - {"self", "actor", "op"}
    assert set(inspect.signature(getattr(actions, name)).parameters) - {"wait"} == of_manager


def test_coroutines_have_the_same_names(world: World) -> None:
    """Each call is made with what it was given."""
    from ares_celery.async_manager.core import CoreAsyncManager

    def never() -> Any:
        raise AssertionError

    async def play() -> None:
        manager = CoreAsyncManager(world.manager, never, namespace="n")
        assert (await manager.enable_chaos("1h", reason="r")).reason == "r"
        made = [
            await manager.partition_network("a", "2m"),
            await manager.corrupt_memory("a", seed=3),
            await manager.disconnect_mcp("a", server="git", count=2),
            await manager.inject_llm_failure("a", "auth", duration=5),
            await manager.slow_agent("a", 1, probability=0.5),
            await manager.tool_timeout("a", "1s", count=1),
        ]
        assert await manager.list_faults("a") == tuple(made)
        assert await manager.slow_agent("a", 0) is None
        healed = await manager.heal("a", "mcp", reason="r")
        assert [fault.server for fault in healed] == ["git"]
        assert len(await manager.disable_chaos()) == 4
        for refused in (
            manager.partition_network("a"),
            manager.kill_agent("a", force=True),
            manager.kill_worker("one@host"),
        ):
            with pytest.raises(ChaosDisabledError):
                await refused

    asyncio.run(play())
