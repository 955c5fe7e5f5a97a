"""What control tasks work with: a store and a committer that never wait for long, as each slot serves every command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

from ares_celery.celery_app.names import CONTROL_QUEUE
from ares_celery.config import RuntimeConfig
from ares_celery.errors import ProcessTimeoutError, StoreUnavailableError, WaitTimeoutError
from ares_celery.model.event import Event
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.ports import EventListener
from ares_celery.store.base import Store
from ares_celery.store.redis.hurry import Hurry

__all__ = ["LONGEST_WAIT", "ControlPorts", "LateListener", "wait_politely"]

T = TypeVar("T")

#: Seconds that a control task may take: its slot serves every other command.
LONGEST_WAIT: Final = 1.0
#: Seconds of the first wait for an agent's answer; doubled each time, while no other command waits for the slot.
_FIRST_WAIT: Final = 0.05
#: Seconds at the end of the task's time in which no wait begins: the last look takes some, too.
_LAST_LOOK: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Opened:
    store: Store
    committer: Committer


class ControlPorts:
    """The ports of a Manager that serves control tasks; opened on first use, shared by the threads of a process.

    Args:
        open_: Opens store and committer; the store's calls end with the thread's ``hurry``.
        hurry: The time that the task of this thread still has.
    """

    def __init__(self, open_: Callable[[Hurry], tuple[Store, Committer]], hurry: Hurry | None = None) -> None:
        self.hurry = hurry or Hurry()
        self._open = open_
        self._lock = threading.Lock()
        self._opened: _Opened | None = None

    @property
    def store(self) -> Store:
        """The open namespace."""
        return self._ready().store

    @property
    def committer(self) -> Committer:
        """The loop for every change."""
        return self._ready().committer

    @property
    def config(self) -> RuntimeConfig:
        """The namespace's settings."""
        return self.store.config

    def close(self) -> None:
        """Closes the store; the next use opens it again."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened.store.close()

    def forget(self) -> None:
        """In a forked child: what is open belongs to the parent, and the lock may be held for good."""
        self._lock = threading.Lock()
        self._opened = None

    def others_wait(self) -> bool:
        """Another command waits for a slot; False as well when nobody can tell."""
        return bool(self.committer.waiting(CONTROL_QUEUE))

    def _ready(self) -> _Opened:
        opened = self._opened
        if opened is not None:
            return opened
        # Whoever opens it waits for the server, and those behind it must not wait one after the other.
        if not self._lock.acquire(timeout=min(max(self.hurry.left, 0.0), LONGEST_WAIT)):
            raise StoreUnavailableError(url="the namespace's store", problem="it could not be opened in time")
        try:
            if self._opened is None:
                self._opened = _Opened(*self._open(self.hurry))
            return self._opened
        finally:
            self._lock.release()


class LateListener:
    """Passes events on to a listener that comes to exist later; until then nobody wants them."""

    def __init__(self, listener: Callable[[], EventListener | None]) -> None:
        self._listener = listener

    @property
    def wants_events(self) -> bool:
        """Somebody listens."""
        listener = self._listener()
        return listener is not None and listener.wants_events

    def publish(self, events: Sequence[Event]) -> None:
        """Passes them on."""
        listener = self._listener()
        if listener is not None:
            listener.publish(events)


def wait_politely(ports: ControlPorts, look: Callable[[timedelta], T]) -> T:
    """Waits for something while nobody else needs the slot, and no longer than the task may.

    Args:
        ports: Of the task.
        look: Waits for so long and returns what it found.

    Raises:
        ProcessTimeoutError, WaitTimeoutError: What ``look`` raised last: nothing was found.
    """
    pause = _FIRST_WAIT
    while True:
        seconds = min(pause, max(ports.hurry.left - _LAST_LOOK, 0.0))
        try:
            return look(timedelta(seconds=seconds))
        except (ProcessTimeoutError, WaitTimeoutError):
            if ports.hurry.left <= _LAST_LOOK + _FIRST_WAIT or ports.others_wait():
                raise
        pause *= 2
