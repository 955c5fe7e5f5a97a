"""People decide through a service that has only Celery: the tasks `ares.interrupts` and `ares.approve`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from ares_celery import AgentNotFoundError, InterruptNotFoundError, InterruptResolvedError, InvalidSettingError
from tests.integration.celery.fleet import CeleryFleet

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

EVERYTHING = ("agents", "supervision", "control")


def test_a_service_decides_by_task_name_and_the_agent_goes_on(fleet: CeleryFleet, tmp_path: Path) -> None:
    """What is asked is listed; the first word stands, whoever sends it again or comes later; wrong calls say why."""
    fleet.worker("a1", EVERYTHING, env={"ARES_AGENT_MODULES": "tests.wait_agents"})
    journal = tmp_path / "journal"
    asker = {"id": "d-1", "type": "asker", "config": {"journal": str(journal), "release_slot": True}}
    fleet.call("ares.start_agent", asker)
    fleet.until("d-1", "waiting")

    (asked,) = fleet.call("ares.interrupts", "d-1")
    assert (asked["name"], asked["state"], asked["payload"]) == ("deploy", "open", {"to": "prod"})
    with pytest.raises(InterruptNotFoundError) as unknown:
        fleet.call("ares.approve", "d-1", "delpoy")
    assert unknown.value.open == ["deploy"]
    with pytest.raises(AgentNotFoundError):
        fleet.call("ares.approve", "nobody", "deploy")
    with pytest.raises(InvalidSettingError):
        fleet.call("ares.approve", "d-1", "deploy", 5)
    with pytest.raises(InterruptNotFoundError):
        fleet.call("ares.approve", "d-1", "deploy", interrupt_id="0" * 32)

    def approve(task_id: str, decision: object, actor: str) -> Any:
        given = {"decision": decision, "payload": {"window": "now"}, "reason": "checked", "actor": actor}
        sent = fleet.app.send_task(
            "ares.approve", ("d-1", "deploy"), {**given, "interrupt_id": asked["id"]}, task_id=task_id
        )
        return sent.get(timeout=8)

    first = approve("t-1", "yes", "ann")
    assert (first["state"], first["decision"], first["answer"]) == ("resolved", "yes", {"window": "now"})
    assert (first["actor"], first["reason"], first["id"]) == ("ann", "checked", asked["id"])
    info = fleet.until("d-1", "completed", timeout=5)
    assert (info.result, info.incarnation, info.restarts) == ("yes", 2, 0)
    assert journal.read_text().split("\n") == ["before", "after yes", ""]

    # The broker may deliver the very same message twice.
    fleet.app.AsyncResult("t-1").forget()
    assert fleet.app.AsyncResult("t-1").state == "PENDING"
    assert approve("t-1", "yes", "ann")["decided_at"] == first["decided_at"]
    with pytest.raises(InterruptResolvedError) as late:
        approve("t-2", "no", "bob")
    assert (late.value.decision, late.value.actor, late.value.reason) == ("yes", "ann", "checked")
    assert datetime.fromisoformat(late.value.decided_at) == datetime.fromisoformat(first["decided_at"])
    assert [event.payload["decision"] for event in fleet.events("d-1", "interrupt.resolved")] == ["yes"]
