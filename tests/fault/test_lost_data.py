"""Redis loses all data under a running fleet: said loudly, and the namespace runs again without a restart."""

from __future__ import annotations

import pytest

from ares_celery import AgentSpec
from tests.fleet import CONTROL, SUPERVISION, Fleet

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


def test_after_flushall_the_namespace_runs_again_and_hosts_agents(fleet: Fleet) -> None:
    """Its settings, its types and the state of its runtime are there again within seconds."""
    worker = fleet.worker("worker")
    fleet.worker("supervisor", [SUPERVISION, CONTROL])
    fleet.manager.start_agent(AgentSpec(id="before", type="ticker"))
    fleet.until("before", "running")
    with fleet.redis.client() as client:
        client.flushall()
    fleet.wait(lambda: fleet.store.runtime().state == "running", "the runtime to run again")
    fleet.wait(lambda: "ticker" in fleet.store.known_types(), "the types to be known again")
    fleet.manager.start_agent(AgentSpec(id="after", type="ticker"))
    fleet.until_ticks("after", 2)
    fleet.manager.start_agent(AgentSpec(id="before", type="ticker"))
    fleet.until_ticks("before", 2)
    assert worker.log().count("the store lost all data") == 1
