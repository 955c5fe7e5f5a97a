"""Real workers: agents run, die with their processes, and are handed over."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ares_celery.model.agent import AgentSpec
from tests.integration.celery.fleet import AGENTS_ONLY, CeleryFleet
from tests.wait import assert_stays, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]
POOLS = ["threads", "prefork"]


def assert_state_is_fold(fleet: CeleryFleet, agent_id: str) -> None:
    """The agent's state equals the sum of its stored events, at an instant between two events."""

    def agrees() -> bool:
        before = len(fleet.events(agent_id, "counter.ticked"))
        answer = fleet.manager.process(agent_id, {}, timeout=5)
        return bool(before <= answer["total"] <= len(fleet.events(agent_id, "counter.ticked")))

    assert agrees()


@pytest.mark.parametrize("pool", POOLS)
def test_a_killed_process_costs_its_agents_a_moment_and_no_state(pool: str, fleet: CeleryFleet) -> None:
    """SIGKILL of the hosting process: another incarnation goes on from the same state, before the lease ran out."""
    fleet.worker("a1", AGENTS_ONLY, pool=pool, slots=4)
    fleet.worker("a2", AGENTS_ONLY, pool=pool, slots=4)
    fleet.start("counter", "c")
    wait_until(lambda: len(fleet.events("c", "counter.ticked")) > 5)

    os.kill(fleet.pid_of("c"), signal.SIGKILL)
    fleet.until("c", "running", incarnation=2, timeout=1.4)

    assert_state_is_fold(fleet, "c")
    assert (fleet.info("c").restarts, fleet.info("c").charged, fleet.info("c").cause) == (1, 1, "lost")


def test_the_loss_of_a_worker_with_several_agents_is_charged_to_none(fleet: CeleryFleet) -> None:
    """Threads: all agents of the killed process come back, uncharged."""
    first = fleet.worker("a1", AGENTS_ONLY)
    agents = [f"c{number}" for number in range(4)]
    fleet.start("counter", *agents)
    fleet.worker("a2", AGENTS_ONLY)
    wait_until(lambda: len(fleet.store.hosts()) >= 2)

    first.kill()

    for agent_id in agents:
        info = fleet.until(agent_id, "running", incarnation=2)
        assert (info.restarts, info.charged, info.cause) == (1, 0, "co_tenant"), agent_id


def test_the_loss_of_a_whole_prefork_worker_is_charged_to_none(fleet: CeleryFleet) -> None:
    """Its children follow the main process; that is the loss of one host, not of four."""
    first = fleet.worker("a1", AGENTS_ONLY, pool="prefork", slots=4)
    agents = [f"c{number}" for number in range(3)]
    fleet.start("counter", *agents)
    fleet.worker("a2", AGENTS_ONLY, pool="prefork", slots=4)
    # The second worker has looked at the first one's children.
    wait_until(lambda: len(fleet.store.hosts()) >= 5)
    assert_stays(lambda: first.alive, "the first worker", seconds=1.5)

    first.kill()

    for agent_id in agents:
        info = fleet.until(agent_id, "running", incarnation=2)
        assert (info.restarts, info.charged, info.cause) == (1, 0, "co_tenant"), agent_id


@pytest.mark.parametrize("pool", POOLS)
def test_sigterm_hands_agents_over_and_the_worker_ends_in_order(pool: str, fleet: CeleryFleet) -> None:
    """Agents snapshot and release, uncharged; the worker exits 0 within seconds."""
    first = fleet.worker("a1", AGENTS_ONLY, pool=pool, slots=4)
    fleet.start("counter", "c")
    fleet.start("plain", "p")
    fleet.worker("a2", AGENTS_ONLY, pool=pool, slots=4)

    assert first.terminate(20) == 0

    for agent_id in ("c", "p"):
        info = fleet.until(agent_id, "running", incarnation=2)
        assert (info.worker, info.restarts, info.charged) == ("a2@host", 0, 0)
    assert_state_is_fold(fleet, "c")


@pytest.mark.parametrize("pool", POOLS)
def test_a_sigterm_to_the_whole_process_group_is_the_same(pool: str, fleet: CeleryFleet) -> None:
    """A terminal or a service manager signals the children too; none dies before its agent has released."""
    worker = fleet.worker("a1", AGENTS_ONLY, pool=pool, slots=4)
    fleet.start("counter", "c")
    host = fleet.pid_of("c")

    os.killpg(worker.pid, signal.SIGTERM)
    if pool == "prefork":
        os.kill(host, signal.SIGTERM)

    assert worker.popen.wait(20) == 0
    info = fleet.info("c")
    assert (info.state, info.restarts, info.charged) == ("starting", 0, 0)
    assert [event.payload["reason"] for event in fleet.events("c", "agent.stopped")] == ["drain"]


def test_a_sigterm_to_one_pool_child_drains_it_and_it_is_replaced(fleet: CeleryFleet) -> None:
    """The agent releases in order, the child ends after it, and the worker goes on with a new one."""
    fleet.worker("a1", AGENTS_ONLY, pool="prefork", slots=1)
    fleet.start("counter", "c")
    host = fleet.pid_of("c")

    os.kill(host, signal.SIGTERM)

    info = fleet.until("c", "running", incarnation=2)
    assert (info.restarts, info.charged) == (0, 0)
    assert fleet.pid_of("c") != host


def test_a_cold_shutdown_hands_agents_over_too(fleet: CeleryFleet) -> None:
    """SIGQUIT hangs a threads worker with endless tasks; ours end."""
    worker = fleet.worker("a1", AGENTS_ONLY)
    fleet.start("counter", "c")

    worker.signal(signal.SIGQUIT)
    worker.popen.wait(20)

    info = fleet.info("c")
    assert (info.state, info.charged) == ("starting", 0)


def test_a_process_that_ends_itself_is_a_death_like_any_other(fleet: CeleryFleet) -> None:
    """os._exit in a pool child: seen at once, charged once, resurrected."""
    worker = fleet.worker("a1", AGENTS_ONLY, pool="prefork", slots=4)
    fleet.manager.start_agent(AgentSpec(id="x", type="exiting"))

    info = fleet.until("x", "running", incarnation=2, timeout=4)

    assert (info.restarts, info.charged) == (1, 1)
    # Celery's own late notice of the same loss changes nothing.
    wait_until(lambda: "exited prematurely" in worker.log())
    assert_stays(lambda: fleet.info("x").restarts == 1, "one restart", seconds=0.5)


def test_a_stuck_agent_gives_its_pool_child_back(fleet: CeleryFleet) -> None:
    """It ignores its restart: fenced after agent_stop_timeout, its child killed, and the next incarnation runs."""
    fleet.worker("a1", AGENTS_ONLY, pool="prefork", slots=1)
    fleet.start("stuck", "s")
    host = fleet.pid_of("s")

    fleet.manager.restart_agent("s")

    info = fleet.until("s", "running", incarnation=2, timeout=8)
    assert fleet.pid_of("s") != host
    assert info.charged == 0


def test_what_an_agent_started_ends_with_its_killed_process(fleet: CeleryFleet) -> None:
    """SIGKILL of the pool child: processes of the agent do not outlive it."""
    fleet.worker("a1", AGENTS_ONLY, pool="prefork", slots=4)
    fleet.start("parent", "p")
    event = wait_until(lambda: fleet.events("p", "parent.started"))[0]

    os.kill(event.payload["own"], signal.SIGKILL)

    wait_until(lambda: not is_running(event.payload["pid"]), "the agent's own child to end")


def is_running(pid: int) -> bool:
    """The process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("pool", ["solo", "gevent"])
def test_other_pools_start_and_run_an_agent(pool: str, fleet: CeleryFleet) -> None:
    """Smoke: their limits are documented."""
    if pool == "gevent":
        pytest.importorskip("gevent")
    worker = fleet.worker("a1", AGENTS_ONLY, pool=pool, slots=4)
    fleet.start("counter", "c")
    wait_until(lambda: len(fleet.events("c", "counter.ticked")) > 2)
    assert worker.terminate(20) == 0
