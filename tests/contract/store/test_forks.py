"""Forks: a new agent with the history of another, on both servers, recovered as a worker would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from ares_celery.errors import (
    AgentAlreadyRegisteredError,
    AgentForkingError,
    AgentNotFoundError,
    EventIntegrityError,
    ForkVersionError,
    InvalidSettingError,
    RuntimeStoppedError,
    SnapshotStoreError,
    StoreUnavailableError,
    VersionConflictError,
)
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentSpec, AgentState, Desired, RuntimeState
from ares_celery.model.command import ForkDone, Start
from ares_celery.model.event import ANY, Event, NewEvent
from ares_celery.model.fork import ForkMark, ForkOrigin, demand_restorable, first_restorable
from ares_celery.model.plan import Nudge
from ares_celery.model.snapshot import Snapshot
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.integrity import integrity_digest
from ares_celery.runtime.recovery import Recovery, StateCode, recover_agent_state
from ares_celery.store.forks import ForkCopy
from ares_celery.store.redis import fork_store
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, append, plan_for, record_of, run, take
from tests.contract.store.backends import Backend

FORK = AgentId("what-if")


@dataclass
class Ports:
    """What a manager works with; messages are noted, not sent."""

    store: RedisStore

    def __post_init__(self) -> None:
        self.sent: list[Nudge] = []
        self.committer = Committer(self.store, lambda: self.store.config, self)

    @property
    def config(self) -> Any:
        return self.store.config

    def launch(self, nudge: Nudge) -> None:
        self.sent.append(nudge)

    def waiting(self, queue: str | None) -> int | None:
        return None

    def close(self) -> None:
        """The backend closes the store."""


class Sum:
    """Adds up its ticks."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.began_with: list[int] | None = None

    def apply(self, event: Event) -> None:
        self.seen.append(event.payload["n"])

    def snapshot(self) -> Mapping[str, Any]:
        return {"seen": self.seen}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.began_with = list(state["seen"])
        self.seen = list(state["seen"])


class Kept:
    """Has its snapshots and nothing else."""

    def snapshot(self) -> Mapping[str, Any]:
        return {}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Takes anything."""


@pytest.fixture
def ports(store: RedisStore) -> Ports:
    """Of the namespace under test."""
    return Ports(store)


@pytest.fixture
def manager(ports: Ports) -> CoreManager:
    """As a service has it."""
    return CoreManager(ports)


def keys_of(backend: Backend, store: RedisStore, agent_id: AgentId) -> tuple[str, ...]:
    """What a fork writes."""
    keys = Keys(backend.namespace, store.config.shards)
    return keys.agent(agent_id), keys.events(agent_id), keys.snapshots(agent_id)


def counted(store: RedisStore, *snapshots_at: int, last: int) -> str:
    """A running agent, whose event of version 1 is its start and of version v above it the tick v; gives its fence."""
    fence = run(store)
    for version in range(2, last + 1):
        append(store, fence, version, expected=version - 1)
        if version in snapshots_at:
            state = {"seen": list(range(2, version + 1))}
            store.save_snapshot(AGENT, fence, state, version=Version(version), schema=1, origin="efe899c7" + "0" * 16)
    return fence


def recovered(store: RedisStore, agent_id: AgentId = FORK) -> Sum:
    """What a worker that claims the agent makes of what is stored."""
    agent = Sum()
    claimed = take(store, record_of(store, agent_id).epoch, agent_id)
    recover_agent_state(Recovery(store, claimed, StateCode("counter")), agent)
    return agent


def fork_unfinished(manager: CoreManager, monkeypatch: pytest.MonkeyPatch, *, at: int, pages: int) -> None:
    """A copier that dies after so many pages of three events."""
    monkeypatch.setattr(fork_store, "PAGE", 3)
    copied = 0
    copy_events = RedisStore.copy_events

    def dying(self: RedisStore, copy: ForkCopy, mark: ForkMark) -> ForkMark:
        nonlocal copied
        if copied == pages:
            raise StoreUnavailableError(url="redis://gone", problem="the copier dies here")
        copied += 1
        return copy_events(self, copy, mark)

    with monkeypatch.context() as patched:
        patched.setattr(RedisStore, "copy_events", dying)
        with pytest.raises(StoreUnavailableError):
            manager.fork_agent(AGENT, FORK, at=at)


@pytest.mark.parametrize("at", [1, 2, 5, 6, 7, 9])
def test_a_fork_recovers_to_exactly_the_state_that_its_source_had_at_that_version(
    store: RedisStore, manager: CoreManager, at: int
) -> None:
    """Before, at and after snapshots; from a source that runs and is left as it is."""
    counted(store, 3, 6, 8, last=9)
    before, record = store.events.read(AGENT), record_of(store)
    snapshots = store.stored_snapshots(AGENT)

    handle = manager.fork_agent(AGENT, FORK, at=at, reason="another way", actor="ann")

    assert handle.id == FORK
    assert store.events.read(AGENT) == before
    assert (record_of(store), store.stored_snapshots(AGENT)) == (record, snapshots)
    *copied, forked = store.events.read(FORK)
    assert [replace(event, stream_id=AGENT) for event in copied] == list(before[:at])
    assert integrity_digest(copied) == integrity_digest(before[:at])
    assert (forked.type, forked.version) == ("agent.forked", at + 1)
    assert forked.payload == {"agent_id": FORK, "from": AGENT, "at": at}
    kept = [one for one in snapshots if isinstance(one, Snapshot) and one.version <= at]
    assert store.stored_snapshots(FORK) == kept[:1]
    agent = recovered(store)
    assert agent.seen == list(range(2, at + 1))
    assert agent.began_with == (list(range(2, kept[0].version + 1)) if kept else None)


def test_a_fork_has_the_spec_of_its_source_and_runs_at_once(
    store: RedisStore, ports: Ports, manager: CoreManager
) -> None:
    """Not its group and its parent; one message is sent; who and why is kept in the record and in the audit stream."""
    spec = AgentSpec(id=AGENT, type="counter", config={"step": 3}, labels={"a": "b"}, parent="boss", queue="own")
    act(store, Start(spec=spec))

    manager.fork_agent(AGENT, FORK, reason="another way", actor="ann")

    record = record_of(store, FORK)
    assert record.spec == AgentSpec(id=FORK, type="counter", config={"step": 3}, labels={"a": "b"}, queue="own")
    assert (record.state, record.desired, record.start_reason) == (AgentState.STARTING, Desired.RUNNING, "fork")
    assert (record.reason, record.actor, record.forking) == ("another way", "ann", "")
    assert [nudge.agent_id for nudge in ports.sent] == [FORK]
    info = manager.get_agent_info(FORK)
    assert info is not None
    assert info.forked_from == f"{AGENT}@0"
    entries = [(entry.operation, entry.reason, entry.actor, entry.state) for entry in manager.audit(FORK)]
    assert entries == [("fork", "another way", "ann", "registered")]
    assert [event.type for event in store.events.read(FORK)] == ["agent.forked"]


def test_a_fork_that_is_not_to_start_is_registered(store: RedisStore, ports: Ports, manager: CoreManager) -> None:
    """It takes its start later, as any other agent does."""
    counted(store, last=3)

    manager.fork_agent(AGENT, FORK, start=False)

    assert record_of(store, FORK).state is AgentState.REGISTERED
    assert record_of(store, FORK).desired is Desired.STOPPED
    assert ports.sent == []
    manager.start_agent(FORK)
    assert recovered(store).seen == [2, 3]


def test_a_fork_of_a_fork_and_a_fork_of_the_newest_version(store: RedisStore, manager: CoreManager) -> None:
    """Each has all of the history before it."""
    counted(store, 3, last=4)
    manager.fork_agent(AGENT, FORK, start=False)

    manager.fork_agent(FORK, "what-if-2")

    types = [event.type for event in store.events.read("what-if-2")]
    assert types == ["agent.started", *["counter.ticked"] * 3, "agent.forked", "agent.forked"]
    assert record_of(store, AgentId("what-if-2")).version == 6


@pytest.mark.parametrize(
    ("first_event", "version", "snapshots", "first"),
    [
        (1, 9, [], 0),
        (1, 9, [4], 0),
        (0, 0, [], 0),
        (5, 9, [4, 7], 4),
        (5, 9, [7], 7),
        (0, 9, [9], 9),
        (5, 9, [3], None),
    ],
)
def test_the_lowest_version_that_can_be_restored(
    first_event: int, version: int, snapshots: list[int], first: int | None
) -> None:
    """Any one while no event was trimmed; else that of a snapshot which the kept events follow."""
    kept = [Snapshot({}, Version(one), Epoch(1), 1, Instant(0)) for one in snapshots]
    assert first_restorable(first_event, version, kept) == first


def test_a_version_that_cannot_be_is_refused_and_the_possible_ones_are_named(
    store: RedisStore, manager: CoreManager
) -> None:
    """Above the newest; below what snapshots and kept events bring back; nothing is made."""
    counted(store, 4, 6, 8, last=9)
    store.events.trim_before(AGENT, 9)

    with pytest.raises(ForkVersionError, match="newest version is 9, the lowest possible is 4") as above:
        manager.fork_agent(AGENT, FORK, at=10)
    with pytest.raises(ForkVersionError, match="the lowest possible version is 4, the newest 9") as below:
        manager.fork_agent(AGENT, FORK, at=3)

    for refused in (above, below):
        assert (refused.value.fields["lowest"], refused.value.fields["newest"]) == (4, 9)
    assert store.read(FORK).record is None
    manager.fork_agent(AGENT, FORK, at=4)
    assert recovered(store).seen == [2, 3, 4]
    manager.fork_agent(AGENT, "what-if-2", at=5)
    assert recovered(store, AgentId("what-if-2")).seen == [2, 3, 4, 5]


def test_a_history_of_which_nothing_can_be_restored_names_no_version() -> None:
    """Its events were trimmed and its snapshots are gone."""
    with pytest.raises(ForkVersionError, match="no version of it can be restored") as refused:
        demand_restorable(AGENT, 3, 9, None)
    assert refused.value.fields["lowest"] is None


def test_an_id_that_exists_is_refused(store: RedisStore, manager: CoreManager) -> None:
    """An agent's, whatever its state, the source's own, and that of a stream without an agent."""
    counted(store, last=3)
    act(store, Start(spec=AgentSpec(id=FORK, type="counter")), FORK)
    store.events.append("notes", [NewEvent("noted", {})], ANY)

    for new_id in (FORK, AGENT, "notes"):
        with pytest.raises(AgentAlreadyRegisteredError, match="choose another id"):
            manager.fork_agent(AGENT, new_id)
    assert [event.type for event in store.events.read("notes")] == ["noted"]
    assert store.read(AgentId("notes")).record is None


def test_bad_arguments_are_refused(store: RedisStore, manager: CoreManager) -> None:
    """A source that does not exist, a version that is none, a runtime in which nothing starts."""
    with pytest.raises(AgentNotFoundError):
        manager.fork_agent(AGENT, FORK)
    counted(store, last=3)
    for at in (-1, True, "3", 2.5):
        with pytest.raises(InvalidSettingError, match="give a version"):
            manager.fork_agent(AGENT, FORK, at=at)  # type: ignore[arg-type]
    store.set_runtime(RuntimeState.STOPPED, only_from=[RuntimeState.RUNNING], reason="test", actor="test")
    with pytest.raises(RuntimeStoppedError):
        manager.fork_agent(AGENT, FORK)
    assert store.read(FORK).record is None
    manager.fork_agent(AGENT, FORK, start=False)


@pytest.mark.parametrize("damage", ["gap", "bytes", "end"])
def test_a_damaged_history_is_refused_and_leaves_no_agent_behind(
    store: RedisStore, manager: CoreManager, raw: redis.Redis, damage: str, backend: Backend
) -> None:
    """Where it is needed; the version is named. What lies before the snapshot is copied as it is."""
    counted(store, 4, last=9)
    key = Keys(backend.namespace, store.config.shards).events(AGENT)
    match damage:
        case "gap":
            raw.xdel(key, "6-0")
        case "end":
            raw.xdel(key, "6-0", "7-0", "8-0", "9-0")
        case _:
            entries: Any = raw.xrange(key)
            raw.delete(key)
            for name, fields in entries:
                raw.xadd(key, {b"d": b'{"id"', b"t": b"1"} if name == b"6-0" else fields, id=name)

    with pytest.raises(EventIntegrityError) as refused:
        manager.fork_agent(AGENT, FORK, at=8)

    assert refused.value.fields["version"] == 6
    assert store.read(FORK).record is None
    assert store.events.stream_version(FORK) == 0
    assert raw.exists(*keys_of(backend, store, FORK)) == 0
    assert [entry.operation for entry in manager.audit(FORK)] == ["fork", "delete"]


def test_what_is_damaged_before_the_snapshot_is_copied_as_it_is(
    store: RedisStore, manager: CoreManager, raw: redis.Redis, backend: Backend
) -> None:
    """The fork recovers as its source does; nothing is papered over."""
    counted(store, 4, last=6)
    raw.xdel(Keys(backend.namespace, store.config.shards).events(AGENT), "3-0")

    manager.fork_agent(AGENT, FORK)

    assert [event.version for event in store.events.read(FORK)] == [1, 2, 4, 5, 6, 7]
    assert recovered(store).seen == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("pages", [0, 1, 2])
def test_a_copier_that_dies_is_gone_on_with_by_the_same_call(
    store: RedisStore, ports: Ports, manager: CoreManager, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    """In pages of three; nothing can start, stop or write the fork before it is whole; then it is like any other."""
    counted(store, 2, last=9)
    fork_unfinished(manager, monkeypatch, at=8, pages=pages)

    assert record_of(store, FORK).forking == f"8|{3 * pages}"
    info = manager.get_agent_info(FORK)
    assert info is not None
    assert (info.state, info.waiting_on) == (AgentState.REGISTERED, "fork")
    with pytest.raises(AgentForkingError, match="goes on with it") as refused:
        manager.start_agent(FORK)
    assert f"`ares agents fork {AGENT} --at 8 --as {FORK}`" in str(refused.value)
    for ask in (manager.stop_agent, manager.restart_agent, manager.pause_agent, manager.resume_agent):
        with pytest.raises(AgentForkingError):
            ask(FORK)
    with pytest.raises(AgentForkingError):
        manager.events.append(FORK, [NewEvent("noted", {})])
    with pytest.raises(AgentForkingError):
        manager.fork_agent(AGENT, FORK, at=7)
    with pytest.raises(AgentForkingError):
        manager.fork_agent(FORK, "what-if-2")
    assert ports.sent == []

    manager.fork_agent(AGENT, FORK, at=8)

    assert [event.version for event in store.events.read(FORK)] == list(range(1, 10))
    assert recovered(store).seen == list(range(2, 9))
    assert [event.type for event in store.events.read(FORK)].count("agent.forked") == 1
    with pytest.raises(AgentAlreadyRegisteredError):
        manager.fork_agent(AGENT, FORK, at=8)


def test_a_fork_that_is_never_finished_can_be_deleted(
    store: RedisStore,
    manager: CoreManager,
    monkeypatch: pytest.MonkeyPatch,
    raw: redis.Redis,
    backend: Backend,
) -> None:
    """And made again; a copier of the deleted one that wakes up late writes nothing."""
    counted(store, 2, last=9)
    fork_unfinished(manager, monkeypatch, at=9, pages=1)
    late = record_of(store, FORK)

    manager.delete_agent(FORK)

    assert raw.exists(*keys_of(backend, store, FORK)) == 0
    manager.fork_agent(AGENT, FORK, at=4, start=False)
    whole = store.events.read(FORK)
    copy = ForkCopy(AGENT, FORK, late.epoch, Version(2))
    with pytest.raises(VersionConflictError, match="not the fork any more"):
        store.copy_events(copy, ForkMark.parse(late.forking))
    assert store.events.read(FORK) == whole


def test_a_late_copier_writes_to_no_other_fork_of_the_same_id(
    store: RedisStore, manager: CoreManager, monkeypatch: pytest.MonkeyPatch, raw: redis.Redis, backend: Backend
) -> None:
    """Which is just as far; nor to one that an older version of the runtime has started."""
    counted(store, 2, last=9)
    fork_unfinished(manager, monkeypatch, at=9, pages=1)
    first = record_of(store, FORK)
    manager.delete_agent(FORK)
    fork_unfinished(manager, monkeypatch, at=9, pages=1)
    second = record_of(store, FORK)
    assert first.forking == second.forking == "9|3"
    mark = ForkMark.parse(second.forking)

    with pytest.raises(VersionConflictError, match="not the fork any more"):
        store.copy_events(ForkCopy(AGENT, FORK, first.epoch, Version(2)), mark)
    raw.hset(keys_of(backend, store, FORK)[0], "state", "starting")
    with pytest.raises(VersionConflictError, match="not the fork any more"):
        store.copy_events(ForkCopy(AGENT, FORK, second.epoch, Version(2)), mark)


def test_a_fork_is_not_done_before_it_is_whole(
    store: RedisStore, manager: CoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever says so, and a fork that is done already stays as it is."""
    counted(store, 2, last=9)
    fork_unfinished(manager, monkeypatch, at=9, pages=1)
    with pytest.raises(VersionConflictError):
        act(store, ForkDone(), FORK)
    manager.fork_agent(AGENT, FORK, at=9, start=False)
    plan = plan_for(store, store.read(FORK), ForkDone(start=True), FORK)
    assert plan.ignored == "whole already"


def test_a_fork_begins_with_one_snapshot(
    store: RedisStore, manager: CoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when two copiers bring theirs; one that its source has dropped meanwhile is not made up."""
    counted(store, 2, 3, last=9)
    fork_unfinished(manager, monkeypatch, at=9, pages=0)
    record = record_of(store, FORK)
    newest, older = store.stored_snapshots(AGENT)
    assert isinstance(newest, Snapshot)
    assert isinstance(older, Snapshot)
    copy, mark = ForkCopy(AGENT, FORK, record.epoch), ForkMark.parse(record.forking)

    for snapshot in (older, newest, replace(older, version=Version(1))):
        store.copy_snapshot(copy, mark, snapshot)

    assert store.stored_snapshots(FORK) == [newest]
    assert record_of(store, FORK).state_schema == 1


def test_two_copiers_at_once_make_one_history(
    store: RedisStore, manager: CoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is behind takes over where the other is; who finds it whole writes nothing."""
    counted(store, 2, last=9)
    fork_unfinished(manager, monkeypatch, at=9, pages=1)
    record = record_of(store, FORK)
    copy = ForkCopy(AGENT, FORK, record.epoch, Version(2))
    behind = ForkMark.parse(record.forking)

    ahead = store.copy_events(copy, behind)

    assert (behind.copied, ahead.copied) == (3, 6)
    assert store.copy_events(copy, behind) == ahead
    manager.fork_agent(AGENT, FORK, at=9)
    with pytest.raises(VersionConflictError):
        store.copy_events(copy, ahead)
    assert recovered(store).seen == list(range(2, 10))


def test_the_same_operation_id_forks_once(store: RedisStore, ports: Ports, manager: CoreManager) -> None:
    """A repeat finds it done, also when the source has gone on meanwhile."""
    fence = counted(store, last=4)
    manager.fork_agent(AGENT, FORK, op="fork-1")
    append(store, fence, 5, expected=4)

    handle = manager.fork_agent(AGENT, FORK, op="fork-1")

    assert handle.id == FORK
    assert [event.version for event in store.events.read(FORK)] == [1, 2, 3, 4, 5]
    assert len(ports.sent) == 1


def test_events_of_somebody_else_never_become_part_of_a_fork(store: RedisStore, manager: CoreManager) -> None:
    """Not even where they were there before its record."""
    counted(store, last=4)
    manager.fork_agent(AGENT, FORK, start=False)
    record = record_of(store, FORK)
    store.events.append("notes", [NewEvent("noted", {})], ANY)
    assert record.version == 5

    with pytest.MonkeyPatch.context() as patched:
        # They came after the look, and before the record.
        patched.setattr(store.events, "stream_version", Mock(return_value=Version(0)))
        with pytest.raises(VersionConflictError, match="holds events of its own"):
            manager.fork_agent(AGENT, "notes")
    assert [event.type for event in store.events.read("notes")] == ["noted"]
    with pytest.raises(AgentForkingError):
        manager.start_agent("notes")


def test_a_source_that_is_trimmed_while_it_is_copied_gives_what_it_still_has(
    store: RedisStore, manager: CoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork's events are those that its source keeps: no hole in the middle."""
    counted(store, 8, last=9)
    fork_unfinished(manager, monkeypatch, at=9, pages=1)
    store.events.trim_before(AGENT, 6)

    manager.fork_agent(AGENT, FORK, at=9)

    assert [event.version for event in store.events.read(FORK)] == [7, 8, 9, 10]
    assert recovered(store).seen == list(range(2, 10))


def test_a_source_that_is_deleted_and_made_anew_while_it_is_copied_gives_no_fork(
    store: RedisStore, manager: CoreManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two histories must not be mixed."""
    counted(store, last=9)
    fork_unfinished(manager, monkeypatch, at=5, pages=1)
    store.delete(AGENT, store.read(AGENT), op="gone")
    counted(store, last=9)

    with pytest.raises(EventIntegrityError, match="deleted"):
        manager.fork_agent(AGENT, FORK, at=5)
    assert store.read(FORK).record is None


def test_what_somebody_has_accepted_as_lost_is_accepted_in_a_fork(
    store: RedisStore, manager: CoreManager, raw: redis.Redis, backend: Backend
) -> None:
    """Up to the same version, and no further."""
    counted(store, last=9)
    keys = Keys(backend.namespace, store.config.shards)
    raw.xdel(keys.events(AGENT), "3-0", "7-0")
    raw.hset(keys.agent(AGENT), "accepted_version", 5)

    manager.fork_agent(AGENT, FORK, at=6)

    assert record_of(store, FORK).accepted_version == 5
    assert recovered(store).seen == [2, 4, 5, 6]
    with pytest.raises(EventIntegrityError) as refused:
        manager.fork_agent(AGENT, "what-if-2")
    assert refused.value.fields["version"] == 7


def test_a_state_that_lies_in_a_store_of_the_users_own_is_missed_rather_than_replaced_by_nothing(
    store: RedisStore, manager: CoreManager
) -> None:
    """An agent that folds no events could not know that it had a state; one that folds them needs none."""
    fence = counted(store, last=4)
    store.note_state(AGENT, fence, origin="efe899c7", schema=1, saved="3|7")

    manager.fork_agent(AGENT, FORK, at=2)

    record = record_of(store, FORK)
    version, _, epoch = record.state_saved.partition("|")
    assert (version, 7 < int(epoch) < record.epoch) == ("2", True)
    assert recovered(store).seen == [2]
    claimed = replace(take(store, record.epoch, FORK), snapshot=None)
    with pytest.raises(SnapshotStoreError):
        recover_agent_state(Recovery(store, claimed, StateCode("counter")), Kept())


def test_long_texts_of_a_record_are_read_back() -> None:
    """As they are written."""
    origin = ForkOrigin(AGENT, Version(9), Instant(1795975978273137))
    assert ForkOrigin.parse(str(origin)) == origin
    assert ForkMark.parse(str(ForkMark(Version(9), Version(3)))) == ForkMark(Version(9), Version(3))
