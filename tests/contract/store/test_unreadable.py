"""A record that cannot be read never hides another, and what a newer version stored is kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest
import redis

from ares_celery.errors import UnreadableRecordError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import Desired
from ares_celery.model.command import Stop
from ares_celery.store.base import Lease
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import act, record_of, run
from tests.contract.store.backends import Backend

pytestmark = pytest.mark.contract

BAD = AgentId("a-07")
OTHERS = [AgentId(f"a-{number:02}") for number in range(50) if number != 7]
Poison = Callable[[redis.Redis, str], object]
POISONS: dict[str, tuple[Poison, str]] = {
    "another type of key": (lambda raw, key: raw.set(key, "garbage"), "WRONGTYPE"),
    "no spec": (lambda raw, key: raw.hdel(key, "spec"), "'spec'"),
    "no state": (lambda raw, key: raw.hdel(key, "state"), "'state'"),
    "a state of a newer version": (lambda raw, key: raw.hset(key, "state", "hibernating"), "hibernating"),
    "a number that is none": (lambda raw, key: raw.hset(key, "restarts", "many"), "many"),
    "a spec that is no JSON": (lambda raw, key: raw.hset(key, "spec", "{"), "spec"),
    "a policy of a newer version": (
        lambda raw, key: raw.hset(key, "spec", '{"id":"a-07","type":"t","restart":"sometimes","next":1}'),
        "spec.restart",
    ),
    "another agent's spec": (lambda raw, key: raw.hset(key, "spec", '{"id":"a-08","type":"t"}'), "a-08"),
}


@pytest.fixture
def keys(backend: Backend, store: RedisStore) -> Keys:
    """Where the store keeps things."""
    return Keys(backend.namespace, store.config.shards)


@pytest.mark.parametrize("poison", POISONS)
def test_the_others_are_read_and_the_bad_one_says_its_problem_once(
    poison: str, store: RedisStore, raw: redis.Redis, keys: Keys, caplog: pytest.LogCaptureFixture
) -> None:
    """One of fifty: 49 have their records, one its problem; asked for alone it raises what to do."""
    for agent_id in (*OTHERS, BAD):
        run(store, agent_id)
    spoil, problem = POISONS[poison]
    spoil(raw, keys.agent(BAD))
    with caplog.at_level(logging.ERROR):
        store.read_many([BAD])
        reads = dict(zip([*OTHERS, BAD], store.read_many([*OTHERS, BAD]), strict=True))
    assert [agent_id for agent_id, read in reads.items() if read.record is None] == [BAD]
    assert all(read.record and read.record.id == agent_id for agent_id, read in reads.items() if agent_id != BAD)
    assert problem in reads[BAD].problem
    assert reads[BAD].lease_until > reads[BAD].now, "what does not stand in the record is known all the same"
    said = [record.getMessage() for record in caplog.records if str(BAD) in record.getMessage()]
    assert len(said) == 1
    assert reads[BAD].problem in said[0]
    with pytest.raises(UnreadableRecordError, match="upgrade this process") as error:
        store.read(BAD)
    assert (error.value.code, error.value.agent_id) == ("unreadable_record", BAD)


def test_a_field_of_a_newer_spec_is_read_over_and_stays_stored(store: RedisStore, raw: redis.Redis, keys: Keys) -> None:
    """Half of a fleet is upgraded: the older half supervises what the newer half started, and changes nothing of it."""
    run(store, BAD)
    newer = '{"id":"a-07","type":"counter","labels":{"a":"b"},"from_the_future":{"x":[1]}}'
    raw.hset(keys.agent(BAD), "spec", newer)
    record = record_of(store, BAD)
    assert (record.spec.labels, record.spec.type) == ({"a": "b"}, "counter")
    act(store, Stop(), BAD)
    assert record_of(store, BAD).desired is Desired.STOPPED
    assert raw.hget(keys.agent(BAD), "spec") == newer.encode()


def test_leases_are_renewed_beside_a_key_that_holds_no_record(store: RedisStore, raw: redis.Redis, keys: Keys) -> None:
    """Leases of one process are renewed together; the spoilt one is lost, the others are not."""
    shard = keys.shard_of(BAD)
    held = [agent_id for agent_id in OTHERS if keys.shard_of(agent_id) == shard][:3] or OTHERS[:1]
    leases = [Lease(agent_id, run(store, agent_id), 0) for agent_id in (BAD, *held)]
    raw.set(keys.agent(BAD), "garbage")
    changes = store.renew(leases).changes
    assert [(change.agent_id, change.fenced) for change in changes] == [(BAD, True)]


def test_a_request_of_a_newer_version_costs_no_other_lease(store: RedisStore, raw: redis.Redis, keys: Keys) -> None:
    """It is not understood, and the incarnation goes on."""
    lease = Lease(BAD, run(store, BAD), 0)
    raw.hset(keys.agent(BAD), mapping={"request": "hibernate", "signal": "1"})
    (change,) = store.renew([lease]).changes
    assert (change.fenced, change.signal, change.request) == (False, 1, "")


def test_a_step_of_the_clock_passes_over_a_key_that_holds_no_record(
    store: RedisStore, raw: redis.Redis, keys: Keys
) -> None:
    """The deadlines of the others move."""
    run(store, BAD)
    raw.set(keys.agent(BAD), "garbage")
    other = next(agent_id for agent_id in OTHERS if keys.shard_of(agent_id) == keys.shard_of(BAD))
    run(store, other)
    before = record_of(store, other).claimed_at
    stand = store.clock()
    step = -60_000_000
    store.rebase(replace(stand, generation=stand.generation + 1, offset=stand.offset + step, now=Instant(stand.now)))
    assert record_of(store, other).claimed_at == before + step
