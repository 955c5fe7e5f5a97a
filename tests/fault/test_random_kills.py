"""The sample agent of the documentation over a slow network, its processes killed at random times.

FAULT_KILLS and FAULT_SEED in the environment choose how often, and by which chance; `make faults` kills 200 times.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from ares_celery import AgentSpec, Event
from ares_celery.ids import AgentId
from ares_celery.model.snapshot import Snapshot
from ares_celery.runtime.exit_watcher import kill
from ares_celery.runtime.process_identity import ProcessIdentity
from tests.delay_proxy import DelayProxy
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(300)]

KILLS = int(os.environ.get("FAULT_KILLS", "80"))
SEED = int(os.environ.get("FAULT_SEED", "2"))
AGENT_COUNT = 8
STEP = 3
#: Longest time that an incarnation is left alone, in seconds: some die in recovery, some after several events.
LONGEST_LIFE = 0.45


@dataclass
class Question:
    """A message to an agent that may be killed before it answers."""

    agent_id: str
    stored_before: int
    answer: Future[Any]


@dataclass
class Counters:
    """The agents under test, and what was seen of their restored states."""

    fleet: Fleet
    ids: list[str]
    compared: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    def folded(self, agent_id: str, up_to: int = 0) -> int:
        """The fold of what is stored: the state that an agent must have after the event of this version."""
        return fold(self.fleet.events(agent_id, "counter.ticked"), up_to)

    def compare(self, agent_id: str) -> None:
        """Every kept snapshot equals the fold of the events that it covers, those of earlier incarnations included."""
        stored = self.fleet.store.stored_snapshots(AgentId(agent_id))
        events = self.fleet.events(agent_id, "counter.ticked")
        for snapshot in stored:
            assert isinstance(snapshot, Snapshot), snapshot
            assert snapshot.state == {"total": fold(events, snapshot.version)}, f"{agent_id}: {snapshot}"
            self.compared.add((agent_id, snapshot.epoch))

    def hosting_process(self, agent_id: str) -> ProcessIdentity:
        """Waits until a process holds the agent, whatever it does with it; returns which."""

        def hosted() -> bool:
            return self.fleet.record(agent_id).hosted

        self.fleet.wait(hosted, f"{agent_id} to be hosted", timeout=30)
        owner = self.fleet.record(agent_id).owner
        return ProcessIdentity.decode(owner.identity) if owner is not None else self.hosting_process(agent_id)


@pytest.fixture
def fleet_of_counters(make_fleet: Callable[..., Fleet]) -> Iterator[Counters]:
    """Counters in prefork children behind a slow network, restarted for ever and at once."""
    fleet = make_fleet(
        SNAPSHOT_INTERVAL="5ms",
        MAX_RESTARTS_PER_AGENT="0",
        RESTORE_ATTEMPTS="1000",
        RESTORE_BACKOFF="50ms",
        RESTORE_BACKOFF_MAX="50ms",
        LEASE_TTL="3s",
        HEARTBEAT_INTERVAL="500ms",
    )
    with DelayProxy(fleet.redis.port, round_trip=0.02) as proxy:
        queues = [AGENTS, SUPERVISION, CONTROL]
        fleet.worker("far", queues, pool="prefork", slots=AGENT_COUNT + 2, env={"ARES_REDIS_URL": proxy.url})
        ids = [f"c{number}" for number in range(AGENT_COUNT)]
        for agent_id in ids:
            fleet.manager.start_agent(AgentSpec(id=agent_id, type="counter", config={"step": STEP}))
        for agent_id in ids:
            fleet.until(agent_id, "running")
        yield Counters(fleet, ids)
        fleet.close()


def fold(events: list[Event], up_to: int) -> int:
    """What Counter.apply makes of the events up to a version; 0: of all."""
    return sum(event.payload["by"] for event in events if not up_to or event.version <= up_to)


def kill_one(counters: Counters, chance: random.Random, born: dict[str, float]) -> str | None:
    """Kills the process of a random agent when that agent has lived for a random time; None: it was gone already."""
    agent_id = chance.choice(counters.ids)
    process = counters.hosting_process(agent_id)
    left = born.get(agent_id, 0.0) + chance.uniform(0, LONGEST_LIFE) - time.monotonic()
    assert_stays(lambda: True, "waiting", seconds=max(left, 0.0), interval=0.002)
    if not kill(process):
        return None
    born[agent_id] = time.monotonic()
    return agent_id


@pytest.mark.pain("P12")
@pytest.mark.spec(79, 92)
def test_the_restored_state_is_the_fold_of_what_was_acknowledged_whenever_the_process_is_killed(
    fleet_of_counters: Counters,
) -> None:
    """SIGKILL at random times, 20 ms away from Redis, snapshots at every pause: state, events and inbox survive."""
    counters, chance, born = fleet_of_counters, random.Random(SEED), dict[str, float]()
    questions: list[Question] = []
    with ThreadPoolExecutor(4) as pool:
        killed = 0
        while killed < KILLS:
            asked = chance.choice(counters.ids)
            if killed % 8 == 0:
                before = counters.folded(asked)
                ask = pool.submit(counters.fleet.manager.process, asked, {"ask": "total"}, timeout=60)
                questions.append(Question(asked, before, ask))
            agent_id = kill_one(counters, chance, born)
            if agent_id is not None:
                killed += 1
                counters.compare(agent_id)
        for question in questions:
            total = question.answer.result(timeout=90)["total"]
            # One event may be stored and not applied yet while the agent answers.
            assert question.stored_before - STEP <= total <= counters.folded(question.agent_id)
    for agent_id in counters.ids:
        counters.fleet.until(agent_id, "running", timeout=30)
        counters.fleet.manager.stop_agent(agent_id, timeout=20)
        counters.compare(agent_id)
        counters.fleet.check_streams(agent_id)
        final = counters.fleet.manager.snapshots.load(agent_id)
        assert final == {"total": counters.folded(agent_id)}
    assert sum(counters.fleet.record(agent_id).restarts for agent_id in counters.ids) >= KILLS / 2
    assert len(counters.compared) >= KILLS / 2, "most restored states were seen"
