"""The audit stream: an entry for each change that somebody asked for, in the same step as the change."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
import redis

from ares_celery.clock import instant_from
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentSpec, RuntimeState
from ares_celery.model.audit import AuditNote
from ares_celery.model.command import Delete, Die, Pause, Reconcile, Release, Start, Stop, Update
from ares_celery.model.restart import DeathCause
from ares_celery.store.base import CommitConflict
from ares_celery.store.redis.audit_calls import AUDIT_LENGTH
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, plan_for, record_of, run
from tests.contract.store.backends import Backend, LosingDriver

pytestmark = pytest.mark.contract

SPEC = AgentSpec(id=AGENT, type="counter")


def begin(store: RedisStore, agent_id: str = AGENT, op: str = "") -> None:
    """Somebody asks for an agent."""
    spec = AgentSpec(id=agent_id, type="counter")
    act(store, Start("why", "ann@desk", spec=spec), AgentId(agent_id), op=op)


def told(store: RedisStore, agent_id: str | None = AGENT) -> list[tuple[str, str, str | None]]:
    """Operation, actor and state of each entry."""
    known = None if agent_id is None else AgentId(agent_id)
    return [(entry.operation, entry.actor, entry.state) for entry in store.audit(agent_id=known)]


def test_a_change_says_who_asked_for_what_and_why(store: RedisStore) -> None:
    """All of it, with Redis' own time."""
    before = store.server_time()
    begin(store, op="op-1")
    (entry,) = store.audit(agent_id=AGENT)
    assert (entry.operation, entry.agent_id, entry.actor, entry.reason) == ("start", AGENT, "ann@desk", "why")
    assert (entry.state, entry.op, entry.changed) == ("starting", "op-1", ())
    assert before <= instant_from(entry.time) <= store.server_time()


def test_an_operation_that_is_repeated_is_noted_once(store: RedisStore) -> None:
    """The same op id: the first outcome, and no second entry."""
    read = store.read(AGENT)
    plan = plan_for(store, read, Start("why", "ann", spec=SPEC))
    for _ in range(3):
        store.commit(plan, read, op="op-1")
    assert told(store) == [("start", "ann", "starting")]


def test_a_lost_answer_loses_no_entry_and_doubles_none(backend: Backend) -> None:
    """The change and its entry are one write."""
    driver = LosingDriver(backend.client())
    store = backend.open(driver=driver)
    store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.NEW], reason="r", actor="a")
    begin(store, "before")  # the server has the script from here on
    read = store.read(AGENT)
    plan = plan_for(store, read, Start("why", "ann", spec=SPEC))
    driver.lose_next = True
    with pytest.raises(Exception, match="Timeout"):
        store.commit(plan, read, op="op-1")
    assert store.commit(plan, read, op="op-1").repeated
    assert told(store) == [("start", "ann", "starting")]


def test_a_change_that_lost_its_race_is_not_noted(store: RedisStore) -> None:
    """Nothing was written, so nothing is told."""
    begin(store)
    read = store.read(AGENT)
    plan = plan_for(store, read, Pause("", "ann"))
    act(store, Stop("", "bob", force=True))
    with pytest.raises(CommitConflict):
        store.commit(plan, read, op="late")
    assert [operation for operation, _, _ in told(store)] == ["start", "stop"]


def test_what_nobody_asked_for_is_not_noted(store: RedisStore) -> None:
    """The runtime's own verdicts are events; a death that somebody reports has that somebody's name."""
    released = AgentId("c")
    act(store, Release(actor="its worker", fence=run(store, released)), released)
    assert told(store, released) == []
    run(store)
    act(store, Die("crash", epoch=record_of(store).epoch, cause=DeathCause.CRASH, proof=True))
    act(store, Reconcile("the runtime's state changed"))
    assert told(store) == []
    run(store, AgentId("b"))
    act(store, Die("no pulse", "ann", epoch=record_of(store, AgentId("b")).epoch), AgentId("b"))
    assert told(store, "b") == [("notify_dead", "ann", "stopping")]


def test_a_changed_spec_is_named_and_its_values_are_kept_out(store: RedisStore, raw: redis.Redis) -> None:
    """A config may hold what nobody else should read."""
    begin(store)
    act(store, Update("rotated", "ann", config={"key": "s3cret-value"}))
    entry = store.audit(agent_id=AGENT)[-1]
    assert (entry.operation, entry.changed) == ("update", ("config",))
    key = Keys(store.namespace, store.config.shards).audit(0).replace(":0}", ":*}")
    stored = b"".join(repr(raw.xrange(found)).encode() for found in raw.scan_iter(match=key))
    assert b"rotated" in stored
    assert b"s3cret-value" not in stored


def test_entries_outlive_their_agent(store: RedisStore) -> None:
    """The deletion too is noted, once."""
    begin(store)
    act(store, Stop("", "bob", force=True))
    read = store.read(AGENT)
    plan = plan_for(store, read, Delete("tidy", "bob"))
    for op in ("rm-1", "rm-1", "rm-2"):
        store.commit(plan, read, op=op)
    assert store.read(AGENT).record is None
    assert told(store) == [
        ("start", "ann@desk", "starting"),
        ("stop", "bob", "stopped"),
        ("delete", "bob", "deleted"),
    ]


def test_the_runtimes_switch_is_noted_when_it_moves(backend: Backend) -> None:
    """Once for each move; a no-op leaves no trace."""
    store = backend.open()
    startable = [RuntimeState.NEW, RuntimeState.STOPPED]
    for actor in ("ann", "bob"):
        store.set_runtime(RuntimeState.RUNNING, only_from=startable, reason="go", actor=actor)
    store.set_runtime(RuntimeState.STOPPED, only_from=[RuntimeState.RUNNING], reason="night", actor="bob")
    assert [(e.operation, e.actor, e.reason, e.state, e.agent_id) for e in store.audit()] == [
        ("runtime.start", "ann", "go", "running", None),
        ("runtime.stop", "bob", "night", "stopped", None),
    ]


def test_entries_of_all_shards_come_in_order_of_time(store: RedisStore) -> None:
    """Merged when read; limit keeps the newest; since and agent_id choose."""
    ids = [f"n{number}" for number in range(20)]
    for agent_id in ids:
        begin(store, agent_id)
    every = store.audit()
    assert [entry.agent_id for entry in every] == [None, *ids]
    assert [entry.agent_id for entry in store.audit(limit=3)] == ids[-3:]
    tenth = instant_from(every[10].time)
    assert [entry.agent_id for entry in store.audit(since=tenth)] == ids[9:]
    assert [entry.agent_id for entry in store.audit(agent_id=AgentId("n7"))] == ["n7"]
    later = instant_from(every[-1].time + timedelta(microseconds=1))
    assert store.audit(since=later) == []


def test_entries_of_one_agent_are_found_behind_many_others(backend: Backend) -> None:
    """Page by page, in one shard."""
    store = backend.open()
    keys = Keys(store.namespace, store.config.shards)
    shard = keys.shard_of(AGENT)
    neighbour = next(f"x{n}" for n in range(1000) if keys.shard_of(f"x{n}") == shard)
    store.note_down(AuditNote(operation="kill", agent_id=AGENT, actor="ann"))
    client = backend.client()
    entry = AuditNote(operation="kill", agent_id=neighbour).model_dump_json()
    with client.pipeline() as many:
        for _ in range(1_200):
            many.xadd(keys.audit(shard), {"d": entry, "t": store.server_time()})
        many.execute()
    assert told(store) == [("kill", "ann", None)]


def test_an_entry_that_cannot_be_read_hides_no_other(
    store: RedisStore, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged."""
    key = Keys(store.namespace, store.config.shards).audit(0)
    raw.xadd(key, {"d": b"\xff{", "t": "1"})
    raw.xadd(key, {"x": "y"})
    with caplog.at_level(logging.WARNING):
        assert told(store, None) == [("runtime.start", "test", "running")]
    assert caplog.text.count("cannot be read") == 2


def test_the_stream_is_bounded(store: RedisStore, raw: redis.Redis) -> None:
    """It keeps some ten thousand entries, and no more than a node beyond."""
    key = Keys(store.namespace, store.config.shards).audit(0)
    with raw.pipeline() as many:
        for _ in range(AUDIT_LENGTH + 500):
            many.xadd(key, {"d": "{}", "t": "1"})
        many.execute()
    store.note_down(AuditNote(operation="kill"))
    assert raw.xlen(key) <= AUDIT_LENGTH + 200
