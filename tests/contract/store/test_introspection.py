"""The namespace as a whole: agents in every state, registered DAGs, snapshots of the runtime."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import redis

from ares_celery.config import RuntimeConfig
from ares_celery.errors import DagRefusedError, StoreUnavailableError
from ares_celery.ids import AgentId
from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentSpec, AgentState, agent_status
from ares_celery.model.command import Command, Complete, Die, Park, Pause, Register, Release, Stop
from ares_celery.model.plan import Nudge, Plan
from ares_celery.runtime.commits import Committer
from ares_celery.store.redis import introspection_calls
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from ares_celery.supervision import overview
from tests.contract.store.acting import act, claim, record_of, run, run_namespace, start, ticks
from tests.contract.store.backends import Backend

pytestmark = pytest.mark.contract


class NoLauncher:
    """Nobody hosts: agents stay where they were brought."""

    def launch(self, nudge: Nudge) -> None:
        """Sends nothing."""

    def waiting(self, queue: str | None) -> int:
        """No message waits."""
        return 0


class Handle:
    """What a manager works with, around the test's store."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.config = store.config
        self.committer = Committer(store, store.config, NoLauncher())

    def close(self) -> None:
        """The store is the fixture's."""


@pytest.fixture
def manager(store: RedisStore) -> CoreManager:
    """A manager of the test's namespace."""
    return CoreManager(Handle(store))


def waits(store: RedisStore, agent_id: AgentId) -> None:
    """Waiting: no command leads there yet, the state itself is what is looked at."""
    claim(store, agent_id)
    read = store.read(agent_id)
    assert read.record is not None
    waiting = replace(read.record, state=AgentState.WAITING, fence="")
    store.commit(Plan(Pause(), read.record, waiting), read, op="wait")


def pauses(store: RedisStore, agent_id: AgentId) -> None:
    """Asked to, and ended in order."""
    fence = run(store, agent_id)
    act(store, Pause(), agent_id)
    act(store, Release(fence=fence), agent_id)


def dies(store: RedisStore, agent_id: AgentId) -> None:
    """Its process is lost."""
    run(store, agent_id)
    act(store, Die("process lost", epoch=record_of(store, agent_id).epoch, proof=True), agent_id)


def ends(command: Callable[[str], Command]) -> Callable[[RedisStore, AgentId], None]:
    """Runs, and then this happens to it."""

    def bring(store: RedisStore, agent_id: AgentId) -> None:
        act(store, command(run(store, agent_id)), agent_id)

    return bring


#: How an agent gets into each state.
WAYS: dict[AgentState, Callable[[RedisStore, AgentId], object]] = {
    AgentState.REGISTERED: lambda store, agent_id: act(
        store, Register(spec=AgentSpec(id=agent_id, type="counter")), agent_id
    ),
    AgentState.STARTING: start,
    AgentState.RUNNING: run,
    AgentState.PAUSED: pauses,
    AgentState.WAITING: waits,
    AgentState.STOPPING: ends(lambda _: Stop()),
    AgentState.STOPPED: ends(lambda _: Stop(force=True)),
    AgentState.RESURRECTING: dies,
    AgentState.COMPLETED: ends(lambda fence: Complete(fence=fence)),
    AgentState.PARKED: ends(lambda fence: Park(reason="damaged", cause="integrity", fence=fence)),
}


@pytest.mark.spec(149)
def test_an_agent_in_each_state_is_listed_and_looked_up(store: RedisStore, manager: CoreManager) -> None:
    """id, type, status, restarts and paused of each; unknown ones give nothing."""
    for state in AgentState:
        WAYS[state](store, AgentId(state.value))
    expected = {
        state.value: (
            "counter",
            state,
            agent_status(state),
            1 if state is AgentState.RESURRECTING else 0,
            state is AgentState.PAUSED,
        )
        for state in AgentState
    }
    listed = manager.list_agents()
    assert [info.id for info in listed] == sorted(expected)
    assert {one.id: (one.type, one.state, one.status, one.restarts, one.paused) for one in listed} == expected
    for info in listed:
        assert manager.get_agent_info(info.id) == info
        handle = manager.get_agent(info.id)
        assert handle is not None
        assert (handle.id, handle.info()) == (info.id, info)
        assert [one.id for one in manager.list_agents(states=[info.state])] == [info.id]
    assert [one.id for one in manager.list_agents(type="another")] == []
    assert manager.get_agent_info("unknown") is None
    assert manager.get_agent("unknown") is None


@pytest.mark.spec(148)
def test_a_dag_is_kept_under_its_key_and_makes_nothing_else(
    store: RedisStore, manager: CoreManager, raw: redis.Redis
) -> None:
    """Any JSON value comes back, a later one replaces it, unknown gives None; no agent, no stream, no deadline."""
    values: list[Any] = [{"nodes": ["a", "b"], "edges": [["a", "b"]]}, [1, 2.5, None], "text", 7, False, {}, "ü" * 99]
    for value in values:
        manager.register_agent_dag("evolution", value)
        assert manager.get_agent_dag("evolution") == value
    manager.register_agent_dag("leader-live", {"n": 1})
    assert manager.get_agent_dag("leader-live") == {"n": 1}
    assert manager.get_agent_dag("evolution") == values[-1]
    assert manager.get_agent_dag("unknown") is None
    assert list(store.dag_keys()) == ["evolution", "leader-live"]
    assert manager.list_agents() == []
    assert store.events.read_all() == ()
    assert all(shard.next_at == 0 for shard in store.due())
    client: Any = raw
    kinds = {key.split(b"}:")[1].split(b":")[0] for key in client.scan_iter(match=f"{{{store.namespace}*")}
    assert kinds == {b"meta", b"config", b"runtime", b"dags", b"audit"}
    asked = [entry for entry in manager.audit() if entry.operation == "dag.register"]
    assert [(entry.changed, entry.actor) for entry in asked[-1:]] == [(("leader-live",), asked[0].actor)]
    manager.register_agent_dag("leader-live", {"n": 1})
    manager.register_agent_dag("leader-live", {"n": 2}, reason="patch", actor="ann")
    assert len(manager.audit()) == len(asked) + 2  # the start of the runtime, and one change
    assert (manager.audit()[-1].reason, manager.audit()[-1].actor) == ("patch", "ann")


def test_a_dag_that_cannot_be_stored_leaves_the_one_before(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Key, kind, size or number: the error says which, what is allowed, and for which key."""
    store = run_namespace(backend.open(RuntimeConfig(max_event_bytes=1_000)))
    manager = CoreManager(Handle(store))
    manager.register_agent_dag("k", [1])
    loop: list[Any] = []
    loop.append(loop)
    bad: list[tuple[Any, str]] = [
        ({1, 2}, "the outermost value is a set"),
        ({"a": [object()]}, r"not plain JSON, the value at 'a\[0\]' is an object; use dict"),
        ({"a": float("nan")}, "nan at 'a' is no JSON number"),
        ({1: "a"}, "plain JSON, the key 1 of the outermost object is an int, not a str; use"),
        ((1, 2), "is a tuple"),
        (loop, "contains itself"),
        ("x" * 1_000, "1002 bytes, the limit is 1000"),
    ]
    for value, problem in bad:
        with pytest.raises(DagRefusedError, match=problem) as refused:
            manager.register_agent_dag("k", value)
        assert refused.value.key == "k"
    assert manager.get_agent_dag("k") == [1]
    for key in ("", "a\n", "x" * 201, None, 7):
        with pytest.raises(DagRefusedError, match="1 to 200 printable characters"):
            manager.register_agent_dag(key, 1)  # type: ignore[arg-type]
    monkeypatch.setattr(introspection_calls, "MOST_DAGS", 2)
    manager.register_agent_dag("l", 1)
    with pytest.raises(DagRefusedError, match="holds 2 already"):
        manager.register_agent_dag("m", 1)
    manager.register_agent_dag("l", 2)
    assert (manager.get_agent_dag("l"), manager.get_agent_dag("m")) == (2, None)


@pytest.mark.spec(150)
def test_snapshots_of_the_runtime_are_numbered_and_those_of_nothing_are_empty(
    store: RedisStore, manager: CoreManager, backend: Backend
) -> None:
    """Each number is greater than all before it, whoever takes it; a part without a source is empty."""
    before = store.server_time()
    first = manager.introspect()
    assert before / 1e6 <= first.time.timestamp() <= store.server_time() / 1e6
    assert (first.agents, first.supervision, first.hosts, first.chaos, first.dags) == ({}, {}, {}, {}, {})
    assert (first.activity, first.problems) == ((), {})
    assert (first.runtime["state"], first.runtime["active_agents"]) == ("running", 0)
    others = [CoreManager(Handle(backend.open())) for _ in range(2)]
    managers = [manager, *others] * 4
    with ThreadPoolExecutor(3) as pool:
        taken = [shown.seq for shown in pool.map(CoreManager.introspect, managers)]
    assert len({first.seq, *taken}) == 13
    assert min(taken) > first.seq
    following = [manager.introspect() for _ in range(5)]
    assert following[0].seq > max(taken)
    assert all(one.seq < other.seq and one.time <= other.time for one, other in pairwise(following))


@pytest.mark.spec(150)
def test_a_snapshot_shows_what_there_is(store: RedisStore, manager: CoreManager) -> None:
    """Every part that has a source, and what happened last, newest first, at most 300."""
    run(store, AgentId("a"))
    act(store, Complete(fence=run(store, AgentId("b"))), AgentId("b"))
    store.report_hosts("p1", "agents@a")
    store.report_sweep("p1")
    manager.register_agent_dag("evolution", {})
    shown = manager.introspect()
    assert (shown.agents["total"], shown.agents["by_state"]) == (2, {"running": 1, "completed": 1})
    assert [(one["id"], one["state"]) for one in shown.agents["listed"]] == [("a", "running"), ("b", "completed")]
    assert shown.hosts == {"p1": "agents@a"}
    assert shown.supervision["last_sweep_ms"] >= 0
    assert shown.dags == {"keys": ["evolution"]}
    told = [(one.agent_id, one.version, one.type) for one in shown.activity if one.agent_id == "b"]
    assert told == [("b", 2, "agent.completed"), ("b", 1, "agent.started")]
    for number in range(4):
        for stream in range(5):
            store.events.append(f"stream-{stream}", ticks(*range(number, number + 20)))
    full = manager.introspect().activity
    assert len(full) == 300
    assert all(one.time >= other.time for one, other in pairwise(full))
    for stream in range(5):
        versions = [one.version for one in full if one.agent_id == f"stream-{stream}"]
        assert versions == list(range(80, 80 - len(versions), -1))
    assert {one.agent_id for one in full} == {f"stream-{stream}" for stream in range(5)}


def test_a_snapshot_has_many_agents_counted_and_some_listed(
    store: RedisStore, manager: CoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its size is bounded, its numbers are those of all."""
    monkeypatch.setattr(overview, "MOST_AGENTS", 3)
    for number in range(5):
        start(store, AgentId(f"a{number}"))
    shown = manager.introspect().agents
    assert (shown["total"], shown["by_state"]) == (5, {"starting": 5})
    assert [one["id"] for one in shown["listed"]] == ["a0", "a1", "a2"]


@pytest.fixture
def broken_dags(store: RedisStore, raw: redis.Redis) -> None:
    """Somebody else has written to the key of the DAGs."""
    raw.set(Keys(store.namespace, store.config.shards).dags, "rubbish")


def test_a_part_that_cannot_be_read_hides_no_other(
    store: RedisStore, manager: CoreManager, broken_dags: None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is empty, named and logged; a store that does not answer is an error."""
    run(store)
    with caplog.at_level(logging.ERROR):
        shown = manager.introspect()
    assert shown.dags == {}
    assert list(shown.problems) == ["dags"]
    assert "part dags" in caplog.text
    assert shown.agents["total"] == 1
    store.close()
    with pytest.raises(StoreUnavailableError):
        manager.introspect()
