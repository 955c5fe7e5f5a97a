"""Who holds the arena: one run at a time, free again when its process is gone, to be stopped by anybody."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from ares_celery.model.arena import ARENA_TTL_SECONDS
from ares_celery.model.audit import AuditNote
from ares_celery.store.redis.store import RedisStore

pytestmark = pytest.mark.contract

NOTE = AuditNote(operation="survival.start", actor="anna")


def operations(store: RedisStore) -> list[str]:
    """What the audit stream tells of the arena."""
    return [entry.operation for entry in store.audit() if entry.operation.startswith("survival")]


def test_one_run_has_the_arena_and_keeps_it(store: RedisStore) -> None:
    """Another is told who has it; the same one again changes nothing but its end."""
    assert store.arena() is None
    ours, first = store.hold_arena("run-1", {"seed": 7}, note=NOTE)
    assert (ours, first.owner, first.info, first.stop) == (True, "run-1", {"seed": 7}, "")
    refused, held = store.hold_arena("run-2", {"seed": 8}, note=NOTE)
    assert (refused, held) == (False, first)
    assert store.hold_arena("run-1", {"seed": 9}, note=NOTE) == (True, first)
    assert store.arena() == first
    assert operations(store) == ["survival.start"]


def test_of_runs_that_begin_at_once_one_has_it(store: RedisStore) -> None:
    """The store decides, not who looked first."""

    def take(number: int) -> bool:
        return store.hold_arena(f"run-{number}", {}, note=NOTE)[0]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(take, range(24)))
    assert found.count(True) == 1


def test_only_its_own_run_frees_it(store: RedisStore) -> None:
    """One that has lost it must not free another's."""
    store.hold_arena("run-1", {}, note=NOTE)
    assert not store.release_arena("run-2")
    assert store.arena() is not None
    assert store.release_arena("run-1")
    assert not store.release_arena("run-1")
    assert store.hold_arena("run-2", {}, note=NOTE)[0]


def test_anybody_may_ask_it_to_end_once(store: RedisStore) -> None:
    """The run learns of it when it keeps the arena; the first reason stays; the next run is not asked."""
    assert store.stop_arena("enough", note=AuditNote(operation="survival.stop")) is None
    store.hold_arena("run-1", {}, note=NOTE)
    stopped = store.stop_arena("enough", note=AuditNote(operation="survival.stop"))
    assert stopped is not None
    assert (stopped.owner, stopped.stop) == ("run-1", "enough")
    assert store.stop_arena("again", note=AuditNote(operation="survival.stop")) == stopped
    assert store.hold_arena("run-1", {}, note=NOTE) == (True, stopped)
    assert operations(store) == ["survival.start", "survival.stop"]
    store.release_arena("run-1")
    assert store.hold_arena("run-2", {}, note=NOTE)[1].stop == ""


def test_it_is_free_again_when_its_process_is_gone(store: RedisStore, raw: redis.Redis) -> None:
    """By its time to live, which every call renews."""
    store.hold_arena("run-1", {}, note=NOTE)
    left: Any = raw.pttl(f"{{{store.namespace}:0}}:arena")
    assert 0 < left <= ARENA_TTL_SECONDS * 1000
    raw.pexpire(f"{{{store.namespace}:0}}:arena", 1_000)
    store.hold_arena("run-1", {}, note=NOTE)
    left = raw.pttl(f"{{{store.namespace}:0}}:arena")
    assert left > 5_000
    raw.delete(f"{{{store.namespace}:0}}:arena")
    assert store.hold_arena("run-2", {}, note=NOTE)[0]
