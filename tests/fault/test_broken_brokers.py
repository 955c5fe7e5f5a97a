"""A Redis that refuses commands for some time, and a broker's error that nobody foresaw: no worker stays half dead."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from ares_celery import AgentSpec
from tests.fleet import AGENTS, CONTROL, Fleet, Process
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

POOLS = ("threads", "prefork")
#: Seconds that the server refuses.
REFUSED = 6.0
#: Seconds within which a worker consumes again once its server is well.
RECOVERY = 15.0


def become_replica(server: redis.Redis) -> None:
    """As after a failover: blocked reads are thrown out, writes are refused."""
    server.replicaof("127.0.0.1", 1)


def become_master(server: redis.Redis) -> None:
    """Well again."""
    server.replicaof("NO", "ONE")


def fill_memory(server: redis.Redis) -> None:
    """Refuses whatever needs memory; the lost connections make each worker begin anew meanwhile."""
    server.config_set("maxmemory", 1)
    server.client_kill_filter(_type="normal", skipme=True)


def free_memory(server: redis.Redis) -> None:
    """Well again."""
    server.config_set("maxmemory", 0)


def miss_replicas(server: redis.Redis) -> None:
    """Every write is refused with an answer for which the driver has no class."""
    server.config_set("min-replicas-to-write", 1)


def need_no_replicas(server: redis.Redis) -> None:
    """Well again."""
    server.config_set("min-replicas-to-write", 0)


CASES = [
    pytest.param(become_replica, become_master, id="readonly"),
    pytest.param(fill_memory, free_memory, id="memory"),
    pytest.param(miss_replicas, need_no_replicas, id="too-few-replicas"),
]


def start(fleet: Fleet, *ids: str) -> None:
    """Starts tickers and waits until each has ticked."""
    for agent_id in ids:
        fleet.manager.start_agent(AgentSpec(id=agent_id, type="ticker"))
    for agent_id in ids:
        fleet.until_ticks(agent_id, 1)


def assert_consumes(fleet: Fleet, worker: Process) -> None:
    """A new agent and a command get through, and the worker ends in order when told to."""
    fleet.manager.start_agent(AgentSpec(id="new", type="idler"))
    # Only then is it active for sure: in a namespace whose first worker has just come, it is registered for a moment.
    fleet.until("new", "running", timeout=RECOVERY)
    asked = fleet.send("ares.stats", queue=CONTROL)
    assert fleet.result(asked, timeout=RECOVERY)["active_agents"] >= 1
    assert "Unrecoverable error" not in worker.log()
    assert worker.terminate() == 0


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("refuse", "heal"), CASES)
def test_a_server_that_refuses_for_some_time_costs_a_reconnect(
    fleet: Fleet, pool: str, refuse: Callable[[redis.Redis], None], heal: Callable[[redis.Redis], None]
) -> None:
    """6 s of refusals: the worker consumes within 15 s, and the agents it hosts went on as its first incarnations."""
    worker = fleet.worker("worker", pool=pool, slots=4)
    start(fleet, "t0", "t1")
    refuse(fleet.redis.client())
    assert_stays(lambda: worker.alive, "the worker", seconds=REFUSED)
    heal(fleet.redis.client())

    for agent_id in ("t0", "t1"):
        fleet.until_ticks(agent_id, fleet.ticks(agent_id) + 3)
        assert (fleet.info(agent_id).state, fleet.info(agent_id).incarnation) == ("running", 1)
        fleet.check_streams(agent_id)
    assert_consumes(fleet, worker)


def test_a_worker_may_start_while_its_server_refuses(fleet: Fleet) -> None:
    """It waits, as it does for a server that is away, and leaves no connections behind at the server."""
    first = fleet.worker("first", [CONTROL])
    assert first.terminate() == 0
    fleet.redis.client().config_set("maxmemory", 1)
    connections = len(fleet.redis.client().client_list())
    worker = fleet.start_worker("worker")
    refusals = 5
    fleet.wait(lambda: worker.log().count("the broker refuses commands") >= refusals, "some tries", timeout=40)
    assert worker.alive
    # Of the worker: a try under way, its store's, its results'; a leak would be one for each try.
    assert len(fleet.redis.client().client_list()) - connections < refusals
    free_memory(fleet.redis.client())
    fleet.ready(worker)
    assert_consumes(fleet, worker)


@pytest.mark.parametrize("pool", POOLS)
def test_a_consumer_that_fails_for_good_ends_its_worker(fleet: Fleet, pool: str) -> None:
    """A queue's key that holds something else: the agents release uncharged, and the process exits with an error."""
    worker = fleet.worker("worker", pool=pool, slots=4)
    start(fleet, "t0", "t1")
    queue = f"{fleet.namespace}.{AGENTS}"
    fleet.redis.client().set(queue, "no list")
    fleet.wait(lambda: not worker.alive, "the worker to end", timeout=20)
    assert worker.popen.returncode not in (0, None)
    assert "the worker ends without a signal" in worker.log()
    for agent_id in ("t0", "t1"):
        info = fleet.info(agent_id)
        assert (info.state, info.charged) == ("starting", 0), "released, by a drain"

    fleet.redis.client().delete(queue)
    fleet.worker("next", pool=pool, slots=4)
    for agent_id in ("t0", "t1"):
        fleet.until(agent_id, "running", incarnation=2)


@pytest.mark.parametrize("pool", POOLS)
def test_the_remote_command_to_shut_down_drains(fleet: Fleet, pool: str) -> None:
    """It comes without a signal, and Celery would wait for the agents for ever."""
    worker = fleet.worker("worker", pool=pool, slots=4)
    start(fleet, "t0")
    fleet.app.control.shutdown()
    fleet.wait(lambda: not worker.alive, "the worker to end", timeout=20)
    assert worker.popen.returncode == 0
    assert (fleet.info("t0").state, fleet.info("t0").charged) == ("starting", 0)
