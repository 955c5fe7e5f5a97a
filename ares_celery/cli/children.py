"""A tiny supervisor for the processes of one command: starts them, reads what they print, restarts and ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from ares_celery.cli.parent_death import bound_to_parent
from ares_celery.clock import Clock, SystemClock

__all__ = ["Child", "Children"]

#: Seconds an orderly end may take before it is forced.
_STOP_LIMIT: Final = 8.0
_LOOK: Final = 0.05
#: Seconds before a child that died is started again: doubled for one that dies at once, up to the last.
_RESTART_DELAYS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
#: A child that lived so long, in seconds, starts with the first delay again.
_STABLE: Final = 10.0
#: Seconds that the last words of a child that ended may take to arrive.
_LAST_WORDS: Final = 1.0

#: Takes a line with the name of the child that printed it; called from several threads.
Sink = Callable[[str, str], None]


@dataclass
class Child:
    """One process, and what is needed to start it again."""

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes]
    started_at: float
    deaths: int = 0
    restart_at: float | None = None
    #: It was killed on purpose, so its end is no surprise.
    expected: bool = field(default=False)
    #: It once did its work; whoever can tell sets it.
    ready: bool = field(default=False)
    #: Ends with an error, in a row, before it was ever ready.
    failed_starts: int = 0
    #: The last line with text that it printed, and who reads it.
    last_line: str = ""
    reader: threading.Thread | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        """The process id of the command itself."""
        return self.process.pid

    @property
    def is_running(self) -> bool:
        """The process exists."""
        return self.process.poll() is None


class Children:
    """The processes of one command; all of them end with the block, or with this process, however it ends.

    Start them from the main thread: the kernel ends them with the thread that started them.

    Args:
        sink: Takes every line that they print.
        environment: Their whole environment.
        give_up_after: A child that so often in a row ends with an error before it was ever ready is not started again;
            None = it always is.
        clock: For waits.

    Attributes:
        given_up: The child that is not started again, if there is one.
    """

    def __init__(
        self,
        sink: Sink,
        environment: Mapping[str, str],
        *,
        give_up_after: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.given_up: Child | None = None
        self._give_up_after = give_up_after
        self._sink = sink
        self._environment = dict(environment)
        self._clock = clock or SystemClock()
        self._never = threading.Event()
        self._children: dict[str, Child] = {}

    def __enter__(self) -> Self:
        """Nothing runs yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends all."""
        self.stop()

    def __getitem__(self, name: str) -> Child:
        """The newest child of this name."""
        return self._children[name]

    def start(self, name: str, command: Sequence[str]) -> Child:
        """Starts a child, or the next one of this name."""
        child = Child(name, command, self._launch(command), self._clock.monotonic())
        self._follow(child)
        self._children[name] = child
        return child

    def kill(self, name: str) -> int:
        """Sends SIGKILL to the child's process, waits for its end and returns its pid; it is not restarted."""
        child = self._children[name]
        child.expected = True
        child.process.kill()
        child.process.wait()
        return child.pid

    def restart_dead(self) -> list[str]:
        """Starts children that died again, each after its delay; call it often. Returns sentences on what happened."""
        said: list[str] = []
        for child in list(self._children.values()):
            if child.expected or child is self.given_up or child.is_running:
                continue
            now = self._clock.monotonic()
            if child.restart_at is None:
                said.append(self._note_death(child, now))
            elif now >= child.restart_at:
                child.process, child.started_at, child.restart_at = self._launch(child.command), now, None
                self._follow(child)
                said.append(f"{child.name} started again (pid {child.pid})")
        return said

    def _note_death(self, child: Child, now: float) -> str:
        lived = now - child.started_at
        child.deaths = 1 if lived >= _STABLE else child.deaths + 1
        failed = not child.ready and lived < _STABLE and child.process.returncode > 0
        child.failed_starts = child.failed_starts + 1 if failed else 0
        ended = f"{child.name} (pid {child.pid}) ended with {_ending(child.process)}"
        if self._give_up_after is not None and child.failed_starts >= self._give_up_after:
            self.given_up = child
            if child.reader is not None:
                child.reader.join(_LAST_WORDS)
            return f"{ended} before it was ready, {child.failed_starts} times in a row; it is not started again"
        delay = _RESTART_DELAYS[min(child.deaths, len(_RESTART_DELAYS)) - 1]
        child.restart_at = now + delay
        return f"{ended}; started again in {delay:g} s"

    def dead(self) -> list[Child]:
        """Children that ended although nobody asked them to."""
        return [child for child in self._children.values() if not child.expected and not child.is_running]

    def ask_to_stop(self) -> None:
        """Sends SIGTERM to all; returns at once."""
        for child in self._children.values():
            child.expected = True
            if child.is_running:
                child.process.terminate()

    def stop(self, *, limit: float = _STOP_LIMIT, hurry: threading.Event | None = None) -> None:
        """Ends all: SIGTERM, then, after ``limit`` seconds or when ``hurry`` is set, SIGKILL. Again: no effect."""
        self.ask_to_stop()
        until, hurried = self._clock.monotonic() + limit, hurry or self._never
        while any(self._running()) and self._clock.monotonic() < until and not hurried.is_set():
            self._clock.wait(hurried, _LOOK)
        for child in self._running():
            self._sink(child.name, "did not end in time; killed")
            # With the group goes what it started; the pool children of a worker are ended by the kernel.
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.process.wait()

    def _running(self) -> Iterable[Child]:
        return [child for child in self._children.values() if child.is_running]

    def _launch(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own arguments
            bound_to_parent(command),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # A Ctrl-C in the terminal is for us to handle, in order.
            start_new_session=True,
        )

    def _follow(self, child: Child) -> None:
        """Reads what the child's newest process prints, on a thread of its own."""
        child.reader = threading.Thread(
            target=self._read, args=(child, child.process), name=f"log-{child.name}", daemon=True
        )
        child.reader.start()

    def _read(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        with process.stdout:
            for line in process.stdout:
                text = line.decode(errors="replace").rstrip("\n")
                child.last_line = text.strip() or child.last_line
                self._sink(child.name, text)


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"code {code}"
