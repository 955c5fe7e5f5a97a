"""A deployment's own time limit for tasks: it ends their tasks, and no agent."""

from __future__ import annotations

import json

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]

LIMIT = 2


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_time_limit_of_the_fleet_does_not_kill_an_agent(fleet: Fleet, pool: str) -> None:
    """task_time_limit=2, and a soft limit below it: agents of both kinds run on, beyond three limits."""
    env = {"OWN_SETTINGS": json.dumps({"task_time_limit": LIMIT, "task_soft_time_limit": LIMIT - 0.5})}
    queues = [AGENTS, SUPERVISION, CONTROL]
    worker = fleet.worker("worker", queues, pool=pool, slots=4, env=env, app="tests.fault.own_settings.app")
    fleet.manager.start_agent(AgentSpec(id="loop", type="ticker"), wait="running")
    fleet.manager.start_agent(AgentSpec(id="plain", type="plain-ticker"), wait="running")
    nap = fleet.send("tests.nap", LIMIT * 3, queue=AGENTS)

    assert_stays(lambda: fleet.info("loop").state == "running", "the agent", seconds=LIMIT * 3, interval=0.1)

    if pool == "prefork":  # a threads pool cannot end what runs in it
        fleet.wait(lambda: fleet.app.AsyncResult(nap).state == "FAILURE", "the limit to end another task")
    for agent_id in ("loop", "plain"):
        fleet.until_ticks(agent_id, fleet.ticks(agent_id))
        assert (fleet.info(agent_id).incarnation, fleet.info(agent_id).restarts) == (1, 0)
        fleet.check_streams(agent_id)
    assert worker.alive
