"""Leases and deadlines: renewed together, reported only where there is news, due in order."""

from __future__ import annotations

import pytest
import redis

from ares_celery.clock import micros, to_datetime
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import Desired, Request
from ares_celery.model.command import Complete, Deadline, Die, Pause, Restart, Stop
from ares_celery.model.info import agent_info
from ares_celery.store.base import DueDeadline, Lease, LeaseChange, Renewal
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, plan_for, record_of, run, take

pytestmark = pytest.mark.contract


def test_a_renewal_moves_the_lease_and_has_no_news(store: RedisStore) -> None:
    """The lease ends one lease_ttl after the renewal, by the clock of Redis."""
    fence = run(store)
    first = store.read(AGENT).lease_until
    renewal = store.renew([Lease(AGENT, fence, 0)])
    assert renewal.changes == ()
    assert store.read(AGENT).lease_until == renewal.now + micros(store.config.lease_ttl)
    assert store.read(AGENT).lease_until > first


def test_only_leases_with_news_are_listed(store: RedisStore) -> None:
    """Of many in many shards: one asked to pause, one fenced; the last signal that was seen makes news old."""
    ids = [AgentId(f"agent-{number}") for number in range(250)]
    fences = {agent_id: run(store, agent_id) for agent_id in ids}
    act(store, Pause(reason="night"), ids[7])
    act(store, Complete(fence=fences[ids[200]]), ids[200])
    renewal = store.renew([Lease(agent_id, fences[agent_id], 0) for agent_id in ids])
    assert sorted(renewal.changes, key=lambda change: change.fenced) == [
        LeaseChange(
            ids[7],
            fences[ids[7]],
            fenced=False,
            signal=1,
            request=Request.PAUSE,
            desired=Desired.PAUSED,
            reason="night",
        ),
        LeaseChange(ids[200], fences[ids[200]], fenced=True),
    ]
    assert store.renew([Lease(ids[7], fences[ids[7]], 1)]).changes == ()
    assert store.read(ids[200]).lease_until == 0
    assert store.renew([]) == Renewal(Instant(0), ())


def test_a_request_after_a_message_is_news_again(store: RedisStore) -> None:
    """Messages and requests raise one signal, and a decision made before a message does not swallow it."""
    fence = run(store)
    read = store.read(AGENT)
    store.send(AGENT, "hello", message_id="m1", wants_reply=False)
    (message,) = store.renew([Lease(AGENT, fence, 0)]).changes
    assert (message.signal, message.request) == (1, Request.NONE)
    store.commit(plan_for(store, read, Restart()), read, op="decided before the message")
    (request,) = store.renew([Lease(AGENT, fence, message.signal)]).changes
    assert (request.signal, request.request) == (2, Request.RESTART)


def test_a_renewal_notes_the_step_that_an_agent_is_in(store: RedisStore, raw: redis.Redis) -> None:
    """Its name and its beginning, written when they change; gone between steps and with the incarnation."""
    fence = run(store)
    renewal = store.renew([Lease(AGENT, fence, 0, "outer/fetch", 2_500_000)])
    record = record_of(store)
    assert (record.step, record.step_since) == ("outer/fetch", renewal.now - 2_500_000)
    info = agent_info(record)
    assert (info.step, info.step_since) == ("outer/fetch", to_datetime(record.step_since))
    store.renew([Lease(AGENT, fence, 0, "outer/fetch", 2_600_000)])
    assert record_of(store) == record, "the same step: nothing is written"
    again = store.renew([Lease(AGENT, fence, 0, "outer/fetch", 0)])
    assert record_of(store).step_since == again.now, "begun anew"
    store.renew([Lease(AGENT, fence, 0)])
    assert (record_of(store).step, record_of(store).step_since) == ("", 0)
    keys = Keys(store.namespace, store.config.shards)
    assert not raw.hexists(keys.agent(AGENT), "step")
    store.renew([Lease(AGENT, fence, 0, "fetch", 1)])
    act(store, Die("process lost", epoch=record_of(store).epoch, proof=True))
    assert (record_of(store).step, agent_info(record_of(store)).step) == ("fetch", None), "where it died"
    assert take(store, record_of(store).epoch, claimer="t2").record.step == ""


def test_a_step_is_noted_behind_the_fence(store: RedisStore) -> None:
    """Of an incarnation that is over nothing is noted."""
    fence = run(store)
    act(store, Die("process lost", epoch=record_of(store).epoch, proof=True))
    (change,) = store.renew([Lease(AGENT, fence, 0, "fetch", 1)]).changes
    assert (change.fenced, record_of(store).step) == (True, "")


def test_a_lease_that_ran_out_unjudged_is_renewed(store: RedisStore, raw: redis.Redis) -> None:
    """An outage is not a death: while the fence stands, the incarnation goes on."""
    fence = run(store)
    keys = Keys(store.namespace, store.config.shards)
    raw.zadd(keys.deadlines(keys.shard_of(AGENT)), {f"lease|{AGENT}": 1})
    assert store.renew([Lease(AGENT, fence, 0)]).changes == ()
    assert store.read(AGENT).lease_until > store.server_time()
    raw.zrem(keys.deadlines(keys.shard_of(AGENT)), f"lease|{AGENT}")
    store.renew([Lease(AGENT, fence, 0)])
    assert store.read(AGENT).lease_until > store.server_time()


def test_what_is_due_comes_oldest_first_up_to_the_limit(store: RedisStore, raw: redis.Redis) -> None:
    """Exact scores of sixteen digits; the next deadline that is not due is announced; foreign kinds are passed over."""
    key = Keys(store.namespace, store.config.shards).deadlines(3)
    now = store.server_time()
    coming = now + 3_600_000_000
    raw.zadd(
        key,
        {
            "stop|c": now - 1_000_003,
            "timer|a|tea|time": now - 1_000_001,
            "lease|b": now - 1_000_002,
            "nudge|d": coming,
            "unheard-of|e": 5,
        },
    )
    shards = store.due()
    assert [shard.shard for shard in shards] == list(range(store.config.shards))
    assert shards[3].due == (
        DueDeadline(Deadline.STOP, AgentId("c"), "", Instant(now - 1_000_003)),
        DueDeadline(Deadline.LEASE, AgentId("b"), "", Instant(now - 1_000_002)),
        DueDeadline(Deadline.TIMER, AgentId("a"), "tea|time", Instant(now - 1_000_001)),
    )
    assert shards[3].next_at == coming
    assert shards[3].now >= now
    assert [len(shard.due) for shard in store.due(limit=2)][3] == 1  # two, of which one is of a kind unknown here
    assert all(shard.due == () and shard.next_at == 0 for shard in shards if shard.shard != 3)


def test_a_stop_deadline_is_due_after_the_stop_timeout(store: RedisStore) -> None:
    """It is set in the same commit as the request."""
    run(store)
    committed = act(store, Stop())
    keys = Keys(store.namespace, store.config.shards)
    following = store.due()[keys.shard_of(AGENT)].next_at
    assert following <= committed.now + micros(store.config.agent_stop_timeout)
