"""What the person in front of the demo sees: a live table on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from typing_extensions import override

from ares_celery.cli.demo.watch import Row, View
from ares_celery.cli.output import say
from ares_celery.clock import Clock

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["LiveScreen", "PlainScreen", "Screen", "open_screen"]

#: Seconds between two lines of progress where there is no table.
_PROGRESS_EVERY: Final = 3.0
_BAR: Final = 20
_STYLES: Final[Mapping[str, str]] = {"running": "green", "completed": "blue", "resurrecting": "bold yellow"}


class Screen(Protocol):
    """Where the demo speaks."""

    def __enter__(self) -> Self:
        """Begins."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends."""
        ...

    def note(self, text: str) -> None:
        """Says that something happened."""
        ...

    def show(self, view: View) -> None:
        """Shows how the agents are."""
        ...


def open_screen(clock: Clock) -> Screen:
    """A live table when stderr is a terminal, else plain lines."""
    is_dumb = os.environ.get("TERM") == "dumb"
    return LiveScreen(clock) if sys.stderr.isatty() and not is_dumb else PlainScreen(clock)


class PlainScreen(Screen):
    """Lines with the seconds since the beginning."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        self._shown_at = self._began

    @override
    def __enter__(self) -> Self:
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    @override
    def note(self, text: str) -> None:
        say(self._timed(text))

    @override
    def show(self, view: View) -> None:
        now = self._clock.monotonic()
        if now - self._shown_at >= _PROGRESS_EVERY:
            self._shown_at = now
            say(self._timed(progress_line(view)))

    def _timed(self, text: str) -> str:
        return f"{self._clock.monotonic() - self._began:5.1f} s  {text}"


def progress_line(view: View) -> str:
    """How the agents are, in one line.

    Example:
        >>> progress_line(View([]))
        '0 of 0 files counted'
    """
    done, files = sum(row.done for row in view.rows), sum(row.files for row in view.rows)
    states: dict[str, int] = {}
    for row in view.rows:
        states[row.state.value] = states.get(row.state.value, 0) + 1
    told = [f"{done} of {files} files counted", *(f"{count} {state}" for state, count in sorted(states.items()))]
    return ", ".join(told)


class LiveScreen(PlainScreen):
    """A table that is drawn again and again, with the notes above it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)

    @override
    def __enter__(self) -> Self:
        self._live.start()
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    @override
    def note(self, text: str) -> None:
        from rich.text import Text

        self._console.print(Text(self._timed(text)))

    @override
    def show(self, view: View) -> None:
        self._live.update(_table(view), refresh=True)


def _table(view: View) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("agent", "state", "worker", "incarnation", "restarts", "progress"):
        justify: Any = "right" if column in ("incarnation", "restarts") else "left"
        table.add_column(column, justify=justify)
    for row in view.rows:
        state = row.state.value
        table.add_row(
            Text(row.agent_id),
            Text(state, style=_STYLES.get(state, "yellow")),
            Text(row.worker or "-"),
            Text(str(row.incarnation)),
            Text(str(row.restarts), style="bold" if row.restarts else ""),
            Text(_bar(row)),
        )
    return table


def _bar(row: Row) -> str:
    full = _BAR * row.done // max(1, row.files)
    return f"{'█' * full}{'·' * (_BAR - full)} {row.done}/{row.files}"
