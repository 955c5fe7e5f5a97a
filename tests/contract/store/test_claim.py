"""The claim: one incarnation for each epoch, whoever brings the message and however often."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from ares_celery.clock import micros
from ares_celery.errors import EventIntegrityError, FencedError
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model.agent import AgentState, Owner, RuntimeState
from ares_celery.model.command import Claim, Complete, Deadline, Die, Stop
from ares_celery.model.plan import Plan
from ares_celery.store.base import DamagedSnapshot
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import (
    AGENT,
    CLAIMER,
    OWNER,
    act,
    append,
    claim,
    plan_for,
    record_of,
    run,
    start,
    take,
    ticks,
)
from tests.contract.store.backends import Backend, LosingDriver

pytestmark = pytest.mark.contract


def deadlines_of(store: RedisStore, backend: Backend, agent_id: AgentId) -> dict[str, int]:
    """All deadlines of an agent, by kind."""
    keys = Keys(store.namespace, store.config.shards)
    client = backend.client()
    members: Any = client.zrange(keys.deadlines(keys.shard_of(agent_id)), 0, -1, withscores=True)
    client.close()
    found = ((member.decode().split("|"), int(score)) for member, score in members)
    return {parts[0]: score for parts, score in found if parts[1] == agent_id}


def test_a_claim_does_what_the_pure_decision_says(store: RedisStore, backend: Backend) -> None:
    """Script and `decide(Claim)` agree in the record, field by field, and in the deadlines."""
    scripted, decided = AgentId("scripted"), AgentId("decided")
    for agent_id in (scripted, decided):
        waited = replace(
            start(store, agent_id),
            nudges=2,
            attempt=1,
            incarnation=4,
            owner=replace(OWNER, identity="before"),
            claimable_after=Instant(5),
            running_since=Instant(4),
        )
        store.commit(Plan(Stop(), record_of(store, agent_id), waited), store.read(agent_id), op="prepare")
    assert store.hosted_by("before") == [decided, scripted]
    record = record_of(store, scripted)
    claimed = take(store, record.epoch, scripted)
    other = record_of(store, decided)
    act(store, Claim(epoch=other.epoch, token=CLAIMER, owner=OWNER), decided)
    expected = record_of(store, decided)
    own = {"spec", "epoch", "fence", "created_at", "changed_at", "claimed_at"}
    fields = {name for name in type(record).__slots__ if name not in own}
    assert {name: getattr(claimed.record, name) for name in fields} == {
        name: getattr(expected, name) for name in fields
    }
    assert claimed.record.fence == f"{record.epoch}|t1"
    assert claimed.record.claimed_at == claimed.now
    assert claimed.record == record_of(store, scripted)
    lease, start_timeout = micros(store.config.lease_ttl), micros(store.config.start_timeout)
    assert deadlines_of(store, backend, scripted) == {
        "lease": claimed.now + lease,
        "hang": claimed.now + start_timeout,
    }
    assert deadlines_of(store, backend, decided).keys() == {"lease", "hang"}
    assert store.hosted_by(OWNER.identity) == [decided, scripted]
    assert store.hosted_by("before") == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"epoch": Epoch(1)}, "epoch"),
        ({"fence": "1|other"}, "owned"),
        ({"claimable_after": Instant(9_000_000_000_000_000)}, "early"),
        ({"state": AgentState.RUNNING}, "not desired"),
        ({"state": AgentState.STOPPED}, "not desired"),
    ],
)
def test_a_claim_is_refused_as_the_pure_decision_refuses_it(
    store: RedisStore, change: dict[str, Any], reason: str
) -> None:
    """With the same reason, and without a trace."""
    record = start(store)
    changed = replace(record, **change)
    store.commit(Plan(Stop(), record, changed), store.read(AGENT), op="prepare")
    before = record_of(store)
    with pytest.raises(FencedError) as decided:
        plan_for(store, store.read(AGENT), Claim(epoch=record.epoch, token=CLAIMER, owner=OWNER))
    with pytest.raises(FencedError) as refused:
        take(store, record.epoch, page=10)
    assert refused.value.reason == decided.value.reason == reason
    assert record_of(store) == before


def test_a_claim_is_refused_where_the_agent_or_the_runtime_is_not_wanted(store: RedisStore) -> None:
    """Stopped by its operator, stopped with the whole namespace, or deleted."""
    record = start(store)
    store.set_runtime(RuntimeState.STOPPED, only_from=[RuntimeState.RUNNING], reason="", actor="")
    with pytest.raises(FencedError, match=AGENT) as refused:
        take(store, record.epoch, page=10)
    assert refused.value.reason == "not desired"
    with pytest.raises(FencedError) as refused:
        take(store, record.epoch, AgentId("nobody"))
    assert refused.value.reason == "deleted"


def test_epochs_that_differ_in_their_last_digit_are_different(store: RedisStore) -> None:
    """Sixteen digits go through Lua as text: no rounding makes two epochs equal."""
    record = start(store)
    assert len(str(record.epoch)) == 16
    for wrong in (record.epoch - 1, record.epoch + 1):
        with pytest.raises(FencedError) as refused:
            take(store, wrong)
        assert refused.value.reason == "epoch"
    fence = take(store, record.epoch, page=10).record.fence
    for wrong_fence in (f"{record.epoch - 1}|t1", f"{record.epoch}|t2", f"{record.epoch}|t", "", "|t1"):
        with pytest.raises(FencedError):
            append(store, wrong_fence, 1, expected=0)
    assert append(store, fence, 1, expected=0) == [1]


def test_the_same_message_five_times_gives_one_incarnation(store: RedisStore) -> None:
    """Five workers claim at the same moment; one gets the fence."""
    record = start(store)

    def attempt(number: int) -> str:
        owner = Owner(f"h:b:1:{number}:1", f"w{number}@h", f"task-{number}")
        try:
            return take(store, record.epoch, claimer=f"t{number}", owner=owner).record.fence
        except FencedError as error:
            return str(error.reason)

    with ThreadPoolExecutor(5) as pool:
        outcomes = sorted(pool.map(attempt, range(5)))
    assert outcomes[1:] == ["owned"] * 4
    assert outcomes[0] == record_of(store).fence
    assert record_of(store).incarnation == 1


def test_a_claim_whose_answer_is_lost_is_the_claimers_still(backend: Backend) -> None:
    """The same token again gets the same incarnation, even when it was asked to stop meanwhile."""
    driver = LosingDriver(backend.client())
    store = backend.open(driver=driver)
    store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.NEW], reason="", actor="")
    claim(store, AgentId("warm-up"))
    record = start(store)
    driver.lose_next = True
    with pytest.raises(ConnectionError):
        take(store, record.epoch, page=10)
    first = record_of(store)
    again = take(store, record.epoch, page=10)
    assert again.repeated
    assert again.record == first
    act(store, Stop())
    assert take(store, record.epoch, page=10).record.state is AgentState.STOPPING


def test_a_claim_brings_the_snapshot_and_the_events_after_it(store: RedisStore) -> None:
    """One round trip is all that recovery needs; what does not fit into its page is announced."""
    fence = run(store)
    append(store, fence, *range(10), expected=1)
    store.save_snapshot(AGENT, fence, {"total": 4}, version=Version(5), schema=2)
    act(store, Die(epoch=record_of(store).epoch, reason="killed", proof=True))
    record = record_of(store)
    claimed = take(store, record.epoch, claimer="t2", page=4)
    assert claimed.snapshot is not None
    assert not isinstance(claimed.snapshot, DamagedSnapshot)
    assert (claimed.snapshot.version, claimed.snapshot.schema, claimed.snapshot.state) == (5, 2, {"total": 4})
    assert [event.version for event in claimed.events] == [6, 7, 8, 9]
    assert claimed.more
    everything = take(store, record.epoch, claimer="t2", page=8)
    assert [event.version for event in everything.events] == [6, 7, 8, 9, 10, 11, 12, 13]
    assert not everything.more
    assert claimed.record.incarnation == 2


def test_without_a_snapshot_a_claim_brings_the_first_events(store: RedisStore) -> None:
    """The history begins at version 1."""
    fence = run(store)
    append(store, fence, 1, 2, expected=1)
    act(store, Die(epoch=record_of(store).epoch, reason="killed", proof=True))
    claimed = take(store, record_of(store).epoch, claimer="t2", page=100)
    assert claimed.snapshot is None
    assert [event.version for event in claimed.events] == [1, 2, 3, 4, 5]


def test_a_damaged_event_is_named(store: RedisStore, backend: Backend) -> None:
    """Bytes that are no event any more: an error with their version for a read; a claim's page ends before them."""
    start(store)
    keys = Keys(store.namespace, store.config.shards)
    store.events.append(AGENT, ticks(1))
    client = backend.client()
    client.xadd(keys.events(AGENT), {"d": b'{"id":', "t": "1"}, id="2-0")
    client.close()
    claimed = take(store, record_of(store).epoch, page=10)
    assert ([event.version for event in claimed.events], claimed.more) == ([1], True)
    with pytest.raises(EventIntegrityError) as damaged:
        store.events.read(AGENT)
    assert (damaged.value.agent_id, damaged.value.version) == (AGENT, 2)


def test_whoever_was_fenced_writes_nothing_more(store: RedisStore) -> None:
    """After a verdict, a completion and a delete: events, snapshots and answers of the old fence are refused."""
    fence = run(store)
    act(store, Die(epoch=record_of(store).epoch, reason="killed", proof=True))
    with pytest.raises(FencedError):
        append(store, fence, 1, expected=1)
    second = take(store, record_of(store).epoch, page=1).record.fence
    assert second != fence
    for write in (
        lambda: append(store, fence, 1, expected=1),
        lambda: append(store, fence, 1, 2, expected=1),
        lambda: store.save_snapshot(AGENT, fence, {"a": 1}, version=Version(1), schema=0),
    ):
        with pytest.raises(FencedError):
            write()
    act(store, Complete(fence=second))
    with pytest.raises(FencedError):
        append(store, second, 1, expected=1)
    store.delete(AGENT, store.read(AGENT), op="delete")
    with pytest.raises(FencedError):
        append(store, second, 1, expected=1)
    assert store.events.read(AGENT) == ()
    assert store.stored_snapshots(AGENT) == []


def test_the_deadline_kinds_of_the_scripts_are_those_of_the_model() -> None:
    """The scripts write these kinds as text."""
    assert {"lease", "hang", "nudge", "attempt"} <= {kind.value for kind in Deadline}
