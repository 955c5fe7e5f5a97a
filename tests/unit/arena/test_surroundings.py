"""Actions on what agents stand on: refused where chaos is off, and undone with the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ares_celery.arena import actions
from ares_celery.arena.loading import parse_scenario
from ares_celery.arena.ring import Ring, entered
from ares_celery.arena.runner import ScenarioRun
from ares_celery.arena.verdict.journal import Phase, RunStatus, ScenarioReport
from ares_celery.chaos.moved_clock import MovedClock
from ares_celery.errors import ChaosDisabledError
from tests.unit.arena.managers import StandIn

#: Stands for the file of a test.
FILE = "the file"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A file that this process' clock follows when it is told to look."""
    clock = MovedClock(tmp_path / "clock")
    yield tmp_path / "clock"
    clock.close()


def run(*steps: dict[str, Any], manager: StandIn | None = None, **config: Any) -> ScenarioReport:
    """A scenario of the seed's form."""
    scenario = parse_scenario({"name": "n", "config": config, "actions": list(steps)})
    return ScenarioRun(cast("Any", manager or StandIn()), scenario).run()


def clock(path: Path, **metadata: Any) -> dict[str, Any]:
    """One step."""
    return {"action": {"type": "clock_offset", "target_id": str(path), "metadata": metadata}, "expect_success": True}


def test_the_clock_is_put_right_with_the_end_of_the_run(path: Path) -> None:
    """Both actions did something, and nothing is left of them."""
    report = run(clock(path, offset="2h", duration="1h"), clock(path, offset=-90))
    assert (report.status, report.passed) == (RunStatus.COMPLETED, 2)
    assert [one.output for one in report.of(Phase.METHOD)] == [
        {"file": str(path), "offset": 7200.0, "duration": 3600.0},
        {"file": str(path), "offset": -90.0, "duration": 5.0},
    ]
    assert [one.name for one in report.of(Phase.ROLLBACK)] == [f"put right the clock of {path}"] * 2
    assert all(one.is_fine for one in report.of(Phase.ROLLBACK))
    assert json.loads(path.read_text())["offset"] == 0.0


def test_a_clock_that_nobody_follows_fails_with_the_cure(tmp_path: Path) -> None:
    """There is nothing to undo."""
    report = run(clock(tmp_path / "none", offset="2h"))
    (failed,) = report.of(Phase.METHOD)
    assert (report.status, report.of(Phase.ROLLBACK)) == (RunStatus.DEVIATED, ())
    assert "start the worker on this machine with ARES_CLOCK_FILE=" in failed.problem


def test_a_worker_that_has_ended_does_not_spoil_the_end_of_the_run(tmp_path: Path) -> None:
    """Its clock is gone with it."""
    file = tmp_path / "clock"
    followed = MovedClock(file)
    ring = Ring(cast("Any", StandIn()))
    with entered(ring):
        actions.clock_offset(str(file), "2h")
    followed.close()
    for undo in ring.undone:
        undo.call()


@pytest.mark.parametrize(
    ("func", "arguments"),
    [
        ("clock_offset", {"file": FILE, "offset": "2h"}),
        ("redis_latency", {"link": "127.0.0.1:1", "delay": "1s"}),
        ("redis_outage", {"link": "127.0.0.1:1"}),
        ("stop_beat", {"pidfile": FILE}),
    ],
)
def test_nothing_is_disturbed_where_chaos_is_off(path: Path, func: str, arguments: dict[str, str]) -> None:
    """Neither by the settings nor for a time; whoever has allowed it for a time has allowed these, too."""
    manager = StandIn()
    manager.config.chaos = False
    ring = Ring(cast("Any", manager))
    given = {name: str(path) if value == FILE else value for name, value in arguments.items()}
    with entered(ring), pytest.raises(ChaosDisabledError, match=f"{func} is refused.*ares chaos enable --for 1h"):
        getattr(actions, func)(**given)
    assert (path.read_text(), ring.undone) == ("", [])
    manager.allowed_until = manager.introspect().time
    with entered(ring):
        assert actions.clock_offset(str(path), "2h")["offset"] == 7200.0


def test_a_run_where_chaos_is_off_has_a_precondition_that_is_not_met(path: Path) -> None:
    """As for all faults: exit code 5."""
    manager = StandIn()
    manager.config.chaos = False
    assert run(clock(path, offset="2h"), manager=manager).status is RunStatus.PRECONDITION
