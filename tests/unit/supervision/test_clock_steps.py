"""A step of Redis' clock is followed once, whoever noticed it and however often a call failed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from ares_celery.config import RuntimeConfig
from ares_celery.model.command import Deadline
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.supervision.sweep_thread import SweepThread
from tests.unit.supervision.fakes import FakeCommitter, FakeStore, ManualClock, deadline

TEN_MINUTES = 600_000_000


class World:
    """A namespace with as many sweepers as a test asks for."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FakeStore(self.clock)
        self.committer = FakeCommitter(self.store)

    def sweeper(self, number: int = 1) -> SweepThread:
        """A sweeper that has spoken with the store."""
        store, committer = cast("Any", self.store), cast("Any", self.committer)
        identity = ProcessIdentity("here", "boot", 1, number, 100)
        thread = SweepThread(store, committer, RuntimeConfig(), identity, clock=self.clock)
        thread.turn()
        return thread

    def turn(self, *sweepers: SweepThread) -> None:
        """A quarter of a second later, everybody's turn."""
        self.clock.advance(0.25)
        for sweeper in sweepers:
            sweeper.turn()

    @property
    def followed(self) -> tuple[int, int]:
        """How many steps, and their sum."""
        return self.store.clock_generation, round(self.store.clock_offset / 1_000_000)


@pytest.fixture
def world() -> World:
    """A world where time passes when the test says so."""
    return World()


@pytest.mark.parametrize("step", [-TEN_MINUTES, TEN_MINUTES])
def test_one_step_noticed_by_several_is_followed_once(
    world: World, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The log of each says by how much, and which way."""
    sweepers = [world.sweeper(number) for number in (1, 2, 3)]
    world.clock.stepped += step
    world.turn(*sweepers)
    world.turn(*sweepers)
    assert world.followed == (1, step // 1_000_000)
    assert caplog.text.count(f"stepped by {step / 1_000_000:+.3f} s; all deadlines were moved") == 1
    assert caplog.text.count("another worker moved all deadlines") == 2


def test_nothing_that_only_the_step_made_due_is_applied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep that sees the step ends at once: a stop, an attempt, a hang must not come early."""
    sweeper = world.sweeper()
    real_due = world.store.due

    def due(*, limit: int = 100) -> Any:
        """The clock steps between the look and the sweep."""
        world.clock.stepped = TEN_MINUTES
        return real_due(limit=limit)

    monkeypatch.setattr(world.store, "due", due)
    world.store.waiting = [deadline(Deadline.STOP, "a")]
    world.turn(sweeper)
    assert world.committer.applied == []
    assert world.followed == (0, 0)
    world.turn(sweeper)
    assert world.followed == (1, 600)
    assert world.committer.due() == [("a", Deadline.STOP, 1)]


def test_a_step_whose_call_failed_is_followed_by_the_next_turn(world: World) -> None:
    """Also after an outage: what was noticed is not forgotten."""
    sweeper = world.sweeper()
    world.clock.stepped -= TEN_MINUTES
    world.store.rebase_fails = 1
    world.turn(sweeper)
    assert world.followed == (0, 0)
    world.store.away = True
    world.turn(sweeper)
    world.store.away = False
    world.turn(sweeper)
    world.turn(sweeper)
    assert world.followed == (1, -600)


def test_a_failed_call_is_not_repeated_for_a_step_that_another_followed(world: World) -> None:
    """The generation says that it was this very step."""
    failing, other = world.sweeper(1), world.sweeper(2)
    world.clock.stepped += TEN_MINUTES
    world.store.rebase_fails = 1
    world.turn(failing, other)
    world.turn(failing, other)
    assert world.followed == (1, 600)


def test_a_sweeper_that_comes_after_the_step_adds_nothing(world: World) -> None:
    """It never knew the other clock; and it follows the next step."""
    first = world.sweeper(1)
    world.clock.stepped += TEN_MINUTES
    world.turn(first)
    late = world.sweeper(2)
    world.turn(first, late)
    assert world.followed == (1, 600)
    world.clock.stepped -= TEN_MINUTES
    world.turn(late, first)
    assert world.followed == (2, 0)


def test_a_sweeper_that_was_frozen_through_the_step_adds_nothing(world: World) -> None:
    """It sees the step when it goes on, under the number that others have followed already."""
    frozen, other = world.sweeper(1), world.sweeper(2)
    world.clock.stepped -= TEN_MINUTES
    for _ in range(40):
        world.turn(other)
    world.turn(frozen, other)
    assert world.followed == (1, -600)
    world.clock.stepped += TEN_MINUTES
    world.turn(frozen, other)
    world.turn(frozen, other)
    assert world.followed == (2, 0)


def test_a_second_step_shortly_after_is_another_one(world: World) -> None:
    """Each sweeper asks for each of them, and both are followed once."""
    sweepers = [world.sweeper(number) for number in (1, 2)]
    for step in (TEN_MINUTES, 30_000_000, -TEN_MINUTES):
        world.clock.stepped += step
        world.turn(*sweepers)
    world.turn(*sweepers)
    assert world.followed == (3, 30)


def test_a_suspended_machine_takes_no_clock_for_stepped_while_others_sweep(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The store knows better; the next real step is followed."""
    sweeper = world.sweeper()
    world.store.unproven = True
    world.clock.stepped += TEN_MINUTES
    world.turn(sweeper)
    assert world.followed == (0, 0)
    assert "no deadline was moved" in caplog.text
    world.store.unproven = False
    world.turn(sweeper)
    world.clock.stepped -= 5_000_000
    world.turn(sweeper)
    assert world.followed == (1, -5)


def test_shards_that_another_left_behind_are_brought_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees a new generation asks for it once: the one who noticed may have died in the middle."""
    asked: list[int] = []
    rebase = world.store.rebase

    def noting(stand: Any) -> Any:
        asked.append(stand.generation)
        return rebase(stand)

    monkeypatch.setattr(world.store, "rebase", noting)
    sweeper = world.sweeper()
    world.store.clock_generation, world.store.clock_offset = 1, TEN_MINUTES
    world.turn(sweeper)
    world.turn(sweeper)
    assert asked == [0, 1]
