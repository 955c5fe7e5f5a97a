"""A deployment's own time limit for tasks: it ends their tasks, and no agent."""

from __future__ import annotations

import json

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(90)]

ALL = (AGENTS, SUPERVISION, CONTROL)
#: Seconds.
LIMIT = 2


def test_a_time_limit_of_the_fleet_does_not_kill_an_agent(fleet: Fleet) -> None:
    """task_time_limit=2, and a soft limit below it: agents of both kinds, in both pools, run on beyond three limits."""
    env = {"OWN_SETTINGS": json.dumps({"task_time_limit": LIMIT, "task_soft_time_limit": LIMIT - 0.5})}
    app, pools, kinds = "tests.fault.own_settings.app", ("threads", "prefork"), ("ticker", "plain-ticker")
    fleet.ready(
        *[fleet.start_worker(pool, [*ALL, pool], pool=pool, slots=4, env=env, app=app) for pool in pools],
    )
    ids = [f"{pool}-{kind}" for pool in pools for kind in kinds]
    for agent_id, (pool, kind) in zip(ids, [(pool, kind) for pool in pools for kind in kinds], strict=True):
        fleet.manager.start_agent(AgentSpec(id=agent_id, type=kind, queue=pool), wait="running")
    # A threads pool cannot end what runs in it; prefork shows that the limit is in force.
    nap = fleet.send("tests.nap", LIMIT * 3, queue="prefork")

    def all_run() -> bool:
        return {(fleet.info(agent_id).state.value, fleet.info(agent_id).incarnation) for agent_id in ids} == {
            ("running", 1)
        }

    assert_stays(all_run, "every agent in its first incarnation", seconds=LIMIT * 3, interval=0.1)

    fleet.wait(lambda: fleet.app.AsyncResult(nap).state == "FAILURE", "the limit to end another task")
    for agent_id in ids:
        fleet.until_ticks(agent_id, fleet.ticks(agent_id))
        assert fleet.info(agent_id).restarts == 0
        fleet.check_streams(agent_id)
