"""``ares arena`` without a namespace: what it checks, lists and refuses."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ares_celery.arena.verdict.journal import RunStatus, ScenarioReport
from ares_celery.cli.apps import Session
from ares_celery.cli.arena_report import finish
from ares_celery.errors import StoreUnavailableError
from ares_celery.model.arena import ArenaHold
from tests.unit.arena.test_loading import activity, experiment, seed, step
from tests.unit.cli.calling import RecordingManager, run


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A scenario with three faults."""
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(seed(step("explode"), step("kill_agent", ""), timeout=-1)))
    return path


def test_validate_names_every_fault_and_exits_with_2(file: Path, tmp_path: Path) -> None:
    """As rows for people and as JSON for programs; several files at once."""
    result = run("arena", "validate", str(file))
    assert result.exit_code == 2
    assert "actions[0].action.type" in result.stdout
    assert "actions[1].action.target_id" in result.stdout
    told = json.loads(run("arena", "validate", str(file), "kill-agent", "--var", "agent_id=a", "-o", "json").stdout)
    assert told["valid"] is False
    assert {one["place"] for one in told["problems"]} == {
        "actions[0].action.type",
        "actions[1].action.target_id",
        "config.timeout",
    }
    good = run("arena", "validate", "kill-agent", "partition", "--var", "agent_id=a", "-o", "json")
    assert (good.exit_code, json.loads(good.stdout)) == (0, {"valid": True, "problems": []})
    missing = run("arena", "validate", str(tmp_path / "none.yaml"), str(file))
    assert missing.exit_code == 3
    assert "there is no file" in missing.stdout
    assert "actions[0].action.type" in missing.stdout


def test_validate_finds_valid_what_run_would_run(tmp_path: Path) -> None:
    """A variable without a value and a value without a variable are faults, as they are of a run; each is named."""
    without = run("arena", "validate", "kill-agent", "partition")
    assert without.exit_code == 2
    assert without.stdout.count("variable 'agent_id' has no value; pass --var agent_id=…, or set ARES_ARENA_AGENT") == 2
    slip = run("arena", "validate", "kill-agent", "partition", "--var", "agentid=a", "--var", "agent_id=a")
    assert slip.exit_code == 2
    assert "did you mean 'agent_id'?" in slip.stdout
    # Of several files, one has to know it: force is of kill-agent alone.
    both = run("arena", "validate", "kill-agent", "partition", "--var", "force=yes", "--var", "agent_id=a")
    assert (both.exit_code, both.stderr) == (0, "valid\n")
    told = run("arena", "run", "kill-agent", "--var", "agent_id=a", "--var", "fource=yes")
    assert (told.exit_code, "did you mean 'force'?" in told.stderr) == (2, True)
    path = tmp_path / "s.json"
    path.write_text(json.dumps(experiment(activity(agent_id="${victm}"), configuration={"victim": "a"})))
    assert "did you mean 'victim'? Else pass --var victm=…" in run("arena", "validate", str(path)).stdout


def test_run_refuses_a_file_with_faults_before_it_opens_anything(file: Path) -> None:
    """Exit code 2, and all of them in the text."""
    result = run("arena", "run", str(file))
    assert result.exit_code == 2
    first, *faults = result.stderr.splitlines()
    assert first.endswith("3 faults:")
    assert len(faults) == 3, "a line each"
    assert "pass --var agent_id" in run("arena", "run", "kill-agent").stderr
    assert run("arena", "run", "kill-agent", "--var", "agent_id").exit_code == 2


@pytest.mark.parametrize("place", ["working folder", "folder of the file"])
def test_own_checks_lie_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """They are found there as soon as one is allowed, and not beside a file that somebody else may have written."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    name = f"checks_in_the_{place.replace(' ', '_')}"
    (here if place == "working folder" else there).joinpath(f"{name}.py").write_text("def fine():\n    return True\n")
    check = activity()
    check["provider"] = {"type": "python", "module": name, "func": "fine"}
    (there / "s.json").write_text(json.dumps(experiment(check)))
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one not in {"", str(here)}])
    before = list(sys.path)
    assert run("arena", "validate", str(there / "s.json")).exit_code == 2
    assert sys.path == before
    result = run("arena", "validate", str(there / "s.json"), "--allow-module", name)
    assert result.exit_code == (0 if place == "working folder" else 2), result.output
    # Last, so that nothing that is installed is hidden by it.
    assert sys.path == [*before, str(here)]


def test_list_shows_the_ready_scenarios() -> None:
    """All ten, with what they show, and with what one may say of them."""
    told = json.loads(run("arena", "list", "-o", "json").stdout)
    assert len(told) == 10
    assert all(one["name"] and one["title"] and one["description"] for one in told)
    variables = {one["name"]: one["variables"] for one in told}
    assert variables["kill-agent"] == {"agent_id": None, "patience": "60s", "force": False}
    assert all(None in one.values() for one in variables.values())
    assert "kill-agent" in run("arena", "list").stdout
    assert "agent_id, patience=60s, force=false" in " ".join(run("arena", "list").stdout.split())


def test_status_and_stop_tell_of_the_run_that_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that there is none, which is no failure."""
    hold = ArenaHold("run-1", {"actor": "anna", "seed": 7})
    monkeypatch.setattr(Session, "manager", RecordingManager(hold))
    assert json.loads(run("arena", "status", "-o", "json").stdout)["seed"] == 7
    assert "anna" in run("arena", "status").stdout
    assert "ends within seconds" in run("arena", "stop").stderr
    monkeypatch.setattr(Session, "manager", RecordingManager(None))
    assert run("arena", "status", "-o", "json").stdout.strip() == "null"
    assert "no survival run" in run("arena", "stop").stderr


def report_file(folder: Path, name: str, *mttr: float) -> list[str]:
    """Reports of runs, as files."""
    found: list[str] = []
    for number, one in enumerate(mttr):
        path = folder / f"{name}-{number}.json"
        path.write_text(json.dumps({"verdict": {"mttr": {"avg": one}}}))
        found.append(str(path))
    return found


def test_compare_exits_with_1_when_something_got_worse(tmp_path: Path) -> None:
    """And with 2 for what is no report."""
    pytest.importorskip("scipy", reason="in the set of highest versions only")
    fast, slow = report_file(tmp_path, "fast", 1, 2, 3, 4, 5), report_file(tmp_path, "slow", 11, 12, 13, 14, 15)

    def compared(before: list[str], after: list[str], *more: str) -> Any:
        options = [word for one in before for word in ("--before", one)] + [
            w for one in after for w in ("--after", one)
        ]
        return run("arena", "compare", *options, *more)

    worse = compared(fast, slow, "--metric", "mttr", "-o", "json")
    assert (worse.exit_code, json.loads(worse.stdout)[0]["result"]) == (1, "worse")
    assert compared(slow, fast).exit_code == 0
    # As a shell makes it of --before fast-*.json --after slow-*.json.
    assert run("arena", "compare", "--before", *fast, "--after", *slow, "-o", "json", "--metric", "mttr").exit_code == 1
    assert run("arena", "compare", "--before", *fast, "--after", slow[0], "-o", "json", slow[1]).exit_code == 2
    few = compared(fast[:3], slow[:3])
    assert (few.exit_code, few.stdout) == (5, "")
    assert "give 4 or more of each" in few.stderr
    odd = tmp_path / "odd.json"
    odd.write_text("[]")
    assert compared([str(odd)], fast).exit_code == 2


def test_a_survival_file_is_checked(tmp_path: Path) -> None:
    """Unknown fields, a missing file, a fault that cannot be."""
    path = tmp_path / "survival.yaml"
    path.write_text("speed: 3\n")
    assert run("arena", "survival", str(path)).exit_code == 2
    assert run("arena", "survival", str(tmp_path / "none")).exit_code == 2


def test_a_run_without_a_verdict_is_reported_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its events cannot be read, as the store is away: printed and written first, then the error tells."""

    def judged(*_: object) -> None:
        raise StoreUnavailableError(url="redis://", problem="gone")

    monkeypatch.setattr("ares_celery.arena.verdict.judge.judged", judged)
    now = datetime(2030, 1, 1, tzinfo=UTC)
    report = ScenarioReport("t", RunStatus.COMPLETED, (), namespace="n", started=now, ended=now)
    file = tmp_path / "r.json"
    session = cast("Any", SimpleNamespace(manager=None))
    with pytest.raises(StoreUnavailableError):
        finish(session, report, "json", (), report_file=file, junit=None, html=None, verdict=True)
    told = capsys.readouterr()
    assert json.loads(told.out) == json.loads(file.read_text())
    assert "there is no verdict" in told.err
