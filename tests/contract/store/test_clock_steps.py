"""After a step of the server's clock whatever is in Redis time moves with it, once for each step, in every shard."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
import redis

from ares_celery.config import RuntimeConfig
from ares_celery.errors import FencedError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.command import Deadline
from ares_celery.store.base import ClockStand, Rebased
from ares_celery.store.redis import namespace_calls
from ares_celery.store.redis.keys import Keys, deadline_member
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, record_of, run, run_namespace, start, take
from tests.contract.store.backends import Backend
from tests.wait import wait_until

pytestmark = pytest.mark.contract

MINUTES = 600_000_000
STEPS = pytest.mark.parametrize("step", [-MINUTES, MINUTES])


def keys_of(store: RedisStore) -> Keys:
    """The keys of the namespace."""
    return Keys(store.namespace, store.config.shards)


def stand(generation: int, offset: int) -> ClockStand:
    """What a sweeper asks for."""
    return ClockStand(generation, offset, Instant(0))


def one_in_each_shard(store: RedisStore) -> Mapping[int, AgentId]:
    """An id for each shard."""
    return {keys_of(store).shard_of(f"a-{number}"): AgentId(f"a-{number}") for number in range(400)}


def scores(store: RedisStore, raw: redis.Redis, shard: int) -> dict[str, int]:
    """The deadlines of a shard."""
    found: Any = raw.zrange(keys_of(store).deadlines(shard), 0, -1, withscores=True)
    return {member.decode(): int(score) for member, score in found}


#: Leases begin anew; what people name as a moment of the wall clock stays where it is.
ANEW = {Deadline.LEASE}
WALL_CLOCK = {Deadline.TIMER, Deadline.APPROVAL}


@STEPS
def test_moments_of_the_wall_clock_do_not_move(store: RedisStore, raw: redis.Redis, step: int) -> None:
    """A timer is for a moment, and so is the end of a question: neither is later because the clock was set."""
    keys, now = keys_of(store), store.server_time()
    members = {deadline_member(kind, AGENT): now + 7_000_001 for kind in WALL_CLOCK}
    raw.zadd(keys.deadlines(keys.shard_of(AGENT)), members)
    assert store.rebase(stand(1, step)) is Rebased.NOW
    assert scores(store, raw, keys.shard_of(AGENT)) == members


@STEPS
def test_every_kind_of_deadline_moves_by_the_step_and_keeps_its_place(
    store: RedisStore, raw: redis.Redis, step: int
) -> None:
    """In every shard, to the microsecond; a kind of tomorrow moves as well."""
    now = store.server_time()
    kinds = [*(kind.value for kind in Deadline if kind not in ANEW | WALL_CLOCK), "of-tomorrow"]
    for shard, agent_id in one_in_each_shard(store).items():
        members = {f"{kind}|{agent_id}": now + 7_000_001 * number for number, kind in enumerate(kinds)}
        raw.zadd(keys_of(store).deadlines(shard), members)
    before = {shard: scores(store, raw, shard) for shard in range(store.config.shards)}
    assert store.rebase(stand(1, step)) is Rebased.NOW
    for shard in range(store.config.shards):
        after = scores(store, raw, shard)
        assert after == {member: score + step for member, score in before[shard].items()}
        assert list(after) == list(before[shard])


@STEPS
def test_a_step_is_followed_once_whoever_asks(store: RedisStore, raw: redis.Redis, step: int) -> None:
    """The second to ask measured it a little differently; the next step is another one; both are counted."""
    member = deadline_member(Deadline.ATTEMPT, AGENT, "tea")
    shard = keys_of(store).shard_of(AGENT)
    now = store.server_time()
    raw.zadd(keys_of(store).deadlines(shard), {member: now})
    assert (store.clock().generation, store.clock().offset) == (0, 0)
    assert store.rebase(stand(1, step)) is Rebased.NOW
    assert store.rebase(stand(1, step + 40_000)) is Rebased.BEFORE
    assert scores(store, raw, shard)[member] == now + step
    assert store.rebase(stand(2, step + 30_000_000)) is Rebased.NOW
    assert scores(store, raw, shard)[member] == now + step + 30_000_000
    assert (store.clock().generation, store.clock().offset) == (2, step + 30_000_000)
    assert store.counters()["clock_steps"] == 2


def test_shards_that_were_left_behind_follow_all_they_missed(store: RedisStore, raw: redis.Redis) -> None:
    """One died after the home shard, another in the middle of the next step: whoever asks makes all shards agree."""
    keys, now = keys_of(store), store.server_time()
    for shard, agent_id in one_in_each_shard(store).items():
        raw.zadd(keys.deadlines(shard), {deadline_member(Deadline.ATTEMPT, agent_id, "t"): now})
    for shard, generation, offset in ((0, 1, MINUTES), (0, 2, MINUTES + 5), (3, 1, MINUTES)):
        call = namespace_calls.rebase(
            keys, shard=shard, stand=stand(generation, offset), lease_ttl=store.config.lease_ttl, agent_ids=[]
        )
        assert store._bound.client.run(call)[0] is Rebased.NOW
    assert store.rebase(store.clock()) is Rebased.BEFORE
    moved = {score for shard in range(keys.shards) for score in scores(store, raw, shard).values()}
    assert moved == {now + MINUTES + 5}
    assert store.counters()["clock_steps"] == 2


@STEPS
def test_a_lease_begins_anew(store: RedisStore, raw: redis.Redis, step: int) -> None:
    """Whether it was renewed before the step or since: its owner has a whole lease to renew, and no more."""
    run(store)
    shard, member = keys_of(store).shard_of(AGENT), deadline_member(Deadline.LEASE, AGENT)
    ttl = store.config.lease_ttl // timedelta(microseconds=1)
    for generation, moment in enumerate((store.server_time(), store.server_time() - step), start=1):
        raw.zadd(keys_of(store).deadlines(shard), {member: moment})
        earliest = store.server_time()
        store.rebase(stand(generation, step * generation))
        assert earliest + ttl <= store.read(AGENT).lease_until <= store.server_time() + ttl


@STEPS
def test_who_waits_for_a_lease_to_end_waits_no_longer_than_a_lease(
    backend: Backend, raw: redis.Redis, step: int
) -> None:
    """A claim is early until then, not for ten minutes; and not at once, as the old process may still be at work."""
    config = RuntimeConfig(heartbeat_interval=timedelta(milliseconds=200), lease_ttl=timedelta(milliseconds=600))
    store = run_namespace(backend.open(config))
    record = start(store)
    keys = keys_of(store)
    shard, attempt = keys.shard_of(AGENT), deadline_member(Deadline.ATTEMPT, AGENT)
    # As written by the clock before the step: half a second of waiting is left.
    written = store.server_time() - step + 500_000
    raw.hset(keys.agent(AGENT), "claimable_after", written)
    raw.zadd(keys.deadlines(shard), {attempt: written})
    earliest = store.server_time()
    store.rebase(stand(1, step))
    after = record_of(store)
    assert earliest + 600_000 <= after.claimable_after <= store.server_time() + 600_000
    assert after.revision == record.revision + 1
    assert scores(store, raw, shard)[attempt] == after.claimable_after
    with pytest.raises(FencedError) as early:
        take(store, record.epoch)
    assert early.value.fields["reason"] == "early"
    wait_until(lambda: store.server_time() >= after.claimable_after, "the end of the lease")
    assert take(store, record.epoch).record.fence


@STEPS
def test_what_happened_keeps_its_age(store: RedisStore, raw: redis.Redis, step: int) -> None:
    """A claim, a death, a charge of a minute ago: none is in the future, where it would count as fresh."""
    run(store)
    then = store.server_time() - step - 60_000_000
    key = keys_of(store).agent(AGENT)
    raw.hset(
        key, mapping={"claimed_at": then, "died_at": then, "charged_at": f"{then - 1},{then}", "lost_together": then}
    )
    store.rebase(stand(1, step))
    record = record_of(store)
    moved = then + step
    assert (record.claimed_at, record.died_at) == (moved, moved)
    assert record.charged_at == (moved - 1, moved)
    assert record.lost_together == (moved,)
    assert record.running_since <= store.server_time()


@STEPS
def test_the_last_sweep_and_the_hosts_keep_their_age(store: RedisStore, raw: redis.Redis, step: int) -> None:
    """Nobody is taken for fresh, or for silent, because the clock stepped."""
    keys, now = keys_of(store), store.server_time()
    raw.set(keys.last_sweep, f"{now - step - 20_000_000}|p1|{now - step - 90_000_000}")
    raw.zadd(keys.process, {"p1|agents@a": now - step - 20_000_000, "p2|agents@b": now - step - 70_000_000})
    store.rebase(stand(1, step))
    assert 20_000 <= store.sweep_age_ms() < 25_000
    assert store.hosts() == {"p1": "agents@a"}


def test_no_clock_stepped_while_sweeps_went_on(store: RedisStore, raw: redis.Redis) -> None:
    """Ten minutes ahead of a suspended machine is where the time of all others is."""
    keys, shard = keys_of(store), keys_of(store).shard_of(AGENT)
    raw.zadd(keys.deadlines(shard), {deadline_member(Deadline.ATTEMPT, AGENT, "t"): 1})
    store.report_sweep("p2")
    now = store.server_time()
    raw.set(keys.last_sweep, f"{now}|p2|{now - 6_000_000}")
    store.report_sweep("p2")
    assert store.rebase(stand(1, MINUTES)) is Rebased.UNPROVEN
    assert set(scores(store, raw, shard).values()) == {1}
    assert "clock_steps" not in store.counters()


@pytest.mark.parametrize("pause", [-MINUTES, 2_000_000, MINUTES])
def test_a_break_of_the_sweep_is_where_a_clock_may_have_stepped(
    store: RedisStore, raw: redis.Redis, pause: int
) -> None:
    """Before the first sweep after it, and a moment later too, when a worker that never knew the old time sweeps."""
    key, now = keys_of(store).last_sweep, store.server_time()
    raw.set(key, f"{now - pause}|p1|{now - pause - MINUTES}")
    assert store.rebase(stand(1, pause)) is Rebased.NOW
    raw.set(key, f"{now - pause}|p1|{now - pause - MINUTES}")
    store.report_sweep("p2")
    assert store.rebase(stand(2, pause)) is Rebased.NOW
