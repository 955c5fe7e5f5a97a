"""``ares agents show``: what an agent may spend, and what it has spent."""

from __future__ import annotations

import json

import pytest

from ares_celery.cli.apps import Session
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState
from ares_celery.model.info import agent_info
from tests.unit.cli.calling import RecordingManager, run


def test_show_has_the_budget_and_what_was_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own, and what the agents below it have told; the cause says what to do."""
    spec = AgentSpec(id="w", type="writer", budget={"tokens": 1_000, "usd": 5})
    record = AgentRecord(
        spec,
        state=AgentState.PARKED,
        cause="budget",
        reason="the tokens of agent 'w' are used up (1200 of 1000)",
        spent_tokens=1_200,
        spent_usd=24_000,
        spent_steps=2,
        shared_tokens=7,
    )
    monkeypatch.setattr(Session, "manager", RecordingManager(agent_info(record)))
    shown = json.loads(run("agents", "show", "w", "-o", "json").stdout)
    assert shown["budget"] == {"tokens": 1_000, "usd": 5.0}
    assert shown["spent"] == {"tokens": 1_200, "usd": 0.024, "steps": 2}
    assert shown["spent_below"] == {"tokens": 7, "usd": 0.0, "steps": 0}
    assert (shown["cause"], shown["reason"]) == ("budget", "the tokens of agent 'w' are used up (1200 of 1000)")
    lines = dict(line.split(maxsplit=1) for line in run("agents", "show", "w").stdout.splitlines())
    for name, values in (("budget", ("1000", "5.0")), ("spent", ("1200", "0.024")), ("spent_below", ("7",))):
        assert all(value in lines[name] for value in values), lines
