"""Blocking calls on a thread that runs an event loop would stop every coroutine of it: they are refused."""

from __future__ import annotations

import asyncio

from ares_celery.config import RuntimeConfig
from ares_celery.errors import OperationNotSupportedError
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.queries import Ports
from ares_celery.store.base import Store

__all__ = ["LoopGuard", "refuse_event_loop"]


def refuse_event_loop(operation: str = "") -> None:
    """Raises where an event loop runs in this thread; costs nanoseconds elsewhere.

    Args:
        operation: The method that was called, if that is known.

    Raises:
        OperationNotSupportedError: Names AsyncManager.
    """
    # The question of the running loop that costs no exception where none runs; documented for code of this kind.
    if asyncio._get_running_loop() is not None:  # noqa: SLF001
        raise OperationNotSupportedError(
            operation=f"Manager.{operation}" if operation else "a blocking call of Manager",
            reason="it blocks, and this thread runs an event loop; use AsyncManager, the same names to await",
        )


class LoopGuard:
    """Implements :class:`~ares_celery.runtime.queries.Ports`: the given ones, for whoever may block.

    Args:
        ports: Store and committer.
    """

    def __init__(self, ports: Ports) -> None:
        self._ports = ports

    @property
    def store(self) -> Store:
        """The open namespace."""
        refuse_event_loop()
        return self._ports.store

    @property
    def committer(self) -> Committer:
        """The loop for every change."""
        refuse_event_loop()
        return self._ports.committer

    @property
    def config(self) -> RuntimeConfig:
        """The namespace's settings."""
        refuse_event_loop()
        return self._ports.config

    def close(self) -> None:
        """Closes what was opened."""
        self._ports.close()
