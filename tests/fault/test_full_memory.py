"""Redis at maxmemory: agents that write pause, can be stopped at once, and go on when there is room again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ares_celery import AgentSpec
from tests.fleet import Fleet
from tests.wait import assert_stays

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

#: Longer than the lease of the suite's fleets.
LONG = 3.0


def test_agents_pause_at_maxmemory_stop_when_asked_and_resume_with_room(make_fleet: Callable[..., Fleet]) -> None:
    """Leases are renewed and ends committed whatever the memory; no append is half written."""
    fleet = make_fleet(AGENT_STOP_TIMEOUT="30s")
    worker = fleet.worker("worker")
    ids = ["loop", "plain", "stays"]
    for agent_id, kind in zip(ids, ("ticker", "plain-ticker", "ticker"), strict=True):
        fleet.manager.start_agent(AgentSpec(id=agent_id, type=kind))
    for agent_id in ids:
        fleet.until_ticks(agent_id, 2)
    with fleet.redis.client() as client:
        client.config_set("maxmemory", 1)
        fleet.wait(lambda: worker.log().count("the store does not answer") >= len(ids), "all to wait for room")
        ticks = {agent_id: fleet.ticks(agent_id) for agent_id in ids}
        assert_stays(lambda: {i: fleet.ticks(i) for i in ids} == ticks, "the number of ticks", seconds=LONG)
        assert all((fleet.info(i).state, fleet.info(i).incarnation) == ("running", 1) for i in ids)
        for agent_id in ("loop", "plain"):
            fleet.manager.stop_agent(agent_id, wait=False)
        for agent_id in ("loop", "plain"):
            fleet.until(agent_id, "stopped", timeout=5)
        client.config_set("maxmemory", 0)
    fleet.until_ticks("stays", ticks["stays"] + 3)
    info = fleet.info("stays")
    assert (info.incarnation, info.restarts, info.charged) == (1, 0, 0)
    for agent_id in ids:
        fleet.check_streams(agent_id)
