"""The lease keeper: what it tells incarnations, and what an outage means; no thread, no store."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from ares_celery.config import RuntimeConfig
from ares_celery.errors import StoreUnavailableError
from ares_celery.ids import AgentId, Epoch, Instant
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Desired, Request
from ares_celery.runtime.incarnation import Completion, HostedSet, Incarnation
from ares_celery.runtime.lease_keeper import LeaseKeeper
from ares_celery.store.base import InboxMessage, Lease, LeaseChange, Renewal


class Clock:
    """Time that the test turns."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> Instant:
        return Instant(0)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.is_set()


class Store:
    """Answers renewals as the test says."""

    def __init__(self) -> None:
        self.changes: tuple[LeaseChange, ...] = ()
        self.is_away = False
        self.renewed: list[list[Lease]] = []

    def renew(self, leases: Sequence[Lease]) -> Renewal:
        if self.is_away:
            raise StoreUnavailableError(url="redis://x", problem="away")
        self.renewed.append(list(leases))
        return Renewal(Instant(1), self.changes)


def incarnation(agent_id: str = "a", fence: str = "7|token") -> Incarnation:
    """One that runs."""
    record = AgentRecord(
        AgentSpec(id=agent_id, type="t"), Desired.RUNNING, AgentState.RUNNING, Epoch(7), fence, incarnation=1, signal=3
    )
    return Incarnation(record, "task-1")


class Kept:
    """A keeper with one incarnation, turned by hand."""

    def __init__(self) -> None:
        self.clock, self.store, self.hosted = Clock(), Store(), HostedSet()
        self.config = RuntimeConfig(heartbeat_interval=1, lease_ttl=4)
        self.keeper = LeaseKeeper(cast("Any", self.store), self.hosted, lambda: self.config, self.clock)
        self.incarnation = incarnation()
        self.hosted.add(self.incarnation)
        self.told: list[str] = []
        self.incarnation.on_change(lambda: self.told.append("wake"), lambda: self.told.append("stop"))

    def renew(self) -> bool:
        """One round."""
        return self.keeper._renew(self.hosted.all())


@pytest.fixture
def kept() -> Kept:
    """A keeper with one incarnation."""
    return Kept()


def change(**fields: object) -> LeaseChange:
    """What a renewal found about the one incarnation."""
    known: Any = LeaseChange(AgentId("a"), "7|token", fenced=False)
    changed: LeaseChange = replace(known, **fields)
    return changed


def test_a_renewal_shows_the_signal_that_was_seen_last(kept: Kept) -> None:
    """So only what is new comes back."""
    kept.renew()
    assert kept.store.renewed == [[Lease(AgentId("a"), "7|token", 3)]]
    kept.store.changes = (change(signal=5),)
    kept.renew()
    kept.store.changes = ()
    kept.renew()
    assert kept.store.renewed[-1] == [Lease(AgentId("a"), "7|token", 5)]


@pytest.mark.parametrize(("number", "seen"), [(4, 4), (5, 3), (3, 3), (0, 3)])
def test_a_message_that_came_with_its_hint_is_seen_if_it_is_the_next_word(kept: Kept, number: int, seen: int) -> None:
    """Behind a gap lies what else was asked, which the renewal has to tell; nothing goes back."""
    message = InboxMessage("1-0", "m", 1, wants_reply=False, time=Instant(1), signal=number)
    assert kept.hosted.mail("7|token", message)
    kept.renew()
    assert kept.store.renewed == [[Lease(AgentId("a"), "7|token", seen)]]


def test_a_renewal_tells_the_step_and_its_age(kept: Kept) -> None:
    """By the clock of this process, as a duration: that of Redis is another one. Between steps there is none."""
    kept.incarnation.doing = ("outer/fetch", kept.clock.now)
    kept.clock.now += 2.5
    kept.renew()
    assert kept.store.renewed[-1] == [Lease(AgentId("a"), "7|token", 3, "outer/fetch", 2_500_000)]
    kept.incarnation.doing = ("fetch", kept.clock.now + 1)
    kept.renew()
    assert kept.store.renewed[-1] == [Lease(AgentId("a"), "7|token", 3, "fetch", 0)]
    kept.incarnation.doing = None
    kept.renew()
    assert kept.store.renewed[-1] == [Lease(AgentId("a"), "7|token", 3)]


@pytest.mark.parametrize(
    ("request_", "desired", "reason"),
    [
        (Request.STOP, Desired.STOPPED, "stop"),
        (Request.RESTART, Desired.RUNNING, "stop"),
        (Request.SHUTDOWN, Desired.RUNNING, "stop"),
        (Request.DIE, Desired.RUNNING, "stop"),
        (Request.PAUSE, Desired.PAUSED, "pause"),
        (Request.NONE, Desired.RUNNING, None),
    ],
)
def test_what_was_asked_reaches_the_agent_as_its_reason(
    kept: Kept, request_: Request, desired: Desired, reason: str | None
) -> None:
    """Every request but a pause is a stop to the agent's code; none at all only wakes it, as a message may wait."""
    kept.store.changes = (change(signal=4, request=request_, desired=desired),)
    kept.incarnation.inbox_hint = False

    kept.renew()

    assert kept.incarnation.stopping_reason == reason
    assert kept.incarnation.inbox_hint
    assert "wake" in kept.told
    assert ("stop" in kept.told) is (reason is not None)


def test_a_lost_fence_overrides_every_other_reason(kept: Kept) -> None:
    """Stopping becomes fenced; fenced stays so."""
    kept.store.changes = (change(signal=4, request=Request.STOP),)
    kept.renew()
    kept.store.changes = (change(fenced=True),)
    kept.renew()
    assert kept.incarnation.fenced
    kept.store.changes = (change(signal=9, request=Request.PAUSE, desired=Desired.PAUSED),)
    kept.renew()
    assert kept.incarnation.stopping_reason == "fenced"


@pytest.mark.parametrize("said", ["asked", "released", "completed", "nothing"])
def test_only_a_fence_that_nobody_here_gave_up_is_a_warning(
    kept: Kept, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An ordinary end is seen by a renewal in between: nothing is wrong then."""
    match said:
        case "asked":
            kept.incarnation.ask("stop")
        case "released":
            kept.incarnation.released = True
        case "completed":
            kept.incarnation.completion = Completion(None)
        case _:
            pass
    kept.store.changes = (change(fenced=True),)
    with caplog.at_level(logging.DEBUG):
        kept.renew()
    (record,) = [one for one in caplog.records if "is over" in one.message]
    assert record.levelno == (logging.WARNING if said == "nothing" else logging.DEBUG)
    assert kept.incarnation.fenced


def test_an_answer_about_an_older_incarnation_of_the_agent_is_not_taken_for_the_new_one(kept: Kept) -> None:
    """Both may be hosted here for a moment: they differ by their fence."""
    newer = incarnation(fence="9|other")
    kept.hosted.add(newer)
    kept.store.changes = (change(fenced=True),)

    kept.renew()

    assert kept.incarnation.fenced
    assert not newer.fenced


def test_an_outage_shorter_than_a_lease_is_not_noticed_by_agents(kept: Kept) -> None:
    """They may go on: the lease holds."""
    kept.store.is_away = True
    kept.clock.now += 3.9
    assert not kept.renew()
    assert not kept.incarnation.suspended


def test_an_outage_longer_than_a_lease_suspends_and_its_end_lets_them_go_on(kept: Kept) -> None:
    """Suspended is not fenced: only an answer of the store ends an incarnation."""
    kept.store.is_away = True
    kept.clock.now += 4.1
    kept.renew()
    assert kept.incarnation.suspended
    assert kept.incarnation.stopping_reason is None

    kept.store.is_away = False
    assert kept.renew()
    assert not kept.incarnation.suspended


def test_a_bug_in_a_renewal_does_not_end_the_keeper(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    """A dead keeper would look like a dead process: it is logged, and the next round works."""
    kept.store.renew = lambda _: 1 / 0  # type: ignore[method-assign, assignment, return-value]
    assert not kept.renew()
    assert "it goes on" in caplog.text


def test_nothing_hosted_costs_no_call(kept: Kept) -> None:
    """An idle process does not talk to Redis."""
    kept.hosted.remove(kept.incarnation)
    assert kept.renew()
    assert kept.store.renewed == []


def test_a_stop_that_came_before_anybody_listened_is_told_at_once() -> None:
    """Between the claim and the start of the body a stop may have been asked for."""
    early = incarnation()
    early.ask("stop")
    told: list[str] = []
    early.on_change(lambda: told.append("wake"), lambda: told.append("stop"))
    assert told == ["stop"]


def test_the_keeper_follows_its_settings(kept: Kept) -> None:
    """Heartbeat and lease may change while it runs."""
    assert kept.keeper._interval == 1
    kept.config = RuntimeConfig(heartbeat_interval="100ms", lease_ttl="250ms")
    assert kept.keeper._interval == 0.1
    kept.renew()
    kept.store.is_away = True
    kept.clock.now += 0.3
    kept.renew()
    assert kept.incarnation.suspended
