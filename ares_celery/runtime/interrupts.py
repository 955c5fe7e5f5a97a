"""Reaching into a thread that runs user code: an exception at its next bytecode, and only while user code runs."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Generator
from contextlib import contextmanager

from ares_celery.errors import AgentSignal

__all__ = ["Interrupts"]


class Interrupts:
    """Lets another thread end the user code of this one.

    The exception arrives at the next bytecode; a call that blocks outside of Python is not reached.

    Example:
        >>> interrupts = Interrupts()
        >>> with interrupts.allowed():
        ...     pass  # user code: another thread may call interrupts.send(StopSignal)
    """

    def __init__(self) -> None:
        """No user code runs yet."""
        self._lock = threading.Lock()
        self._thread = 0

    @contextmanager
    def allowed(self) -> Generator[None]:
        """While it is entered, an interrupt may arrive in this thread; afterwards none does, not even a late one."""
        with self._lock:
            self._thread = threading.get_ident()
        try:
            yield
        finally:
            with self._lock:
                thread, self._thread = self._thread, 0
                _set_async_exception(thread, None)

    def send(self, signal: type[AgentSignal]) -> bool:
        """Raises the signal in the thread, if it runs user code now."""
        with self._lock:
            if not self._thread:
                return False
            _set_async_exception(self._thread, signal)
            return True


def _set_async_exception(thread: int, signal: type[BaseException] | None) -> None:
    """Raises ``signal`` in a thread at its next bytecode; None takes back one that has not arrived."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(signal) if signal is not None else None
    )
