"""More agents than slots: waiting is no death, and the broker does not fill with messages of those who wait."""

from __future__ import annotations

import pytest

from ares_celery import AgentSpec
from tests.fleet import Fleet

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

AGENTS, SLOTS = 30, 5
WAITING = AGENTS - SLOTS


def test_messages_are_bounded_by_the_agents_that_wait_and_lost_ones_are_sent_again(fleet: Fleet) -> None:
    """However often each is looked at, two each at most; and when all are lost, free slots are filled nevertheless."""
    fleet.worker("worker", slots=SLOTS)
    ids = [f"idle-{number:02}" for number in range(AGENTS)]
    for agent_id in ids:
        fleet.manager.start_agent(AgentSpec(id=agent_id, type="idler"))
    by_state = {"running": SLOTS, "starting": WAITING}
    fleet.wait(lambda: fleet.manager.stats().by_state == by_state, "every slot to be taken")

    def looked_at_often() -> bool:
        waiting = [fleet.record(agent_id) for agent_id in ids if fleet.info(agent_id).state == "starting"]
        return len(waiting) == WAITING and all(record.nudges >= 2 for record in waiting)

    # With the first message that is three each, if nobody looked whether the last one is still there.
    fleet.wait(looked_at_often, "several looks at each agent that waits", timeout=40)
    queue = f"{fleet.namespace}.agents"
    with fleet.redis.client() as client:
        assert WAITING <= int(client.llen(queue)) <= 2 * WAITING
        client.delete(queue)
    running = [agent_id for agent_id in ids if fleet.info(agent_id).state == "running"]
    for agent_id in running:
        fleet.manager.stop_agent(agent_id)
    by_state = {"running": SLOTS, "starting": WAITING - SLOTS, "stopped": SLOTS}
    fleet.wait(lambda: fleet.manager.stats().by_state == by_state, "the free slots to be taken", timeout=40)
    assert {info.charged for info in fleet.manager.list_agents()} == {0}
