"""Children: listed once for each call behind the parent's fence, told by an event, forgotten with their deletion."""

from __future__ import annotations

from uuid import uuid4

import pytest
import redis

from ares_celery.errors import ChildLimitError, FencedError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentSpec, AgentState, Desired
from ares_celery.model.birth import Birth
from ares_celery.model.command import Complete, Deadline, Delete, Spawn, Stop
from ares_celery.model.event import EventType, NewEvent, ReadOptions
from ares_celery.store.base import CommitConflict, DueDeadline
from ares_celery.store.family import Adopted
from ares_celery.store.redis import family_calls
from ares_celery.store.redis.incarnation_store import AsyncRedisIncarnationStore
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, claim, plan_for, record_of, run
from tests.contract.store.backends import Backend
from tests.key_leaks import keys_of_agent, leaked_keys

pytestmark = pytest.mark.contract

CHILD, OTHER = AgentId("child-1"), AgentId("child-2")


def adopt(store: RedisStore, fence: str, child: AgentId = CHILD, key: str = "call-1") -> Adopted:
    """Lists a child of AGENT."""
    event = NewEvent(EventType.CHILD_SPAWNED, {"agent_id": AGENT, "child": child})
    return store.adopt(AGENT, fence, child, key=key, event=event)


def spawn(store: RedisStore, fence: str, child: AgentId = CHILD, key: str = "call-1") -> Birth:
    """Lists a child and makes it."""
    adopted = adopt(store, fence, child, key)
    birth = Birth(key, adopted.number, adopted.stops, 0, reports=True)
    act(store, Spawn(spec=AgentSpec(id=child, type="t", parent=AGENT), birth=birth, root=AGENT), child)
    return birth


def due(store: RedisStore) -> list[DueDeadline]:
    """What is due now."""
    return [deadline for shard in store.due() for deadline in shard.due]


def test_a_call_lists_its_child_once(store: RedisStore) -> None:
    """A repeat gets the same number and writes nothing; another call with the same child gets a number of its own."""
    fence = run(store)
    before = record_of(store)
    assert adopt(store, fence) == Adopted(number=1, stops=0, stopping=False)
    listed = record_of(store)
    assert (listed.children, listed.revision, listed.version) == (1, before.revision + 1, before.version + 1)
    assert adopt(store, fence) == Adopted(number=1, stops=0, stopping=False)
    assert record_of(store) == listed
    assert adopt(store, fence, OTHER).number == 2
    assert store.children(AGENT) == [CHILD, OTHER]
    assert adopt(store, fence, key="call-2").number == 3
    assert store.children(AGENT) == [OTHER, CHILD]
    told = [event for event in store.events.read(AGENT, ReadOptions()) if event.type == EventType.CHILD_SPAWNED]
    assert [(event.version, event.payload["child"]) for event in told] == [(2, CHILD), (3, OTHER), (4, CHILD)]


def test_only_the_holder_of_the_fence_lists_children(store: RedisStore) -> None:
    """Another epoch or token, no fence at all, and an agent that does not exist: refused, nothing written."""
    fence = run(store)
    before = record_of(store)
    for wrong in ("1|t1", fence + "x"):
        with pytest.raises(FencedError):
            adopt(store, wrong)
    with pytest.raises(FencedError):
        store.adopt(AgentId("nobody"), fence, CHILD, key="k", event=NewEvent(EventType.CHILD_SPAWNED, {}))
    assert store.children(AGENT) == []
    assert record_of(store) == before


def test_a_parent_that_is_asked_to_stop_says_so(store: RedisStore) -> None:
    """To a first call as to a repeat of one that was made before the stop."""
    fence = run(store)
    assert not adopt(store, fence).stopping
    act(store, Stop())
    assert adopt(store, fence) == Adopted(number=1, stops=1, stopping=True)
    assert adopt(store, fence, OTHER) == Adopted(number=2, stops=1, stopping=True)


def test_a_stop_that_did_not_know_of_a_child_is_decided_anew(store: RedisStore) -> None:
    """Else it would arm no cascade, and the child would run on."""
    fence = run(store)
    read = store.read(AGENT)
    plan = plan_for(store, read, Stop())
    adopt(store, fence)
    with pytest.raises(CommitConflict):
        store.commit(plan, read, op=uuid4().hex)
    act(store, Stop())
    assert [(one.kind, one.agent_id) for one in due(store)] == [(Deadline.CHILDREN, AGENT)]


def test_children_have_a_limit(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to do; a child that is listed already is spawned again all the same."""
    monkeypatch.setattr(family_calls, "MOST_CHILDREN", 2)
    fence = run(store)
    adopt(store, fence)
    adopt(store, fence, OTHER)
    with pytest.raises(ChildLimitError, match="has 2 children, so no other one was spawned; delete"):
        adopt(store, fence, AgentId("child-3"))
    assert adopt(store, fence, OTHER, "call-2").number == 3
    assert store.children(AGENT) == [CHILD, OTHER]


def test_a_record_keeps_how_its_agent_was_born(store: RedisStore) -> None:
    """Parent, root, and the call; a repeat of the birth changes nothing."""
    fence = run(store)
    birth = spawn(store, fence)
    born = record_of(store, CHILD)
    assert (born.birth, born.root, born.spec.parent, born.state) == (birth, AGENT, AGENT, AgentState.STARTING)
    read = store.read(CHILD)
    again = Spawn(spec=AgentSpec(id=CHILD, type="t", parent=AGENT), birth=birth, root=AGENT)
    assert plan_for(store, read, again, CHILD).ignored == "spawned already"


def test_a_deleted_child_is_forgotten_by_its_number(store: RedisStore, raw: redis.Redis, namespace: str) -> None:
    """Its deletion leaves a deadline that names parent and number; one spawned again meanwhile stays listed."""
    fence = run(store)
    spawn(store, fence)
    act(store, Stop(), CHILD)
    act(store, Delete(), CHILD)
    assert [(one.kind, one.agent_id, one.name) for one in due(store) if one.agent_id == CHILD] == [
        (Deadline.CHILDREN, CHILD, f"{AGENT}|1")
    ]
    adopt(store, fence, key="call-2")
    assert not store.forget_child(AGENT, CHILD, number=1)
    assert store.children(AGENT) == [CHILD]
    assert store.forget_child(AGENT, CHILD, number=2)
    assert not store.forget_child(AGENT, CHILD, number=2)
    assert store.children(AGENT) == []
    assert [key for key in keys_of_agent(raw, namespace, CHILD) if ":op:" not in key] == []


def test_a_deleted_parent_leaves_no_key(store: RedisStore, raw: redis.Redis, namespace: str) -> None:
    """Its list goes with it, its children stay."""
    fence = run(store)
    spawn(store, fence)
    assert leaked_keys(raw, namespace) == []
    act(store, Complete(fence=fence))
    act(store, Delete())
    assert [key for key in keys_of_agent(raw, namespace, AGENT) if ":op:" not in key] == []
    assert record_of(store, CHILD).desired is Desired.RUNNING


async def test_a_loop_reads_the_same_record(backend: Backend, store: RedisStore) -> None:
    """As threads do; None for an agent that does not exist."""
    claim(store)
    reader: AsyncRedisIncarnationStore = store.open_async()
    try:
        assert await reader.read_record(AGENT) == store.read_record(AGENT)
        assert await reader.read_record(OTHER) is None
    finally:
        await reader.aclose()
