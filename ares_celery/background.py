"""Detached work of this process, counted by label: what runs beside the agents, and whether it ever ends."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager

__all__ = ["counted_work", "start_detached", "work_in_progress"]

_lock = threading.Lock()
_running: Counter[str] = Counter()


@contextmanager
def counted_work(label: str) -> Generator[None]:
    """Counts the block under a label while it runs, however it ends; an empty label is not counted.

    Example:
        >>> with counted_work("tidying"):
        ...     work_in_progress()["tidying"]
        1
        >>> "tidying" in work_in_progress()
        False
    """
    if not label:
        yield
        return
    with _lock:
        _running[label] += 1
    try:
        yield
    finally:
        with _lock:
            _running[label] -= 1
            if _running[label] <= 0:
                del _running[label]


def start_detached(label: str, work: Callable[[], object]) -> threading.Thread:
    """Runs ``work`` on a daemon thread of its own, counted under the label from this moment on."""
    begun = threading.Event()

    def run() -> None:
        with counted_work(label):
            begun.set()
            work()

    thread = threading.Thread(target=run, name=f"ares-{label}", daemon=True)
    thread.start()
    begun.wait()
    return thread


def work_in_progress() -> dict[str, int]:
    """How much of each label runs in this process now; a copy, without labels of which nothing runs."""
    with _lock:
        return dict(_running)
