"""Snapshots: fenced, checked, the last few kept."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import redis

from ares_celery.config import RuntimeConfig
from ares_celery.errors import SnapshotTooLargeError, UnserialisableError
from ares_celery.ids import Version
from ares_celery.model.snapshot import Snapshot
from ares_celery.store.base import DamagedSnapshot
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from ares_celery.store.redis.stored_snapshots import LARGEST_STATE
from tests.contract.store.acting import AGENT, append, record_of, run, run_namespace
from tests.contract.store.backends import Backend, LosingDriver

pytestmark = pytest.mark.contract


def execute(client: Any, *words: object) -> object:
    """A command of a kind that the driver's types do not allow."""
    return client.execute_command(*words)


def save(store: RedisStore, fence: str, number: int) -> None:
    """A snapshot at a version, which is in its state too."""
    store.save_snapshot(AGENT, fence, {"n": number}, version=Version(number), schema=3)


def test_a_snapshot_comes_back_with_all_that_is_known_of_it(store: RedisStore) -> None:
    """State, version, epoch, schema, and the time of Redis."""
    fence = run(store)
    before = store.server_time()
    store.save_snapshot(AGENT, fence, {"a|b": ["|", {"x": None}]}, version=Version(1), schema=7)
    (snapshot,) = store.stored_snapshots(AGENT)
    assert isinstance(snapshot, Snapshot)
    assert snapshot.state == {"a|b": ["|", {"x": None}]}
    assert (snapshot.version, snapshot.epoch, snapshot.schema) == (1, record_of(store).epoch, 7)
    assert before <= snapshot.time <= store.server_time()


@pytest.mark.parametrize("kept", [1, 3])
def test_the_last_few_are_kept(backend: Backend, kept: int) -> None:
    """As many as the namespace is set to, newest first."""
    store = run_namespace(backend.open(RuntimeConfig(snapshots_kept=kept)))
    fence = run(store)
    for number in range(1, 6):
        save(store, fence, number)
    found = [snapshot.version for snapshot in store.stored_snapshots(AGENT) if isinstance(snapshot, Snapshot)]
    assert found == [5, 4, 3][:kept]


def test_a_snapshot_whose_answer_is_lost_is_there_once(backend: Backend) -> None:
    """A repeat at the same version takes its place: it pushes no older one out."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(driver=driver))
    fence = run(store)
    for number in (1, 2):
        save(store, fence, number)
    save(store, fence, 2)
    save(store, fence, 2)
    assert len(store.stored_snapshots(AGENT)) == 2


def test_every_flipped_byte_is_noticed(store: RedisStore, raw: redis.Redis) -> None:
    """In state, version, epoch, schema, time or checksum: damaged, kept as it is, and the older one is loaded."""
    fence = run(store)
    save(store, fence, 1)
    save(store, fence, 2)
    key = Keys(store.namespace, store.config.shards).snapshots(AGENT)
    intact = raw.lindex(key, 0)
    assert isinstance(intact, bytes)
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 0x01
        execute(raw, "LSET", key, 0, bytes(damaged))
        newest, older = store.stored_snapshots(AGENT)
        assert isinstance(newest, DamagedSnapshot), position
        assert newest.raw == bytes(damaged)
        assert isinstance(older, Snapshot)
    execute(raw, "LSET", key, 0, intact[:20])
    assert isinstance(store.stored_snapshots(AGENT)[0], DamagedSnapshot)


def test_the_newest_intact_state_is_loaded(
    store: RedisStore, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A damaged one is passed over, loudly."""
    fence = run(store)
    save(store, fence, 1)
    save(store, fence, 2)
    execute(raw, "LSET", Keys(store.namespace, store.config.shards).snapshots(AGENT), 0, b"2|rubbish")
    with caplog.at_level(logging.WARNING):
        assert store.snapshots.load(AGENT) == {"n": 1}
    assert AGENT in caplog.text


def test_a_state_that_is_no_json_or_too_large_leaves_the_previous_one(store: RedisStore) -> None:
    """Both are refused before anything is sent, and say what is wrong."""
    fence = run(store)
    save(store, fence, 1)
    with pytest.raises(UnserialisableError, match=r"at 'at' is a datetime|at 'b\[0\]' is a tuple"):
        store.save_snapshot(AGENT, fence, {"b": [()]}, version=Version(2), schema=0)
    with pytest.raises(SnapshotTooLargeError) as refused:
        store.save_snapshot(AGENT, fence, {"b": "x" * LARGEST_STATE}, version=Version(2), schema=0)
    assert (refused.value.agent_id, refused.value.limit) == (AGENT, LARGEST_STATE)
    assert len(store.stored_snapshots(AGENT)) == 1


@pytest.mark.spec(112)
def test_the_seeds_port_saves_loads_and_deletes(store: RedisStore) -> None:
    """Equal and independent, on the way in and out; the last write wins; load and delete of nothing are no error."""
    state: dict[str, Any] = {"n": [1, {"deep": [2]}], "x": None}
    store.snapshots.save("anybody", state)
    state["n"][1]["deep"].append("later")
    loaded: Any = store.snapshots.load("anybody")
    assert loaded == {"n": [1, {"deep": [2]}], "x": None}
    loaded["n"][1]["deep"].append("later")
    assert store.snapshots.load("anybody") == {"n": [1, {"deep": [2]}], "x": None}
    store.snapshots.save("anybody", {"n": 3})
    store.snapshots.save("anybody", {"n": 4})
    assert store.snapshots.load("anybody") == {"n": 4}
    assert store.snapshots.load("nobody") is None
    store.snapshots.save("nobody", {})
    store.snapshots.save("", {"n": 1})
    assert store.snapshots.load("nobody") is None
    assert store.snapshots.load("") is None
    for _ in range(2):
        store.snapshots.delete("anybody")
        store.snapshots.delete("nobody")
    assert store.snapshots.load("anybody") is None


def test_a_state_saved_from_outside_stands_at_the_newest_version(store: RedisStore) -> None:
    """So that recovery replays only what comes after it."""
    fence = run(store)
    append(store, fence, 1, 2, expected=1)
    store.snapshots.save(AGENT, {"n": 2})
    (snapshot,) = store.stored_snapshots(AGENT)
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.version, snapshot.epoch) == (3, 0)
