"""Workers of one machine see each other's exits, and say how many agents each exit took along."""

from __future__ import annotations

import os
from typing import Any, cast

import pytest

from ares_celery.background import counted_work
from ares_celery.ids import AgentId
from ares_celery.model.agent import Owner
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.supervision import hosts
from ares_celery.supervision.hosts import HostWatch, has_ended
from tests.unit.supervision.fakes import FakeStore, ManualClock, record_of
from tests.wait import wait_until

A, B = AgentId("a"), AgentId("b")


@pytest.fixture
def store() -> FakeStore:
    """No process is reported yet."""
    return FakeStore(ManualClock())


def identity(pid: int, ticks: int) -> ProcessIdentity:
    """A process of this machine that does not exist."""
    own = ProcessIdentity.current()
    return ProcessIdentity(own.host, own.boot_id, own.pid_namespace, pid, ticks)


class Told:
    """A desk that only listens."""

    def __init__(self) -> None:
        self.exits: list[tuple[ProcessIdentity, int]] = []

    def report_exit(self, identity: ProcessIdentity, *, tenants: int = 1) -> None:
        self.exits.append((identity, tenants))


def make_watch(store: FakeStore, told: Told) -> HostWatch:
    """A watch of this process."""
    return HostWatch(cast("Any", store), cast("Any", told), ProcessIdentity.current(), "me@here")


def test_a_watch_reports_itself_and_its_children(store: FakeStore) -> None:
    """So that others watch them."""
    child = identity(2**22 + 1, 5)
    watch = HostWatch(
        cast("Any", store), cast("Any", Told()), ProcessIdentity.current(), "me@here", children=lambda: {child}
    )
    watch.look()
    assert store.reported == {ProcessIdentity.current().encode(): "me@here", child.encode(): "me@here"}


def test_it_remembers_how_many_agents_a_process_hosted(store: FakeStore) -> None:
    """They may be gone from the index when its exit is seen."""
    peer, told = identity(2**22 + 2, 5), Told()
    store.reported[peer.encode()] = "peer@here"
    for agent_id in (A, B):
        store.records[agent_id] = record_of(agent_id, Owner(peer.encode(), "peer@here", "t"))
    watch = make_watch(store, told)
    watch.look()
    store.records.clear()
    watch.exited(peer)
    assert told.exits == [(peer, 2)]
    watch.look()
    watch.close()


class Machine:
    """Processes that do not exist, each hosting agents; its watch is told which of them exit."""

    def __init__(self, store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.told = store, Told()
        self.parents: dict[ProcessIdentity, ProcessIdentity | None] = {}
        self.ended: set[ProcessIdentity] = set()
        self.watch = make_watch(store, self.told)
        monkeypatch.setattr(hosts, "has_ended", self.ended.__contains__)
        monkeypatch.setattr(hosts, "parent_of", self.parent_of)

    def parent_of(self, process: ProcessIdentity) -> int | None:
        parent = self.parents.get(process)
        return None if process in self.ended else parent.pid if parent else 1

    def begins(self, *agents: str, parent: ProcessIdentity | None = None, worker: str = "w@h") -> ProcessIdentity:
        """Starts a process that hosts these agents, wherever they were before."""
        number = len(self.parents)
        process = identity(2**22 + 100 + number, 1000 + number)
        self.parents[process] = parent
        self.store.reported[process.encode()] = worker
        for agent_id in agents:
            self.store.records[AgentId(agent_id)] = record_of(agent_id, Owner(process.encode(), worker, "t"))
        return process

    def ends(self, *processes: ProcessIdentity) -> list[int]:
        """Ends them at once; returns how many agents are said to have gone down with each."""
        before = len(self.told.exits)
        self.ended.update(processes)
        for process in processes:
            self.watch.exited(process)
        wait_until(lambda: len(self.told.exits) == before + len(processes), "all to be told of")
        said = dict(self.told.exits[before:])
        return [said[process] for process in processes]


@pytest.fixture
def machine(store: FakeStore, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """No process yet."""
    return Machine(store, monkeypatch)


def test_dead_predecessors_of_a_workers_name_do_not_count(machine: Machine) -> None:
    """Redis lists them for a minute; their agent is the one that ends each of them."""
    for _ in range(4):
        process = machine.begins("a")
        machine.watch.look()
        assert machine.ends(process) == [1]


def test_a_successor_that_runs_already_does_not_count(machine: Machine) -> None:
    """It took the name before the other one was gone, and it stays."""
    old, new = machine.begins("a"), machine.begins("b", "c")
    machine.watch.look()
    assert machine.ends(old) == [1]
    assert machine.ends(new) == [2]


def test_a_watch_that_finds_predecessors_dead_counts_only_who_is_still_lost(machine: Machine) -> None:
    """It begins after them: what they hosted then is what nobody brought back yet."""
    first, second = machine.begins("a"), machine.begins("a")
    machine.ended.update([first, second])
    machine.watch.look()
    assert machine.ends(second, first) == [1, 1]


def test_a_pool_child_counts_for_itself_while_its_worker_lives(machine: Machine) -> None:
    """Also the child in its place, with the agent that ended the first one."""
    main = machine.begins()
    first, other = machine.begins("a", parent=main), machine.begins("b", parent=main)
    machine.watch.look()
    assert machine.ends(first) == [1]
    second = machine.begins("a", parent=main)
    machine.watch.look()
    assert machine.ends(second) == [1]
    third = machine.begins("a", parent=main)
    machine.watch.look()
    assert machine.ends(main, third, other) == [2, 2, 2]


def test_children_that_outlive_their_killed_worker_for_a_moment_count_with_it(machine: Machine) -> None:
    """They follow, at whatever pace: none of them is the only one."""
    main = machine.begins()
    children = [machine.begins(name, parent=main) for name in "abc"]
    machine.watch.look()
    machine.ends(main)
    assert [machine.ends(child) for child in children] == [[3], [3], [3]]


def test_children_that_nobody_saw_alive_belong_to_the_worker_before_them(machine: Machine) -> None:
    """Their parent cannot be asked for any more."""
    main, children = machine.begins(), [machine.begins("a"), machine.begins("b")]
    machine.ended.update([main, *children])
    machine.watch.look()
    assert machine.ends(*children, main) == [2, 2, 2]
    again = machine.begins()
    machine.watch.look()
    late = machine.begins("a")
    machine.ended.add(late)
    machine.watch.look()
    assert machine.ends(late) == [1]
    assert machine.ends(again) == [1]


def test_what_a_process_hosted_at_its_death_counts_whatever_became_of_it_since(machine: Machine) -> None:
    """Another watcher told of one of its two agents before this one hears of the exit."""
    process = machine.begins("a", "b")
    machine.watch.look()
    machine.ended.add(process)
    del machine.store.records[AgentId("a")]
    machine.watch.look()
    assert machine.ends(process) == [2]


def test_theparent_of_a_process_is_known_while_it_runs() -> None:
    """And not any more when it is over."""
    assert hosts.parent_of(ProcessIdentity.current()) == os.getppid()
    assert hosts.parent_of(identity(2**22 + 7, 1)) is None


def test_a_process_that_runs_has_not_ended() -> None:
    """Unlike one whose pid belongs to nobody, or to another."""
    own = ProcessIdentity.current()
    assert not has_ended(own)
    assert has_ended(identity(own.pid, own.start_ticks + 1))
    assert has_ended(identity(2**22 + 7, 1))


def test_a_watch_tells_of_detached_work_until_none_is_left(store: FakeStore) -> None:
    """Nothing is said of none, but for the first time after some."""
    watch = make_watch(store, Told())
    watch.look()
    assert store.background == []
    with counted_work("unit-watched"):
        watch.look()
    watch.look()
    watch.look()
    said = [work.get("unit-watched", 0) for _, work in store.background]
    assert said[:2] == [1, 0]
