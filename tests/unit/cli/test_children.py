"""``ares agents ls --parent``: who spawned whom."""

from __future__ import annotations

import json

import pytest

from ares_celery.cli.apps import Session
from ares_celery.model.agent import AgentInfo, AgentRecord, AgentSpec, AgentState
from ares_celery.model.info import agent_info
from tests.unit.cli.calling import RecordingManager, run


def child(agent_id: str, state: AgentState, kind: str = "worker") -> AgentInfo:
    """What is known of a child."""
    return agent_info(AgentRecord(AgentSpec(id=agent_id, type=kind, parent="p"), state=state))


def test_the_children_of_an_agent_are_listed_as_agents_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """By state and type, too; show names the parent."""
    children = [
        child("c1", AgentState.STOPPED),
        child("c2", AgentState.COMPLETED),
        child("c3", AgentState.STOPPED, "other"),
    ]
    manager = RecordingManager(children)
    monkeypatch.setattr(Session, "manager", manager)
    listed = json.loads(run("agents", "ls", "--parent", "p", "-o", "json").stdout)
    assert [one["id"] for one in listed] == ["c1", "c2", "c3"]
    assert {one["parent"] for one in listed} == {"p"}
    narrowed = json.loads(
        run("agents", "ls", "--parent", "p", "--state", "stopped", "--type", "worker", "-o", "json").stdout
    )
    assert [one["id"] for one in narrowed] == ["c1"]
    assert manager.calls == [("children", ("p",), {})] * 2
    monkeypatch.setattr(Session, "manager", RecordingManager(children[0]))
    assert json.loads(run("agents", "show", "c1", "-o", "json").stdout)["parent"] == "p"
