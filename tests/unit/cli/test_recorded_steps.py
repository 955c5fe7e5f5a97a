"""`ares agents steps`: what was recorded, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ares_celery import AgentContext, StepFailedError
from ares_celery.cli.apps import Session
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.testing import AgentHarness
from tests.unit.cli.calling import run


def fail() -> None:
    """What a step does that fails."""
    raise ValueError("no money")


class Recorder:
    """Makes steps."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> None:
        await ctx.step("long", str.upper, "x" * 500)
        try:
            await ctx.step.with_options(replay="never")("bad", fail)
        except StepFailedError:
            await ctx.sleep(3600)

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        return message


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentHarness]:
    """An agent with two steps in `main`; the command line speaks with its manager."""
    with AgentHarness(Recorder) as harness:
        harness.advance(1)
        monkeypatch.setattr(Session, "manager", harness._bench.manager)
        yield harness


def test_without_an_execution_they_are_listed(recorded: AgentHarness) -> None:
    """With their state, and how many steps they have."""
    assert json.loads(run("agents", "steps", "a", "-o", "json").stdout) == [
        {"execution": "main", "state": "running", "steps": 2}
    ]
    lines = run("agents", "steps", "a").stdout.splitlines()
    assert [line.split() for line in lines] == [["EXECUTION", "STATE", "STEPS"], ["main", "running", "2"]]


def test_the_steps_of_an_execution_come_in_their_order(recorded: AgentHarness) -> None:
    """Long values are cut off for people; programs get all of it."""
    long, bad = json.loads(run("agents", "steps", "a", "main", "-o", "json").stdout)
    assert (long["step"], long["replay"], long["value"]) == ("long", "safe", "X" * 500)
    assert (bad["function"], bad["replay"], bad["error"]["type"]) == ("fail", "never", "ValueError")
    assert long["time"] < bad["time"] or long["time"] == bad["time"]
    head, first, second = run("agents", "steps", "a", "main").stdout.splitlines()
    assert head.split() == ["STEP", "FUNCTION", "REPLAY", "TIME", "VALUE"]
    assert first.endswith('"' + "X" * 118 + "…")
    assert "failed: ValueError: no money" in second


@pytest.mark.parametrize("words", [["nobody"], ["nobody", "main"], ["a", "other"]])
def test_what_is_not_there_is_not_found(recorded: AgentHarness, words: list[str]) -> None:
    """Exit code 3, for an agent and for an execution."""
    done = run("agents", "steps", *words)
    assert (done.exit_code, done.stdout) == (ExitCode.NOT_FOUND, "")
