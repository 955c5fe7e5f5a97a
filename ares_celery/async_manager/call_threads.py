"""A few threads for short blocking calls of coroutines."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

__all__ = ["CallThreads"]

P = ParamSpec("P")
T = TypeVar("T")

#: Calls at the same time: each is a few round trips, so more would wait for the same server.
MOST: Final = 8
#: Seconds after which a thread without work ends: a manager that nobody closed leaves none behind.
IDLE: Final = 10.0

_Item = tuple["Future[Any]", Callable[[], Any]]


class CallThreads:
    """Runs calls on daemon threads that are made when they are needed; none before the first call, anew after a fork.

    The interpreter's own pool (``asyncio.to_thread``) is the application's: calls of ours must not fill it up, nor wait
    behind what fills it.
    """

    def __init__(self, name: str, *, most: int = MOST, idle: float = IDLE) -> None:
        """Binds it; starts nothing.

        Args:
            name: What the names of its threads begin with.
            most: Threads at the same time.
            idle: Seconds without work after which a thread ends.
        """
        self._name = name
        self._most = most
        self._idle_limit = idle
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._items: deque[_Item] = deque()
        self._threads = 0
        self._waiting = 0
        self._closing = False
        self._pid = os.getpid()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs the call on a thread, with the caller's context variables, and gives what it gives.

        A caller that is cancelled leaves a call that has begun to its end; one that has not begun is not made.
        """
        work = partial(contextvars.copy_context().run, function, *args, **kwargs)
        return await asyncio.wrap_future(self._submit(work))

    def close(self) -> None:
        """Lets idle threads end at once; a later call is made all the same."""
        if self._pid == os.getpid():
            with self._changed:
                self._closing = True
                self._changed.notify_all()

    def _submit(self, work: Callable[[], T]) -> Future[T]:
        if self._pid != os.getpid():
            # The fork took no threads along, and perhaps a lock that one of them held.
            self._reset()
        future: Future[T] = Future()
        with self._changed:
            self._items.append((future, work))
            if self._waiting >= len(self._items):
                self._changed.notify()
            elif self._threads < self._most:
                self._threads += 1
                threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()
        return future

    def _run(self) -> None:
        while (item := self._take()) is not None:
            _do(*item)
            # A thread that waits must not keep the last call's values alive.
            del item

    def _take(self) -> _Item | None:
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: self._items or self._closing, self._idle_limit)
                if self._items:
                    return self._items.popleft()
                self._threads -= 1
                return None
            finally:
                self._waiting -= 1


def _do(future: Future[Any], work: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        answer = work()
    except BaseException as error:  # noqa: BLE001 - whatever it is belongs to the caller
        future.set_exception(error)
    else:
        future.set_result(answer)
