"""Calling somebody else's code that may raise anything, or never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, NamedTuple, TypeVar

from ares_celery.background import counted_work

__all__ = ["LOOKUP_LIMIT", "Answer", "BoundedCalls"]

T = TypeVar("T")

#: Seconds that a lookup in a memory manager or snapshot store may take.
LOOKUP_LIMIT: Final = 5.0
#: Calls that may hang at once: each holds a thread, and one more would hang as well.
_MOST_HANGING: Final = 8


class Answer(NamedTuple, Generic[T]):
    """What a call gave: a value, or a problem in words."""

    value: T | None
    problem: str = ""


class BoundedCalls:
    """Calls functions on threads of their own and waits for each up to a limit; safe to share between threads.

    A call that does not return keeps its thread, which nothing can end; while several of them hang no more are made.

    Example:
        >>> BoundedCalls().call(int, "7"), BoundedCalls().call(int, "x").problem
        (Answer(value=7, problem=''), "ValueError: invalid literal for int() with base 10: 'x'")
    """

    def __init__(self, limit: float = LOOKUP_LIMIT) -> None:
        """Waits ``limit`` seconds for each call."""
        self.limit = limit
        self._lock = threading.Lock()
        self._open = 0

    def call(self, function: Callable[..., T], *args: object) -> Answer[T]:
        """Calls the function; whatever it does, this returns."""
        future = self.submit(function, *args)
        done = threading.Event()
        future.add_done_callback(lambda _: done.set())
        done.wait(self.limit)
        return self.answer_of(future)

    def submit(self, function: Callable[..., T], *args: object) -> Future[T]:
        """Begins the call on a daemon thread; the future has what it gave or raised."""
        future: Future[T] = Future()
        with self._lock:
            if self._open >= _MOST_HANGING:
                future.set_exception(TimeoutError(f"{self._open} earlier calls have not returned"))
                return future
            self._open += 1

        def run() -> None:
            try:
                with counted_work("bounded-call"):
                    value = function(*args)
            except BaseException as error:  # noqa: BLE001 - somebody else's code
                future.set_exception(error)
            else:
                future.set_result(value)
            finally:
                with self._lock:
                    self._open -= 1

        threading.Thread(target=run, name="ares-bounded-call", daemon=True).start()
        return future

    def answer_of(self, future: Future[T]) -> Answer[T]:
        """What the call gave so far; not to have returned is a problem too."""
        if not future.done():
            return Answer(None, f"it did not return within {self.limit:g} s")
        error = future.exception()
        if error is not None:
            return Answer(None, f"{type(error).__name__}: {error}"[:1_000])
        return Answer(future.result())
