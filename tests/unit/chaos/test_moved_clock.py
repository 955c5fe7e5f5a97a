"""The wall clock of a process that a file moves, for a time."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from email.utils import localtime
from pathlib import Path

import pytest

from ares_celery.chaos.moved_clock import MovedClock, move_clock, parse_offset
from ares_celery.clock import SystemClock
from ares_celery.errors import InvalidSettingError, OperationNotSupportedError
from ares_celery.testing.clock import ManualClock
from tests.wait import wait_until

HOUR = timedelta(hours=1)
ZERO = timedelta(0)


@pytest.fixture
def turned() -> ManualClock:
    """The monotonic clock by which a moved one is right again."""
    return ManualClock()


@pytest.fixture
def make_moved(tmp_path: Path, turned: ManualClock) -> Iterator[Callable[..., MovedClock]]:
    """Lets a file move this process' clock, until the test ends."""
    made: list[MovedClock] = []

    def make(path: Path | None = None, clock: ManualClock | None = turned) -> MovedClock:
        made.append(MovedClock(path or tmp_path / "clock", clock=clock))
        return made[-1]

    yield make
    for one in reversed(made):
        one.close()


def off(path: Path) -> float:
    """Seconds that this process' time is away from that of the kernel, which dates files."""
    probe = path.with_name("probe")
    probe.touch()
    return SystemClock().wall() / 1e6 - probe.stat().st_mtime


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("+2h", 7200), (" -1m30s ", -90), (-5, -5), (0.5, 0.5), ("- 3s", -3), (0, 0)]
)
def test_an_offset_is_a_duration_with_a_sign(text: object, seconds: float) -> None:
    """As text or number."""
    assert parse_offset(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "-", "--2h", "soon", None, True, float("nan"), "2x", [1]])
def test_what_is_no_offset_is_refused_with_what_is_one(text: object) -> None:
    """The value is named."""
    with pytest.raises(ValueError, match="is no offset; write seconds as a number, or 2h, -90s"):
        parse_offset(text)


@pytest.mark.parametrize("text", ["367d", "-367d", 1e9])
def test_a_clock_is_moved_by_a_year_at_most(text: object) -> None:
    """Either way."""
    with pytest.raises(ValueError, match="366 days at most"):
        parse_offset(text)


@pytest.mark.parametrize("offset", [2 * HOUR, -2 * HOUR], ids=["ahead", "behind"])
def test_date_and_time_move_and_come_back_by_themselves_and_nothing_else_does(
    make_moved: Callable[..., MovedClock], turned: ManualClock, tmp_path: Path, offset: timedelta
) -> None:
    """For other people's code, too, which looks by its own ways; the monotonic clock and the times of files stay."""
    clock, path = make_moved(), tmp_path / "clock"
    assert (clock.look(), abs(off(path)) < 1) == (ZERO, True)
    before = SystemClock().monotonic()
    told = move_clock(path, offset, timedelta(seconds=10), clock=turned)
    assert told == {"file": str(path), "offset": offset.total_seconds(), "duration": 10.0}

    turned.move_to(9.9)
    assert clock.look() == offset
    seconds = offset.total_seconds()
    assert off(path) == pytest.approx(seconds, abs=1)
    kernel = path.with_name("probe").stat().st_mtime
    # They ask time.time, or time.time_ns, and datetime.now.
    assert logging.makeLogRecord({}).created - kernel == pytest.approx(seconds, abs=1)
    assert localtime().timestamp() - kernel == pytest.approx(seconds, abs=1)
    assert SystemClock().monotonic() - before < 60

    turned.move_to(10.0)
    assert clock.look() == ZERO
    assert abs(off(path)) < 1


def test_a_clock_that_nobody_moves_is_right(make_moved: Callable[..., MovedClock], tmp_path: Path) -> None:
    """From its beginning on, whenever it is asked for the first time."""
    make_moved()
    threading.Event().wait(0.3)
    assert abs(off(tmp_path / "clock")) < 0.2


def test_a_second_word_replaces_the_first_and_zero_ends_it(
    make_moved: Callable[..., MovedClock], turned: ManualClock, tmp_path: Path
) -> None:
    """Nothing adds up."""
    clock, path = make_moved(), tmp_path / "clock"
    for offset in (HOUR, -HOUR, timedelta(days=300)):
        move_clock(path, offset, HOUR, clock=turned)
        assert clock.look() == offset
        assert off(path) == pytest.approx(offset.total_seconds(), abs=1)
    assert move_clock(path, ZERO, HOUR, clock=turned) == {"file": str(path), "offset": 0.0, "duration": 0.0}
    assert clock.look() == ZERO
    move_clock(path, HOUR, HOUR, clock=turned)
    clock.look()
    assert move_clock(path, HOUR, ZERO, clock=turned)["offset"] == 0.0
    assert clock.look() == ZERO
    assert move_clock(path, HOUR, timedelta(days=30), clock=turned)["duration"] == 24 * 3600.0


def test_a_file_that_nobody_follows_is_refused_with_the_cure(
    make_moved: Callable[..., MovedClock], tmp_path: Path
) -> None:
    """It is not there, its worker has ended, or no worker ever had it; nothing is made or written."""
    path = tmp_path / "clock"
    for text in ("No such file or directory", "no worker has it open"):
        with pytest.raises(OperationNotSupportedError, match=f"{text}.*ARES_CLOCK_FILE={path}") as raised:
            move_clock(path, HOUR, HOUR)
        assert "ares-celery[clock]" in str(raised.value)
        path.write_text("") if text.startswith("No") else None
    assert path.read_text() == ""
    MovedClock(path).close()
    with pytest.raises(OperationNotSupportedError):
        move_clock(path, HOUR, HOUR)
    make_moved(path)
    make_moved(path)
    assert move_clock(path, HOUR, HOUR)["offset"] == 3600.0


def test_rubbish_in_the_file_neither_moves_a_clock_nor_keeps_it_moved(
    make_moved: Callable[..., MovedClock], turned: ManualClock, tmp_path: Path
) -> None:
    """What was said last holds, and ends in time."""
    clock, path = make_moved(), tmp_path / "clock"
    move_clock(path, HOUR, timedelta(seconds=10), clock=turned)
    said = json.loads(path.read_text())
    assert clock.look() == HOUR
    for rubbish in ("", "{", "[]", "null", json.dumps(said | {"offset": 1e12}), json.dumps(said | {"until": "NaN"})):
        path.write_text(rubbish)
        assert clock.look() == HOUR
    turned.move_to(10.0)
    assert clock.look() == ZERO


def test_what_was_said_before_the_machine_was_started_anew_is_over(
    make_moved: Callable[..., MovedClock], turned: ManualClock, tmp_path: Path
) -> None:
    """Its end is of another monotonic clock; a worker that is started anew on the same machine goes on with it."""
    clock, path = make_moved(), tmp_path / "clock"
    move_clock(path, HOUR, HOUR, clock=turned)
    clock.look()
    assert make_moved().look() == HOUR
    path.write_text(json.dumps(json.loads(path.read_text()) | {"boot": "another"}))
    assert clock.look() == ZERO


def test_a_thread_follows_the_file(make_moved: Callable[..., MovedClock], tmp_path: Path) -> None:
    """Within a moment, there and back."""
    path = tmp_path / "clock"
    make_moved(path, None).follow()
    move_clock(path, HOUR, timedelta(seconds=0.5))
    wait_until(lambda: off(path) > 3000, "the move")
    wait_until(lambda: abs(off(path)) < 1, "its end")


def test_without_the_library_or_the_folder_the_worker_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the cure, or the field."""
    with pytest.raises(InvalidSettingError, match=r"clock_file=.*No such file or directory"):
        MovedClock(tmp_path / "no" / "clock")
    monkeypatch.setitem(sys.modules, "time_machine", None)
    with pytest.raises(OperationNotSupportedError, match=r"pip install 'ares-celery\[clock\]'"):
        MovedClock(tmp_path / "clock")
    assert not (tmp_path / "clock").exists()
