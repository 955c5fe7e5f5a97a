"""One record that this version cannot read: the other agents are judged, listed and stopped as if it were not there."""

from __future__ import annotations

import pytest

from ares_celery import AgentSpec, UnreadableRecordError
from ares_celery.ids import AgentId
from ares_celery.store.redis.keys import Keys
from tests.fleet import Fleet

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

BAD = "idle-07"
OTHERS = [f"idle-{number:02}" for number in range(50) if number != 7]


@pytest.mark.parametrize("how", ["state", "type"])
def test_the_other_agents_of_a_lost_host_come_back_are_listed_and_stopped(fleet: Fleet, how: str) -> None:
    """49 of 50 agents of a frozen worker are judged by their leases and run elsewhere; the 50th says why it cannot."""
    first = fleet.worker("first", slots=60)
    ids = [*OTHERS, BAD]
    for agent_id in ids:
        fleet.manager.start_agent(AgentSpec(id=agent_id, type="idler"))
    fleet.wait(lambda: fleet.manager.stats().by_state.get("running") == len(ids), "all agents to run")
    second = fleet.worker("second", slots=60)

    key = Keys(fleet.namespace, fleet.config.shards).agent(AgentId(BAD))
    with fleet.redis.client() as client:
        if how == "state":
            client.hset(key, "state", "hibernating")
        else:
            client.set(key, "garbage")
    first.freeze()
    fleet.wait(
        lambda: all(info.worker == "second@host" for info in fleet.manager.list_agents()), "all others on second"
    )

    assert [info.id for info in fleet.manager.list_agents()] == OTHERS
    assert {info.charged for info in fleet.manager.list_agents()} == {0}
    with pytest.raises(UnreadableRecordError, match=BAD):
        fleet.manager.get_agent_info(BAD)
    with pytest.raises(UnreadableRecordError, match="upgrade this process"):
        fleet.manager.stop_agent(BAD)
    fleet.manager.stop()
    assert {info.state for info in fleet.manager.list_agents()} == {"stopped"}
    assert "a sweep failed" not in second.log()
    told = [line for line in second.log().splitlines() if f"'{BAD}' cannot be read" in line]
    assert 1 <= len(told) <= 10, "told, and not at every sweep"
    first.thaw()
