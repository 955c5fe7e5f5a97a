"""The process's one event loop for async agents, on a thread of its own, and the watch that it turns."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import traceback
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from ares_celery.clock import Clock
from ares_celery.errors import AgentSignal

__all__ = ["LoopThread"]

log = logging.getLogger(__name__)
T = TypeVar("T")


class LoopThread:
    """An event loop on a daemon thread. One coroutine that blocks stops all agents on it, so ``beat`` tells who."""

    def __init__(self, clock: Clock, *, hung_after: float) -> None:
        """Starts the thread.

        Args:
            clock: For the age of the last turn.
            hung_after: Seconds without a turn until the loop counts as hung.
        """
        self._clock = clock
        self._hung_after = hung_after
        self._turned_at = clock.monotonic()
        self._asked = False
        self._said = False
        self._closing = False
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_on_problem)
        self._thread = threading.Thread(target=self._run, name="ares-agents-loop", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._closing:
            # SystemExit of any task or callback, and a loop.stop() of user code, leave the loop whole and end its run:
            # one agent must not take the others of this process along.
            try:
                self.loop.run_forever()
            except BaseException:
                log.exception("user code raised through the event loop; the loop goes on")
            else:
                if not self._closing:
                    log.error("user code stopped the event loop; it goes on")
        self.loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine on the loop; from any other thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def wait(self, future: Future[T]) -> T:
        """Blocks another thread until something on the loop sets the future."""
        return future.result()

    def beat(self) -> float:
        """Asks the loop for a turn; returns the seconds since its last one. Logs the culprit's stack once a hang."""
        age = self._clock.monotonic() - self._turned_at
        if not self._asked:
            self._asked = True
            self.loop.call_soon_threadsafe(self._turned)
        elif age > self._hung_after and not self._said:
            self._said = True
            log.error("the event loop has not turned for %.1f s; it is held by:\n%s", age, self._culprit())
        return age

    def _turned(self) -> None:
        self._turned_at = self._clock.monotonic()
        self._asked = self._said = False

    def _culprit(self) -> str:
        # Documented, for all its underscore.
        frames = sys._current_frames()  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        frame = frames.get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "(its thread has ended)"

    def close(self) -> None:
        """Stops the loop; what still runs on it is abandoned."""
        self._closing = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5)


def _on_problem(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Logs what nobody has asked for; that a task of an agent's own was ended by a signal is no problem."""
    if not isinstance(context.get("exception"), AgentSignal):
        loop.default_exception_handler(context)
