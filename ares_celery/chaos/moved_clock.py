"""The wall clock of a worker that a fault may move: from outside, while it runs, and for a time.

A worker whose ``ARES_CLOCK_FILE`` names a file looks at that file ten times a second. What stands in it is how far the
clock is off, and until when by the machine's monotonic clock: it ends by that, whoever is left. Date and time are moved
for all that Python code asks of ``time`` and ``datetime``, by the library time-machine; clocks that only grow are not.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import AresError, InvalidSettingError, OperationNotSupportedError
from ares_celery.model.durations import parse_duration

__all__ = ["FURTHEST", "MovedClock", "move_clock", "parse_offset"]

log: Final = logging.getLogger(__name__)

#: Furthest that a clock may be moved: more is wrong about the calendar, not about the time.
FURTHEST: Final = timedelta(days=366)
#: Longest that it may stay so, as of all faults.
_LONGEST: Final = timedelta(hours=24)
#: Seconds between two looks at the file.
_INTERVAL: Final = 0.1
#: Bytes that are written: always as many and at once, so that nobody finds the end of something older.
_WIDTH: Final = 256
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_OPERATION: Final = "moving the clock of a worker"


@dataclass(frozen=True, slots=True)
class _Said:
    """What the file says.

    Attributes:
        offset: Seconds that the clock is off.
        until: Seconds of the monotonic clock.
        boot: Of the machine since it was started: then that clock began anew.
    """

    offset: float = 0.0
    until: float = 0.0
    boot: str = ""


def parse_offset(value: object) -> timedelta:
    """Reads how far a clock is moved: seconds as a number, or a duration as text, with a minus where it goes back.

    Raises:
        ValueError: It is neither, or more than a year; the text says what is accepted.

    Example:
        >>> [parse_offset(one).total_seconds() for one in ("-1m30s", "+2h", -5)]
        [-90.0, 7200.0, -5.0]
    """
    sign, span = 1, value
    if isinstance(value, str) and value.strip()[:1] in {"+", "-"}:
        sign, span = -1 if value.strip()[0] == "-" else 1, value.strip()[1:]
    try:
        offset = sign * parse_duration(span)
    except ValueError as error:
        message = f"{value!r} is no offset; write seconds as a number, or 2h, -90s, +1h30m"
        raise ValueError(message) from error
    if abs(offset) > FURTHEST:
        message = f"{value!r} is not possible; a clock is moved by {FURTHEST.days} days at most"
        raise ValueError(message)
    return offset


class MovedClock:
    """The clock of this process, as a file says; made before the children of its pool, who inherit it."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        """Opens the file, which is made if it is not there, and holds it as long as this process or a child lives.

        Args:
            path: The file; its folder has to be there.
            clock: Injected in tests.

        Raises:
            InvalidSettingError: The file cannot be opened.
            OperationNotSupportedError: time-machine is not installed.
        """
        self._path = path
        self._clock = clock or SystemClock()
        try:
            machine: Any = import_module("time_machine")
        except ImportError as error:
            raise OperationNotSupportedError(
                operation=_OPERATION,
                reason="time-machine is not installed; `pip install 'ares-celery[clock]'`, or unset ARES_CLOCK_FILE",
            ) from error
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            # How whoever writes sees that somebody reads; it ends with the last process that has the file open.
            fcntl.flock(self._file, fcntl.LOCK_SH)
        except OSError as error:
            raise InvalidSettingError(field="clock_file", value=str(path), problem=f"{error.strerror}") from error
        self._said, self._boot = _Said(), _boot()
        self._offset = timedelta(0)
        self._over = threading.Event()
        # Now, and for good: to begin or end while other threads ask for the time would hit one of them.
        self._travel: Any = machine.travel(timedelta(0), tick=True)
        self._traveller: Any = self._travel.start()
        # It counts from the first time that it is asked.
        SystemClock().wall()
        self.look()

    def follow(self) -> None:
        """Looks at the file from now on, on a thread of this process; a child of a pool has to ask for its own."""
        threading.Thread(target=self._follow, name="ares-clock", daemon=True).start()

    def close(self) -> None:
        """Lets go of clock and file, where no other thread runs; a worker just ends."""
        self._over.set()
        self._travel.stop()
        os.close(self._file)

    def _follow(self) -> None:
        while not self._clock.wait(self._over, _INTERVAL):
            try:
                self.look()
            except Exception:
                log.exception("what the clock of this process should be cannot be read from %s", self._path)
                return

    def look(self) -> timedelta:
        """Moves the clock to where the file says, and tells how far it is off."""
        self._said = _read(self._file) or self._said
        over = self._said.until <= self._clock.monotonic() or self._said.boot != self._boot
        offset = timedelta(0) if over else timedelta(seconds=self._said.offset)
        if offset != self._offset:
            self._traveller.shift(offset - self._offset)
            self._offset = offset
            if offset:
                log.warning("the wall clock of this process is off by %+g s, as a fault says", self._said.offset)
            else:
                log.warning("the wall clock of this process is right again")
        return offset


def move_clock(path: Path, offset: timedelta, duration: timedelta, *, clock: Clock | None = None) -> Mapping[str, Any]:
    """Moves the clock of the worker that follows the file; it does so within a fraction of a second.

    Args:
        path: The file.
        offset: How far; 0 puts it right.
        duration: When it is right again by itself; at most a day.
        clock: Injected in tests.

    Returns:
        ``file``, ``offset`` and ``duration``, in seconds.

    Raises:
        OperationNotSupportedError: No worker follows this file.
    """
    clock = clock or SystemClock()
    lasts = max(timedelta(0), min(duration, _LONGEST)) if offset else timedelta(0)
    said = _Said(offset.total_seconds() if lasts else 0.0, clock.monotonic() + lasts.total_seconds(), _boot())
    try:
        file = os.open(path, os.O_RDWR)
    except OSError as error:
        raise _nobody_follows(path, str(error.strerror)) from error
    try:
        if _is_free(file):
            raise _nobody_follows(path, "no worker has it open")
        os.pwrite(file, json.dumps(asdict(said)).encode().ljust(_WIDTH), 0)
    finally:
        os.close(file)
    return {"file": str(path), "offset": said.offset, "duration": lasts.total_seconds()}


def _nobody_follows(path: Path, why: str) -> AresError:
    cure = f"start the worker on this machine with ARES_CLOCK_FILE={path}, and with ares-celery[clock] installed"
    return OperationNotSupportedError(operation=_OPERATION, reason=f"nobody follows {path} ({why}); {cure}")


def _is_free(file: int) -> bool:
    try:
        # Given up with the descriptor; a worker that begins meanwhile waits for that.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(file: int) -> _Said | None:
    """What the file says; None when it says nothing."""
    try:
        said = json.loads(os.pread(file, _WIDTH, 0))
        offset, until, boot = float(said["offset"]), float(said["until"]), str(said["boot"])
    except (ValueError, TypeError, KeyError):
        return None
    fine = math.isfinite(until) and abs(offset) <= FURTHEST.total_seconds()
    return _Said(offset, until, boot) if fine else None


def _boot() -> str:
    """Which run of the machine this is; empty where it does not say."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""
