"""``ares chaos``: what it hands on, and what it prints."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from ares_celery.cli.apps import Session
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.clock import to_datetime
from ares_celery.errors import (
    AgentNotFoundError,
    AresError,
    ChaosDisabledError,
    FaultLimitError,
    OperationNotSupportedError,
)
from ares_celery.model.fault import Fault, FaultKind
from ares_celery.model.limits import ClosedLimit
from ares_celery.store.faults import ChaosState
from tests.unit.cli.calling import RecordingManager, run

SLOW = Fault(
    "op-1", "a", FaultKind.SLOW, until=to_datetime(60_000_000), delay=0.5, probability=0.2, seed=7, used=1, count=3
)
MCP = Fault("op-2", "b", FaultKind.MCP, until=to_datetime(60_000_000), server="github")
CALLS: dict[str, Any] = {"duration": None, "count": None, "probability": 1.0, "seed": None}
WHY = {"reason": "", "actor": ""}


def stand_in(
    monkeypatch: pytest.MonkeyPatch, answer: object = None, error: AresError | None = None
) -> RecordingManager:
    """What the commands get for a Manager."""
    made = RecordingManager(answer, error)
    monkeypatch.setattr(Session, "manager", made)
    return made


@pytest.mark.spec(147)
@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("slow a 500ms", ("slow_agent", ("a", timedelta(milliseconds=500)), {**CALLS, **WHY})),
        ("tool-timeout a 2", ("tool_timeout", ("a", timedelta(seconds=2)), {**CALLS, **WHY})),
        ("partition a", ("partition_network", ("a",), {"duration": None, **WHY})),
        ("corrupt-memory a --seed 3", ("corrupt_memory", ("a",), {"duration": None, "seed": 3, **WHY})),
        ("disconnect-mcp a --server git", ("disconnect_mcp", ("a",), {"server": "git", **CALLS, **WHY})),
        ("llm-failure a", ("inject_llm_failure", ("a", "rate_limit"), {"retry_after": None, **CALLS, **WHY})),
        (
            "llm-failure a auth --retry-after 7s --for 1m30s --count 2 --probability 0.5 --seed 9 --reason r",
            (
                "inject_llm_failure",
                ("a", "auth"),
                {
                    "retry_after": timedelta(seconds=7),
                    "duration": timedelta(seconds=90),
                    "count": 2,
                    "probability": 0.5,
                    "seed": 9,
                    "reason": "r",
                    "actor": "",
                },
            ),
        ),
    ],
)
def test_a_fault_is_injected_as_it_was_typed(
    monkeypatch: pytest.MonkeyPatch, words: str, call: tuple[str, tuple[Any, ...], dict[str, Any]]
) -> None:
    """And shown as it then is, for programs or for people."""
    manager = stand_in(monkeypatch, SLOW)
    assert json.loads(run("chaos", *words.split(), "-o", "json").stdout) == SLOW.to_json()
    shown = run("chaos", *words.split()).stdout.splitlines()
    assert manager.calls == [call, call]
    assert ["id", "op-1"] in [line.split() for line in shown]
    assert ["delay", "0.5"] in [line.split() for line in shown]


def refusing(monkeypatch: pytest.MonkeyPatch, field: str, others: list[str]) -> list[tuple[Any, ...]]:
    """A manager that kills only with force, as others would die too; gives its calls."""
    calls: list[tuple[Any, ...]] = []

    class Manager:
        """Stands in."""

        def kill_agent(self, name: str, *, force: bool, **why: str) -> dict[str, Any]:
            """Refuses at first."""
            calls.append((name, force, why))
            if not force:
                reason = f"its process also hosts {', '.join(others)}; pass force=True"
                fields: dict[str, Any] = {field: others}
                raise OperationNotSupportedError(operation="kill", reason=reason, agent_id=name, **fields)
            return {"agent_id": name, "pid": 7, field: others}

        kill_worker = kill_agent

    monkeypatch.setattr(Session, "manager", Manager())
    return calls


@pytest.mark.parametrize(("command", "field"), [("kill", "co_tenants"), ("kill-worker", "agents")])
def test_a_kill_names_who_dies_along_before_it_does(monkeypatch: pytest.MonkeyPatch, command: str, field: str) -> None:
    """Refused without --force; with it on stderr, so that stdout is the answer alone."""
    calls = refusing(monkeypatch, field, ["b", "c"])
    refused = run("chaos", command, "a", "-o", "json")
    assert refused.exit_code == ExitCode.PRECONDITION
    assert "also hosts b, c; pass --force" in refused.stderr
    done = run("chaos", command, "a", "--force", "--reason", "r", "-o", "json")
    assert (done.exit_code, done.stderr) == (0, "with it die: b, c\n")
    assert json.loads(done.stdout) == {"agent_id": "a", "pid": 7, field: ["b", "c"]}
    why = {"reason": "r", "actor": ""}
    assert calls == [("a", False, WHY), ("a", False, why), ("a", True, why)]


@pytest.mark.parametrize(("command", "method"), [("kill", "kill_agent"), ("kill-worker", "kill_worker")])
def test_a_kill_that_takes_nobody_along_is_done_at_once(
    monkeypatch: pytest.MonkeyPatch, command: str, method: str
) -> None:
    """With --force or without; a refusal for another reason is one with force, too."""
    manager = stand_in(monkeypatch, {"pid": 7})
    assert run("chaos", command, "a").stdout.split() == ["pid", "7"]
    assert json.loads(run("chaos", command, "a", "--force", "-o", "json").stdout) == {"pid": 7}
    assert manager.calls == [(method, ("a",), {"force": False, **WHY})] * 2
    stand_in(monkeypatch, error=OperationNotSupportedError(operation="kill", reason="it runs on host far"))
    failed = run("chaos", command, "a", "--force")
    assert (failed.exit_code, failed.stdout) == (ExitCode.PRECONDITION, "")
    assert "it runs on host far" in failed.stderr


def test_zero_clears(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no fault to show then."""
    manager = stand_in(monkeypatch)
    assert "cleared" in run("chaos", "slow", "a", "0").stderr
    assert json.loads(run("chaos", "slow", "a", "0", "-o", "json").stdout) is None
    assert [call[1] for call in manager.calls] == [("a", timedelta(0))] * 2


def test_active_faults_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one agent or of all."""
    manager = stand_in(monkeypatch, (SLOW, MCP))
    monkeypatch.setattr(manager, "closed_limits", tuple, raising=False)
    lines = run("chaos", "ls").stdout.splitlines()
    assert lines[0].split() == ["AGENT", "KIND", "WHAT", "CALLS", "UNTIL", "ID"]
    assert lines[1].split("  ")[0] == "a"
    assert "1 of 3 (p 0.2, seed 7)" in lines[1]
    assert lines[2].split() == ["b", "mcp", "github", "all", "1970-01-01T00:01:00+00:00", "op-2"]
    assert json.loads(run("chaos", "ls", "a", "-o", "json").stdout) == [SLOW.to_json(), MCP.to_json()]
    assert manager.calls == [("list_faults", (None,), {}), ("list_faults", ("a",), {})]


def test_limits_that_faults_have_closed_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the faults are over; those of one agent, and none that a provider has closed."""
    manager = stand_in(monkeypatch, ())
    until = to_datetime(60_000_000)
    closed = (ClosedLimit("account", until, "a", "op-1"), ClosedLimit("other", until, "b", "op-2"))
    monkeypatch.setattr(manager, "closed_limits", lambda: (*closed, ClosedLimit("account", until)), raising=False)
    shown = run("chaos", "ls")
    assert "no fault is active" in shown.stderr
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert lines[0] == ["CLOSED", "LIMIT", "UNTIL", "BY", "A", "FAULT", "OF", "ID"]
    assert lines[1:] == [[one.name, "1970-01-01T00:01:00+00:00", one.agent_id, one.fault] for one in closed]
    assert [line.split()[0] for line in run("chaos", "ls", "b").stdout.splitlines()] == ["CLOSED", "other"]


def test_faults_are_healed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By agent, by kind or id, or all."""
    manager = stand_in(monkeypatch, (SLOW,))
    assert json.loads(run("chaos", "heal", "a", "--fault", "slow", "-o", "json").stdout) == [SLOW.to_json()]
    run("chaos", "heal")
    assert manager.calls == [("heal", ("a", "slow"), WHY), ("heal", (None, None), WHY)]
    stand_in(monkeypatch, ())
    assert "nothing was to be healed" in run("chaos", "heal").stderr
    assert json.loads(run("chaos", "heal", "-o", "json").stdout) == []


def test_faults_are_allowed_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the moment that is shown; without --for nobody allows anything."""
    manager = stand_in(monkeypatch, ChaosState(to_datetime(0), "game day", "eve"))
    shown = run("chaos", "enable", "--for", "1h", "--reason", "game day").stdout
    assert "1970-01-01T00:00:00+00:00" in shown
    assert (
        json.loads(run("chaos", "enable", "--for", "1h", "-o", "json").stdout)["until"] == "1970-01-01T00:00:00+00:00"
    )
    assert manager.calls[0] == ("enable_chaos", (timedelta(hours=1),), {"reason": "game day", "actor": ""})
    assert run("chaos", "enable").exit_code == ExitCode.USAGE
    manager = stand_in(monkeypatch, (MCP,))
    assert json.loads(run("chaos", "disable", "-o", "json").stdout) == [MCP.to_json()]
    assert manager.calls == [("disable_chaos", (), WHY)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ChaosDisabledError(operation="slow_agent", namespace="n"), ExitCode.PRECONDITION),
        (FaultLimitError(agent_id="a", limit=100), ExitCode.PRECONDITION),
        (AgentNotFoundError(agent_id="a"), ExitCode.NOT_FOUND),
    ],
)
def test_a_refusal_has_its_exit_code(monkeypatch: pytest.MonkeyPatch, error: AresError, code: ExitCode) -> None:
    """As everywhere."""
    stand_in(monkeypatch, error=error)
    assert run("chaos", "slow", "a", "1s").exit_code == code


@pytest.mark.parametrize(
    "words", ["slow a", "slow a soon", "slow a 1s --count 0", "slow a 1s --seed -1", "slow a 1s --for x", "partition"]
)
def test_a_slip_of_the_pen_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    """Nothing is asked of anybody."""
    manager = stand_in(monkeypatch)
    assert run("chaos", *words.split()).exit_code == ExitCode.USAGE
    assert manager.calls == []
