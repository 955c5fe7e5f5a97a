"""How a worker's main process tells its pool children to release their agents: a pipe, so no broker and no store."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Final

__all__ = ["DrainLine"]

log: Final = logging.getLogger(__name__)

#: Seconds from the end of the agent until a child that was told to end by somebody else than its worker ends.
_TERM_DELAY: Final = 0.1


class DrainLine:
    """One line from the main process to itself and its pool children: closed once, when the worker shuts down.

    Made before the children are forked. Each child closes its copy of the writing end. The main process writes a word,
    which nobody takes out, and closes: all readers see both. When it dies instead they see the end without a word:
    that is no drain, as the children are about to be killed too, and a release half made would only be in the way.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        self._hint_read, self._hint_write = os.pipe()
        os.set_blocking(self._hint_write, False)
        self._is_hinted = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Says that the worker shuts down; safe in a signal handler, a second call changes nothing."""
        write, self._write = self._write, -1
        if write >= 0:
            os.write(write, b"!")
            os.close(write)

    def become_child(self) -> None:
        """Closes this process's copy of the writing end and makes its own hint line; first thing after a fork."""
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
        self._thread = None
        for file in (self._hint_read, self._hint_write):
            os.close(file)
        self._hint_read, self._hint_write = os.pipe()
        os.set_blocking(self._hint_write, False)

    def hint(self) -> None:
        """Drains this process alone; safe in a signal handler."""
        self._is_hinted = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._hint_write, b"!")

    @property
    def is_worker_ending(self) -> bool:
        """The whole worker shuts down."""
        return _has_word(self._read, 0)

    @property
    def is_draining(self) -> bool:
        """This process takes no agents any more."""
        return self._is_hinted or self.is_worker_ending

    def watch(self, on_drain: Callable[[], None]) -> None:
        """Calls ``on_drain`` once, on a thread of its own, when the worker shuts down or a hint came."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._wait, args=(on_drain,), name="ares-drain", daemon=True)
            self._thread.start()

    def _wait(self, on_drain: Callable[[], None]) -> None:
        while not self.is_draining:
            # select and not read: gevent knows how to wait with it, and the word stays for the others.
            readable, _, _ = select.select([self._read, self._hint_read], [], [])
            if self._read in readable and not self.is_draining:
                log.warning("the worker's main process is gone; this child does not drain")
                select.select([self._hint_read], [], [])
        log.info("draining: agents snapshot and release, none is taken any more")
        try:
            on_drain()
        except Exception:
            log.exception("draining failed; agents are left to their leases")

    @contextlib.contextmanager
    def term_is_hint(self) -> Generator[None]:
        """While a pool child hosts an agent, a SIGTERM drains it instead of killing it; it ends after the agent.

        A terminal or a service manager sends SIGTERM to the whole process group, and Celery's own handler would unwind
        the agent at once. When the worker itself shuts down nothing more is to be done; else the child ends as it would
        have, a moment after the agent, and the worker replaces it. Does nothing outside the main thread.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        told = threading.Event()

        def on_term(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler's signature
            told.set()
            self.hint()

        previous = signal.signal(signal.SIGTERM, on_term)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)
            if told.is_set() and not self.is_worker_ending:
                timer = threading.Timer(_TERM_DELAY, os.kill, (os.getpid(), signal.SIGTERM))
                timer.daemon = True
                timer.start()


def _has_word(file: int, timeout_ms: int) -> bool:
    """True when something was written: the end of the file alone is none."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return any(event & select.POLLIN for _, event in poll.poll(timeout_ms))
