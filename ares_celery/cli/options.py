"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click
from typing_extensions import override

__all__ = ["DURATION", "JSON", "why_options"]

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    # Generic for type checkers; subscriptable in new releases of click only.
    _ParamType = click.ParamType

F = TypeVar("F", bound=Callable[..., Any])


def why_options(function: F) -> F:
    """Gives a changing command ``--reason`` and ``--actor``, both kept in the records."""
    function = click.option("--actor", default="", help="Who asks; default user@host.")(function)
    return click.option("--reason", default="", help="Why; kept in the records.")(function)


class _Json(_ParamType):
    """A JSON value; ``-`` reads it from stdin."""

    name = "json"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        text = sys.stdin.read() if value == "-" else value
        try:
            return json.loads(text)
        except ValueError as error:
            self.fail(f"{text[:80]!r} is not JSON ({error}); text is written as '\"text\"'", param, ctx)


class _Duration(_ParamType):
    """A duration such as 500ms, 10s, 2m; a bare number is seconds."""

    name = "duration"

    @override
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        from ares_celery.model.durations import parse_duration

        try:
            return parse_duration(value)
        except (ValueError, TypeError) as error:
            self.fail(f"{value!r}: {error}", param, ctx)


JSON = _Json()
DURATION = _Duration()
