"""One log of many processes: each line behind the name of the process that printed it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Final, TextIO

__all__ = ["MergedLog"]

#: ANSI colours for names, in the order in which the processes come.
_COLOURS: Final = (36, 33, 32, 35, 34, 31)
_NAME_WIDTH: Final = 10


class MergedLog:
    """Writes whole lines from many threads; names are coloured on a terminal, unless NO_COLOR is set.

    Args:
        stream: Where to; default stderr.
        environ: Instead of this process's.
    """

    def __init__(self, stream: TextIO | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._stream = stream or sys.stderr
        self._coloured = self._stream.isatty() and not (os.environ if environ is None else environ).get("NO_COLOR")
        self._lock = threading.Lock()
        self._known: dict[str, int] = {}

    def __call__(self, name: str, line: str) -> None:
        """Writes one line."""
        with self._lock:
            colour = self._known.setdefault(name, _COLOURS[len(self._known) % len(_COLOURS)])
            shown = f"{name:<{_NAME_WIDTH}} |"
            if self._coloured:
                shown = f"\x1b[{colour}m{shown}\x1b[0m"
            self._stream.write(f"{shown} {line}\n")
            self._stream.flush()
