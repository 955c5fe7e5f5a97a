"""A host that is lost with several tenants: who is suspected, who is told apart, and who pays."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

from ares_celery.errors import FencedError
from ares_celery.ids import Instant
from ares_celery.model.agent import AgentSpec, AgentState, Owner
from ares_celery.model.command import Deadline, DeadlineDue, MarkRunning, OwnerExited, Start
from ares_celery.model.restart import (
    PROBATION_AFTER,
    PROBATION_PERIOD,
    DeathCause,
    Suspicion,
    lost_together,
    separation,
    suspicions,
)
from tests.property.lifecycle_store import LifecycleStore, default_policy
from tests.unit.model.life import Life

POISON = "poison"
POLICY = default_policy()


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({"a": 0, "b": 0}, {"a": "none", "b": "none"}),
        ({"a": 1, "b": 0}, {"a": "none", "b": "none"}),
        ({"a": 2, "b": 2, "c": 1}, {"a": "tied", "b": "tied", "c": "none"}),
        ({"a": 3, "b": 2, "c": 2}, {"a": "prime", "b": "none", "c": "none"}),
        ({}, {}),
    ],
)
def test_only_the_one_that_was_there_most_often_is_suspected(losses: dict[str, int], expected: dict[str, str]) -> None:
    """From the third loss on; several that were there as often are tied."""
    assert {who: found.value for who, found in suspicions(losses).items()} == expected


def test_losses_are_forgotten_after_ten_quiet_minutes() -> None:
    """All of them; until then each one counts, however old."""
    life = Life().start().run()
    life.do(OwnerExited(identity="p1", cause=DeathCause.CO_TENANT))
    then = life.record.lost_together[0]
    later = then + round(PROBATION_PERIOD.total_seconds() * 1_000_000)
    assert (lost_together(life.record, later - 1), lost_together(life.record, later)) == ((then,), ())


def test_the_suspect_is_charged_and_its_neighbours_are_not() -> None:
    """Counted as suspect, apart from crashes."""
    life = Life().start().run()
    life.do(OwnerExited(identity="p1", cause=DeathCause.CO_TENANT, suspicion=Suspicion.PRIME))
    assert (life.record.cause, life.record.charged, dict(life.record.deaths)) == ("suspect", 1, {"suspect": 1})
    assert life.store.counters["deaths.suspect"] == 1
    life.run("p2")
    life.do(OwnerExited(identity="p2", cause=DeathCause.CO_TENANT, suspicion=Suspicion.TIED))
    assert (life.record.cause, life.record.charged, len(life.record.lost_together)) == ("co_tenant", 1, 2)


def test_a_loss_of_a_lease_is_judged_alike() -> None:
    """Whoever finds out."""
    life = Life().start().run()
    at = life.store.deadlines["counter-1", Deadline.LEASE]
    life.store.now = at
    life.do(DeadlineDue(kind=Deadline.LEASE, score=at, tenants=3, suspicion=Suspicion.PRIME))
    assert (life.record.cause, life.record.charged) == ("suspect", 1)


def test_the_tied_wait_in_turns_and_longer_each_time() -> None:
    """One half waits 10 s, then the other; then other halves 20 s, 40 s … at most 4 min."""
    waits = [
        {separation(POLICY, f"a{number}", losses).total_seconds() for number in range(40)} for losses in range(3, 15)
    ]
    assert waits == [{0, seconds} for seconds in (10, 10, 20, 20, 40, 40, 80, 80, 160, 160, 240, 240)]
    for losses in range(3, 15, 2):
        for agent_id in ("a", "b", "c"):
            pair = [separation(POLICY, agent_id, losses + turn).total_seconds() for turn in (0, 1)]
            assert min(pair) == 0 < max(pair), "in one of two turns, never in both"


def test_nobody_waits_longer_on_the_first_two_losses() -> None:
    """They may be an accident."""
    life = Life().start()
    for loss in range(PROBATION_AFTER):
        life.run(f"p{loss}").wait(60)
        life.do(OwnerExited(identity=f"p{loss}", cause=DeathCause.CO_TENANT, suspicion=Suspicion.TIED))
        assert life.deadline(Deadline.ATTEMPT) is None


@dataclass
class Host:
    """One worker that starts again whenever it is lost, and what it hosts; one of the agents ends it."""

    fuse: float
    store: LifecycleStore = field(default_factory=LifecycleStore)
    number: int = 0
    claims: int = 0
    losses: int = 0
    #: Seconds until the worker is back.
    away: float = 3.0

    def begin(self, innocents: int, max_restarts: int) -> None:
        ids = [*(f"i{number}" for number in range(innocents)), POISON]
        self.store.policies = {agent_id: replace(POLICY, max_restarts=max_restarts) for agent_id in ids}
        for agent_id in ids:
            self.store.do(agent_id, Start(spec=AgentSpec(id=agent_id, type="t")))

    @property
    def identity(self) -> str:
        return f"p{self.number}"

    def hosted(self) -> list[str]:
        return [agent_id for agent_id, record in self.store.records.items() if record.hosted]

    def turn(self) -> None:
        """Brings up what may be claimed, then lets time pass until the next thing happens."""
        for agent_id, due in self.store.due():
            if due.kind in (Deadline.ATTEMPT, Deadline.NUDGE):
                self.store.do(agent_id, due)
        messages, self.store.messages = self.store.messages, []
        for message in messages:
            self.claims += 1
            owner = Owner(self.identity, "w", f"t{self.claims}")
            with suppress(FencedError):  # a message that was sent again
                fence = self.store.claim(message.agent_id, message.epoch, f"k{self.claims}", owner)
                self.store.do(message.agent_id, MarkRunning(fence=fence))
        poison = self.store.records[POISON]
        attempts = [at for (_, kind), at in self.store.deadlines.items() if kind is Deadline.ATTEMPT]
        boom = poison.running_since + round(self.fuse * 1_000_000) if poison.hosted else None
        following = [int(at) for at in attempts] + ([boom] if boom else [])
        self.store.now = Instant(max(self.store.now, min(following)))
        if boom is not None and boom <= self.store.now:
            self.lose()

    def lose(self) -> None:
        self.losses += 1
        gone = self.hosted()
        found = suspicions({a: len(lost_together(self.store.records[a], self.store.now)) for a in gone})
        cause = DeathCause.CO_TENANT if len(gone) > 1 else DeathCause.LOST
        for agent_id in gone:
            self.store.do(agent_id, OwnerExited(identity=self.identity, cause=cause, suspicion=found[agent_id]))
        self.number += 1
        self.store.advance(timedelta(seconds=self.away))


@pytest.mark.pain("P9")
@pytest.mark.parametrize("fuse", [0.1, 2, 20, 60], ids=lambda fuse: f"after {fuse} s")
@pytest.mark.parametrize("innocents", [1, 3, 50])
def test_an_agent_that_ends_its_worker_each_time_is_parked_and_its_neighbours_pay_nothing(
    innocents: int, fuse: float
) -> None:
    """Cap 5, one worker for all: the poison is parked with cause cap; no innocent is charged, all run in the end."""
    host = Host(fuse)
    host.begin(innocents, max_restarts=5)
    while host.store.records[POISON].state is not AgentState.PARKED:
        host.turn()
        assert host.losses < 60, "it is not found"
    poison = host.store.records.pop(POISON)
    assert (poison.cause, poison.charged) == ("cap", 5)
    assert host.store.events[POISON][-1].payload["detail"] == "process lost"
    assert {record.charged for record in host.store.records.values()} == {0}
    assert {record.state for record in host.store.records.values()} <= {AgentState.RUNNING, AgentState.RESURRECTING}
