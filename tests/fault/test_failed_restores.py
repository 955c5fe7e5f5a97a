"""Agents that cannot come back, or not for long: tried at the right times, then given up for a person to look at."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, Fleet, Process

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

#: Seconds that an attempt may be early or late.
TOLERANCE = 0.5
#: Waits before the attempts of a failover, in seconds, with a backoff of 1 s.
WAITS = (0, 1, 2, 4)


class Attempt(NamedTuple):
    """One try to make the agent: when, by the machine's monotonic clock, and in which process."""

    at: float
    pid: int


def attempts(journal: Path) -> list[Attempt]:
    """The tries so far, without the first start."""
    lines = [line.split() for line in journal.read_text().splitlines()[1:]]
    return [Attempt(float(at), int(pid)) for at, pid in lines]


def start_doomed(fleet: Fleet, journal: Path, flag: Path) -> None:
    """Starts an agent that will not come back once it has died."""
    config = {"flag": str(flag), "journal": str(journal)}
    spec = AgentSpec(id="a", type="unrestorable", config=config, restore_attempts=len(WAITS))
    fleet.manager.start_agent(spec, wait="running")
    flag.touch()


def wait_for_failed_attempt(fleet: Fleet, journal: Path, number: int) -> None:
    """Waits until so many attempts were made, and the last one is over."""
    fleet.wait(lambda: len(attempts(journal)) == number, f"attempt {number}")
    fleet.wait(lambda: not fleet.record("a").hosted, "the attempt to have failed")


def assert_shows_retry(fleet: Fleet, task_id: str) -> None:
    """Celery says of the message that it will come again; soon, as the next attempt is a second away."""
    shown = fleet.app.AsyncResult(task_id)
    fleet.wait(lambda: shown.state == "RETRY", "the task to show RETRY", timeout=0.8)


def assert_on_time(tried: list[Attempt]) -> None:
    """Each attempt followed the one before after its wait."""
    waits = [later.at - earlier.at for earlier, later in pairwise(tried)]
    assert waits == pytest.approx(WAITS[1:], abs=TOLERANCE)


def assert_given_up(fleet: Fleet) -> None:
    """Parked, with one event that says so, and the failover closed."""
    info = fleet.until("a", "parked")
    assert (info.cause, info.restarts) == ("attempts", 1)
    types = [event.type for event in fleet.events("a")]
    assert types[-2:] == ["failover.failed", "agent.exhausted"]
    assert types.count("agent.exhausted") == 1
    fleet.check_streams("a")


def test_a_restore_that_always_fails_is_tried_at_its_times_then_parked(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """Four attempts after 0, 1, 2 and 4 s; in between Celery shows RETRY; then parked, and no attempt more."""
    fleet, journal, flag = make_fleet(RESTORE_BACKOFF="1s"), tmp_path / "journal", tmp_path / "flag"
    fleet.worker("worker", slots=3)
    start_doomed(fleet, journal, flag)
    fleet.manager.notify_agent_dead("a", "to see it fail to come back", epoch=fleet.info("a").epoch)
    for number in range(1, len(WAITS)):
        wait_for_failed_attempt(fleet, journal, number)
        record = fleet.record("a")
        assert record.retries == number
        assert_shows_retry(fleet, record.task_id)

    assert_given_up(fleet)
    died = fleet.events("a", "failover.triggered")[0].time
    assert len(attempts(journal)) == len(WAITS)
    assert_on_time(attempts(journal))
    assert seconds_between(died, fleet.events("a", "failover.failed")[0].time) == pytest.approx(sum(WAITS), abs=1.0)


@pytest.mark.pain("P31")
def test_the_next_attempt_is_on_time_although_the_worker_of_the_last_one_is_killed(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """After each attempt but the last the worker that made it is killed: the next comes on time, once, elsewhere."""
    fleet, journal, flag = make_fleet(RESTORE_BACKOFF="1s"), tmp_path / "journal", tmp_path / "flag"
    workers = [fleet.start_worker(f"w{number}", slots=3) for number in range(len(WAITS))]
    fleet.ready(*workers)
    start_doomed(fleet, journal, flag)
    fleet.manager.notify_agent_dead("a", "to see it fail to come back", epoch=fleet.info("a").epoch)
    for number in range(1, len(WAITS)):
        wait_for_failed_attempt(fleet, journal, number)
        worker_of(workers, attempts(journal)[-1].pid).kill()

    assert_given_up(fleet)
    tried = attempts(journal)
    assert len({attempt.pid for attempt in tried}) == len(WAITS), "each attempt in another worker"
    assert_on_time(tried)


def worker_of(workers: list[Process], pid: int) -> Process:
    """The worker with this process id."""
    return next(worker for worker in workers if worker.pid == pid)


def test_an_agent_that_dies_after_each_start_is_parked_at_the_death_beyond_the_cap(
    make_fleet: Callable[..., Fleet],
) -> None:
    """Lives 2 s each time, cap 3: it comes back after 0, 1 and 2 s, and the fourth death parks it, said once."""
    fleet = make_fleet(RESTORE_BACKOFF="1s", STABLE_AFTER="10s")
    fleet.worker("worker", [AGENTS, "supervision"], pool="prefork", slots=2)
    spec = AgentSpec(id="s", type="short-lived", config={"lives": 2.0}, max_restarts=3)
    fleet.manager.start_agent(spec)

    info = fleet.until("s", "parked", timeout=40)

    assert (info.cause, info.restarts, info.charged, info.incarnation) == ("cap", 3, 3, 4)
    events = fleet.events("s")
    died = [event.time for event in events if event.type == "agent.stopped"]
    back = [event.time for event in events if event.type == "failover.completed"]
    waits = [seconds_between(*pair) for pair in zip(died, back, strict=False)]
    assert waits == pytest.approx([0, 1, 2], abs=TOLERANCE)
    lives = [seconds_between(*pair) for pair in zip(back, died[1:], strict=True)]
    assert lives == pytest.approx([2, 2, 2], abs=TOLERANCE)
    assert [event.type for event in events].count("agent.exhausted") == 1
    fleet.check_streams("s")


def seconds_between(earlier: datetime, later: datetime) -> float:
    """By the clock of Redis."""
    return (later - earlier).total_seconds()
