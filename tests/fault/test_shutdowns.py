"""Workers that are told to end: their agents release in order, nothing is charged, and they run again elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from ares_celery import AgentSpec
from ares_celery.ids import AgentId
from ares_celery.model.snapshot import Snapshot
from tests.fleet import AGENTS, Fleet, Process

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

#: Seconds until every agent runs again elsewhere, and until the worker has ended.
MOVED, ENDED = 10.0, 10.0


def start_tickers(fleet: Fleet, count: int) -> dict[str, int]:
    """Starts tickers, of both kinds in turn; returns their epochs."""
    for number in range(count):
        kind = "plain-ticker" if number % 2 else "ticker"
        spec = AgentSpec(id=f"t{number}", type=kind, config={"every": 0.1})
        fleet.manager.start_agent(spec)
    for number in range(count):
        fleet.until_ticks(f"t{number}", 1, timeout=40)
    return {f"t{number}": fleet.info(f"t{number}").epoch for number in range(count)}


def assert_moved_in_order(fleet: Fleet, agent_id: str, old_epoch: int) -> None:
    """Released with a snapshot of all that it had done, uncharged, and running again from there."""
    info = fleet.until(agent_id, "running", incarnation=2, timeout=MOVED)
    assert (info.incarnation, info.restarts, info.charged, info.worker) == (2, 0, 0, "standby@host")
    fleet.until_ticks(agent_id, fleet.ticks(agent_id))
    fleet.check_streams(agent_id)
    events = fleet.events(agent_id)
    (released,) = [event for event in events if event.type == "agent.stopped"]
    done = [event for event in events if event.type == "ticked" and event.epoch == old_epoch]
    assert done[-1].version < released.version
    assert released.payload["reason"] == "drain"
    assert not [event for event in events if event.type == "failover.triggered"]
    # The first snapshot of the new incarnation may come later than this look: the last one of the old is kept.
    kept = fleet.store.stored_snapshots(AgentId(agent_id))
    last = next(one for one in kept if isinstance(one, Snapshot) and one.epoch == old_epoch)
    assert last.state == {"total": len(done)}


def term_main(worker: Process) -> None:
    """As a container engine does."""
    worker.signal(signal.SIGTERM)


def term_group(worker: Process) -> None:
    """As a terminal or a shell does."""
    os.killpg(worker.pid, signal.SIGTERM)


def term_everybody(worker: Process) -> None:
    """As a service manager does with a whole control group; children first, which is the unluckier order."""
    for pid in (*worker.children(), worker.pid):
        os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("pool", "count", "term"),
    [
        ("threads", 20, term_main),
        ("prefork", 3, term_main),
        ("prefork", 3, term_group),
        ("prefork", 3, term_everybody),
    ],
)
def test_the_agents_of_a_worker_that_is_told_to_end_release_and_run_elsewhere(
    make_fleet: Callable[..., Fleet], pool: str, count: int, term: Callable[[Process], None]
) -> None:
    """SIGTERM: state equal to the fold, nothing charged, exit code 0, and every agent runs on another worker."""
    fleet = make_fleet(SNAPSHOTS_KEPT="50")
    ending = fleet.worker("ending", [AGENTS], pool=pool, slots=count + 1)
    epochs = start_tickers(fleet, count)
    fleet.worker("standby", slots=count + 1)

    term(ending)

    assert ending.popen.wait(ENDED) == 0, fleet.logs()
    for agent_id, epoch in epochs.items():
        assert_moved_in_order(fleet, agent_id, epoch)
