"""Redis' clock really steps, by ten minutes, under a fleet at work: nobody dies of it, and nothing comes late or early.

The server runs with a clock of its own (`tests/stepped_clock.py`), so TIME, TTLs and scripts step with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from ares_celery import AgentSpec
from tests.conftest import REDIS_BINARY, REQUIRE_REDIS
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.redis_server import NoRedisServerError, RedisServer
from tests.stepped_clock import NoCompilerError, SteppedClock
from tests.wait import assert_stays

pytestmark = [
    pytest.mark.integration,
    pytest.mark.fault,
    pytest.mark.timeout(120),
    pytest.mark.parametrize("minutes", [-10, 10], ids=["back", "forward"]),
]
#: Seconds in which a death is noticed and answered, on a busy machine.
SOON = 15.0


class Stepped(NamedTuple):
    """A fleet, and the clock of its server."""

    fleet: Fleet
    clock: SteppedClock

    def step(self, minutes: int) -> None:
        """Steps the clock and waits until the fleet has followed."""
        before = self.steps
        self.clock.step(timedelta(minutes=minutes))
        self.fleet.wait(lambda: self.steps == before + 1, "the step to be followed")

    @property
    def steps(self) -> int:
        """How many steps the fleet has followed."""
        return self.fleet.store.counters().get("clock_steps", 0)


@pytest.fixture
def make_stepped(namespace: str, tmp_path: Path) -> Iterator[Callable[..., Stepped]]:
    """Starts a fleet on a server with a clock of its own: `make_stepped(RESTORE_BACKOFF="4s")`."""
    closing: list[Callable[[], None]] = []

    def make(**settings: str) -> Stepped:
        try:
            clock = SteppedClock(tmp_path)
            server = RedisServer(binary=REDIS_BINARY, environment=clock.environment)
        except (NoCompilerError, NoRedisServerError) as error:
            if REQUIRE_REDIS:
                pytest.fail(str(error))
            pytest.skip(str(error))
        server.start()
        closing.append(server.close)
        fleet = Fleet(server, namespace, tmp_path, settings)
        closing.append(fleet.close)
        return Stepped(fleet, clock)

    yield make
    for close in reversed(closing):
        close()


def start_ticker(fleet: Fleet) -> str:
    """A ticker that has ticked."""
    fleet.manager.start_agent(AgentSpec(id="t", type="ticker"))
    fleet.until_ticks("t", 0, timeout=40)
    return "t"


def test_a_running_agent_does_not_notice_a_step_and_its_death_is_found_after_it(
    make_stepped: Callable[..., Stepped], minutes: int
) -> None:
    """Not restarted for more than a lease, ticking on; then its worker is killed, and it runs again in seconds.

    The step is counted once, whoever noticed it.
    """
    stepped = make_stepped()
    fleet = stepped.fleet
    doomed = fleet.worker("doomed", [AGENTS])
    agent_id = start_ticker(fleet)
    fleet.worker("standby")

    stepped.step(minutes)

    lease = fleet.config.lease_ttl.total_seconds()
    assert_stays(lambda: fleet.info(agent_id).incarnation == 1, "its incarnation", seconds=2 * lease, interval=0.1)
    fleet.until_ticks(agent_id, fleet.ticks(agent_id))
    assert fleet.events(agent_id, "failover.triggered") == []

    doomed.kill()

    fleet.until(agent_id, "running", incarnation=2, timeout=SOON)
    fleet.until_ticks(agent_id, fleet.ticks(agent_id))
    fleet.check_streams(agent_id)
    assert stepped.steps == 1
    assert "the clock of Redis stepped by" in doomed.log()


def test_an_agent_whose_process_is_frozen_when_the_clock_steps_is_found_by_its_lease(
    make_stepped: Callable[..., Stepped], minutes: int
) -> None:
    """Nobody renews a lease of the old time: it ends after a whole lease, not ten minutes late.

    The process that goes on later learns that it was fenced, and follows the step no second time.
    """
    stepped = make_stepped()
    fleet = stepped.fleet
    # It has known the old time when the clock steps.
    supervisor = fleet.worker("supervisor", [SUPERVISION, CONTROL])
    fleet.wait(lambda: "this worker sweeps from now on" in supervisor.log(), "the supervisor to sweep")
    frozen = fleet.worker("frozen", [AGENTS])
    agent_id = start_ticker(fleet)
    fleet.worker("spare", [AGENTS])

    frozen.freeze()
    stepped.step(minutes)

    fleet.until(agent_id, "running", incarnation=2, timeout=SOON)
    frozen.thaw()
    fleet.until_ticks(agent_id, fleet.ticks(agent_id))
    fleet.wait(lambda: "the clock of Redis stepped" in frozen.log(), "the thawed worker to notice")
    fleet.check_streams(agent_id)
    assert stepped.steps == 1
    assert fleet.info(agent_id).incarnation == 2


def test_a_pending_attempt_comes_when_it_would_have_come_without_the_step(
    make_stepped: Callable[..., Stepped], minutes: int
) -> None:
    """Neither at once nor ten minutes late, by a clock that did not step."""
    stepped = make_stepped(RESTORE_BACKOFF="6s")
    fleet = stepped.fleet
    fleet.worker("both")
    fleet.manager.start_agent(AgentSpec(id="s", type="short-lived", config={"lives": 0.3}))
    fleet.until("s", "resurrecting", incarnation=2, timeout=40)
    died = time.monotonic()

    stepped.step(minutes)

    fleet.until("s", "running", incarnation=3, timeout=30)
    waited = time.monotonic() - died
    delay = fleet.events("s", "failover.triggered")[1].payload["delay_ms"] / 1000
    assert delay - 1 < waited < delay + 4, f"{waited:.1f} s instead of {delay:.1f} s with {os.cpu_count()} cores"
