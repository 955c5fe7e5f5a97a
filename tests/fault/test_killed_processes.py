"""Processes that die by SIGKILL, one kind a test: every agent runs again with the fold of what was acknowledged."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(180)]


def start_tickers(fleet: Fleet, count: int, *, every: float = 0.05) -> list[str]:
    """Starts so many tickers and waits until each has ticked."""
    ids = [f"t{number}" for number in range(count)]
    for agent_id in ids:
        fleet.manager.start_agent(AgentSpec(id=agent_id, type="ticker", config={"every": every}))
    for agent_id in ids:
        fleet.until_ticks(agent_id, 0, timeout=40)
    return ids


def assert_all_run_again(fleet: Fleet, ids: list[str], incarnation: int, timeout: float = 30) -> None:
    """Every agent runs in a later incarnation, ticks on, and has a stream without a flaw."""
    for agent_id in ids:
        fleet.until(agent_id, "running", incarnation=incarnation, timeout=timeout)
        before = fleet.ticks(agent_id)
        fleet.until_ticks(agent_id, before)
        fleet.check_streams(agent_id)
        answer = fleet.manager.process(agent_id, "total")
        assert answer["total"] <= fleet.ticks(agent_id)


def test_an_agent_whose_prefork_child_is_killed_runs_again(fleet: Fleet) -> None:
    """SIGKILL of the hosting pool child: one agent dies, charged, and is back; its neighbour is untouched."""
    fleet.worker("prefork", [AGENTS, SUPERVISION, CONTROL], pool="prefork", slots=3)
    ids = start_tickers(fleet, 2)

    os.kill(fleet.host_pid("t0"), signal.SIGKILL)

    assert_all_run_again(fleet, ["t0"], incarnation=2)
    assert fleet.info("t0").charged == 1
    assert fleet.info("t0").restarts == 1
    assert fleet.info("t1").incarnation == 1
    assert ids


@pytest.mark.pain("P9")
def test_an_agent_that_kills_its_process_is_parked_and_its_neighbours_are_not_charged(
    make_fleet: Callable[..., Fleet],
) -> None:
    """SIGKILL at step 3, each time: five tries, each waiting twice as long, then parked with the reason."""
    fleet = make_fleet(RESTORE_BACKOFF="100ms", STABLE_AFTER="20s")
    fleet.worker("prefork", pool="prefork", slots=4)
    ids = start_tickers(fleet, 2)
    fleet.manager.start_agent(AgentSpec(id="p", type="poison", max_restarts=5, config={"step": 3}))

    info = fleet.until("p", "parked", timeout=60)

    assert (info.cause, info.charged, info.deaths) == ("cap", 5, {"lost": 6})
    triggered = fleet.events("p", "failover.triggered")
    assert [event.payload["delay_ms"] for event in triggered] == [0, 100, 200, 400, 800]
    last = fleet.events("p")[-1]
    assert (last.type, last.payload["reason"]) == ("agent.exhausted", "cap")
    assert "lost" in last.payload["detail"]
    assert len(fleet.events("p", "ticked")) == 6 * 3
    for agent_id in ids:
        fleet.until_ticks(agent_id, fleet.ticks(agent_id))
        found = fleet.info(agent_id)
        assert (found.incarnation, found.restarts, found.charged) == (1, 0, 0)


@pytest.mark.pain("P9")
def test_a_lone_agent_that_ends_its_worker_again_and_again_is_parked(make_fleet: Callable[..., Fleet]) -> None:
    """A process manager starts the worker again, under its old name, which Redis lists its dead processes by."""
    fleet = make_fleet(RESTORE_BACKOFF="100ms", STABLE_AFTER="20s")
    started = [fleet.start_worker("agents", [AGENTS], slots=2)]
    fleet.worker("supervision", [SUPERVISION, CONTROL])
    fleet.manager.start_agent(AgentSpec(id="p", type="exiting", max_restarts=2))

    def parked() -> bool:
        state = fleet.info("p").state
        if not started[-1].alive and state != "parked":
            started.append(fleet.start_worker("agents", [AGENTS], slots=2))
        return state == "parked"

    fleet.wait(parked, "p to be parked", timeout=60)
    info = fleet.info("p")
    assert (info.cause, info.charged, info.deaths) == ("cap", 2, {"lost": 3})
    charged = [event.payload["charged"] for event in fleet.events("p", "failover.triggered")]
    assert charged == [True, True]


def test_agents_of_a_killed_prefork_worker_run_again(fleet: Fleet) -> None:
    """SIGKILL of the main process of a prefork worker takes its children along."""
    doomed = fleet.worker("doomed", [AGENTS], pool="prefork", slots=3)
    ids = start_tickers(fleet, 3)
    fleet.worker("standby", slots=8)

    doomed.kill()

    assert_all_run_again(fleet, ids, incarnation=2)


@pytest.mark.spec(60)
def test_the_death_of_the_supervision_worker_in_a_resurrection_changes_nothing(
    make_fleet: Callable[..., Fleet], tmp_path: Path
) -> None:
    """SIGKILL of the supervisor while an agent waits for its next attempt, then it is started again.

    The agent runs once, within a health interval and a backoff step of the failed attempt: another worker goes on.
    """
    fleet, flag, journal = make_fleet(RESTORE_BACKOFF="2s"), tmp_path / "flag", tmp_path / "journal"
    fleet.worker("agents", [AGENTS], pool="prefork", slots=3)
    supervisor = fleet.worker("supervisor", [SUPERVISION, CONTROL])
    config = {"flag": str(flag), "journal": str(journal)}
    fleet.manager.start_agent(AgentSpec(id="s", type="unrestorable", config=config), wait="running")
    flag.touch()
    fleet.manager.notify_agent_dead("s", "to see it fail to come back", epoch=fleet.info("s").epoch)
    fleet.wait(lambda: fleet.info("s").waiting_on == "backoff", "the first attempt to have failed")
    due = fleet.info("s").next_attempt
    assert due is not None

    supervisor.kill()
    flag.unlink()
    again = fleet.start_worker("supervisor", [SUPERVISION, CONTROL])

    fleet.until("s", "running", incarnation=3, timeout=30)
    (completed,) = fleet.events("s", "failover.completed")
    assert completed.time - due <= fleet.config.health_check_interval
    fleet.ready(again)
    assert_stays(lambda: len(journal.read_text().splitlines()) == 3, "one instance was made after the kill", seconds=2)
    assert fleet.info("s").incarnation == 3
    assert len(fleet.events("s", "failover.triggered")) == 1
    fleet.check_streams("s")


@pytest.mark.spec(62)
def test_four_of_eight_agents_that_are_killed_at_once_run_again_within_eight_seconds(fleet: Fleet) -> None:
    """SIGKILL of four processes of one worker: all eight run within 8 s, each once, none twice."""
    fleet.worker("prefork", pool="prefork", slots=10)
    ids = start_tickers(fleet, 8, every=0.2)
    before = {agent_id: fleet.host_pid(agent_id) for agent_id in ids}
    killed = ids[::2]
    began = time.monotonic()

    for agent_id in killed:
        os.kill(before[agent_id], signal.SIGKILL)

    for agent_id in ids:
        incarnation = 2 if agent_id in killed else 1
        info = fleet.until(agent_id, "running", incarnation=incarnation, timeout=8)
        assert info.incarnation == incarnation
    assert time.monotonic() - began <= 8
    after = {agent_id: fleet.host_pid(agent_id) for agent_id in ids}
    assert {agent_id for agent_id in ids if after[agent_id] != before[agent_id]} == set(killed)
    for agent_id in ids:
        assert len(fleet.events(agent_id, "failover.completed")) == int(agent_id in killed)
        fleet.check_streams(agent_id)


POOLS = (16, 64, 128)


@pytest.mark.spec(61)
@pytest.mark.spec(62)
def test_pools_of_agents_are_whole_again_after_a_quarter_of_each_was_killed(fleet: Fleet) -> None:
    """16, 64 and 128 agents, a quarter of each on a worker that is killed: all run again on another, exactly once each.

    Nobody reports anything, and nobody is charged: whose fault was it?
    """
    doomed = {size: fleet.start_worker(f"doomed{size}", [f"q{size}"], slots=size // 4) for size in POOLS}
    rest = fleet.start_worker("rest", [AGENTS], slots=sum(POOLS))
    fleet.ready(*doomed.values(), rest)
    killed: list[str] = []
    spared: list[str] = []
    for size in POOLS:
        for number in range(size):
            is_doomed = number % 4 == 0
            agent_id, queue = f"p{size}-{number}", f"q{size}" if is_doomed else None
            (killed if is_doomed else spared).append(agent_id)
            kind: dict[str, Any] = {"type": "ticker", "config": {"every": 1.0}} if is_doomed else {"type": "idler"}
            fleet.manager.start_agent(AgentSpec(id=agent_id, queue=queue, **kind))
    for agent_id in (*killed, *spared):
        fleet.until(agent_id, "running", timeout=60)
    fleet.worker("standby", [f"q{size}" for size in POOLS], slots=sum(POOLS))

    for worker in doomed.values():
        worker.kill()

    for agent_id in killed:
        fleet.until(agent_id, "running", incarnation=2, timeout=30)
    infos = {info.id: info for info in fleet.manager.list_agents()}
    assert {(infos[one].incarnation, infos[one].restarts, infos[one].worker) for one in killed} == {
        (2, 1, "standby@host")
    }
    assert {info.charged for info in infos.values()} == {0}
    assert {entry.operation for entry in fleet.manager.audit(limit=1_000)} == {"start", "runtime.start"}
    assert {(infos[one].incarnation, infos[one].restarts, infos[one].worker) for one in spared} == {(1, 0, "rest@host")}
    assert (len(killed), len(spared)) == (52, 156)
    ticks = {agent_id: fleet.ticks(agent_id) for agent_id in killed}
    for agent_id, before in ticks.items():
        fleet.until_ticks(agent_id, before)
        fleet.check_streams(agent_id)


def test_without_beat_and_supervision_worker_the_agents_worker_brings_agents_back(fleet: Fleet) -> None:
    """Nobody is the only supervisor: beat killed, no supervision worker, and a dead child is still replaced."""
    beat = fleet.beat()
    fleet.worker("agents", [AGENTS], pool="prefork", slots=3)
    start_tickers(fleet, 1)
    beat.kill()

    os.kill(fleet.host_pid("t0"), signal.SIGKILL)

    assert_all_run_again(fleet, ["t0"], incarnation=2)


def test_a_frozen_beat_keeps_nobody_from_being_found(fleet: Fleet) -> None:
    """SIGSTOP of beat: it looks alive and does nothing; deaths are found all the same."""
    beat = fleet.beat()
    fleet.worker("doomed", [AGENTS])
    start_tickers(fleet, 1)
    fleet.worker("standby")
    beat.freeze()

    fleet.processes[1].kill()

    assert_all_run_again(fleet, ["t0"], incarnation=2)
    beat.thaw()


def test_the_processes_that_an_agent_started_end_with_it(fleet: Fleet) -> None:
    """In prefork, what an agent left behind is ended when the agent is stopped, and when its process is killed."""
    fleet.worker("prefork", pool="prefork", slots=2)
    fleet.manager.start_agent(AgentSpec(id="p", type="parent"), wait="running")
    first = fleet.manager.process("p", "pids")
    os.kill(first["pid"], signal.SIGKILL)
    fleet.wait(lambda: not _exists(first["child"]), "the child of a killed process to be ended")

    fleet.until("p", "running", incarnation=2)
    second = fleet.manager.process("p", "pids")
    fleet.manager.stop_agent("p")

    fleet.wait(lambda: not _exists(second["child"]), "the child of a stopped agent to be ended")


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
