"""What `pytest --ares-reports DIR` keeps of the runs of a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from ares_celery.arena.loading import parse_scenario
from ares_celery.arena.runner import ScenarioRun
from ares_celery.testing.arena import Arena
from tests.unit.arena.managers import StandIn


def ran(title: str) -> Any:
    """A report of a run that rested somebody."""
    step = {"action": {"type": "pause_agent", "target_id": "a"}}
    return ScenarioRun(cast("Any", StandIn("a")), parse_scenario({"name": title, "actions": [step]})).run()


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("tests/test_shop.py::test_it[a b/c]", "tests-test_shop.py-test_it-a-b-c"),
        ("../../etc/passwd", "..-..-etc-passwd"),
        ("ä" * 300 + "x" * 300, "x" * 200),
    ],
)
def test_each_run_of_a_test_has_its_files(name: str, stem: str, tmp_path: Path) -> None:
    """A page and JSON each, below the folder whatever the test is called; the folder is made."""
    arena = Arena(cast("Any", None))
    arena.reports += [ran("first"), ran("second")]
    folder = tmp_path / "made" / "for it"
    arena.write_reports(str(folder), name)
    assert {path.name for path in folder.iterdir()} == {
        f"{each}.{kind}" for each in (stem, f"{stem}-2") for kind in ("html", "json")
    }
    told = [json.loads((folder / f"{each}.json").read_text())["title"] for each in (stem, f"{stem}-2")]
    assert told == ["first", "second"]


def test_a_test_without_runs_has_no_files(tmp_path: Path) -> None:
    """The folder is there all the same, for whoever collects it."""
    Arena(cast("Any", None)).write_reports(tmp_path / "reports", "test")
    assert list((tmp_path / "reports").iterdir()) == []
