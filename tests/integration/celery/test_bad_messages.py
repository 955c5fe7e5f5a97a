"""Messages that no sender of ours writes, in a real worker: it keeps its slots, and its log their secrets."""

from __future__ import annotations

import pytest

from tests.fleet import AGENTS, CONTROL
from tests.integration.celery.fleet import CeleryFleet

pytestmark = pytest.mark.timeout(90)

SLOTS = 2


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_messages_that_name_no_agent_cost_no_slot(fleet: CeleryFleet, pool: str) -> None:
    """More of them than the worker has slots; then it hosts as many agents as ever."""
    worker = fleet.worker("worker", pool=pool, slots=SLOTS)
    bad = (("x", float("inf")), ({"a": 1}, 5), ("x", [1]), (), ("x", 1.5), (None, None))
    tasks = [fleet.send("ares.run_agent", *args, queue=AGENTS) for args in bad]
    assert [fleet.result(task) for task in tasks] == [{"noop": "bad message"}] * len(bad)
    fleet.start("counter", *(f"c{n}" for n in range(SLOTS)))
    assert worker.alive
    assert "Traceback" not in worker.log()


def test_a_message_for_a_task_of_a_newer_version_is_named_and_not_shown(fleet: CeleryFleet) -> None:
    """It fails for its sender, leaves its queue, and the log has neither its body nor its headers."""
    worker = fleet.worker("worker")
    task = fleet.send("ares.newer_command", {"config": {"token": "hunter2"}}, queue=CONTROL)
    assert type(fleet.result(task)).__name__ == "NotRegistered"
    fleet.wait(lambda: "unknown task ares.newer_command" in worker.log(), "the warning")
    assert f"message {task} for the unknown task ares.newer_command is discarded" in worker.log()
    assert "hunter2" not in worker.log()
    assert fleet.result(fleet.send("ares.stats", queue=CONTROL))["active_agents"] == 0
