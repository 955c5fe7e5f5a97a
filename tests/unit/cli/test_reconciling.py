"""`ares agents reconcile`, and where `ares agents show` tells what it is about."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ares_celery.cli.apps import Session
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.errors import (
    AgentNotParkedError,
    AresError,
    InvalidSettingError,
    StepIntentNotFoundError,
    StepResultTooLargeError,
    StepSettledError,
)
from ares_celery.ids import Instant
from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.model.step import StepIntent
from tests.unit.cli.calling import agent, run


class Manager:
    """Notes what is said, and answers."""

    def __init__(self, answer: AgentInfo | AresError, intents: tuple[StepIntent, ...] = ()) -> None:
        self.answer = answer
        self.said: list[dict[str, Any]] = []
        self.open_steps = intents

    @property
    def checkpoints(self) -> Manager:
        """Itself: it tells the open steps."""
        return self

    def intents(self, agent_id: str) -> tuple[StepIntent, ...]:
        assert agent_id == "a"
        return self.open_steps

    def reconcile_agent(self, agent_id: str, **said: Any) -> AgentInfo:
        self.said.append({"agent_id": agent_id, **said})
        if isinstance(self.answer, AresError):
            raise self.answer
        return self.answer

    def get_agent_info(self, agent_id: str) -> AgentInfo:
        assert isinstance(self.answer, AgentInfo)
        return self.answer


def answering(monkeypatch: pytest.MonkeyPatch, answer: AgentInfo | AresError, *intents: StepIntent) -> Manager:
    """Lets the Manager answer so."""
    manager = Manager(answer, intents)
    monkeypatch.setattr(Session, "manager", manager)
    return manager


@pytest.mark.parametrize(
    ("words", "done"),
    [
        (["--done", '{"paid": true}'], {"paid": True}),
        (["--done", "null"], None),
        (["--done", "0"], 0),
        (["--retry"], ...),
    ],
)
def test_the_word_reaches_the_manager(monkeypatch: pytest.MonkeyPatch, words: list[str], done: object) -> None:
    """With names, reason and actor; null is a result like any other."""
    manager, retry = answering(monkeypatch, agent("a", AgentState.STARTING)), done is ...
    named = ["--execution", "main", "--step", "pay", "--reason", "looked", "--actor", "ann"]
    ended = run("agents", "reconcile", "a", *words, *named)
    assert (ended.exit_code, manager.said) == (
        0,
        [
            {
                "agent_id": "a",
                "execution": "main",
                "step": "pay",
                "done": done,
                "retry": retry,
                "reason": "looked",
                "actor": "ann",
            }
        ],
    )
    assert ("runs again" if retry else "counts as done") in ended.stderr
    assert "is starting" in ended.stderr


def test_it_says_what_is_left_and_how_the_agent_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """For people and for programs."""
    answering(monkeypatch, agent("a", AgentState.PARKED, cause="reconcile", intents=2))
    said = run("agents", "reconcile", "a", "--retry").stderr
    assert [part for part in ("2 more to settle", "is parked (reconcile)") if part not in said] == []
    assert json.loads(run("agents", "reconcile", "a", "--retry", "-o", "json").stdout)["intents"] == 2


@pytest.mark.parametrize("words", [[], ["--retry", "--done", "1"], ["--done", "not json"]])
def test_a_word_that_cannot_be_is_no_word(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """Nothing is asked of anybody."""
    manager = answering(monkeypatch, agent("a", AgentState.PARKED))
    assert run("agents", "reconcile", "a", *words).exit_code == ExitCode.USAGE
    assert manager.said == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StepIntentNotFoundError(agent_id="a", what="step 'x'", listed="nothing"), ExitCode.NOT_FOUND),
        (AgentNotParkedError(agent_id="a", state="running"), ExitCode.PRECONDITION),
        (StepSettledError(agent_id="a", step="s", execution="e"), ExitCode.PRECONDITION),
        (InvalidSettingError(field="step", value=None, problem="name one"), ExitCode.USAGE),
        (StepResultTooLargeError(agent_id="a", step="s", execution="e"), ExitCode.USAGE),
    ],
    ids=lambda value: value.code if isinstance(value, AresError) else value.name,
)
def test_a_refusal_has_its_exit_code(monkeypatch: pytest.MonkeyPatch, error: AresError, code: ExitCode) -> None:
    """Scripts branch on it."""
    answering(monkeypatch, error)
    assert run("agents", "reconcile", "a", "--retry").exit_code == code


INTENT = StepIntent("msg:1", "pay", "charge", "never", {"args": [7], "kwargs": {}}, 3, Instant(1_767_225_600_000_000))


def test_show_tells_each_step_and_the_command_that_settles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the table a line for each, in JSON a list; nothing of either where none is open."""
    info = agent("a", AgentState.PARKED, cause="reconcile", intents=1)
    answering(monkeypatch, info, INTENT)
    (line,) = [line for line in run("agents", "show", "a").stdout.splitlines() if line.startswith("open step 1")]
    parts = ("pay of execution msg:1", "charge(7)", "2026-01-01T00:00:00.000+00:00", "incarnation 3")
    assert [part for part in parts if part not in line] == []
    assert "`ares agents reconcile a --execution msg:1 --step pay …`" in line
    assert json.loads(run("agents", "show", "a", "-o", "json").stdout)["open_steps"] == [
        {
            "execution": "msg:1",
            "step": "pay",
            "function": "charge",
            "arguments": {"args": [7], "kwargs": {}},
            "incarnation": 3,
            "time": "2026-01-01T00:00:00+00:00",
        }
    ]
    answering(monkeypatch, agent("a", AgentState.PARKED), INTENT)
    assert "open step" not in run("agents", "show", "a").stdout
