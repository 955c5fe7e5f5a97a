"""``ares agents update``, ``ares runtime audit``, ``ares config``: what they hand on, and what they print."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from ares_celery.cli.apps import Session
from ares_celery.cli.config import LATER
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.cli.main import cli
from ares_celery.clock import instant_from
from ares_celery.config import RuntimeConfig
from ares_celery.model.agent import AgentState
from ares_celery.model.audit import AuditEntry
from tests.unit.cli.calling import RecordingManager, agent, run, runner

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


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (("--budget", "tokens=5000", "--budget", "usd=none"), {"budget": {"tokens": 5000.0, "usd": None}}),
        (("--budget", "usd=2.5", "--config", "a=1"), {"budget": {"usd": 2.5}, "config": {"a": 1}, "merge": True}),
        (("--config", "{}"), {"config": {}, "merge": False}),
    ],
)
def test_a_budget_is_changed_alone_or_with_a_config(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], wanted: dict[str, object]
) -> None:
    """What is not named is not sent."""
    manager = stand_in(monkeypatch, INFO)
    assert run("agents", "update", "a", *options).exit_code == ExitCode.OK
    assert manager.calls == [("update_agent", ("a",), {**wanted, "apply": "next", "reason": "", "actor": ""})]


@pytest.mark.parametrize("options", [(), ("--budget", "tokens"), ("--budget", "tokens=many"), ("--budget", "")])
def test_a_budget_that_cannot_be_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    """So is an update of nothing."""
    manager = stand_in(monkeypatch, INFO)
    assert run("agents", "update", "a", *options).exit_code == ExitCode.USAGE
    assert manager.calls == []


def test_an_agent_is_started_with_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checked as any spec is: no limit of a new agent is taken away."""
    manager = stand_in(monkeypatch, SimpleNamespace(info=lambda: INFO))
    options = ("agents", "start", "a", "--type", "counter")
    run(*options, "--budget", "tokens=5000", "--budget", "usd=2")
    (_, (spec,), _) = manager.calls[0]
    assert spec.budget == {"tokens": 5000.0, "usd": 2.0}
    for wrong in ("pages=3", "tokens=-1", "usd=nan", "usd=none"):
        assert run(*options, "--budget", wrong).exit_code == ExitCode.USAGE
    assert len(manager.calls) == 1


@pytest.mark.parametrize("command", [("update", "a"), ("start", "a", "--type", "counter")])
@pytest.mark.parametrize("given", ["{", "step", "=5", "a b=1", "[1]"])
def test_what_is_neither_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], given: str
) -> None:
    """Nothing is sent."""
    manager = stand_in(monkeypatch, INFO)
    done = run("agents", *command, "--config", given)
    assert done.exit_code == ExitCode.USAGE
    assert manager.calls == []


@pytest.mark.parametrize(
    ("given", "config"),
    [
        (('{"step": 5}',), {"step": 5}),
        (("step=5", "name=b"), {"step": 5, "name": "b"}),
        (("-",), {"from": "stdin"}),
        ((), {}),
    ],
)
def test_a_start_takes_a_config_in_the_forms_of_an_update(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], config: dict[str, object]
) -> None:
    """One way to write it, wherever it is written."""
    manager = stand_in(monkeypatch, SimpleNamespace(info=lambda: INFO))
    options = [word for value in given for word in ("--config", value)]
    done = runner().invoke(cli, ["agents", "start", "a", "--type", "counter", *options], input='{"from": "stdin"}')
    assert (done.exit_code, manager.calls[0][1][0].config) == (0, config)


def test_stdin_that_is_no_object_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A config is an object."""
    manager = stand_in(monkeypatch, INFO)
    done = runner().invoke(cli, ["agents", "update", "a", "--config", "-"], input="[1]")
    assert (done.exit_code, manager.calls) == (ExitCode.USAGE, [])


def test_the_audit_stream_is_a_table_or_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of an entry in JSON, what fits in the table."""
    manager = stand_in(monkeypatch, [ENTRY])
    shown = run("runtime", "audit", "a", "--since", "2026-07-01T00:00:00Z", "-n", "5").stdout
    assert [word for word in ("ann", "update", "faster", "running", "config") if word not in shown] == []
    assert manager.calls == [("audit", ("a",), {"since": "2026-07-01T00:00:00Z", "limit": 5})]
    (entry,) = json.loads(run("runtime", "audit", "-o", "json").stdout)
    assert (entry["op"], entry["changed"], entry["time"]) == ("op-1", ["config"], "2026-07-01T12:00:00+00:00")


def test_so_long_ago_is_by_the_clock_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by the terminal's."""
    manager = stand_in(monkeypatch, [])
    monkeypatch.setattr(Session, "store", SimpleNamespace(server_time=lambda: instant_from(ENTRY.time)))
    assert run("runtime", "audit", "--since", "2h").exit_code == 0
    assert manager.calls == [("audit", (None,), {"since": ENTRY.time - timedelta(hours=2), "limit": 100})]


@pytest.mark.parametrize("given", ["yesterday", "", "2 weeks", "120", "2026", "9999999999999h"])
def test_what_is_no_time_is_told_both_forms(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """The examples can be typed as they stand."""
    manager = stand_in(monkeypatch, [])
    monkeypatch.setattr(Session, "store", SimpleNamespace(server_time=lambda: instant_from(ENTRY.time)))
    done = run("runtime", "audit", "--since", given)
    assert (done.exit_code, manager.calls) == (ExitCode.USAGE, [])
    assert [form for form in ("10m", "2h", "ISO time with its zone") if form not in " ".join(done.stderr.split())] == []


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        (("lease_ttl=20s",), {"lease_ttl": "20s"}),
        (("lease_ttl", "20s"), {"lease_ttl": "20s"}),
        (("lease_ttl=20s", "restart_period=none", "max_event_bytes=1MiB"), None),
    ],
)
def test_settings_are_set_by_name(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], changes: dict[str, str] | None
) -> None:
    """One as two words, or any number of pairs."""
    manager = stand_in(monkeypatch, RuntimeConfig(lease_ttl="20s"))
    done = run("config", "set", *given, "--reason", "r", "-o", "json")
    wanted = changes or {"lease_ttl": "20s", "restart_period": "none", "max_event_bytes": "1MiB"}
    assert manager.calls == [("set_config", (wanted,), {"reason": "r", "actor": ""})]
    assert json.loads(done.stdout)["lease_ttl"] == "20s"


@pytest.mark.parametrize("given", [("lease_ttl",), ("=20s",), ("lease_ttl=1s", "20s"), ()])
def test_what_sets_nothing_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...]) -> None:
    """Nothing is sent."""
    manager = stand_in(monkeypatch, RuntimeConfig())
    assert run("config", "set", *given).exit_code == ExitCode.USAGE
    assert manager.calls == []


def test_a_setting_that_agents_take_over_later_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others hold at once."""
    stand_in(monkeypatch, RuntimeConfig())
    assert "next incarnation" in run("config", "set", "snapshot_interval=5s").stderr
    assert run("config", "set", "lease_ttl=8s").stderr == ""


def test_every_setting_that_holds_later_exists() -> None:
    """The list names none that was renamed."""
    assert set(RuntimeConfig.model_fields) >= LATER


class _Wiring:
    """What a process was given."""

    def __init__(self, own: RuntimeConfig) -> None:
        self.own_config = own


@pytest.mark.parametrize("own", [RuntimeConfig(lease_ttl="20s", snapshots_kept=3), RuntimeConfig()])
def test_own_values_are_shown_beside_those_that_hold(monkeypatch: pytest.MonkeyPatch, own: RuntimeConfig) -> None:
    """Only those that were given and differ."""
    monkeypatch.setattr(Session, "config", RuntimeConfig())
    monkeypatch.setattr(Session, "wiring", _Wiring(own))
    differing = json.loads(run("config", "diff", "-o", "json").stdout)
    assert differing == ({"lease_ttl": {"own": "20s", "namespace": "8s"}} if own.model_fields_set else {})
    done = run("config", "diff")
    assert ("20s" in done.stdout) == bool(own.model_fields_set)


@pytest.mark.parametrize(
    ("own", "words"), [(RuntimeConfig(lease_ttl="8s"), "was given are those"), (RuntimeConfig(), "was given no values")]
)
def test_a_diff_without_lines_says_why(monkeypatch: pytest.MonkeyPatch, own: RuntimeConfig, words: str) -> None:
    """Nothing was given, or nothing differs."""
    monkeypatch.setattr(Session, "config", RuntimeConfig())
    monkeypatch.setattr(Session, "wiring", _Wiring(own))
    assert words in run("config", "diff").stderr
