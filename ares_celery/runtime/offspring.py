"""The processes that an agent started: where a process hosts one agent only, they end with it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Collection
from pathlib import Path

from ares_celery.clock import Clock

__all__ = ["end_offspring", "lead_process_group", "offspring_of"]

log = logging.getLogger(__name__)


def lead_process_group() -> None:
    """Makes this process the leader of a group of its own, so that whatever it starts can be ended with it.

    Also keeps a signal that a terminal or a service manager sends to the whole worker group away from the agent: its
    worker tells it to stop in order.
    """
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)


def offspring_of(pid: int) -> list[int]:
    """Every living descendant of a process, children first; empty where /proc does not tell."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found.append(child)
            found.extend(offspring_of(child))
    return found


def end_offspring(clock: Clock, *, grace: float = 1.0, spare: Collection[int] = ()) -> int:
    """Ends all descendants of this process: SIGTERM, after ``grace`` seconds SIGKILL. Returns how many there were.

    Args:
        clock: Monotonic time.
        grace: Seconds to end in order.
        spare: Processes that go on, with whatever they started.
    """
    spared = {*spare, *(child for pid in spare for child in offspring_of(pid))}
    found = [pid for pid in offspring_of(os.getpid()) if pid not in spared]
    if not found:
        return 0
    log.info("ending %d processes that the agent left behind", len(found))
    _signal_all(found, signal.SIGTERM)
    until = clock.monotonic() + grace
    never = threading.Event()
    while clock.monotonic() < until and _living(found):
        clock.wait(never, 0.02)
    _signal_all(_living(found), signal.SIGKILL)
    return len(found)


def _living(pids: list[int]) -> list[int]:
    own = set(offspring_of(os.getpid()))
    for pid in own.intersection(pids):
        try:
            os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            continue
    return [pid for pid in offspring_of(os.getpid()) if pid in pids]


def _signal_all(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
