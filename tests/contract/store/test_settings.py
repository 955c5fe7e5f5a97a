"""Settings of a namespace: changed as a whole or not at all, and followed by everyone who has it open."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis

from ares_celery.config import RuntimeConfig
from ares_celery.errors import InvalidSettingError, NamespaceMismatchError
from ares_celery.model.audit import AuditNote
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.live_settings import FRESH_SECONDS
from ares_celery.store.redis.settings_calls import write_settings
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, claim, run_namespace, start, take
from tests.contract.store.backends import Backend
from tests.unit.supervision.fakes import ManualClock

pytestmark = pytest.mark.contract


def seconds(config: RuntimeConfig) -> float:
    """The setting that most of these tests change."""
    return config.lease_ttl.total_seconds()


def test_a_change_is_stored_for_everyone_and_noted(backend: Backend) -> None:
    """Durations and sizes as people write them; the audit stream has the names alone."""
    store = backend.open()
    after = store.set_config(
        {"lease_ttl": "20s", "max_event_bytes": "2MiB", "chaos": "true"}, reason="slow network", actor="ann", op="op-1"
    )
    assert (seconds(after), after.max_event_bytes, after.chaos) == (20.0, 2 << 20, True)
    assert store.config == after == backend.open().config
    (entry,) = store.audit()
    assert (entry.operation, entry.actor, entry.reason, entry.op) == ("config.set", "ann", "slow network", "op-1")
    assert (set(entry.changed), entry.agent_id, entry.state) == (
        {"lease_ttl", "max_event_bytes", "chaos"},
        None,
        None,
    )


@pytest.mark.parametrize(
    ("changes", "field", "why"),
    [
        ({"lease_ttl": "1s"}, "lease_ttl", "two heartbeat_intervals"),
        ({"heartbeat_interval": "5s"}, "lease_ttl", "two heartbeat_intervals"),
        ({"snapshot_every_events": 20_000}, "snapshot_every_events", "below max_replay_events"),
        ({"lease_ttl": "20s", "sweep_interval": 0}, "sweep_interval", "longer than zero"),
        ({"lease_ttl": "soon"}, "lease_ttl", "not a duration"),
        ({"shards": 4}, "shards", "fixed when the namespace is made"),
        ({"leasettl": "20s"}, "leasettl", "lease_ttl"),
        ({}, "settings", "at least one"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(
    backend: Backend, changes: dict[str, Any], field: str, why: str
) -> None:
    """The whole is checked, not the value alone."""
    store = backend.open()
    with pytest.raises(InvalidSettingError, match=why) as caught:
        store.set_config(changes, actor="ann")
    assert caught.value.field == field
    assert backend.open().config == RuntimeConfig()
    assert store.audit() == []


def test_the_same_values_again_change_nothing(backend: Backend) -> None:
    """No generation, no entry."""
    store = backend.open()
    store.set_config({"lease_ttl": "8s"}, actor="ann")
    assert store._bound.settings.generation == "0"
    assert store.audit() == []


def test_a_repeated_operation_changes_once(backend: Backend) -> None:
    """Whatever was set meanwhile stays."""
    store = backend.open()
    store.set_config({"lease_ttl": "20s"}, op="op-1")
    store.set_config({"lease_ttl": "30s"}, op="op-2")
    assert seconds(store.set_config({"lease_ttl": "20s"}, op="op-1")) == 30
    assert len(store.audit()) == 2


def test_the_very_same_write_twice_is_one(backend: Backend) -> None:
    """Whatever was written in between: the op id is known to the script itself."""
    store = backend.open()
    note = AuditNote(operation="config.set")
    keys, client = store._bound.keys, store._bound.client
    first = write_settings(keys, generation="0", data=b'{"snapshots_kept": 5}', op="op-1", note=note)
    assert client.run(first)
    store.set_config({"snapshots_kept": 7}, op="op-2")
    assert client.run(first)
    assert store.refresh_config().snapshots_kept == 7
    assert len(store.audit()) == 2


def test_two_changes_at_once_both_hold(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is decided anew on what the first has left; checked together."""
    store, other = backend.open(), backend.open()
    merged: Callable[..., Any] = store._merged
    others = iter([{"snapshots_kept": 7}])

    def late(*args: Any) -> Any:
        found = merged(*args)
        for changes in others:
            other.set_config(changes)
        return found

    monkeypatch.setattr(store, "_merged", late)
    after = store.set_config({"lease_ttl": "20s"})
    assert (seconds(after), after.snapshots_kept) == (20.0, 7)


def test_two_changes_that_do_not_fit_together_do_not_both_hold(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each alone is fine."""
    store, other = backend.open(), backend.open()
    merged: Callable[..., Any] = store._merged
    others = iter([{"heartbeat_interval": "4s"}])

    def late(*args: Any) -> Any:
        found = merged(*args)
        for changes in others:
            other.set_config(changes)
        return found

    monkeypatch.setattr(store, "_merged", late)
    with pytest.raises(InvalidSettingError, match="lease_ttl"):
        store.set_config({"lease_ttl": "5s"})
    assert (seconds(other.refresh_config()), other.config.heartbeat_interval) == (8.0, timedelta(seconds=4))


def test_settings_of_a_newer_version_survive_a_change(backend: Backend, raw: redis.Redis) -> None:
    """This version writes what it knows."""
    store = backend.open()
    key = Keys(store.namespace, 16).config
    raw.set(key, b'{"snapshots_kept": 2, "of_tomorrow": {"a": 1}}')
    store.set_config({"lease_ttl": "20s"})
    stored = raw.get(key)
    assert isinstance(stored, bytes)
    assert b'"of_tomorrow":{"a":1}' in stored
    assert store.config.snapshots_kept == 2


def _calls(store: RedisStore, clock: ManualClock) -> dict[str, Callable[[], object]]:
    epoch = start(store).epoch
    return {
        "read": lambda: store.read(AGENT),
        "read_many": lambda: store.read_many([AGENT]),
        "due": store.due,
        "claim": lambda: take(store, epoch),
        "renew": lambda: store.renew([]),
        "refresh": store.refresh_config,
    }


@pytest.mark.parametrize("name", ["read", "read_many", "due", "claim", "renew", "refresh"])
def test_whoever_has_it_open_follows_with_what_it_does_anyway(backend: Backend, name: str) -> None:
    """A second after the last look the next call brings the change along; before, nobody asks."""
    clock = ManualClock()
    follower = run_namespace(RedisStore.from_client(backend.client(), backend.namespace, RuntimeConfig(), clock=clock))
    call = _calls(follower, clock)[name]
    backend.open().set_config({"lease_ttl": "20s"})
    if name not in ("claim", "refresh"):
        clock.advance(FRESH_SECONDS / 2)
        call()
        assert seconds(follower.config) == 8
    clock.advance(FRESH_SECONDS)
    call()
    assert seconds(follower.config) == 20
    follower.close()


def test_a_renewal_uses_the_settings_that_it_learned(backend: Backend) -> None:
    """A lease is as long as it is to be now."""
    clock = ManualClock()
    follower = run_namespace(RedisStore.from_client(backend.client(), backend.namespace, RuntimeConfig(), clock=clock))
    record = claim(follower).record
    backend.open().set_config({"lease_ttl": "60s"})
    clock.advance(FRESH_SECONDS)
    from ares_celery.store.base import Lease

    for _ in range(2):
        follower.renew([Lease(AGENT, record.fence, record.signal)])
    read = follower.read(AGENT)
    assert (read.lease_until - read.now) / 1_000_000 == pytest.approx(60, abs=2)
    follower.close()


def test_settings_that_cannot_be_used_are_said_once_and_the_old_ones_stay(
    backend: Backend, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever wrote them."""
    store = backend.open()
    keys = Keys(store.namespace, 16)
    raw.set(keys.config, b'{"lease_ttl": "-1s"}')
    raw.hset(keys.meta, "config_generation", "7")
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert store.refresh_config() == RuntimeConfig()
    assert caplog.text.count("lease_ttl") == 1


def test_a_namespace_that_is_gone_is_not_given_settings(backend: Backend) -> None:
    """It has to be made first; whoever has it open keeps what it knew."""
    store = backend.open()
    store.wipe()
    with pytest.raises(NamespaceMismatchError, match="config"):
        store.set_config({"lease_ttl": "20s"})
    assert store.refresh_config() == RuntimeConfig()
    store.reopen()
    assert seconds(store.set_config({"lease_ttl": "20s"})) == 20
