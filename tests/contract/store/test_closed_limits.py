"""A limit that an injected refusal has closed: open again when the fault is over, or healed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis

from ares_celery.errors import FencedError
from ares_celery.ids import AgentId
from ares_celery.model.command import Die
from ares_celery.model.fault import Fault, FaultKind, Injection
from ares_celery.model.info import agent_info
from ares_celery.model.limits import FleetLimit
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, record_of, run
from tests.key_leaks import leaked_keys
from tests.wait import wait_until

pytestmark = pytest.mark.contract

MODEL = FleetLimit("model", interval=10_000_000)
OTHER = AgentId("other-1")
MINUTE = timedelta(minutes=1)


def refusing(store: RedisStore, agent_id: str = AGENT, duration: str = "1h") -> Fault:
    """A fault that refuses calls."""
    injection = Injection.of(agent_id, FaultKind.LLM, error_type="rate_limit", duration=duration)
    return store.inject(injection, allowed=True, op=uuid4().hex, reason="", actor="eve")


def close(store: RedisStore, by: Fault | None, delay: timedelta = MINUTE, name: str = "model") -> float:
    """For how many seconds it is closed."""
    return store.close_limit(name, delay, op=uuid4().hex, by=by).total_seconds()


def heal(store: RedisStore, fault: str | None = None, agent_id: AgentId = AGENT) -> None:
    """Heals."""
    store.heal(agent_id, fault=fault, op=uuid4().hex, reason="", actor="bob")


def waits(store: RedisStore, member: str, limit: FleetLimit = MODEL) -> float:
    """For how long it is to wait, by its turn in the queue."""
    answer = store.enter_limit(limit, member, "place")
    return 0.0 if answer.admitted else answer.wait


def test_an_injected_refusal_closes_no_longer_than_its_fault_lasts(store: RedisStore) -> None:
    """However long it asks to wait."""
    run(store)
    assert 1 < close(store, refusing(store, duration="2s")) <= 2
    assert 59 < close(store, refusing(store), name="other") <= 60


def test_who_is_held_up_by_a_fault_asks_each_second(store: RedisStore) -> None:
    """Nobody tells him that it was healed; a provider's refusal he waits out."""
    run(store)
    close(store, refusing(store))
    assert waits(store, "a") == 1
    close(store, None, timedelta(seconds=90))
    assert waits(store, "a") > 50


def test_a_healed_fault_opens_what_it_has_closed(store: RedisStore, raw: redis.Redis) -> None:
    """Who waits keeps his place in the queue, and comes as much later as he would have come behind the closing."""
    run(store)
    close(store, refusing(store))
    close(store, refusing(store), name="second")
    assert [waits(store, member) for member in ("a", "b", "c")] == [1, 1, 1]
    heal(store)
    assert store.closed_limits() == ()
    turns: Any = raw.zrange(Keys(store.namespace, store.config.shards).limit_queue("model")[1], 0, -1, withscores=True)
    assert [member for member, _ in turns] == [b"a", b"b", b"c"]
    assert waits(store, "a") <= 2.5
    assert 18 < waits(store, "c") <= 22.5
    assert waits(store, "second", FleetLimit("second")) == 0
    assert 28 < waits(store, "d") <= 30, "the next turn is behind theirs, not behind the closing"


def test_what_others_have_closed_stays_closed(store: RedisStore) -> None:
    """A provider, another agent's fault, or another fault of the same agent."""
    run(store)
    run(store, OTHER)
    first, second, third = refusing(store), refusing(store), refusing(store, OTHER)
    for fault, delay in ((first, 90), (second, 60), (third, 30), (None, 10)):
        close(store, fault, timedelta(seconds=delay))
    left = [(3, 60), (2, 30), (1, 10)]
    for healed, (listed, closed) in zip((first, second, third), left, strict=True):
        heal(store, healed.id, AgentId(healed.agent_id))
        found = store.closed_limits()
        assert len(found) == listed
        assert healed.id not in [one.fault for one in found]
        assert closed - 3 < close(store, healed) <= closed
    assert [(one.name, one.agent_id, one.fault) for one in store.closed_limits()] == [("model", "", "")]


def test_a_refusal_on_its_way_closes_nothing_once_its_fault_is_healed(store: RedisStore) -> None:
    """Made up before, told after."""
    run(store)
    fault = refusing(store)
    heal(store, fault.id)
    assert close(store, fault) == 0
    assert (store.closed_limits(), waits(store, "a")) == ((), 0)


def test_what_a_counted_out_fault_has_closed_opens_with_all_of_its_agent(store: RedisStore) -> None:
    """It is no longer active, so its id heals nothing."""
    run(store)
    injection = Injection.of(AGENT, FaultKind.LLM, error_type="overloaded", count=1, duration="1h")
    fault = store.inject(injection, allowed=True, op="op", reason="", actor="eve")
    assert store.use_fault(AGENT, fault.id).over
    assert 59 < close(store, fault) <= 60
    heal(store, "slow")
    assert [one.fault for one in store.closed_limits()] == ["op"]
    heal(store, "llm")
    assert (store.closed_limits(), waits(store, "a")) == ((), 0)


def test_closings_are_listed_until_they_are_over(store: RedisStore, raw: redis.Redis) -> None:
    """By name, whatever it is made of; nothing of them stays for ever."""
    run(store)
    fault, odd = refusing(store), "a|b é%"
    close(store, fault, name=odd)
    close(store, None, timedelta(seconds=0.3), name="brief")
    assert [(one.name, one.agent_id, one.fault) for one in store.closed_limits()] == [
        (odd, AGENT, fault.id),
        ("brief", "", ""),
    ]
    wait_until(lambda: [one.name for one in store.closed_limits()] == [odd], "the brief one to open")
    heal(store)
    assert store.closed_limits() == ()
    assert leaked_keys(raw, store.namespace) == []


def test_which_limit_an_incarnation_waits_for_is_noted_by_the_holder_of_the_fence_and_goes_with_it(
    store: RedisStore,
) -> None:
    """Shown while it is hosted."""
    fence = run(store)
    store.note_limited(AGENT, fence, "model")
    assert agent_info(record_of(store)).waiting_on == "limit:model"
    for late in ("", "nobody", f"{record_of(store).epoch + 1}|t"):
        with pytest.raises(FencedError):
            store.note_limited(AGENT, late, "never")
    store.note_limited(AGENT, fence, "")
    assert agent_info(record_of(store)).waiting_on is None
    store.note_limited(AGENT, fence, "model")
    act(store, Die(epoch=record_of(store).epoch, reason="killed", proof=True))
    assert agent_info(record_of(store)).waiting_on != "limit:model"
