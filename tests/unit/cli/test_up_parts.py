"""The parts of `ares up` that need no process: what a second terminal gets, and what it is told to try."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ares_celery.cli.children import Children
from ares_celery.cli.up_ready import all_ready, path_export, print_exports, say_what_to_try
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.base import Store

EASY = {"open": False, "names": ["step"], "required": []}
HARD = {"open": False, "names": ["file"], "required": ["file"]}


@pytest.fixture
def installation(tmp_path: Path) -> Path:
    """The folder of an installation's commands."""
    folder = tmp_path / "a venv" / "bin"
    folder.mkdir(parents=True)
    for name in ("ares", "celery", "python"):
        (folder / name).touch(mode=0o755)
    return folder


def test_a_terminal_that_does_not_find_the_commands_gets_their_folder(installation: Path) -> None:
    """A line that works as it stands, with blanks in the path too."""
    line = path_export({"PATH": "/usr/bin"}, str(installation / "python"))

    assert line == f'export PATH="{installation}:$PATH"'


def test_a_terminal_that_finds_them_gets_no_line(installation: Path) -> None:
    """They may stand behind other folders, if nothing else has their names there."""
    assert path_export({"PATH": f"/nowhere:{installation}"}, str(installation / "python")) is None


def test_the_commands_of_another_installation_are_not_taken_for_ours(installation: Path, tmp_path: Path) -> None:
    """The first on PATH is the one that runs."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "celery").touch(mode=0o755)

    line = path_export({"PATH": f"{other}:{installation}"}, str(installation / "python"))

    assert line is not None


def test_an_environment_that_is_active_in_this_terminal_is_not_in_the_next_one(installation: Path) -> None:
    """`activate` changes the terminal that it is typed in."""
    environ = {"PATH": f"{installation}:/usr/bin", "VIRTUAL_ENV": str(installation.parent)}

    assert path_export(environ, str(installation / "python")) is not None


def test_lines_that_were_pasted_into_this_terminal_are_not_in_the_next_one(installation: Path) -> None:
    """They put the folder in front, together with ARES_APP; one that is there for good stands further behind."""
    pasted = {"PATH": f"{installation}:/usr/bin", "ARES_APP": "workers.app"}
    assert path_export(pasted, str(installation / "python")) == f'export PATH="{installation}:$PATH"'
    for_good = {**pasted, "PATH": f"/usr/bin:{installation}"}
    assert path_export(for_good, str(installation / "python")) is None


def test_the_sample_agent_is_what_is_tried_where_there_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    """Whole commands, nothing to fill in, and no comments that a shell might take for arguments."""
    say_what_to_try({"alpha": EASY, "counter": EASY}, 4711)

    said = capsys.readouterr().err.splitlines()
    assert said[0] == "ares up: ready; agent types: alpha, counter"
    assert [line.strip() for line in said if line.startswith("  ")] == [
        "ares agents start first-1 --type counter --wait",
        "ares agents ask first-1 '{}'",
        "kill -9 4711",
        "ares agents ask first-1 '{}'",
    ]


def test_an_agent_of_one_s_own_is_tried_without_asking_it(capsys: pytest.CaptureFixture[str]) -> None:
    """It may answer nothing; one that needs a config cannot be started by a line that works for all."""
    say_what_to_try({"hard": HARD, "mine": EASY}, 4711)

    said = capsys.readouterr().err
    assert "  ares agents start first-1 --type mine --wait\n  ares agents show first-1\n" in said
    assert "ask" not in said


def test_types_that_need_a_config_are_said_to(capsys: pytest.CaptureFixture[str]) -> None:
    """`ares agents types` names their parameters."""
    say_what_to_try({"hard": HARD}, 4711)

    said = capsys.readouterr().err
    assert "  ares agents types\n" in said
    assert "needs a config" in said


def test_a_fleet_without_types_says_how_it_gets_some(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing can be tried."""
    say_what_to_try({}, 4711)

    assert "ARES_AGENT_MODULES" in capsys.readouterr().err


def test_workers_are_ready_when_the_store_knows_their_processes() -> None:
    """Those of another machine may have the same pids."""
    me = ProcessIdentity.current()
    known: dict[str, str] = {}
    children = {name: SimpleNamespace(pid=pid, ready=False, is_running=True) for name, pid in (("a", 11), ("b", 12))}

    def ready() -> bool:
        store: Any = SimpleNamespace(hosts=lambda: known)
        return all_ready(cast("Store", store), cast("Children", cast("Any", children)), ["a", "b"])

    def report(pid: int, boot_id: str) -> None:
        known[ProcessIdentity(me.host, boot_id, me.pid_namespace, pid, 1).encode()] = "w"

    report(11, me.boot_id)
    report(12, "another-machine")
    assert not ready()
    assert (children["a"].ready, children["b"].ready) == (True, False)

    report(12, me.boot_id)
    assert ready()


def test_the_exports_are_all_on_stdout(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Quoted for a shell; the folder of the commands first."""
    monkeypatch.setattr("ares_celery.cli.up_ready.path_export", lambda: 'export PATH="x:$PATH"')

    print_exports("redis://h/0?a=1&b=2", "shop", "my app")

    assert capsys.readouterr().out.splitlines() == [
        'export PATH="x:$PATH"',
        "export ARES_REDIS_URL='redis://h/0?a=1&b=2'",
        "export ARES_NAMESPACE=shop",
        "export ARES_APP='my app'",
    ]
