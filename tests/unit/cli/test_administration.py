"""``ares agents update`` and ``ares runtime audit``: what they hand on, and what they print."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from ares_celery.cli.apps import Session
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.model.agent import AgentState
from ares_celery.model.audit import AuditEntry
from tests.unit.cli.calling import RecordingManager, agent, run

INFO = agent("a", AgentState.RUNNING)
ENTRY = AuditEntry(
    time=datetime(2026, 7, 1, 12, tzinfo=UTC),
    operation="update",
    agent_id="a",
    actor="ann",
    reason="faster",
    state="running",
    op="op-1",
    changed=("config",),
)


def stand_in(monkeypatch: pytest.MonkeyPatch, answer: object) -> RecordingManager:
    """What the commands get for a Manager."""
    made = RecordingManager(answer)
    monkeypatch.setattr(Session, "manager", made)
    return made


@pytest.mark.parametrize(
    ("given", "config", "merge"),
    [
        (('{"step": 5, "unit": "km"}',), {"step": 5, "unit": "km"}, False),
        (("{}",), {}, False),
        (("step=5", "unit=km", "deep={", "on=true"), {"step": 5, "unit": "km", "deep": "{", "on": True}, True),
    ],
)
def test_a_config_is_a_json_object_or_single_keys(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], config: object, merge: object
) -> None:
    """An object replaces, keys are merged; a value that is no JSON is text."""
    manager = stand_in(monkeypatch, INFO)
    options = [word for value in given for word in ("--config", value)]
    done = run("agents", "update", "a", *options, "--apply", "restart", "--reason", "r", "--actor", "x", "-o", "json")
    assert json.loads(done.stdout)["id"] == "a"
    wanted = {"config": config, "merge": merge, "apply": "restart", "reason": "r", "actor": "x"}
    assert manager.calls == [("update_agent", ("a",), wanted)]


@pytest.mark.parametrize("given", ["{", "step", "=5", "a b=1"])
def test_what_is_neither_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """Nothing is sent."""
    manager = stand_in(monkeypatch, INFO)
    done = run("agents", "update", "a", "--config", given)
    assert done.exit_code == ExitCode.USAGE
    assert manager.calls == []


def test_the_audit_stream_is_a_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of an entry in JSON, what fits in the table."""
    manager = stand_in(monkeypatch, [ENTRY])
    shown = run("runtime", "audit", "a", "--since", "2026-07-01T00:00:00Z", "-n", "5").stdout
    assert [word for word in ("ann", "update", "faster", "running", "config") if word not in shown] == []
    assert manager.calls == [("audit", ("a",), {"since": "2026-07-01T00:00:00Z", "limit": 5})]
    (entry,) = json.loads(run("runtime", "audit", "-o", "json").stdout)
    assert (entry["op"], entry["changed"], entry["time"]) == ("op-1", ["config"], "2026-07-01T12:00:00+00:00")
