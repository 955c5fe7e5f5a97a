"""Messages that come twice, late or all at once: one incarnation, one resurrection, and the rest are no-ops."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, SUPERVISION, Fleet, Process
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(150)]

DELIVERIES = 5
VISIBILITY_TIMEOUT = 5
#: Seconds; several times the timeout, and kombu looks for what is to be delivered again every 10 s.
LIFE = 26


def noops(workers: list[Process], task_id: str) -> list[float]:
    """How long each delivery took that ended as a no-op."""
    ended = re.compile(rf"Task ares\.run_agent\[{task_id}\] succeeded in ([\d.]+)s: {{'noop': 'owned'}}")
    return [float(seconds) for worker in workers for seconds in ended.findall(worker.log())]


@pytest.mark.pain("P1")
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_message_delivered_again_and_again_while_its_agent_runs_starts_nothing(
    make_fleet: Callable[..., Fleet], tmp_path: Path, pool: str
) -> None:
    """Five times the same message, a visibility timeout of 5 s, three workers: one incarnation, logged no-ops."""
    fleet, journal = make_fleet(MAX_EVENT_BYTES="1MiB"), tmp_path / "journal"
    settings = {"OWN_SETTINGS": f'{{"broker_transport_options": {{"visibility_timeout": {VISIBILITY_TIMEOUT}}}}}'}
    app = "tests.fault.own_settings.app"
    workers = [fleet.start_worker(f"w{n}", pool=pool, slots=4, env=settings, app=app) for n in range(3)]
    fleet.ready(*workers)
    fleet.manager.start_agent(AgentSpec(id="a", type="ticker", config={"journal": str(journal)}), wait="running")
    record = fleet.record("a")
    assert record.owner is not None
    task_id = record.owner.task_id

    for _ in range(DELIVERIES):
        fleet.send("ares.run_agent", "a", record.epoch, queue=AGENTS, task_id=task_id)
    fleet.wait(lambda: len(noops(workers, task_id)) == DELIVERIES, "every delivery to end")
    assert_stays(lambda: fleet.record("a").epoch == record.epoch, "its epoch", seconds=LIFE, interval=0.2)
    fleet.send("ares.run_agent", "a", record.epoch, queue=AGENTS, task_id=task_id)
    fleet.wait(lambda: len(noops(workers, task_id)) == DELIVERIES + 1, "the last delivery to end")

    assert max(noops(workers, task_id)) < 1
    assert sum(worker.log().count("is a no-op (owned)") for worker in workers) == DELIVERIES + 1
    assert (fleet.info("a").incarnation, fleet.info("a").restarts) == (1, 0)
    assert set(Counter(journal.read_text().splitlines()).values()) == {1}
    assert {line.split()[1] for line in journal.read_text().splitlines()} == {"1"}
    fleet.check_streams("a")


@pytest.mark.spec(37, 38)
def test_ten_reports_of_one_death_at_once_resurrect_once(fleet: Fleet) -> None:
    """Reports from threads and from tasks, with and without an epoch, while a cap of 3 stands: one resurrection."""
    fleet.worker("worker")
    spec = AgentSpec(id="a", type="ticker", max_restarts=3)
    fleet.manager.start_agent(spec, wait="running")
    # A report without epoch means the incarnation now alive, if it is a second old.
    fleet.until_ticks("a", 30)
    epoch, together = fleet.info("a").epoch, threading.Barrier(10)

    def report(number: int) -> None:
        together.wait()
        known = epoch if number % 2 else None
        if number < 5:
            fleet.manager.notify_agent_dead("a", f"report {number}", epoch=known)
        else:
            fleet.send("ares.notify_agent_dead", "a", f"report {number}", known, queue=SUPERVISION)

    threads = [threading.Thread(target=report, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    fleet.until("a", "running", incarnation=2)
    assert_stays(lambda: fleet.info("a").restarts == 1, "one restart", seconds=2)
    info = fleet.info("a")
    assert (info.incarnation, info.restarts, info.charged) == (2, 1, 1)
    assert len(fleet.events("a", "failover.triggered")) == 1
    fleet.check_streams("a")
