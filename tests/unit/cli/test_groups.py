"""``ares groups``: what it hands on, and what it prints."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from ares_celery.cli.apps import Session
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.errors import OperationNotSupportedError
from ares_celery.model.group import GroupInfo, Phase, Strategy
from tests.unit.cli.calling import RecordingManager, run

GROUP = GroupInfo(
    name="pipeline",
    strategy=Strategy.REST_FOR_ONE,
    max_restarts=3,
    period=timedelta(seconds=90),
    members=("reader", "writer"),
    phase=Phase.STOPPING,
    waiting_for="writer",
    restarts=2,
    recent=1,
    reason="process lost",
)


def stand_in(monkeypatch: pytest.MonkeyPatch, answer: object) -> RecordingManager:
    """What the commands get for a Manager."""
    made = RecordingManager(answer)
    monkeypatch.setattr(Session, "manager", made)
    return made


def test_a_group_is_defined_with_the_defaults_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or as the options say, and shown as it then is."""
    manager = stand_in(monkeypatch, GROUP)
    done = run("groups", "define", "pipeline", "-o", "json")
    run(
        *("groups", "define", "pipeline", "--strategy", "rest_for_one", "--max-restarts", "3", "--period", "1m"),
        *("--reason", "r", "--actor", "ann"),
    )
    assert manager.calls == [
        (
            "define_group",
            ("pipeline", "one_for_one", 10, timedelta(seconds=60)),
            {"reason": "", "actor": ""},
        ),
        (
            "define_group",
            ("pipeline", "rest_for_one", 3, timedelta(minutes=1)),
            {"reason": "r", "actor": "ann"},
        ),
    ]
    assert json.loads(done.stdout)["period"] == 90


@pytest.mark.parametrize("given", [("--strategy", "all"), ("--max-restarts", "-1"), ("--period", "soon")])
def test_a_value_that_cannot_be_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, given: tuple[str, str]) -> None:
    """Nothing is sent."""
    manager = stand_in(monkeypatch, GROUP)
    assert run("groups", "define", "pipeline", *given).exit_code == ExitCode.USAGE
    assert manager.calls == []


def test_groups_are_listed_with_where_a_restart_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line each; JSON has the members."""
    stand_in(
        monkeypatch, [GROUP, GROUP.model_copy(update={"max_restarts": 0, "phase": Phase.IDLE, "waiting_for": None})]
    )
    _, moving, idle = run("groups", "ls").stdout.splitlines()
    assert moving.split("  ")[0] == "pipeline"
    assert [word for word in ("rest_for_one", "2", "stopping, at writer", "3 in 1m 30s") if word not in moving] == []
    assert [word for word in ("idle", "none") if word not in idle] == []
    assert json.loads(run("groups", "ls", "-o", "json").stdout)[0]["members"] == ["reader", "writer"]


def test_a_group_is_shown_with_its_members_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the reason of the restart."""
    stand_in(monkeypatch, GROUP)
    facts = dict(line.split(maxsplit=1) for line in run("groups", "show", "pipeline").stdout.splitlines())
    assert (facts["members"], facts["reason"]) == ("reader, writer", "process lost")
    assert json.loads(run("groups", "show", "pipeline", "-o", "json").stdout)["waiting_for"] == "writer"


def test_a_group_that_nobody_defined_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that defines it."""
    stand_in(monkeypatch, None)
    done = run("groups", "show", "pipeline")
    assert done.exit_code == ExitCode.NOT_FOUND
    assert "`ares groups define NAME`" in done.stderr


def test_a_group_is_forgotten_or_the_refusal_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has members, perhaps."""
    manager = stand_in(monkeypatch, None)
    assert run("groups", "rm", "pipeline", "--reason", "r").stderr == "group pipeline is forgotten\n"
    assert manager.calls == [("delete_group", ("pipeline",), {"reason": "r", "actor": ""})]
    error = OperationNotSupportedError(operation="delete group 'pipeline'", reason="agents belong to it: reader")
    monkeypatch.setattr(Session, "manager", RecordingManager(error=error))
    done = run("groups", "rm", "pipeline")
    assert done.exit_code == ExitCode.PRECONDITION
    assert "reader" in done.stderr
