"""Tasks that nobody waits for: an event loop alone would not keep them alive."""

from __future__ import annotations

import asyncio
from typing import Any, Final

__all__ = ["keep_alive"]

_KEPT: Final[set[asyncio.Future[Any]]] = set()


def keep_alive(task: asyncio.Future[Any]) -> None:
    """Keeps the task until it is done."""
    _KEPT.add(task)
    task.add_done_callback(_KEPT.discard)
