"""Groups are written whole or not at all, once for each operation id; agents that wait for theirs are not claimable."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
import redis

from ares_celery.errors import FencedError, OperationIdReusedError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentSpec, AgentState, Held
from ares_celery.model.audit import AuditNote
from ares_celery.model.command import Deadline, Delete, Die, GroupGo, Start, Stop
from ares_celery.model.group import Group, Member, Phase, Strategy
from ares_celery.store.base import ClockStand, DueDeadline
from ares_celery.store.groups import GroupConflict, GroupRead, NextStep
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, record_of, run, take
from tests.contract.store.backends import Backend, LosingDriver
from tests.key_leaks import keys_of_agent, leaked_keys

pytestmark = pytest.mark.contract

GROUP = Group(
    "pipeline",
    Strategy.REST_FOR_ONE,
    3,
    timedelta(minutes=1),
    members=(Member("a", 1795975978273137), Member("b", 1795975978273138, died=1795975978273139)),
    phase=Phase.STOPPING,
    victims=("a", "b"),
    left=("b",),
    since=1795975978273140,
    let_go=1795975978273141,
    restarts=2,
    counted=(1795975978273142,),
    reason="a: grün",
)


def write(store: RedisStore, after: Group | None, read: GroupRead | None = None, **options: object) -> GroupRead:
    """Writes the group; returns how it is read back."""
    found = read or store.read_group(GROUP.name)
    given: dict[str, object] = {"op": uuid4().hex, **options}
    store.commit_group(GROUP.name, after, found, **given)  # type: ignore[arg-type]
    return store.read_group(GROUP.name)


def due(store: RedisStore) -> list[DueDeadline]:
    """What is due now."""
    return [deadline for shard in store.due() for deadline in shard.due]


def test_a_group_is_read_back_as_it_was_written(store: RedisStore) -> None:
    """All of it; one that nobody made is none."""
    assert store.read_group(GROUP.name).group is None
    read = write(store, GROUP)
    assert read.group == GROUP
    assert read.steady == read.now
    assert store.group_names() == ["pipeline"]


def test_a_group_that_changed_meanwhile_is_not_written(store: RedisStore) -> None:
    """Two that read the same: the second one decides again; a group that was made meanwhile is a change too."""
    nothing = store.read_group(GROUP.name)
    read = write(store, GROUP)
    with pytest.raises(GroupConflict):
        write(store, replace(GROUP, max_restarts=9), nothing)
    write(store, replace(GROUP, max_restarts=5), read)
    with pytest.raises(GroupConflict):
        write(store, replace(GROUP, max_restarts=9), read, counters={"group_restarts": 1}, next_step=timedelta(0))
    found = store.read_group(GROUP.name).group
    assert found is not None
    assert found.max_restarts == 5
    assert (store.counters().get("group_restarts"), due(store)) == (None, [])


def test_a_group_that_is_made_again_is_another_one(store: RedisStore) -> None:
    """Whoever read the first one of this name writes nothing into the second."""
    read = write(store, GROUP)
    write(store, None)
    write(store, GROUP)
    with pytest.raises(GroupConflict):
        write(store, None, read)


def test_a_repeat_of_the_same_operation_changes_nothing(backend: Backend) -> None:
    """Its answer was lost; counted once."""
    driver = LosingDriver(backend.client())
    store = backend.open(driver=driver)
    read = store.read_group(GROUP.name)
    driver.lose_next = True
    with pytest.raises(ConnectionError):
        write(store, GROUP, read, op="x", counters={"group_restarts": 1})
    write(store, GROUP, read, op="x", counters={"group_restarts": 1})
    assert store.counters()["group_restarts"] == 1


def test_an_operation_id_of_a_group_is_for_one_kind_of_operation(store: RedisStore) -> None:
    """To delete under the id that it was defined with is refused, and the group stays."""
    read = store.read_group(GROUP.name)
    defined, deleted = AuditNote(operation="group.define"), AuditNote(operation="group.delete")
    store.commit_group(GROUP.name, GROUP, read, op="x", note=defined)
    store.commit_group(GROUP.name, GROUP, read, op="x", note=defined)
    with pytest.raises(OperationIdReusedError, match=r"op 'x' was used for group.define of group"):
        store.commit_group(GROUP.name, None, store.read_group(GROUP.name), op="x", note=deleted)
    assert store.read_group(GROUP.name).group == GROUP


def test_the_next_step_is_a_deadline_of_the_home_shard(store: RedisStore) -> None:
    """Set, kept, and cleared with the write that says so."""
    write(store, GROUP, next_step=timedelta(0))
    (found,) = due(store)
    assert (found.kind, found.agent_id) == (Deadline.GROUP, "@pipeline")
    write(store, replace(GROUP, restarts=3))
    assert due(store) == [found]
    write(store, GROUP, next_step=timedelta(hours=1))
    assert due(store) == []
    (later,) = [shard.next_at - shard.now for shard in store.due() if shard.next_at]
    assert timedelta(minutes=59) < timedelta(microseconds=later) <= timedelta(hours=1)
    write(store, GROUP, next_step=NextStep.NONE)
    assert [shard.next_at for shard in store.due() if shard.next_at] == []


def test_a_deleted_group_leaves_nothing_behind(store: RedisStore, raw: redis.Redis) -> None:
    """Neither its record, nor its name, nor a deadline."""
    write(store, GROUP, note=AuditNote(operation="group.define", actor="me@here", op="x"))
    write(store, None, next_step=NextStep.NONE)
    assert (store.read_group(GROUP.name).group, store.group_names()) == (None, [])
    assert leaked_keys(raw, store.namespace) == []
    assert [(entry.actor, entry.operation) for entry in store.audit()][1:] == [("me@here", "group.define")]


@pytest.mark.parametrize("step", [600_000_000, -600_000_000], ids=["forward", "back"])
def test_a_step_of_the_clock_moves_no_instant_of_a_group(store: RedisStore, step: int) -> None:
    """They are told in the time without steps; the deadline moves like all others."""
    before = write(store, GROUP, next_step=timedelta(hours=1))
    store.rebase(ClockStand(1, step, store.server_time()))
    after = store.read_group(GROUP.name)
    assert abs(after.steady - (before.steady - step)) < 5_000_000
    assert after.steady == after.now - step


def start_member(store: RedisStore, agent_id: AgentId = AGENT) -> None:
    """An agent of the group, whose incarnation may be claimed."""
    act(store, Start(spec=AgentSpec(id=agent_id, type="counter", group="pipeline")), agent_id)


def test_a_new_member_is_news_for_its_group(store: RedisStore) -> None:
    """In the same commit; so is one that changes over to it."""
    start_member(store)
    assert [(one.kind, one.agent_id) for one in due(store)] == [(Deadline.GROUP, AGENT)]


def test_an_agent_that_waits_for_its_group_is_not_claimable(store: RedisStore) -> None:
    """Whoever comes with a message of that epoch is refused, until the group lets it go."""
    start_member(store)
    claimed = take(store, record_of(store).epoch)
    act(store, Die("boom", epoch=claimed.record.epoch, proof=True))
    held = record_of(store)
    assert (held.state, held.held) == (AgentState.RESURRECTING, Held.DIED)
    with pytest.raises(FencedError) as caught:
        take(store, held.epoch)
    assert caught.value.fields["reason"] == "held"
    act(store, GroupGo(epoch=held.epoch))
    assert take(store, held.epoch).record.fence


def test_a_deleted_member_leaves_word_for_its_group_and_nothing_else(store: RedisStore, raw: redis.Redis) -> None:
    """A deadline that names the group, as its record does not exist any more."""
    run(store)
    start_member(store, AgentId("m"))
    act(store, Stop(), AgentId("m"))
    act(store, Delete(), AgentId("m"))
    (found,) = [one for one in due(store) if one.kind is Deadline.GROUP]
    assert (found.agent_id, found.name) == ("m", "pipeline")
    assert found.score <= store.server_time()
    assert [key for key in keys_of_agent(raw, store.namespace, "m") if ":op:" not in key] == []
    assert (
        Keys(store.namespace, 16).group("a b") == f"{{{store.namespace}:{Keys('x', 16).shard_of('a b')}}}:group:a%20b"
    )
