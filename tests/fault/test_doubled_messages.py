"""Messages that come twice, late or all at once: one incarnation, one resurrection, and the rest are no-ops.

FAULT_VISIBILITY in the environment is the visibility timeout of the broker in seconds; `make faults` takes 5.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet, Process
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

APP = "tests.fault.own_settings.app"
ALL = (AGENTS, SUPERVISION, CONTROL)
DELIVERIES = 5
VISIBILITY_TIMEOUT = int(os.environ.get("FAULT_VISIBILITY", "2"))
#: Redis gives out again what was not acknowledged in time; kombu's own pace, every 100 s, would hide it from a test.
OPTIONS = {"visibility_timeout": VISIBILITY_TIMEOUT, "unacked_restore_interval": 1, "unacked_restore_throttle": 1}
#: Seconds that the agents go on after the deliveries: twelve times the timeout.
LIFE = 12 * VISIBILITY_TIMEOUT


def noops(workers: list[Process], task_id: str) -> list[float]:
    """How long each delivery took that ended as a no-op."""
    ended = re.compile(rf"Task ares\.run_agent\[{task_id}\] succeeded in ([\d.]+)s: {{'noop': 'owned'}}")
    return [float(seconds) for worker in workers for seconds in ended.findall(worker.log())]


def wait_for_noops(fleet: Fleet, workers: list[Process], task_id: str) -> None:
    """Waits until every further delivery of a message has ended."""
    fleet.wait(lambda: len(noops(workers, task_id)) == DELIVERIES, "every delivery to end")


@pytest.mark.pain("P1")
def test_a_message_delivered_again_and_again_while_its_agent_runs_starts_nothing(fleet: Fleet, tmp_path: Path) -> None:
    """Five times the same message, twelve visibility timeouts, three workers: one incarnation, logged no-ops."""
    env = {"OWN_SETTINGS": json.dumps({"broker_transport_options": OPTIONS})}
    workers = [
        fleet.start_worker(pool, [*ALL, pool], pool=pool.rstrip("12"), slots=5, env=env, app=APP)
        for pool in ("threads1", "threads2", "prefork")
    ]
    fleet.ready(*workers)
    journal, tasks = tmp_path / "journal", dict[str, str]()
    for agent_id, queue in (("a", "threads1"), ("b", "prefork")):
        spec = AgentSpec(id=agent_id, type="ticker", config={"journal": str(journal)}, queue=queue)
        fleet.manager.start_agent(spec, wait="running")
    # What makes the timeout known to bite: a task of the common kind, acknowledged late.
    late = fleet.send("tests.nap", VISIBILITY_TIMEOUT * 2, queue=AGENTS)
    for agent_id in ("a", "b"):
        owner, epoch = fleet.record(agent_id).owner, fleet.record(agent_id).epoch
        assert owner is not None
        tasks[agent_id] = owner.task_id
        for _ in range(DELIVERIES):
            fleet.send("ares.run_agent", agent_id, epoch, queue=AGENTS, task_id=owner.task_id)
    for task_id in tasks.values():
        wait_for_noops(fleet, workers, task_id)

    assert_stays(lambda: both_in_their_first_incarnation(fleet), "one incarnation", seconds=LIFE, interval=0.2)

    assert sum(worker.log().count(f"Task tests.nap[{late}] received") for worker in workers) > 1
    for agent_id, task_id in tasks.items():
        assert len(noops(workers, task_id)) == DELIVERIES, "and no delivery more"
        assert max(noops(workers, task_id)) < 1
        no_op = f"agent {agent_id}: message of epoch {fleet.info(agent_id).epoch} is a no-op (owned)"
        assert sum(worker.log().count(no_op) for worker in workers) == DELIVERIES
        fleet.check_streams(agent_id)
    done = Counter(tuple(line.split()[:3]) for line in journal.read_text().splitlines())
    assert set(done.values()) == {1}, "each tick took effect once"
    assert {incarnation for _, incarnation, _ in done} == {"1"}


def both_in_their_first_incarnation(fleet: Fleet) -> bool:
    """Neither was restarted, nor claimed a second time."""
    infos = [fleet.info(agent_id) for agent_id in ("a", "b")]
    return all((info.state, info.incarnation, info.restarts) == ("running", 1, 0) for info in infos)


@pytest.mark.spec(37, 38)
def test_ten_reports_of_one_death_at_once_resurrect_once(fleet: Fleet) -> None:
    """Reports from threads and from tasks, with and without an epoch, while a cap of 3 stands: one resurrection."""
    fleet.worker("worker")
    spec = AgentSpec(id="a", type="ticker", max_restarts=3)
    fleet.manager.start_agent(spec, wait="running")
    # A report without epoch means the incarnation now alive, if it is a second old.
    fleet.until_ticks("a", 30)
    epoch, together = fleet.info("a").epoch, threading.Barrier(10)

    def report(number: int) -> str | None:
        together.wait()
        known = epoch if number % 2 else None
        if number >= 5:
            return fleet.send("ares.notify_agent_dead", "a", f"report {number}", known, queue=SUPERVISION)
        fleet.manager.notify_agent_dead("a", f"report {number}", epoch=known)
        return None

    with ThreadPoolExecutor(10) as pool:
        sent = [task for task in pool.map(report, range(10)) if task is not None]
    assert [fleet.result(task) for task in sent] == [None] * 5

    fleet.until("a", "running", incarnation=2)
    assert_stays(lambda: fleet.info("a").restarts == 1, "one restart", seconds=2)
    info = fleet.info("a")
    assert (info.incarnation, info.restarts, info.charged) == (2, 1, 1)
    assert len(fleet.events("a", "failover.triggered")) == 1
    fleet.check_streams("a")
