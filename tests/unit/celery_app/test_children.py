"""What the main process knows of its pool children, and which of them it may kill."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest

from ares_celery.celery_app.children import ChildTable, Reaper
from ares_celery.config import RuntimeConfig
from ares_celery.ids import AgentId, Epoch
from ares_celery.model.agent import Owner
from ares_celery.runtime.process_identity import ProcessIdentity
from tests.unit.supervision.fakes import FakeStore, ManualClock, record_of
from tests.wait import wait_until

A = AgentId("a")
EPOCH = Epoch(7)


class Told:
    """A desk that only listens."""

    def __init__(self) -> None:
        self.exits: list[tuple[AgentId, ProcessIdentity]] = []

    def report_tenant_exit(self, agent_id: AgentId, identity: ProcessIdentity, reason: str) -> None:
        self.exits.append((agent_id, identity))


class Pool:
    """A real process that stands for a pool child, and the table that watches it."""

    def __init__(self) -> None:
        self.told = Told()
        self.running = {"t1"}
        self.killed: list[ProcessIdentity] = []
        self.table = ChildTable(cast("Any", self.told), is_running=self.running.__contains__, kill_process=self._kill)
        self.table.start()
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        identity = ProcessIdentity.of_pid(self.process.pid)
        assert identity is not None
        self.identity = identity
        self.clock = ManualClock()
        self.store = FakeStore(self.clock)
        self.reaper = Reaper(cast("Any", self.store), self.table, RuntimeConfig(heartbeat_interval=1), clock=self.clock)

    def _kill(self, identity: ProcessIdentity) -> bool:
        self.killed.append(identity)
        return True

    def accept(self, task_id: str = "t1", agent_id: AgentId = A) -> None:
        """The child takes a message."""
        self.table.accepted(agent_id, EPOCH, task_id, self.process.pid)

    def hosted(self, epoch: int = 7, *, by: str = "", fenced: bool = False) -> None:
        """What the store says of the agent."""
        owner = Owner(by or self.identity.encode(), "w", "t")
        self.store.records[A] = record_of(A, owner, epoch=Epoch(epoch), fence="" if fenced else f"{epoch}|x")

    def look(self, seconds: float) -> None:
        """The reaper looks at once and again after some time."""
        self.reaper.look()
        self.clock.advance(seconds)
        self.reaper.look()


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Ends the process and the watcher with the test."""
    made = Pool()
    yield made
    made.table.close()
    made.process.kill()
    made.process.communicate()


def test_a_child_that_exits_is_told_with_what_it_hosted(pool: Pool) -> None:
    """Within milliseconds, once."""
    pool.accept()
    pool.process.kill()
    wait_until(lambda: pool.told.exits, timeout=2)
    assert pool.told.exits == [(A, pool.identity)]
    assert pool.table.hosting() == []
    assert pool.table.find("t1") is not None, "Celery's own late notice asks what was known"
    pool.table.ended("t1")
    assert pool.table.find("t1") is None


def test_a_message_that_was_dealt_with_is_forgotten(pool: Pool) -> None:
    """Celery tells nobody of a success: the table looks by itself."""
    pool.accept()
    pool.running.clear()
    assert pool.table.hosting() == []
    pool.process.kill()
    pool.process.wait()
    assert pool.told.exits == []


def test_threads_are_not_watched(pool: Pool) -> None:
    """Their process is this one."""
    pool.table.accepted(A, EPOCH, "t1", ProcessIdentity.current().pid)
    assert pool.table.hosting() == []


def test_a_living_incarnation_and_one_that_waits_to_be_claimed_are_left_alone(pool: Pool) -> None:
    """However long they take."""
    pool.accept()
    pool.hosted()
    pool.look(60)
    pool.store.records[A] = record_of(A)
    pool.look(60)
    assert pool.killed == []


def test_nobody_is_killed_for_a_record_that_cannot_be_read(pool: Pool) -> None:
    """It may have been written by a newer version, and its incarnation be well."""
    pool.accept()
    pool.store.problems[A] = "an unknown state"
    pool.look(60.0)
    assert pool.killed == []


def test_one_that_was_fenced_has_a_heartbeat_to_notice(pool: Pool) -> None:
    """Then its child is killed, so that the slot is free."""
    pool.accept()
    pool.hosted(8, fenced=True)
    pool.look(0.9)
    assert pool.killed == []
    pool.look(0.2)
    assert pool.killed == [pool.identity]


def test_one_that_ended_in_order_has_time_to_clean_up(pool: Pool) -> None:
    """Its commit came before the end of its task."""
    pool.accept()
    pool.hosted(8, by="another")
    pool.look(5)
    assert pool.killed == []
    pool.look(1.1)
    assert pool.killed == [pool.identity]


def test_a_child_that_runs_something_else_is_never_killed(pool: Pool) -> None:
    """Also between two looks."""
    pool.accept()
    pool.running.add("t2")
    pool.accept("t2", AgentId("b"))
    pool.store.records["b"] = record_of("b", Owner(pool.identity.encode(), "w", "t"))
    pool.hosted(8, fenced=True)
    pool.look(60)
    assert pool.killed == []
