"""An app whose broker is a Redis, with no results and old messages; one worker for its tasks and its agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import redis

from ares_celery import AgentSpec, Manager, OperationNotSupportedError, install
from tests.fleet import AGENTS, CONTROL, SUPERVISION
from tests.integration.guests.guest_fleet import AFTER, GuestFleet
from tests.integration.guests.shop import make_shop
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

ALL = (AGENTS, SUPERVISION, CONTROL)
SLOTS = 4


@pytest.fixture
def settings(redis_server: RedisServer) -> Mapping[str, Any]:
    """A broker in another database than the agents; no result backend; messages of Celery's first protocol."""
    broker = redis_server.url.removesuffix("/0") + "/5"
    return {"broker_url": broker, "result_backend": None, "task_ignore_result": True, "task_protocol": 1}


def test_agents_live_beside_tasks_on_redis(make_guests: Callable[..., GuestFleet], settings: Mapping[str, Any]) -> None:
    """A worker of both; two namespaces on one broker; beat with its file; tasks without results."""
    shop, other = make_guests(settings), make_guests(settings, "x")
    queues = ",".join((*(f"{shop.namespace}.{queue}" for queue in ALL), "celery"))
    options = ("-Q", queues, "-P", "threads", "-c", str(SLOTS), "-n", "mixed@host")
    mixed, foreign = shop.run("mixed", AFTER, "worker", *options), other.guests("foreign", ALL)
    beat = shop.run("beat", AFTER, "beat", "-s", str(shop.folder / "schedule"), "--pidfile=")
    for fleet, worker in ((shop, "mixed@host"), (other, "foreign@host")):
        fleet.manager.start_agent(AgentSpec(id="a", type="ticker"))
        assert fleet.until("a", "running", timeout=40).worker == worker
    assert "this worker reads celery beside the queues of agents" in mixed.log()

    # No worker of agents takes more than it can run; what is left waits where others find it.
    assert shop.conf("mixed")["worker_disable_prefetch"] is True
    with redis.Redis.from_url(settings["broker_url"]) as broker:
        for _ in range(SLOTS + 2):
            shop.app.send_task("shop.sleep", (1.2,))
        shop.wait(lambda: mixed.log().count("Task shop.sleep") >= SLOTS - 1, "the slots beside the agent to be taken")
        # One more may be on its way; with their prefetch of 4 a slot all of them would be.
        assert broker.llen("celery") >= 2
    shop.wait(lambda: mixed.log().count("Task shop.sleep") == 2 * (SLOTS + 2), "their tasks to be done")

    # Commands by name are carried out, and say that they have no results to give.
    asked = shop.app.send_task("ares.pause_agent", kwargs={"agent_id": "a"})
    shop.until("a", "paused")
    with pytest.raises(NotImplementedError, match="No result backend"):
        asked.get(timeout=1)
    # One for the other namespace goes home, though the first protocol has its headers elsewhere.
    home: dict[str, Any] = {"headers": {"ares_namespace": other.namespace}, "queue": f"{shop.namespace}.control"}
    shop.app.send_task("ares.pause_agent", kwargs={"agent_id": "a"}, **home)
    other.until("a", "paused")

    shop.wait(lambda: "Task ares.health_check" in mixed.log(), "beat's alarm clock")
    assert beat.alive
    assert "sent on to queue" not in foreign.log()
    assert mixed.log().count("sent on to queue") == 1
    assert mixed.terminate() == 0


def test_a_manager_of_an_eager_app_changes_nothing(
    redis_server: RedisServer, namespace: str, settings: Mapping[str, Any]
) -> None:
    """It says which setting forbids it before anything is written; looking is allowed."""
    app = make_shop({**settings, "task_always_eager": True})
    install(app, namespace=namespace, redis_url=redis_server.url)
    with Manager(app=app) as manager:
        with pytest.raises(OperationNotSupportedError, match="task_always_eager is set"):
            manager.start_agent(AgentSpec(id="a", type="ticker"))
        assert manager.get_agent_info("a") is None
