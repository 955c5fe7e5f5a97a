"""Durations and sizes as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ares_celery.model.durations import format_duration, parse_duration, parse_size

MICROSECONDS = st.integers(0, 10**15)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("10s", 10),
        ("2m", 120),
        ("1h", 3600),
        ("1.5h", 5400),
        ("2d", 172_800),
        ("250us", 0.00025),
        ("7", 7),
        (" 3 s ", 3),
        (0.25, 0.25),
        (4, 4),
        (timedelta(minutes=1), 60),
    ],
)
def test_a_duration_is_a_timedelta_seconds_or_a_text(text: object, seconds: float) -> None:
    """The forms of contract.md, and a few more units."""
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("value", ["", "soon", "-5s", "5 parsecs", "30m1h", None, True, [1], float("nan"), "1e3s"])
def test_what_is_no_duration_is_refused_with_examples(value: object) -> None:
    """The message shows the value and what is accepted."""
    with pytest.raises(ValueError, match="500ms, 10s, 2m, 1h"):
        parse_duration(value)


@pytest.mark.parametrize("value", [float("inf"), 1e300, "99999999999999999999h", -1e300])
def test_a_duration_beyond_all_calendars_is_a_bad_value_and_no_crash(value: object) -> None:
    """Pydantic turns a ValueError into an error that names the field; an OverflowError would escape it."""
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(value)


@given(MICROSECONDS)
def test_what_is_written_is_read_back(microseconds: int) -> None:
    """To the microsecond, below the length where floats lose them."""
    duration = timedelta(microseconds=microseconds)
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("text", "size"), [("1MiB", 1 << 20), ("64KiB", 1 << 16), ("2 GiB", 2 << 30), ("1kb", 1000), ("17", 17), (42, 42)]
)
def test_a_size_is_bytes_or_a_text(text: object, size: int) -> None:
    """Binary and decimal units."""
    assert parse_size(text) == size


@pytest.mark.parametrize("value", ["", "big", "-1", "1XB", None, True, 1.5])
def test_what_is_no_size_is_refused_with_examples(value: object) -> None:
    """The message shows the value and what is accepted."""
    with pytest.raises(ValueError, match="64KiB, 1MiB"):
        parse_size(value)
