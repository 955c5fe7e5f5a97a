"""The thread of an agent under test: it runs only while the test waits for it, so that both never run at once."""

from __future__ import annotations

import asyncio
import ctypes
import math
import selectors
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from contextlib import suppress
from types import FrameType
from typing import Any, Final, TypeVar

from typing_extensions import TypeVarTuple, Unpack, override

from ares_celery.clock import Clock
from ares_celery.errors import FencedSignal
from ares_celery.runtime.loop_thread import LoopThread

__all__ = ["Stage", "SteppedLoop"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Turns in a row in which a loop found something to do; after so many of them the test has a look.
_RESTLESS: Final = 50
#: Real seconds between two looks at work that the agent gave to threads of the loop's executor.
_OUTSIDE_LOOK: Final = 0.01
#: Real seconds for a thread to come to its end after an exception was thrown into it, and how often that is tried.
_INTERRUPT_WAIT: Final = 0.5
_INTERRUPTS: Final = 4


class Stage:
    """One thread and the right to run, which wanders between it and the thread of the test.

    The thread gives the right back by parking: where the agent's code waits, before it stores something, at its end.
    """

    def __init__(self, work: Callable[[], None], clock: Clock, *, name: str) -> None:
        """Prepares the thread; the first turn starts it.

        Args:
            work: What it does.
            clock: Whose time parking is in.
            name: Of the thread.
        """
        self._work = work
        self._clock = clock
        self._turn = threading.Lock()
        self._back = threading.Lock()
        self._turn.acquire()
        self._back.acquire()
        self._until = 0.0
        self._event: threading.Event | None = None
        self._poked = True
        self.is_over = False
        #: It never came back from its turn, so that nothing is known of it any more.
        self.is_loose = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # -- the test's side --------------------------------------------------------------------------------------------

    @property
    def next_at(self) -> float:
        """When it goes on by itself; infinite where it waits for something to happen."""
        return -math.inf if self._poked or (self._event is not None and self._event.is_set()) else self._until

    def poke(self) -> None:
        """Something happened: it is to have a turn, whatever it waits for."""
        self._poked = True

    def give_turn(self, patience: float) -> bool:
        """Lets it run until it parks or ends; False when it does neither within so many real seconds."""
        if self.is_over or self.is_loose:
            return True
        self._poked = False
        if self._thread.ident is None:
            self._thread.start()
        self.is_loose = True
        self._turn.release()
        self.is_loose = not self._back.acquire(timeout=patience)
        return not self.is_loose

    def interrupt(self) -> bool:
        """Ends code that does not come back by itself; False when nothing can, as it blocks outside of Python."""
        for _ in range(_INTERRUPTS):
            _throw(self._thread.ident or 0, FencedSignal)
            if self._back.acquire(timeout=_INTERRUPT_WAIT):
                self.is_loose = False
                return True
        return False

    def join(self, timeout: float) -> None:
        """Waits for the thread of a stage that is over."""
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def frame(self) -> FrameType | None:
        """Where the thread is."""
        # Documented, for all its underscore.
        return sys._current_frames().get(self._thread.ident or 0)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]

    # -- the thread's side ------------------------------------------------------------------------------------------

    @property
    def is_here(self) -> bool:
        """The calling thread is this one."""
        return threading.current_thread() is self._thread

    def park(self, until: float, event: threading.Event | None = None) -> None:
        """Gives the right to run back until simulated time or the event comes, or somebody pokes."""
        self._until, self._event = until, event
        self._back.release()
        self._turn.acquire()

    def wait(self, event: threading.Event, until: float) -> bool:
        """As :meth:`ares_celery.clock.Clock.wait`, with the end of the wait instead of its length."""
        while not event.is_set() and self._clock.monotonic() < until:
            self.park(until, event)
        return event.is_set()

    def _run(self) -> None:
        self._turn.acquire()
        try:
            self._work()
        finally:
            self.is_over = True
            self._back.release()


def _throw(thread: int, signal: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(signal))


class _ParkingSelector(selectors.DefaultSelector):
    """Where a loop would wait for the world, its thread parks."""

    def __init__(self, stage: Stage, clock: Clock) -> None:
        super().__init__()
        self._stage = stage
        self._clock = clock
        self._restless = 0
        #: Calls in the loop's executor, which take real time: the simulated one stands still for them.
        self.outside = 0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or (timeout is not None and timeout <= 0):
            self._restless += 1
            if self._restless >= _RESTLESS:
                # It turns without waiting for anything: the test is to have a look all the same.
                self._restless = 0
                self._stage.park(self._clock.monotonic())
            return found
        self._restless = 0
        while self.outside and not found:
            found = super().select(_OUTSIDE_LOOK)
        if found:
            return found
        self._stage.park(math.inf if timeout is None else self._clock.monotonic() + timeout)
        return super().select(0)


class _TurnedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self, stage: Stage, clock: Clock) -> None:
        self._parking = _ParkingSelector(stage, clock)
        self._manual = clock
        super().__init__(self._parking)

    @override
    def time(self) -> float:
        return self._manual.monotonic()

    @override
    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        self._parking.outside += 1
        running = super().run_in_executor(executor, func, *args)
        running.add_done_callback(self._came_back)
        return running

    def wait_for_threads(self) -> None:
        """From now on whatever is waited for takes real time; before the loop is closed."""
        self._parking.outside += 1

    def _came_back(self, _: object) -> None:
        self._parking.outside -= 1


class SteppedLoop(LoopThread):
    """The event loop of an agent under test; whoever waits for something on it turns it."""

    def __init__(self, clock: Clock, *, stage: Stage, hung_after: float = 0.0) -> None:  # noqa: ARG002 - never hung
        """Makes the loop; no thread of its own."""
        self._clock = clock
        self._own = _TurnedLoop(stage, clock)
        self.loop = self._own

    @override
    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs it to its end, here and now."""
        done: Future[T] = Future()
        done.set_result(self.loop.run_until_complete(coroutine))
        return done

    @override
    def wait(self, future: Future[T]) -> T:
        """Turns the loop until the future is set; as for a real one, user code does not end it."""
        future.add_done_callback(lambda _: self.loop.stop())
        while not future.done():
            with suppress(BaseException):
                self.loop.run_forever()
        return future.result()

    @override
    def beat(self) -> float:
        """It turns whenever it is looked at."""
        return 0.0

    @override
    def close(self) -> None:
        """Ends what is left on it, generators and finally blocks included, and closes it."""
        if self.loop.is_closed():
            return
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()
        if left:
            self.loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        # Its end is waited for on a thread that the loop does not know of.
        self._own.wait_for_threads()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
