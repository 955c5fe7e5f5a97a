"""Agents that wait for people and for moments, over deploys and restarts of Redis: each goes on in time, once.

The server runs with a clock of its own (`tests/stepped_clock.py`), so that agents wait for hours, and a slow machine is
not too late for them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentSpec, InterruptInfo, InterruptResolvedError, Manager
from ares_celery.clock import to_datetime
from tests.conftest import REDIS_BINARY, REQUIRE_REDIS
from tests.fleet import Fleet, Process
from tests.redis_server import NoRedisServerError, RedisServer
from tests.stepped_clock import NoCompilerError, SteppedClock
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]

HOUR = timedelta(hours=1)
#: How long an agent may take to go on behind a decision, and behind its moment.
AFTER_A_WORD = timedelta(seconds=5)
AFTER_A_MOMENT = timedelta(seconds=1)
#: … once Redis is there again.
AFTER_AN_OUTAGE = timedelta(seconds=10)
COLOURS = ("", "plain-")


@dataclass(frozen=True)
class Waiter:
    """An agent that waits."""

    world: World
    id: str
    releases: bool

    @property
    def journal(self) -> Path:
        """Where its steps leave their effects."""
        return self.world.folder / f"{self.id}.journal"

    @property
    def effects(self) -> list[str]:
        """What its steps have done, in order."""
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    def waits(self) -> bool:
        """It has come to its wait; without its slot it is nobody's."""
        info, record = self.world.fleet.info(self.id), self.world.fleet.record(self.id)
        if self.releases:
            return info.state == "waiting" and (info.worker, record.owner) == (None, None)
        asks = not self.id.startswith("ask") or len(self.world.fleet.manager.interrupts(self.id)) == 1
        return info.state == "running" and self.effects == ["before"] and record.owner is not None and asks

    def went_on(self) -> datetime:
        """When its second step was recorded, by the clock of Redis; it has completed."""
        self.world.fleet.until(self.id, "completed", timeout=30)
        (event,) = [one for one in self.world.fleet.events(self.id, "step.completed") if one.payload["step"] == "after"]
        return event.time

    def check(self, *effects: str, deploys: int) -> None:
        """Each effect once, each event once, and nothing of it counts as a failure."""
        fleet, info = self.world.fleet, self.world.fleet.info(self.id)
        assert self.effects == list(effects)
        assert (info.restarts, info.charged, info.deaths) == (0, 0, {}), info
        # Without its slot it slept through all of them.
        assert info.incarnation == (2 if self.releases else 1 + deploys), info
        kinds = [event.type for event in fleet.events(self.id)]
        questions = int(self.id.startswith("ask"))
        assert (kinds.count("interrupt.created"), kinds.count("interrupt.resolved")) == (questions, questions)
        assert kinds.count("step.completed") == 2 + questions
        fleet.check_streams(self.id)


class World:
    """A fleet with agents that wait."""

    def __init__(self, fleet: Fleet, clock: SteppedClock, folder: Path) -> None:
        self.fleet, self.clock, self.folder = fleet, clock, folder
        self.deploys = 0

    @property
    def now(self) -> datetime:
        """By the clock of Redis."""
        return to_datetime(self.fleet.store.server_time())

    def start(self, kind: str, name: str, **config: Any) -> list[Waiter]:
        """Four of them: async and plain, with and without their slot."""
        made: list[Waiter] = []
        for colour in COLOURS:
            for releases in (False, True):
                waiter = Waiter(self, f"{name}-{colour}{'waiting' if releases else 'hosted'}", releases)
                given = {"journal": str(waiter.journal), "release_slot": releases, **config}
                self.fleet.manager.start_agent(AgentSpec(id=waiter.id, type=colour + kind, config=given))
                made.append(waiter)
        return made

    def worker(self) -> Process:
        """The worker that comes with the next deploy; it is not waited for."""
        self.deploys += 1
        env = {"ARES_AGENT_MODULES": "tests.wait_agents"}
        # One slot is for those that come and give it back.
        return self.fleet.start_worker(f"worker-{self.deploys}", slots=HOSTED + 1, env=env)

    def until_all_wait(self, *waiters: Waiter) -> None:
        """Waits until all have come to their waits (again)."""
        for waiter in waiters:
            self.fleet.wait(waiter.waits, f"{waiter.id} to wait")


#: Half of the agents that wait at once.
HOSTED = 8


@pytest.fixture
def world(namespace: str, tmp_path: Path) -> Iterator[World]:
    """A server with an append-only file and a clock of its own; no worker yet."""
    try:
        clock = SteppedClock(tmp_path)
        server = RedisServer(appendonly=True, binary=REDIS_BINARY, environment=clock.environment)
    except (NoCompilerError, NoRedisServerError) as error:
        if REQUIRE_REDIS:
            pytest.fail(str(error))
        pytest.skip(str(error))
    with server, Fleet(server, namespace, tmp_path) as fleet:
        yield World(fleet, clock, tmp_path)


def two_people(world: World, waiter: Waiter) -> InterruptInfo:
    """Ann and Bob decide at the same moment: one wins, the other is told who was first, what was said and when."""
    at_once = threading.Barrier(2)

    def decide(actor: str, decision: str) -> InterruptInfo | InterruptResolvedError:
        with Manager(world.fleet.config, redis_url=world.fleet.redis.url, namespace=world.fleet.namespace) as manager:
            manager.interrupts(waiter.id)
            at_once.wait(10)
            try:
                return manager.approve(waiter.id, "deploy", decision, actor=actor)
            except InterruptResolvedError as error:
                return error

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(decide, ("ann", "bob"), ("yes", "no")))
    (won,) = [one for one in said if isinstance(one, InterruptInfo)]
    (late,) = [one for one in said if isinstance(one, InterruptResolvedError)]
    assert (won.actor, won.decision) in {("ann", "yes"), ("bob", "no")}
    assert (late.actor, late.decision, late.state) == (won.actor, won.decision, "resolved")
    assert won.decided_at is not None
    assert datetime.fromisoformat(str(late.decided_at)) == won.decided_at
    return won


@pytest.mark.pain("P39")
def test_those_who_wait_go_on_in_time_and_once_over_deploys_and_a_restart_of_redis(world: World) -> None:
    """Two deploys, with a restart of Redis in between: nobody is hosted who gave its slot back, nobody counts as dead.

    Some are decided about while there is no worker, some while there is one; of two people the first is heard. Some
    moments come while Redis is away.
    """
    fleet = world.fleet
    first = world.worker()
    fleet.ready(first)
    unheard = world.start("asker", "ask-down")
    heard = world.start("asker", "ask-up")
    moment = world.now + HOUR
    due = world.start("sleeper", "sleep-half", until=(moment - HOUR / 2).isoformat())
    asleep = world.start("sleeper", "sleep", until=moment.isoformat())
    everybody = [*unheard, *heard, *asleep]
    world.until_all_wait(*everybody, *due)

    second = world.worker()
    assert first.terminate() == 0
    fleet.ready(second)
    world.until_all_wait(*everybody, *due)

    fleet.redis.stop()
    world.clock.step(HOUR / 2)
    fleet.redis.start()
    back = world.now
    for waiter in due:
        assert waiter.went_on() - back <= AFTER_AN_OUTAGE
        waiter.check("before", "after", deploys=1)
    world.until_all_wait(*everybody)
    assert fleet.manager.stats().active_agents == len(everybody) / 2

    assert second.terminate() == 0
    words = {waiter.id: two_people(world, waiter) for waiter in unheard}
    assert_stays(lambda: all(len(waiter.effects) == 1 for waiter in everybody), "nobody to go on", seconds=0.3)
    third = world.worker()
    fleet.ready(third)
    ready = world.now
    for waiter in unheard:
        assert waiter.went_on() - ready <= AFTER_A_WORD
        waiter.check("before", f"after {words[waiter.id].decision}", deploys=2)

    world.until_all_wait(*heard, *asleep)
    for waiter in heard:
        word = two_people(world, waiter)
        assert word.decided_at is not None
        assert waiter.went_on() - word.decided_at <= AFTER_A_WORD
        waiter.check("before", f"after {word.decision}", deploys=2)

    world.clock.step(moment - world.now - timedelta(seconds=2))
    for waiter in asleep:
        assert timedelta(0) <= waiter.went_on() - moment <= AFTER_A_MOMENT
        waiter.check("before", "after", deploys=2)
