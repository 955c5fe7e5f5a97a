"""The tree of commands: how it answers, what it prints, which exit code it gives."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from ares_celery.cli.apps import BUILTIN_APP, Session, app_name
from ares_celery.cli.exit_codes import ExitCode, exit_code_of
from ares_celery.cli.fleet import Fleet, fleet_environment
from ares_celery.cli.main import cli
from ares_celery.cli.output import clean, print_table, to_json
from ares_celery.cli.words import in_cli_words
from ares_celery.errors import (
    AgentFailedError,
    AgentNotFoundError,
    AgentNotParkedError,
    AgentParkedError,
    AresError,
    ChaosDisabledError,
    InvalidAgentIdError,
    InvalidSettingError,
    ProcessTimeoutError,
    RuntimeStoppedError,
    StoreUnavailableError,
    UnknownAgentTypeError,
    WaitTimeoutError,
)
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentSpec, AgentState
from ares_celery.runtime.handle import AgentHandle
from tests.unit.cli.calling import RecordingManager, agent, commands_of, run, runner


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch) -> RecordingManager:
    """What the commands get for a Manager."""
    made = RecordingManager()
    monkeypatch.setattr(Session, "manager", made)
    return made


# -- the tree ----------------------------------------------------------------------------------------------------------


def test_every_command_has_help() -> None:
    """A sentence that says what it does."""
    assert [name for name, command in commands_of(cli).items() if not command.help] == []


def test_every_command_that_prints_data_prints_json_too() -> None:
    """`-o json` everywhere; commands without data print nothing on stdout."""
    silent = {f"agents {name}" for name in ("pause", "restart", "restore", "resume", "rm", "stop", "unpark")}
    without = {
        name
        for name, command in commands_of(cli).items()
        if not any("--output" in parameter.opts for parameter in command.params)
    }

    assert without == {*silent, "flower", "groups rm", "runtime start", "runtime stop", "up"}


def test_help_answers_without_importing_celery_or_redis() -> None:
    """Every call of `celery` imports the tree too, so it must be light."""
    code = "import sys, ares_celery.cli.main; print(sorted({'celery', 'redis', 'pydantic', 'rich'} & set(sys.modules)))"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_version_names_what_it_stands_on() -> None:
    """One line of JSON."""
    shown = json.loads(run("version", "-o", "json").stdout)

    assert {"celery", "redis", "python"} <= set(shown)
    assert run("--version").stdout == f"ares-celery {shown['ares-celery']}\n"


@pytest.mark.parametrize(
    ("options", "environ", "is_said"),
    [
        ((), {}, True),
        (("--port=5555",), {}, True),
        (("--basic-auth=anna:secret",), {}, False),
        (("--basic_auth=anna:secret",), {}, False),
        ((), {"FLOWER_BASIC_AUTH": "anna:secret"}, False),
    ],
)
def test_flower_says_when_nobody_may_use_the_routes(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], environ: dict[str, str], *, is_said: bool
) -> None:
    """Before it serves; a login is told neither here nor there."""
    served: list[list[str]] = []

    def serve(args: list[str], **_: object) -> None:
        served.append(args)

    monkeypatch.delenv("FLOWER_BASIC_AUTH", raising=False)
    monkeypatch.setattr("ares_celery.cli.flower.demand_flower", str)
    monkeypatch.setattr("celery.bin.celery.celery.main", serve)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    done = run("flower", *options)
    assert (done.exit_code, len(served)) == (0, 1)
    assert ("FLOWER_BASIC_AUTH=NAME:PASSWORD" in done.stderr) is is_said
    assert "secret" not in done.output


# -- which app ---------------------------------------------------------------------------------------------------------


def test_the_app_is_the_named_one_then_that_of_the_environment_then_the_deployment_s(tmp_path: Path) -> None:
    """`-A`, ARES_APP, workers.app of the working folder, the built-in one."""
    assert app_name(None, {}, tmp_path) == BUILTIN_APP
    (tmp_path / "workers").mkdir()
    assert app_name(None, {}, tmp_path) == BUILTIN_APP
    (tmp_path / "workers" / "app.py").touch()
    assert app_name(None, {}, tmp_path) == "workers.app"
    assert app_name(None, {"ARES_APP": "shop"}, tmp_path) == "shop"
    assert app_name("mine", {"ARES_APP": "shop"}, tmp_path) == "mine"


def test_the_app_of_celery_s_own_command_line_is_used(manager: RecordingManager) -> None:
    """`celery -A APP ares`: the context carries the app; no other is looked for."""
    seen: list[object] = []
    app = SimpleNamespace(main="shop")

    @cli.command("probe")
    @click.pass_obj
    def probe(session: Session) -> None:
        """Notes the app."""
        seen.append(session.app)

    try:
        runner().invoke(cli, ["probe"], obj=SimpleNamespace(app=app), catch_exceptions=False)
    finally:
        del cli.commands["probe"]

    assert seen == [app]


def test_an_app_that_cannot_be_imported_is_a_usage_error() -> None:
    """The text names it and the cure."""
    done = run("-A", "no_such_module_at_all", "agents", "types")

    assert done.exit_code == ExitCode.USAGE
    assert "no_such_module_at_all" in done.stderr
    assert "ARES_APP" in done.stderr


# -- exit codes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AgentFailedError(agent_id="a"), 1),
        (InvalidAgentIdError(agent_id="a b"), 2),
        (UnknownAgentTypeError(type="x", known=[]), 2),
        (InvalidSettingError(field="x", value=1, problem="no"), 2),
        (AgentNotFoundError(agent_id="a"), 3),
        (ProcessTimeoutError(agent_id="a"), 4),
        (WaitTimeoutError(agent_id="a"), 4),
        (AgentParkedError(agent_id="a"), 5),
        (AgentNotParkedError(agent_id="a", state="running"), 5),
        (RuntimeStoppedError(namespace="n"), 5),
        (ChaosDisabledError(operation="kill"), 5),
        (StoreUnavailableError(url="redis://x", problem="no"), 6),
    ],
    ids=lambda value: value.code if isinstance(value, AresError) else str(value),
)
def test_errors_have_stable_exit_codes(monkeypatch: pytest.MonkeyPatch, error: AresError, code: int) -> None:
    """With the error's sentence on stderr and nothing on stdout."""
    monkeypatch.setattr(Session, "manager", RecordingManager(error=error))

    done = run("agents", "ask", "a", "{}")

    assert (done.exit_code, exit_code_of(error)) == (code, code)
    assert in_cli_words(error) in done.stderr
    assert done.stdout == ""


def test_a_message_that_is_not_json_is_a_usage_error(manager: RecordingManager) -> None:
    """The text says how text is written."""
    done = run("agents", "send", "a", "hello")

    assert done.exit_code == ExitCode.USAGE
    assert "is not JSON" in done.stderr
    assert manager.calls == []


def test_a_spec_s_options_without_a_type_are_a_usage_error(manager: RecordingManager) -> None:
    """They would be ignored otherwise."""
    done = run("agents", "start", "a", "--queue", "gpu")

    assert done.exit_code == ExitCode.USAGE
    assert "--queue" in done.stderr
    assert manager.calls == []


def test_an_unknown_state_is_a_usage_error(manager: RecordingManager) -> None:
    """The text lists those that exist."""
    done = run("agents", "ls", "--state", "asleep")

    assert done.exit_code == ExitCode.USAGE
    assert "parked" in done.stderr


# -- what reaches the Manager ------------------------------------------------------------------------------------------


def test_a_new_agent_s_spec_reaches_the_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option is a field of the spec or an argument of start_agent."""
    info = agent("a", AgentState.STARTING, waiting_on="slot")
    made = RecordingManager(answer=SimpleNamespace(info=lambda: info))
    monkeypatch.setattr(Session, "manager", made)

    done = run(
        *("agents", "start", "a", "--type", "counter", "--config", '{"step": 2}', "--label", "team=x", "--group", "g"),
        *(
            "--max-restarts",
            "0",
            "--if-exists",
            "return",
            "--wait",
            "--timeout",
            "2s",
            "--reason",
            "r",
            "--actor",
            "me",
        ),
    )

    assert done.exit_code == 0
    name, (spec,), options = made.calls[0]
    assert name == "start_agent"
    assert spec == AgentSpec(
        id="a", type="counter", config={"step": 2}, labels={"team": "x"}, max_restarts=0, group="g"
    )
    assert options == {
        "if_exists": "return",
        "wait": "running",
        "timeout": timedelta(seconds=2),
        "reason": "r",
        "actor": "me",
    }


def test_now_fences_at_once(manager: RecordingManager) -> None:
    """`stop --now` is force."""
    run("agents", "stop", "a", "--now", "--no-wait", "--reason", "r")

    name, args, options = manager.calls[0]
    assert (name, args) == ("stop_agent", ("a",))
    assert (options["force"], options["wait"], options["reason"]) == (True, False, "r")


@pytest.mark.parametrize(
    ("command", "method"),
    [
        ("pause", "pause_agent"),
        ("restart", "restart_agent"),
        ("resume", "resume_agent"),
        ("rm", "delete_agent"),
    ],
)
def test_simple_commands_call_their_method(manager: RecordingManager, command: str, method: str) -> None:
    """With reason and actor."""
    done = run("agents", command, "a", "--reason", "r", "--actor", "me")

    assert done.exit_code == 0
    more = {"duration": None} if command == "pause" else {}
    assert manager.calls[0] == (method, ("a",), {**more, "reason": "r", "actor": "me"})
    assert [name for name, _, _ in manager.calls[1:]] == ([] if command == "rm" else ["get_agent_info"])
    assert done.stdout == ""


def test_a_pause_may_have_an_end(manager: RecordingManager) -> None:
    """As a duration."""
    run("agents", "pause", "a", "--for", "1m30s")
    assert manager.calls[0][2]["duration"] == timedelta(seconds=90)


@pytest.mark.parametrize("options", [["--accept-loss"], []], ids=["accepted", "not"])
def test_a_loss_is_accepted_by_an_option_alone(manager: RecordingManager, options: list[str]) -> None:
    """`unpark` without it leaves a damaged history to be settled."""
    done = run("agents", "unpark", "a", *options, "--reason", "r", "--actor", "me")

    assert (done.exit_code, done.stdout) == (0, "")
    assert manager.calls[0] == ("unpark_agent", ("a",), {"accept_loss": bool(options), "reason": "r", "actor": "me"})


def test_an_agent_is_forked_with_the_defaults_of_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or as the options say; shown as it then is."""
    behind: Any = RecordingManager(agent("b", AgentState.REGISTERED, waiting_on="fork"))
    made = RecordingManager(AgentHandle(behind, AgentId("b")))
    monkeypatch.setattr(Session, "manager", made)

    done = run("agents", "fork", "a", "--as", "b", "-o", "json")
    run("agents", "fork", "a", "--at", "7", "--as", "b", "--no-start", "--reason", "r", "--actor", "me", "-o", "json")

    assert made.calls == [
        ("fork_agent", ("a", "b"), {"at": None, "start": True, "reason": "", "actor": ""}),
        ("fork_agent", ("a", "b"), {"at": 7, "start": False, "reason": "r", "actor": "me"}),
    ]
    assert json.loads(done.stdout)["id"] == "b"
    assert run("agents", "fork", "a").exit_code == ExitCode.USAGE
    assert run("agents", "fork", "a", "--as", "b", "--at", "-1").exit_code == ExitCode.USAGE


# -- output ------------------------------------------------------------------------------------------------------------


def test_an_answer_is_one_line_of_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the agent said."""
    monkeypatch.setattr(Session, "manager", RecordingManager(answer={"text": "two\nlines"}))

    done = run("agents", "ask", "a", "{}", "-o", "json")

    assert done.stdout == '{"text": "two\\nlines"}\n'


def test_values_become_plain_json() -> None:
    """Instants in ISO 8601, durations in seconds, states by name."""
    value = {
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "for": timedelta(seconds=1.5),
        "state": AgentState.PARKED,
        "spec": AgentSpec(id="a", type="t"),
    }

    shown = to_json(value)

    assert (shown["at"], shown["for"], shown["state"]) == ("2026-01-02T00:00:00+00:00", 1.5, "parked")
    assert shown["spec"]["restart"] == "transient"


def test_a_table_that_is_no_terminal_s_is_plain_and_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """No colours, no boxes, nothing cut off, brackets as they are."""
    print_table(("ID", "REASON"), [("a", "[bold]" + "x" * 300), ("bb", None)])

    assert capsys.readouterr().out.splitlines() == ["ID  REASON", "a   [bold]" + "x" * 300, "bb  -"]


def test_a_terminal_shows_brackets_of_others_and_obeys_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich would take them for markup."""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    print_table(("ID", "REASON"), [("a", "[red]x[/red] \x1b[31my")])

    assert "[red]x[/red] \\x1b[31my" in capsys.readouterr().out


def test_control_characters_are_shown_not_obeyed() -> None:
    """A reason may not move somebody's cursor."""
    assert clean("a\x1b[2J\r\nb") == "a\\x1b[2J\\r\\nb"


# -- the fleet's processes ---------------------------------------------------------------------------------------------


def test_the_fleet_s_environment_leads_nowhere_else(tmp_path: Path) -> None:
    """The caller's Redis, broker and app are not the fleet's; what else is set stays."""
    caller = {
        "PATH": "/bin",
        "ARES_REDIS_URL": "redis://prod",
        "ARES_BROKER_URL": "amqp://prod",
        "ARES_LEASE_TTL": "9s",
        "BROKER_URL": "amqp://prod",
        "CELERY_BROKER_URL": "amqp://prod",
        "ARES_AGENT_MODULES": "mine",
    }

    kept = fleet_environment("redis://own", "up-1", tmp_path, environ=caller)
    bare = fleet_environment(
        "redis://own", "up-1", tmp_path, agent_modules=["a", "b"], keep_settings=False, environ=caller
    )

    assert "prod" not in " ".join(kept.values())
    assert (kept["ARES_REDIS_URL"], kept["ARES_NAMESPACE"], kept["PATH"]) == ("redis://own", "up-1", "/bin")
    assert kept["TMPDIR"] == str(tmp_path)
    assert (kept["ARES_LEASE_TTL"], kept["ARES_AGENT_MODULES"]) == ("9s", "mine")
    assert "ARES_LEASE_TTL" not in bare
    assert bare["ARES_AGENT_MODULES"] == "a,b"


def test_the_fleet_s_workers_read_the_namespace_s_queues(tmp_path: Path) -> None:
    """Real `celery -A APP worker` commands, agents apart from supervision."""
    fleet = Fleet("shop.app", "up-1", tmp_path)

    agents = " ".join(fleet.agents_worker("agents", pool="threads", slots=200))

    assert "celery -A shop.app worker -n agents@%h -Q up-1.agents -P threads -c 200" in agents
    assert "-Q up-1.supervision,up-1.control" in " ".join(fleet.supervision_worker())
    assert "-E" not in agents.split()
    assert "-E" in Fleet("shop.app", "up-1", tmp_path, task_events=True).supervision_worker()
