"""What a worker brings along for its agents' recovery: a memory manager, a snapshot store.

Named by functions in the modules that a worker imports, as agent types are; never by a message.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from ares_celery.errors import WorkerHookError
from ares_celery.runtime.bounded import BoundedCalls
from ares_celery.store.base import EventStore, MemoryManager, SnapshotStore

__all__ = ["HOOKS", "StateSources", "WorkerHooks", "worker_memory", "worker_snapshot_store"]

log = logging.getLogger(__name__)
F = TypeVar("F", bound=Callable[[], Any])


@dataclass(slots=True)
class StateSources:
    """Where state comes from beside the namespace; what is None is the namespace's own.

    Attributes:
        memory: The memory manager.
        snapshots: The snapshot store.
    """

    memory: MemoryManager | None = None
    snapshots: SnapshotStore | None = None
    _received: object = field(default=None, repr=False)

    def event_taker(self) -> Callable[[EventStore], object] | None:
        """What hands the event store to the memory manager; None when it wants none, or was asked for before."""
        if self.memory is None or self._received is self.memory:
            return None
        self._received = self.memory
        taker: Any = getattr(self.memory, "set_event_store", None)
        return cast("Callable[[EventStore], object]", taker) if callable(taker) else None


#: Hook to the methods that what it gives must have.
_WANTED: Final = {"worker_memory": ("latest_session", "messages"), "worker_snapshot_store": ("save", "load", "delete")}


class WorkerHooks:
    """The hooks of one process: each a function that is called once, when the first agent comes."""

    def __init__(self) -> None:
        """Begins empty."""
        self._lock = threading.Lock()
        self._functions: dict[str, Callable[[], Any]] = {}
        self._made: StateSources | None = None

    def register(self, hook: str, function: Callable[[], Any]) -> None:
        """Sets a hook; again by the same function, as when its module is loaded again, it is replaced.

        Raises:
            WorkerHookError: Another function holds it.
        """
        known = self._functions.get(hook)
        if not callable(cast("object", function)):
            raise WorkerHookError(hook=hook, problem=f"{type(function).__name__} is no function")
        if known is not None and _origin(known) != _origin(function):
            raise WorkerHookError(hook=hook, problem=f"{_origin(known)} holds it already; there is one a worker")
        self._functions[hook] = function
        self._made = None

    def forget(self) -> None:
        """Sets no hook any more; for tests."""
        self._functions.clear()
        self._made = None

    def open(self) -> StateSources:
        """What the hooks give; made once. One that fails is logged, and the namespace's own takes its place."""
        with self._lock:
            if self._made is None:
                self._made = StateSources(self._make("worker_memory"), self._make("worker_snapshot_store"))
            return self._made

    def _make(self, hook: str) -> Any:  # noqa: ANN401 - checked for its methods
        function = self._functions.get(hook)
        if function is None:
            return None
        made, problem = BoundedCalls().call(function)
        missing = [name for name in _WANTED[hook] if not callable(getattr(made, name, None))]
        if missing and not problem:
            problem = f"it gave a {type(made).__name__} without {', '.join(missing)}"
        if problem:
            log.critical(
                "worker hook %s (%s) failed: %s; the namespace's own is used", hook, _origin(function), problem
            )
            return None
        return made


def _origin(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


#: The process's own hooks, which the decorators fill.
HOOKS: Final = WorkerHooks()


def worker_memory(function: F) -> F:
    """Registers a function that makes this worker's :class:`~ares_celery.store.memory.MemoryManager`.

    Called once a process, when its first agent comes. One a worker; without one the namespace's own is asked.

    Raises:
        WorkerHookError: Another function is registered.

    Example:
        ``@worker_memory`` above ``def memory() -> MemoryManager: return ChatDatabase("postgres://…")``
    """
    HOOKS.register("worker_memory", function)
    return function


def worker_snapshot_store(function: F) -> F:
    """Registers a function that makes this worker's :class:`~ares_celery.store.states.SnapshotStore`.

    Snapshots are saved there, in a mapping with one key more (``__ares__``), and loaded from there. When it fails, the
    namespace's own snapshots are used.

    Raises:
        WorkerHookError: Another function is registered.

    Example:
        ``@worker_snapshot_store`` above ``def snapshots() -> SnapshotStore: return BucketSnapshots("agents")``
    """
    HOOKS.register("worker_snapshot_store", function)
    return function
