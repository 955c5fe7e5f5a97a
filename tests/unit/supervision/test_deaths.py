"""The desk commits what it is told, in order, whatever happens to the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from ares_celery.errors import AgentNotFoundError
from ares_celery.ids import AgentId, Epoch
from ares_celery.model.agent import Owner
from ares_celery.model.command import Die, OwnerExited, Stop
from ares_celery.model.restart import DeathCause, Suspicion
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.supervision.deaths import DeathDesk
from tests.unit.supervision.fakes import FakeCommitter, FakeStore, ManualClock, record_of
from tests.wait import wait_until

GONE = ProcessIdentity("here", "boot", 1, 4711, 99)
A, B = AgentId("a"), AgentId("b")


class World:
    """A desk, not started yet."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FakeStore(self.clock)
        self.committer = FakeCommitter(self.store)
        self.desk = DeathDesk(clock=self.clock, most_waiting=3)

    def start(self) -> None:
        """The store is open now."""
        self.desk.start(cast("Any", self.store), cast("Any", self.committer))

    def applied(self, count: int) -> list[Any]:
        """Waits for so many commands."""
        wait_until(lambda: len(self.committer.applied) >= count, f"{count} commits")
        return [command for _, command in self.committer.applied]


@pytest.fixture
def world() -> Iterator[World]:
    """A world whose desk is closed with the test."""
    made = World()
    yield made
    made.store.away = False
    made.desk.close()


def test_what_is_told_before_there_is_a_store_is_kept(world: World) -> None:
    """A hook may fire while the worker still starts."""
    world.desk.report(A, Epoch(7), "signal 9", DeathCause.LOST)
    world.start()
    (command,) = world.applied(1)
    assert command == Die("signal 9", epoch=Epoch(7), cause=DeathCause.LOST, proof=True)


def test_a_lost_process_is_proof_for_each_agent_it_hosted(world: World) -> None:
    """Several tenants: nobody's fault."""
    for agent_id in (A, B):
        world.store.records[agent_id] = record_of(agent_id, Owner(GONE.encode(), "w", "t"))
    world.start()
    world.desk.report_exit(GONE)
    commands = world.applied(2)
    assert all(isinstance(command, OwnerExited) and command.identity == GONE.encode() for command in commands)
    assert {command.cause for command in commands} == {DeathCause.CO_TENANT}


@pytest.mark.parametrize(("tenants", "suspicion"), [(2, Suspicion.PRIME), (5, Suspicion.NONE)])
def test_who_was_lost_with_others_most_often_is_suspected(tenants: int, suspicion: Suspicion, world: World) -> None:
    """Told of all tenants before any is lost again; not of the loss of a worker with more processes than this one."""
    now = world.clock.server()
    for agent_id, losses in ((A, 3), (B, 2)):
        record = record_of(agent_id, Owner(GONE.encode(), "w", "t"))
        world.store.records[agent_id] = replace(record, lost_together=(now - 1,) * losses)
    world.start()
    world.desk.report_exit(GONE, tenants=tenants)
    world.applied(2)
    assert [(one, command.suspicion) for one, command in told(world)] == [(A, suspicion), (B, Suspicion.NONE)]


def told(world: World) -> list[tuple[str, OwnerExited]]:
    """The exits that were committed."""
    return [(one, command) for one, command in world.committer.applied if isinstance(command, OwnerExited)]


@pytest.mark.parametrize(("tenants", "cause"), [(1, DeathCause.LOST), (5, DeathCause.CO_TENANT)])
def test_the_last_tenant_of_a_host_is_not_taken_for_its_only_one(tenants: int, cause: DeathCause, world: World) -> None:
    """Another worker may have told of the first four already."""
    world.store.records[A] = record_of(A, Owner(GONE.encode(), "w", "t"))
    world.start()
    world.desk.report_exit(GONE, tenants=tenants)
    (command,) = world.applied(1)
    assert command.cause is cause


def test_the_desk_keeps_trying_while_the_store_is_away(world: World) -> None:
    """And goes on with the next."""
    world.store.away = True
    world.start()
    world.desk.report(A, Epoch(7), "x", DeathCause.LOST)
    world.desk.report(B, Epoch(7), "x", DeathCause.LOST)
    wait_until(lambda: world.clock.now > 105, "some tries")
    world.store.away = False
    world.applied(2)
    assert [agent_id for agent_id, _ in world.committer.applied] == [A, B]


def test_a_refused_or_failing_report_does_not_end_the_desk(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that was deleted, and a bug."""
    world.committer.fails = {A: AgentNotFoundError(agent_id="a"), B: RuntimeError("bug")}
    world.start()
    for agent_id in (A, B, AgentId("c")):
        world.desk.report(agent_id, Epoch(7), "x", DeathCause.LOST)
    world.applied(1)
    assert "the desk goes on" in caplog.text


def test_more_than_can_wait_is_dropped_and_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Reporting never blocks; leases show the rest."""
    for number in range(5):
        world.desk.report(AgentId(f"a{number}"), Epoch(7), "x", DeathCause.LOST)
    world.start()
    world.applied(3)
    assert "2 reports of deaths were dropped" in caplog.text


def test_a_revoke_stops_only_the_incarnation_it_was_meant_for(world: World) -> None:
    """A late click on an old task does not stop what runs now."""
    world.store.records[A] = record_of(A)
    world.start()
    world.desk.request_stop(A, Epoch(6), "revoked", "celery revoke")
    world.desk.request_stop(A, Epoch(7), "revoked", "celery revoke")
    (command,) = world.applied(1)
    assert command == Stop("revoked", "celery revoke")
    assert len(world.committer.applied) == 1
