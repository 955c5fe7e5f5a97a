"""The store of agents on the event loop, as the threads of its process open, try and close it."""

from __future__ import annotations

from collections.abc import Callable

from ares_celery.ids import AgentId
from ares_celery.store.base import AsyncIncarnationStore

__all__ = ["close_store", "connect_store", "open_on_loop"]


async def open_on_loop(open_async: Callable[[], AsyncIncarnationStore]) -> AsyncIncarnationStore:
    """Opens it on the loop that will use it."""
    return open_async()


async def connect_store(store: AsyncIncarnationStore) -> None:
    """Makes its first connection."""
    await store.inbox(AgentId("-"), limit=1)


async def close_store(store: AsyncIncarnationStore) -> None:
    """Closes its connections, on the loop that used them."""
    await store.aclose()
