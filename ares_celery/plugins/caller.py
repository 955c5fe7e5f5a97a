"""Calling a plug-in so that nothing it does reaches the caller but an error that names it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from ares_celery.clock import Clock
from ares_celery.errors import PluginTimeoutError
from ares_celery.plugins.raised import Raised

__all__ = ["PluginCaller", "is_plugin_thread"]


class _PluginThread(threading.Thread):
    """A thread on which a plug-in is called."""


def is_plugin_thread() -> bool:
    """The caller is itself called by a bus: what waits for that call would wait for itself."""
    return isinstance(threading.current_thread(), _PluginThread)


class _Job:
    """One call."""

    def __init__(self, function: Callable[..., Any], args: tuple[object, ...]) -> None:
        self._function = function
        self._args = args
        self.done = threading.Event()
        self.result: Any = None
        self.raised: Raised | None = None

    def run(self) -> None:
        try:
            self.result = self._function(*self._args)
        except BaseException as error:  # noqa: BLE001 - SystemExit and the like, too: it is a plug-in's code
            # Here, as the text of an exception is the plug-in's code, too, and may hang.
            self.raised = Raised.of(error)
        finally:
            self.done.set()


class _Lane:
    """One thread that makes one call at a time; made for the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self.turn = threading.Lock()
        self.job: _Job | None = None

    @property
    def is_busy(self) -> bool:
        """A call has not come back."""
        job = self.job
        return job is not None and not job.done.is_set()

    @property
    def hangs(self) -> bool:
        """A call that nobody waits for any more has not come back."""
        return not self.turn.locked() and self.is_busy

    def put(self, job: _Job) -> None:
        if self._thread is None:
            # A daemon: a call that never returns must not keep the process from ending.
            self._thread = _PluginThread(target=_run_all, args=(self._jobs,), name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def close(self) -> None:
        """Lets the thread end once it is idle; the next call makes a new one."""
        self._jobs.put(None)
        self._jobs, self._thread = SimpleQueue(), None


def _run_all(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()


class PluginCaller:
    """Calls one plug-in: one call at a time, each within a limit, on a thread of the plug-in's own.

    A call that takes too long is left to itself. Until it returns, further calls are refused at once, so a plug-in that
    hangs holds two threads at most: that of the call, and one on which it is asked to stop.

    Args:
        name: The plug-in's.
        clock: Injected in tests.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lane = _Lane(f"ares-plugin-{name}")
        self._last = _Lane(f"ares-plugin-{name}-stop")

    @property
    def hangs(self) -> bool:
        """A call that took too long has not returned."""
        return self._lane.hangs or self._last.hangs

    def call(
        self,
        what: str,
        function: Callable[..., Any],
        *args: object,
        limit: timedelta,
        even_if_it_hangs: bool = False,
    ) -> Any:  # noqa: ANN401 - whatever the plug-in returns
        """Makes a call.

        Args:
            what: Its name in errors.
            function: The plug-in's.
            args: For it.
            limit: How long to wait, for earlier calls of others and for this one together.
            even_if_it_hangs: On a second thread while an earlier call hangs: for what may free it.

        Raises:
            PluginTimeoutError: It did not return in time, or an earlier call hangs.
            PluginError: It raised.
        """
        until = self._clock.monotonic() + limit.total_seconds()
        lane = self._last if even_if_it_hangs and self._lane.hangs else self._lane
        late = PluginTimeoutError(plugin=self._name, call=what, limit=round(limit.total_seconds(), 2))
        if not lane.turn.acquire(timeout=max(0.0, limit.total_seconds())):
            raise late
        try:
            if lane.is_busy:
                raise late
            job = lane.job = _Job(function, args)
            lane.put(job)
            if not self._clock.wait(job.done, max(0.0, until - self._clock.monotonic())):
                raise late
        finally:
            lane.turn.release()
        if job.raised is not None:
            raise job.raised.error(self._name, what)
        return job.result

    def close(self) -> None:
        """Ends the threads once they are idle; a later call makes new ones."""
        self._lane.close()
        self._last.close()
