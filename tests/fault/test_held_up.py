"""A worker that shuts down ends, whatever its agents or its Redis do."""

from __future__ import annotations

import pytest

from ares_celery import AgentSpec
from tests.fleet import AGENTS, Fleet

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_sigterm_ends_a_worker_with_an_agent_that_does_not_end(fleet: Fleet, pool: str) -> None:
    """The others release in order; after drain_timeout the process ends; its lease brings the stuck one back."""
    doomed = fleet.worker("doomed", [AGENTS], pool=pool, slots=3)
    fleet.manager.start_agent(AgentSpec(id="s", type="stubborn"), wait="running")
    fleet.manager.start_agent(AgentSpec(id="t", type="ticker"), wait="running")
    fleet.until_ticks("t", 2)
    fleet.worker("standby")

    doomed.terminate(timeout=5 + 15)  # drain_timeout, and what Celery takes

    fleet.until("t", "running", incarnation=2)
    fleet.check_streams("t")
    assert fleet.info("t").charged == 0
    fleet.until("s", "running", incarnation=2)


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_sigterm_ends_a_worker_whose_redis_is_away(fleet: Fleet, pool: str) -> None:
    """Nothing can be released; the leases are left."""
    worker = fleet.worker("doomed", [AGENTS], pool=pool, slots=3)
    fleet.manager.start_agent(AgentSpec(id="t", type="ticker"), wait="running")
    fleet.until_ticks("t", 2)
    fleet.redis.pause()
    try:
        worker.terminate(timeout=5 + 25)
    finally:
        fleet.redis.resume()
    fleet.worker("standby")
    fleet.until("t", "running", incarnation=2)
    fleet.check_streams("t")
