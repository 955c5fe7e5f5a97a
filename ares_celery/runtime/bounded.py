"""Calling somebody else's code that may raise anything, or never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from ares_celery.background import counted_work
from ares_celery.errors.wording import describe_error

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
        self._hanging: set[_Call] = set()

    def call(self, function: Callable[..., T], *args: object) -> Answer[T]:
        """Calls the function; whatever it does, this returns.

        Any number may run at once, as a caller waits for each; only those that were given up count as hanging.
        """
        with self._lock:
            if len(self._hanging) >= _MOST_HANGING:
                return Answer(None, f"TimeoutError: {len(self._hanging)} earlier calls have not returned")
        made = _Call(function, args)
        threading.Thread(target=self._run, args=(made,), name="ares-bounded-call", daemon=True).start()
        if not made.done.wait(self.limit):
            with self._lock:
                if not made.done.is_set():
                    self._hanging.add(made)
                    return Answer(None, f"it did not return within {self.limit:g} s")
        return Answer(made.value, made.problem)

    def _run(self, made: _Call) -> None:
        with counted_work("bounded-call"):
            made.run()
        with self._lock:
            made.done.set()
            self._hanging.discard(made)


class _Call:
    """One call; what it raised becomes text on its own thread, as the exception is somebody else's code too."""

    def __init__(self, function: Callable[..., Any], args: tuple[object, ...]) -> None:
        self._function = function
        self._args = args
        self.done = threading.Event()
        self.value: Any = None
        self.problem = ""

    def run(self) -> None:
        try:
            self.value = self._function(*self._args)
        except BaseException as error:  # noqa: BLE001 - somebody else's code
            # Never empty: that would be an answer.
            self.problem = describe_error(error)[:1_000]
