"""Ctrl-C and SIGTERM as flags: the first one ends in order, the second at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

__all__ = ["Interrupts", "catch_interrupts"]

_HANDLED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """What came so far.

    Attributes:
        stop: Somebody wants the command to end.
        hurry: Somebody wants it a second time.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.hurry = threading.Event()

    def __call__(self, *_: object) -> None:
        """Handles a signal."""
        (self.hurry if self.stop.is_set() else self.stop).set()


@contextmanager
def catch_interrupts() -> Generator[Interrupts]:
    """Catches the signals inside the block; main thread only."""
    interrupts = Interrupts()
    before = [signal.signal(number, interrupts) for number in _HANDLED]
    try:
        yield interrupts
    finally:
        for number, handler in zip(_HANDLED, before, strict=True):
            signal.signal(number, handler)
