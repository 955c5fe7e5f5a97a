"""Stops that come at bad moments: what an operator stopped stays stopped, what was started again runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

#: Seconds within which a stop must have taken effect.
OBEYED = 5.0


def lines(journal: Path) -> list[str]:
    """What agents wrote so far."""
    return journal.read_text().splitlines() if journal.exists() else []


def assert_nothing_lives(journal: Path) -> None:
    """Nobody writes any more: no instance of the agent lives anywhere."""
    before = len(lines(journal))
    assert_stays(lambda: len(lines(journal)) == before, "silence", seconds=1.5)


@pytest.mark.pain("P17")
def test_what_was_stopped_while_no_worker_lived_does_not_run_when_workers_come(fleet: Fleet, tmp_path: Path) -> None:
    """Stopped without any worker: neither the agent that ran before, nor the one whose message still waits."""
    journal = tmp_path / "journal"
    first = fleet.worker("first")
    spec = {"type": "ticker", "config": {"journal": str(journal)}}
    fleet.manager.start_agent(AgentSpec.model_validate({"id": "ran", **spec}), wait="running")
    fleet.until_ticks("ran", 2)
    first.kill()
    fleet.manager.start_agent(AgentSpec.model_validate({"id": "waits", **spec}))

    for agent_id in ("ran", "waits"):
        fleet.manager.stop_agent(agent_id)
    assert {fleet.info(agent_id).state.value for agent_id in ("ran", "waits")} == {"stopped"}
    before = len(lines(journal))
    workers = [fleet.start_worker(f"w{number}") for number in range(3)]
    fleet.ready(*workers)

    # That they work is shown by another agent, and by what became of the message that had waited.
    fleet.manager.start_agent(AgentSpec(id="other", type="ticker"), wait="running")
    fleet.wait(lambda: any("agent waits: message" in worker.log() for worker in workers), "the old message to be taken")
    assert_stays(lambda: len(lines(journal)) == before, "silence", seconds=OBEYED)
    for agent_id in ("ran", "waits"):
        assert (fleet.info(agent_id).state, fleet.info(agent_id).desired) == ("stopped", "stopped")
    assert fleet.info("waits").incarnation == 0


@pytest.mark.spec(49)
@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_an_agent_stopped_while_its_recovery_is_under_way_has_no_living_instance(
    fleet: Fleet, tmp_path: Path, pool: str
) -> None:
    """The attempt has begun when the stop comes: 5 s later nothing lives; instances are counted by what they write."""
    journal, flag = tmp_path / "journal", tmp_path / "flag"
    fleet.worker("worker", pool=pool, slots=3)
    config = {"flag": str(flag), "journal": str(journal), "takes": 2.0}
    fleet.manager.start_agent(AgentSpec(id="a", type="slow-maker", config=config), wait="running")
    fleet.wait(lambda: len(lines(journal)) > 1, "the agent to live")
    flag.touch()
    fleet.manager.notify_agent_dead("a", "to see it come back", epoch=fleet.info("a").epoch)
    fleet.wait(lambda: any(line.startswith("making") for line in lines(journal)), "the next one to be made")

    fleet.manager.stop_agent("a", wait=False)

    fleet.until("a", "stopped", timeout=OBEYED)
    assert_nothing_lives(journal)
    after = lines(journal)[lines(journal).index(making(journal)) :]
    assert not [line for line in after if line.startswith("alive")], "the instance that was being made never began"
    assert fleet.info("a").state == "stopped"
    fleet.check_streams("a")


def making(journal: Path) -> str:
    """The line of the instance that was being made."""
    return next(line for line in lines(journal) if line.startswith("making"))


@pytest.mark.spec(49)
def test_an_agent_stopped_while_it_waits_for_its_next_attempt_has_no_living_instance(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """Backoff is running when the stop comes: no further attempt is made."""
    fleet, journal, flag = make_fleet(RESTORE_BACKOFF="2s"), tmp_path / "journal", tmp_path / "flag"
    fleet.worker("worker")
    config = {"flag": str(flag), "journal": str(journal)}
    fleet.manager.start_agent(AgentSpec(id="a", type="unrestorable", config=config), wait="running")
    flag.touch()
    fleet.manager.notify_agent_dead("a", "to see it fail to come back", epoch=fleet.info("a").epoch)
    fleet.wait(lambda: len(lines(journal)) == 2, "the first attempt")
    fleet.wait(lambda: not fleet.record("a").hosted, "the attempt to have failed")
    flag.unlink()

    fleet.manager.stop_agent("a")

    assert_stays(lambda: len(lines(journal)) == 2, "no attempt", seconds=OBEYED)
    assert fleet.info("a").state == "stopped"
    assert [event.type for event in fleet.events("a")][-2:] == ["failover.aborted", "agent.stopped"]
    fleet.check_streams("a")


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_an_agent_started_while_it_stops_runs_again(fleet: Fleet, pool: str) -> None:
    """The stop is under way when the start comes: the old incarnation ends in order, a new one runs."""
    fleet.worker("worker", pool=pool, slots=3)
    fleet.manager.start_agent(AgentSpec(id="a", type="slow-stopper"), wait="running")
    fleet.manager.stop_agent("a", wait=False)
    fleet.until("a", "stopping")

    fleet.manager.start_agent("a")

    info = fleet.until("a", "running", incarnation=2)
    assert (info.desired, info.restarts, info.charged) == ("running", 0, 0)
    assert fleet.manager.process("a", "who")["incarnation"] == 2
    fleet.check_streams("a")


@pytest.mark.pain("P17")
def test_a_stop_while_its_worker_drains_is_obeyed(fleet: Fleet) -> None:
    """SIGTERM, then the stop, while the agent still takes its time to end: it is not started elsewhere."""
    draining = fleet.worker("draining", [AGENTS])
    fleet.manager.start_agent(AgentSpec(id="a", type="slow-stopper", config={"takes": 2.0}), wait="running")
    fleet.worker("standby")
    draining.signal(signal.SIGTERM)
    fleet.wait(lambda: "draining: agents snapshot" in draining.log(), "the worker to drain")

    fleet.manager.stop_agent("a", wait=False)

    fleet.until("a", "stopped", timeout=OBEYED)
    assert draining.popen.wait(20) == 0
    assert_stays(lambda: fleet.info("a").state == "stopped", "its state", seconds=2)
    assert fleet.info("a").incarnation == 1


@pytest.mark.pain("P17")
def test_no_process_that_hosts_others_is_signalled_for_a_stop(fleet: Fleet) -> None:
    """One that will not end, in a process it shares: it is fenced and counts as stopped; neighbours notice nothing."""
    worker = fleet.worker("threads", [AGENTS, SUPERVISION, CONTROL])
    fleet.manager.start_agent(AgentSpec(id="t", type="ticker"), wait="running")
    fleet.manager.start_agent(AgentSpec(id="s", type="stubborn"), wait="running")
    pid = fleet.host_pid("t")

    fleet.manager.stop_agent("s")

    assert fleet.info("s").state == "stopped"
    fleet.until_ticks("t", fleet.ticks("t") + 40)
    assert (fleet.info("t").incarnation, fleet.host_pid("t")) == (1, pid)
    assert pid == worker.pid
    assert worker.alive
    fleet.check_streams("t")
