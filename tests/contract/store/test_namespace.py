"""The namespace: made once, its runtime's state in every shard, one sweeper, and every key accounted for."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta

import pytest
import redis

from ares_celery.clock import to_datetime
from ares_celery.config import RuntimeConfig
from ares_celery.errors import NamespaceMismatchError
from ares_celery.ids import AgentId, Version
from ares_celery.model.agent import RuntimeState
from ares_celery.model.command import Complete, Deadline, Stop
from ares_celery.model.summary import Summary
from ares_celery.store.base import Reply
from ares_celery.store.redis import namespace_calls
from ares_celery.store.redis.keys import RUNTIME, Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, append, run, start, ticks
from tests.contract.store.backends import Backend
from tests.key_leaks import keys_of_agent, kind_of, leaked_keys, namespace_keys
from tests.wait import wait_until

pytestmark = pytest.mark.contract

#: Kinds of this store beyond those that tests/key_leaks.py knows, without TTL, with their owner.
OWNED = {
    "counters": "the namespace itself: one field for each counter",
    "hosts": "its members are: one for each record with an owner",
    "last_sweep": "the namespace itself",
    "streams": "the namespace itself: one field for each stream without record",
    "types": "the namespace itself: one field for each agent type",
}


def test_whoever_comes_first_decides_the_settings(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later ones get the stored settings, whatever their environment says."""
    monkeypatch.setenv("ARES_LEASE_TTL", "5s")
    monkeypatch.setenv("ARES_SHARDS", "4")
    made = RedisStore.from_client(backend.client(), backend.namespace)
    assert (made.config.lease_ttl.total_seconds(), made.config.shards) == (5.0, 4)
    made.close()
    monkeypatch.setenv("ARES_LEASE_TTL", "6s")
    opened = RedisStore.from_client(backend.client(), backend.namespace)
    assert opened.config == made.config
    opened.close()


def test_own_settings_that_differ_are_one_warning(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """It names the fields; who sets nothing, or the same, is told nothing."""
    backend.open(RuntimeConfig(snapshots_kept=5, restore_attempts=7))
    with caplog.at_level(logging.WARNING):
        assert backend.open(RuntimeConfig()).config.snapshots_kept == 5
        assert backend.open(RuntimeConfig(snapshots_kept=5)).config.restore_attempts == 7
        assert caplog.records == []
        other = backend.open(RuntimeConfig(snapshots_kept=6, restore_attempts=8, lease_ttl=timedelta(seconds=8)))
    assert other.config.snapshots_kept == 5
    (record,) = caplog.records
    assert "restore_attempts, snapshots_kept;" in record.getMessage()


def test_other_shards_or_another_schema_are_refused(backend: Backend, raw: redis.Redis) -> None:
    """Keys would not be found: the error says what was found, wanted, and what to do."""
    store = backend.open(RuntimeConfig(shards=4))
    assert backend.open(RuntimeConfig()).config.shards == 4
    with pytest.raises(NamespaceMismatchError) as shards:
        backend.open(RuntimeConfig(shards=8))
    assert (shards.value.field, shards.value.found, shards.value.wanted) == ("shards", 4, 8)
    raw.hset(Keys(store.namespace, 4).meta, "schema", "2")
    with pytest.raises(NamespaceMismatchError, match="upgrade this process"):
        backend.open()


def test_settings_of_a_newer_version_are_left_alone(backend: Backend, raw: redis.Redis) -> None:
    """A field that this version does not know does not keep it out."""
    store = backend.open(RuntimeConfig(snapshots_kept=2))
    raw.set(Keys(store.namespace, 16).config, b'{"snapshots_kept": 2, "of_tomorrow": 1}')
    assert backend.open().config.snapshots_kept == 2


def test_the_state_of_the_runtime_moves_only_from_where_it_may(backend: Backend) -> None:
    """new, running, stopped, running: each with who, why and when; generations rise; first_started stays."""
    store = backend.open()
    assert (store.runtime().state, store.runtime().generation) == (RuntimeState.NEW, 0)
    running = store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.NEW], reason="begin", actor="ann")
    assert (running.state, running.generation, running.reason, running.actor) == (
        RuntimeState.RUNNING,
        1,
        "begin",
        "ann",
    )
    assert running.since == running.first_started == running.now
    refused = store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.NEW], reason="again", actor="bob")
    assert (refused.generation, refused.reason) == (1, "begin")
    same = store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.RUNNING], reason="again", actor="bob")
    assert same.generation == 1
    stopped = store.set_runtime(RuntimeState.STOPPED, only_from=[RuntimeState.RUNNING], reason="end", actor="ann")
    assert stopped.stopped_at == stopped.since
    again = store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.STOPPED], reason="", actor="ann")
    assert (again.generation, again.first_started) == (3, running.first_started)
    now = store.runtime()
    assert replace(now, now=again.now) == again


def test_every_shard_has_a_copy_of_the_state(store: RedisStore) -> None:
    """Each agent's read shows it, and no deadline is left."""
    reads = store.read_many([AgentId(f"agent-{number}") for number in range(100)])
    assert {(read.runtime, read.generation) for read in reads} == {(RuntimeState.RUNNING, 1)}
    assert all(shard.next_at == 0 and shard.due == () for shard in store.due())


def test_a_move_whose_mover_died_is_finished_by_whoever_sweeps(store: RedisStore) -> None:
    """The home shard moved, no copy was made: the deadline is due a second later, and copying clears it."""
    keys = Keys(store.namespace, store.config.shards)
    moved = namespace_calls.set_runtime(
        keys, state=RuntimeState.STOPPED, only_from=[RuntimeState.RUNNING], reason="end", actor="ann"
    )
    stored = store._bound.client.run(moved)
    shards = {keys.shard_of(f"agent-{number}"): AgentId(f"agent-{number}") for number in range(200)}
    copies = {shard: store.read(agent_id).runtime for shard, agent_id in shards.items()}
    assert copies.pop(0) is RuntimeState.STOPPED
    assert set(copies.values()) == {RuntimeState.RUNNING}
    (due,) = wait_until(lambda: store.due()[0].due, "the deadline of the move", timeout=5)
    assert (due.kind, due.agent_id) == (Deadline.RECONCILE, RUNTIME)
    store.copy_runtime()
    assert {store.read(agent_id).runtime for agent_id in shards.values()} == {RuntimeState.STOPPED}
    assert store.due()[0].due == ()
    store._bound.client.run(namespace_calls.copy_runtime(keys, shard=1, stored=stored))
    store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.STOPPED], reason="", actor="")
    assert store._bound.client.run(namespace_calls.copy_runtime(keys, shard=1, stored=stored)) == 0
    assert store.read(shards[1]).runtime is RuntimeState.RUNNING


def test_a_late_copier_does_not_drop_the_deadline_of_a_newer_move(store: RedisStore) -> None:
    """Its copies are of a state that has moved again: the newer move still has to be copied."""
    keys = Keys(store.namespace, store.config.shards)
    moved = namespace_calls.set_runtime(
        keys, state=RuntimeState.STOPPED, only_from=[RuntimeState.RUNNING], reason="", actor=""
    )
    generation = store._bound.client.run(moved).read.generation
    assert store._bound.client.run(namespace_calls.settle_runtime(keys, generation=generation - 1)) == 0
    assert store.due()[0].next_at > 0
    assert store._bound.client.run(namespace_calls.settle_runtime(keys, generation=generation)) == 1
    assert store.due()[0].next_at == 0


def test_one_process_sweeps(store: RedisStore) -> None:
    """The lease is kept by its holder, refused to others, and free when it has run out."""
    assert store.elect("p1", ttl_ms=60_000)
    assert store.elect("p1", ttl_ms=100)
    assert not store.elect("p2", ttl_ms=100)
    wait_until(lambda: store.elect("p2", ttl_ms=100), "the lease's end")
    assert store.elect("p2", ttl_ms=60_000)
    assert not store.elect("p1", ttl_ms=60_000)


def test_a_sweeper_elected_before_the_clock_went_back_keeps_nobody_away(store: RedisStore, raw: redis.Redis) -> None:
    """The server ends its lease by the clock: later than any lease can end, and the holder may be dead."""
    raw.set(Keys(store.namespace, store.config.shards).sweeper, "p1", px=600_000)
    assert store.elect("p2", ttl_ms=750)
    assert not store.elect("p1", ttl_ms=750)


def test_the_age_of_the_last_sweep_is_known(store: RedisStore, raw: redis.Redis) -> None:
    """None at first; then in milliseconds, by the clock of Redis."""
    assert store.sweep_age_ms() == -1
    store.report_sweep("p1")
    assert 0 <= store.sweep_age_ms() < 5_000
    raw.set(Keys(store.namespace, store.config.shards).last_sweep, f"{store.server_time() - 90_000_000}|p1")
    assert 90_000 <= store.sweep_age_ms() < 95_000


def test_processes_that_fall_silent_are_forgotten(store: RedisStore, raw: redis.Redis) -> None:
    """A minute after their last report, also when nobody reports any more."""
    store.report_hosts("p1", "agents@a")
    store.report_hosts("p2", "agents@b")
    assert store.hosts() == {"p1": "agents@a", "p2": "agents@b"}
    key = Keys(store.namespace, store.config.shards).process
    raw.zadd(key, {"p1|agents@a": store.server_time() - 61_000_000})
    assert store.hosts() == {"p2": "agents@b"}
    store.report_hosts("p2", "agents@b")
    assert int(raw.zcard(key)) == 1
    assert 0 < int(raw.ttl(key)) <= 60


def test_reported_types_are_known_to_everyone(store: RedisStore) -> None:
    """Those of several workers together."""
    assert store.known_types() == {}
    store.report_types({"counter": {"step": {"default": 1}}})
    store.report_types({"clock": {}})
    store.report_types({})
    assert store.known_types() == {"counter": {"step": {"default": 1}}, "clock": {}}


def test_a_deleted_agent_leaves_no_key_that_stays(store: RedisStore, raw: redis.Redis) -> None:
    """Record, events, snapshots, inbox, deadlines, indexes are gone; outcomes and answers end by themselves."""
    fence = run(store)
    append(store, fence, 1, expected=1)
    store.snapshots.save(AGENT, {"n": 1})
    store.send(AGENT, 1, message_id="m1", wants_reply=True)
    store.reply(AGENT, fence, store.inbox(AGENT)[0], Reply("m1", 1))
    store.send(AGENT, 1, message_id="m2", wants_reply=False)
    act(store, Complete(fence=fence))
    store.delete(AGENT, store.read(AGENT), op="delete")
    left = keys_of_agent(raw, store.namespace, AGENT)
    assert {kind_of(key) for key in left} <= {"op", "message", "reply"}
    assert all(int(raw.ttl(key)) > 0 for key in left)
    assert store.list_ids() == []
    assert store.hosted_by("host:boot:4026531836:4711:98765") == []
    assert all(shard.next_at == 0 and shard.due == () for shard in store.due())
    assert store.events.read_all() == ()
    store.delete(AGENT, store.read(AGENT), op="delete")
    store.delete(AGENT, store.read(AGENT), op="another")


def test_an_agent_that_changed_is_not_deleted(store: RedisStore) -> None:
    """Nor one that was made anew under the same id."""
    start(store)
    act(store, Stop())
    old = store.read(AGENT)
    store.delete(AGENT, old, op="first")
    start(store)
    act(store, Stop())
    with pytest.raises(Exception, match="decide again"):
        store.delete(AGENT, old, op="second")
    assert store.list_ids() == [AGENT]


def test_every_key_has_an_end_or_an_owner(store: RedisStore, raw: redis.Redis) -> None:
    """After everything that the store can do, and nothing is left after a wipe."""
    fence = run(store)
    append(store, fence, 1, expected=1)
    store.save_snapshot(AGENT, fence, {"n": 1}, version=store.events.stream_version(AGENT), schema=0)
    store.events.append("stream-without-record", ticks(1))
    moment = to_datetime(1)
    summary = Summary("s1", AGENT, "", 1, Version(1), Version(1), moment, moment)
    store.events.save_summary(summary, after=Version(0))
    store.send(AGENT, 1, message_id="m1", wants_reply=True)
    store.send(AGENT, 1, message_id="m2", wants_reply=True)
    store.reply(AGENT, fence, store.inbox(AGENT)[0], Reply("m1", 1))
    start(store, AgentId("tenant:two"))
    act(store, Complete(fence=fence))
    store.elect("p1", ttl_ms=1_000)
    store.report_sweep("p1")
    store.report_hosts("p1", "agents@a")
    store.report_types({"counter": {}})
    kinds = {kind_of(key) for key in namespace_keys(raw, store.namespace)}
    assert {"agent", "events", "summaries", "snapshots", "inbox", "message", "reply", "op", "process", "types"} <= kinds
    assert leaked_keys(raw, store.namespace, also_owned=OWNED) == []
    neighbour = f"{store.namespace}x"
    raw.set(f"{{{neighbour}}}:meta", 1)
    assert store.wipe() > 10
    assert list(namespace_keys(raw, store.namespace)) == []
    assert raw.delete(f"{{{neighbour}}}:meta") == 1


def test_a_closed_store_says_so(store: RedisStore) -> None:
    """Closing twice is no error; a call afterwards opens no connection."""
    store.close()
    store.close()
    with pytest.raises(ConnectionError, match="closed"):
        store.read(AGENT)
    with pytest.raises(ConnectionError, match="closed"):
        store.due()


def test_a_namespace_that_was_lost_is_made_again_as_it_was(backend: Backend) -> None:
    """Whoever has it open makes it again, with its settings; until it is lost, asking changes nothing."""
    store = backend.open(RuntimeConfig(shards=3, chaos=True))
    made_at = store.reopen()
    assert store.reopen() == made_at
    assert store.wipe() > 0
    again = store.reopen()
    assert again > made_at
    assert store.reopen() == again
    assert backend.open().config == store.config


def test_a_namespace_that_was_made_again_with_other_shards_is_refused(backend: Backend) -> None:
    """Its keys would be looked for in the wrong places."""
    store = backend.open(RuntimeConfig(shards=3))
    store.wipe()
    backend.open(RuntimeConfig(shards=5))
    with pytest.raises(NamespaceMismatchError, match="restart this process"):
        store.reopen()


def test_counters_are_raised_once_for_each_operation(store: RedisStore, raw: redis.Redis) -> None:
    """A repeat after a lost reply counts nothing more; what remembers it ends by itself."""
    store.count({"plugin_failures": 2, "plugin_timeouts": 1}, op="op-1")
    store.count({"plugin_failures": 2, "plugin_timeouts": 1}, op="op-1")
    store.count({"plugin_failures": 3}, op="op-2")
    counters = store.counters()
    assert (counters["plugin_failures"], counters["plugin_timeouts"]) == (5, 1)
    assert leaked_keys(raw, store.namespace, also_owned=OWNED) == []
    remembered = [key for key in namespace_keys(raw, store.namespace) if kind_of(key) == "counted"]
    assert len(remembered) == 2
    assert all(0 < raw.ttl(key) <= namespace_calls.COUNTED_TTL.total_seconds() for key in remembered)


def test_detached_work_is_summed_over_the_processes_that_still_say_so(store: RedisStore, raw: redis.Redis) -> None:
    """By label; none is forgotten at once, that of a process which is gone after seconds."""
    for identity, work in (("p1", {"compaction": 2, "warm-up": 1}), ("p2", {"compaction": 1}), ("p3", {})):
        store.report_hosts(identity, "w@h")
        store.report_background(identity, work)
    assert store.background() == {"compaction": 3, "warm-up": 1}
    assert store.background(without="p2") == {"compaction": 2, "warm-up": 1}
    store.report_background("p1", {})
    assert store.background() == {"compaction": 1}
    assert 0 < raw.ttl(Keys(store.namespace, 16).background("p2")) <= 5


def test_the_start_of_the_last_run_is_kept_through_its_stop(store: RedisStore) -> None:
    """What uptime is counted from."""
    first = store.runtime()
    store.set_runtime(RuntimeState.STOPPED, only_from=[RuntimeState.RUNNING], reason="", actor="a")
    again = store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.STOPPED], reason="", actor="a")
    stopped = store.set_runtime(RuntimeState.STOPPED, only_from=[RuntimeState.RUNNING], reason="", actor="a")
    assert stopped.first_started == first.started_at == first.since
    assert again.started_at == again.since == stopped.started_at
