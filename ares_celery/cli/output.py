"""What commands print: data on stdout as a table for people or JSON for programs, talk on stderr."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeVar, cast

import click

__all__ = [
    "clean",
    "in_units",
    "output_option",
    "print_facts",
    "print_json",
    "print_table",
    "say",
    "shorten",
    "to_json",
]

F = TypeVar("F", bound=Callable[..., Any])
#: Styles of rich for words that a cell may consist of.
_STYLES: Final[Mapping[str, str]] = {
    "running": "green",
    "completed": "blue",
    "parked": "bold red",
    "resurrecting": "yellow",
    "starting": "yellow",
    "stopping": "yellow",
    "paused": "magenta",
    "waiting": "magenta",
}


def output_option(function: F) -> F:
    """Gives a command ``-o json|table``, as parameter ``output``."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="table for people, json (one line) for programs.",
    )(function)


def say(text: str) -> None:
    """Talks to the person at the terminal, on stderr."""
    click.echo(text, err=True)


def to_json(value: object) -> Any:  # noqa: ANN401, PLR0911 - a JSON value; one line a kind
    """The value as plain JSON: instants as ISO 8601, durations as seconds."""
    match value:
        case Enum():
            return value.value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Mapping():
            return {str(key): to_json(item) for key, item in cast("Mapping[object, object]", value).items()}
        case list() | tuple() | set() | frozenset():
            return [to_json(item) for item in cast("Iterable[Any]", value)]
        case bytes():
            return value.decode(errors="backslashreplace")
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        case _ if hasattr(value, "model_dump"):
            return to_json(cast("Any", value).model_dump())
        case _:
            return value


def print_json(value: object) -> None:
    """Prints one JSON document on one line."""
    click.echo(json.dumps(to_json(value), ensure_ascii=False))


def clean(value: object) -> str:
    r"""Text of somebody else, safe on a terminal: control characters are shown, not obeyed.

    Example:
        >>> clean("a[b]" + chr(27) + "[31m"), clean(None), clean(True)
        ('a[b]\\x1b[31m', '-', 'yes')
    """
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    shown = to_json(value)
    text = shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def shorten(text: str, limit: int) -> str:
    """The text, with an ellipsis where it is cut off to have at most so many characters.

    Example:
        >>> shorten("process lost", 8), shorten("short", 8)
        ('process…', 'short')
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def in_units(duration: timedelta) -> str:
    """A duration for people: in days, hours, minutes and seconds; below a minute with its fraction.

    Example:
        >>> in_units(timedelta(seconds=139.3)), in_units(timedelta(seconds=1.5)), in_units(timedelta(days=1))
        ('2m 19s', '1.5s', '1d')
    """
    whole = duration.days * 86_400 + duration.seconds
    if whole < 60:  # noqa: PLR2004 - a minute
        return f"{round(duration.total_seconds(), 3):g}s"
    minutes, seconds = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = ((days, "d"), (hours, "h"), (minutes, "m"), (seconds, "s"))
    return " ".join(f"{number}{unit}" for number, unit in parts if number)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table: coloured on a terminal, plain and never cut off elsewhere."""
    cells = [[clean(cell) for cell in row] for row in rows]
    if not sys.stdout.isatty():
        _print_plain([list(columns), *cells])
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in cells:
        # Text, not str: rich would take brackets in somebody's text for markup.
        table.add_row(*(Text(cell, style=_STYLES.get(cell.partition(",")[0], "")) for cell in row))
    Console().print(table)


def _print_plain(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_facts(facts: Mapping[str, object]) -> None:
    """Prints names and values, one a line."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name.ljust(width)}  {clean(value)}")
