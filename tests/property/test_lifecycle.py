"""The lifecycle against everything that can happen, and the proof that the machine would notice a weaker one."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import Phase

from ares_celery.errors import FencedError
from ares_celery.ids import Epoch, Instant
from ares_celery.model import rules_asked, rules_found, rules_said, rules_waits, transitions
from ares_celery.model.agent import AgentRecord, RestartType, RuntimeState
from ares_celery.model.command import Command
from ares_celery.model.restart import LifecyclePolicy
from tests.property import lifecycle_machine
from tests.property.lifecycle_store import LifecycleStore, default_policy
from tests.property.lifecycle_world import FATE, OPERATORS, SUPERVISION, WORKERS, World


@pytest.mark.timeout(120)
def test_no_order_of_events_breaks_the_lifecycle() -> None:
    """One owner, rising epochs, no overlap, closed failovers, kept caps, wishes that come true."""
    lifecycle_machine.run(max_examples=200, stateful_step_count=50)


def _anybody_speaks(record: AgentRecord, command: Command) -> None:
    """A fence check that checks nothing."""


def _any_token_speaks(record: AgentRecord, command: Command) -> None:
    """A fence check that looks at nothing but whether there is a fence."""
    if not record.fence:
        raise FencedError(agent_id=record.spec.id, epoch="")


def _epoch_stays(record: AgentRecord | None, now: Instant) -> Epoch:
    """A verdict that raises nothing."""
    return record.epoch if record else Epoch(now)


def _never_waits(*_args: object) -> Instant:
    """A forced end that takes the old incarnation for gone."""
    return Instant(0)


def _never_over(*_args: object) -> bool:
    """A wait that does not look whether somebody has decided meanwhile."""
    return False


def _accepts_all(self: LifecycleStore, agent_id: str, fence: str) -> bool:
    """A store that writes for whoever comes."""
    return agent_id in self.records and bool(fence)


def _nothing_is_unknown(record: AgentRecord) -> None:
    """An agent may run again whatever became of its steps."""


MOVES = [*WORKERS, *FATE, *SUPERVISION, *OPERATORS, *OPERATORS]


def walk(seed: int, steps: int) -> None:
    """A random walk: longer than the stories Hypothesis tells, and the same for the same seed."""
    chance = random.Random(seed)
    world = World()
    world.begin({agent_id: _policy(chance) for agent_id in ("a", "b")}, RuntimeState.RUNNING)
    for _ in range(steps):
        chance.choice(MOVES)(world, chance.randrange(100), chance.randrange(100))
        world.check()
    world.calm_down()


def _policy(chance: random.Random) -> LifecyclePolicy:
    return replace(
        default_policy(),
        restart=chance.choice(list(RestartType)),
        max_restarts=chance.randrange(4),
        restart_period=chance.choice([None, timedelta(seconds=20)]),
        restore_attempts=chance.randint(1, 3),
    )


@pytest.mark.spec(34)
@pytest.mark.spec(54)
@pytest.mark.parametrize("seed", range(20))
def test_in_200_random_operations_every_change_of_state_is_one_that_the_table_allows(seed: int) -> None:
    """The store of these walks audits every commit: one state of one enum, and each failover is closed exactly once."""
    walk(seed, 200)


#: What is weakened, where, by what.
WEAKENINGS: dict[str, tuple[list[object], str, Callable[..., object]]] = {
    "no fence check": ([rules_said], "_demand_fence", _anybody_speaks),
    "any token": ([rules_said], "_demand_fence", _any_token_speaks),
    "no rise of the epoch": ([rules_asked, transitions], "next_epoch", _epoch_stays),
    "no wait for the lease": ([rules_asked, rules_found], "lease_end", _never_waits),
    "no look for decisions": ([rules_waits], "_is_over", _never_over),
    "no look at unknown outcomes": ([rules_said, rules_found, rules_waits], "demand_settled", _nothing_is_unknown),
    "writes without a fence": ([LifecycleStore], "accepts", _accepts_all),
}


def weaken(monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """Weaken the lifecycle for one test."""
    owners, name, weaker = WEAKENINGS[which]
    for owner in owners:
        monkeypatch.setattr(owner, name, weaker)


@pytest.mark.parametrize("which", WEAKENINGS)
def test_random_walks_find_a_weakened_lifecycle(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A property test that cannot fail proves nothing; the walks are the same every time."""
    weaken(monkeypatch, which)
    with pytest.raises(AssertionError):  # noqa: PT012 - one of them finds it
        for seed in range(100):
            walk(seed, 200)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("which", ["no fence check", "no rise of the epoch"])
def test_the_machine_finds_a_weakened_lifecycle(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis finds the two that matter most as well, before it shrinks anything."""
    weaken(monkeypatch, which)
    with pytest.raises(AssertionError):
        lifecycle_machine.run(
            max_examples=1000,
            stateful_step_count=50,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
        )
