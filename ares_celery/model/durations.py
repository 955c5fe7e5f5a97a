"""Durations and sizes as people write them: ``500ms``, ``10s``, ``2m``, ``1h``; ``1MiB``."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

__all__ = ["DURATION_RULE", "Duration", "OptionalDuration", "Size", "format_duration", "parse_duration", "parse_size"]

#: What is accepted, in words.
DURATION_RULE = "write seconds as a number, or 500ms, 10s, 2m, 1h"

_UNITS = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>us|ms|s|m|h|d)?")
_PART = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>us|ms|s|m|h|d)")
_SEVERAL = re.compile(r"(?:\d+(?:\.\d+)?(?:us|ms|s|m|h|d)){2,}")
_SIZES = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-zA-Z]*)")


def parse_duration(value: object) -> timedelta:
    """Reads a duration: a timedelta, seconds as a number, or text such as ``500ms``, ``10s``, ``1m30s``, ``1h``.

    Raises:
        ValueError: It is neither; the text says what is accepted.

    Example:
        >>> parse_duration("1.5m").total_seconds(), parse_duration("1m30s").total_seconds()
        (90.0, 90.0)
    """
    if isinstance(value, timedelta):
        return value
    message = f"{value!r} is not a duration; {DURATION_RULE}"
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return timedelta(seconds=value)
        if isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
            return timedelta(microseconds=round(float(match["number"]) * _UNITS[match["unit"] or "s"]))
        if isinstance(value, str) and _SEVERAL.fullmatch(value.strip()):
            return _sum([(float(part["number"]), _UNITS[part["unit"]]) for part in _PART.finditer(value)])
    except (OverflowError, ValueError) as error:  # beyond all calendars, or not a number
        raise ValueError(message) from error
    raise ValueError(message)


def _sum(parts: list[tuple[float, int]]) -> timedelta:
    """Several parts, the largest unit first, each unit once: everything else is a slip of the pen."""
    units = [unit for _, unit in parts]
    if units != sorted(set(units), reverse=True):
        raise ValueError("units must fall")
    return timedelta(microseconds=round(sum(number * unit for number, unit in parts)))


def format_duration(value: timedelta) -> str:
    """Writes a duration in the largest unit that keeps it exact.

    Example:
        >>> format_duration(timedelta(minutes=2)), format_duration(timedelta(seconds=1.5))
        ('2m', '1500ms')
    """
    micros = value // timedelta(microseconds=1)
    for unit in ("h", "m", "s", "ms"):
        if micros and micros % _UNITS[unit] == 0:
            return f"{micros // _UNITS[unit]}{unit}"
    return f"{micros}us" if micros else "0s"


def parse_size(value: object) -> int:
    """Reads a number of bytes: an int, or text such as ``64KiB`` and ``1MiB``.

    Raises:
        ValueError: It is neither.

    Example:
        >>> parse_size("1MiB")
        1048576
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())) and match["unit"].lower() in _SIZES:
        return round(float(match["number"]) * _SIZES[match["unit"].lower()])
    message = f"{value!r} is not a size; write bytes as a number, or 64KiB, 1MiB"
    raise ValueError(message)


def _optional_duration(value: object) -> timedelta | None:
    return None if value is None or value in ("", "none", "None") else parse_duration(value)


def _dump(value: Any) -> str | None:  # noqa: ANN401 - a pydantic serializer takes what the field holds
    return format_duration(value) if isinstance(value, timedelta) else None


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(_dump, when_used="json")]
OptionalDuration = Annotated[
    timedelta | None, BeforeValidator(_optional_duration), PlainSerializer(_dump, when_used="json")
]
Size = Annotated[int, BeforeValidator(parse_size)]
