"""Checks of what callers hand in: one error for all of them, which names the argument, its value and the cure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Final, cast

from ares_celery.errors import InvalidSettingError
from ares_celery.model.durations import DURATION_RULE, parse_duration

__all__ = ["LONGEST_SHOWN", "as_shown", "check_choice", "check_flags", "check_span", "check_timeout"]

#: Characters of a refused value that its error carries.
LONGEST_SHOWN: Final = 200
_LONGEST_SPAN: Final = timedelta(days=365)


def check_flags(**given: object) -> None:
    """Refuses what is neither True nor False: the text "no" would count as a yes.

    Raises:
        InvalidSettingError: Names the first argument that is neither.

    Example:
        >>> check_flags(force="no")
        Traceback (most recent call last):
        ares_celery.errors.InvalidSettingError: force='no' is not valid: use True or False
    """
    for field, value in given.items():
        if not isinstance(value, bool):
            raise InvalidSettingError(field=field, value=as_shown(value), problem="use True or False")


def check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    """Refuses what is none of the words that an argument may be.

    Raises:
        InvalidSettingError: Names the argument and the words.

    Example:
        >>> check_choice("wait", "runing", ("durable", "running"))
        Traceback (most recent call last):
        ares_celery.errors.InvalidSettingError: wait='runing' is not valid: use one of durable, running
    """
    if not isinstance(value, str) or value not in choices:
        raise InvalidSettingError(field=field, value=as_shown(value), problem=f"use one of {', '.join(choices)}")


def check_timeout(value: object, field: str = "timeout") -> timedelta:
    """How long somebody is willing to wait, zero included.

    Raises:
        InvalidSettingError: It is no duration, or below zero.

    Example:
        >>> check_timeout("1.5s").total_seconds()
        1.5
    """
    try:
        limit = parse_duration(value)
    except ValueError as error:
        raise InvalidSettingError(field=field, value=as_shown(value), problem=DURATION_RULE) from error
    if limit < timedelta(0):
        raise InvalidSettingError(field=field, value=as_shown(value), problem="must not be below zero")
    return limit


def check_span(value: object, field: str) -> timedelta:
    """How long something lasts: above zero, at most a year.

    Raises:
        InvalidSettingError: It is no duration, or none of these.

    Example:
        >>> check_span("2m", "duration").total_seconds()
        120.0
    """
    span = check_timeout(value, field)
    if not timedelta(0) < span <= _LONGEST_SPAN:
        problem = "must be longer than zero, and at most a year (8760h)"
        raise InvalidSettingError(field=field, value=as_shown(value), problem=problem)
    return span


def as_shown(value: object) -> str | int | float | bool | None:
    """A value that was refused, as an error may carry it: as it is if that is short and plain, else as text."""
    is_plain = value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value))
    if is_plain:
        return cast("int | float | bool | None", value)
    return ascii(value)[:LONGEST_SHOWN] if not isinstance(value, str) else value[:LONGEST_SHOWN]
