"""Processes that die by SIGKILL, one kind a test: every agent runs again with the fold of what was acknowledged."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet

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


def test_fifty_agents_of_a_killed_threads_worker_run_again(fleet: Fleet) -> None:
    """SIGKILL of a worker with 50 agents: all are back on another one, none charged: whose fault was it?"""
    doomed = fleet.worker("doomed", [AGENTS], slots=60)
    ids = start_tickers(fleet, 50, every=0.3)
    fleet.worker("standby", slots=60)

    doomed.kill()

    assert_all_run_again(fleet, ids, incarnation=2, timeout=60)
    assert {fleet.info(agent_id).charged for agent_id in ids} == {0}
    assert {fleet.info(agent_id).restarts for agent_id in ids} == {1}


def test_agents_of_a_killed_prefork_worker_run_again(fleet: Fleet) -> None:
    """SIGKILL of the main process of a prefork worker takes its children along."""
    doomed = fleet.worker("doomed", [AGENTS], pool="prefork", slots=3)
    ids = start_tickers(fleet, 3)
    fleet.worker("standby", slots=8)

    doomed.kill()

    assert_all_run_again(fleet, ids, incarnation=2)


def test_the_death_of_the_supervision_worker_in_a_resurrection_changes_nothing(
    make_fleet: Callable[..., Fleet],
) -> None:
    """SIGKILL of the supervisor while an agent waits for its next attempt: an agents worker alone goes on."""
    fleet = make_fleet(RESTORE_BACKOFF="2s")
    fleet.worker("agents", [AGENTS], pool="prefork", slots=3)
    supervisor = fleet.worker("supervisor", [SUPERVISION, CONTROL])
    fleet.manager.start_agent(AgentSpec(id="s", type="short-lived", config={"lives": 0.2}))
    fleet.until("s", "resurrecting", incarnation=2, timeout=30)

    supervisor.kill()

    fleet.until("s", "running", incarnation=3, timeout=30)
    fleet.check_streams("s")


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
