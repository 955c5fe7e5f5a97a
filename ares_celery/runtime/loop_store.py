"""The store of agents on the event loop, as the threads of its process open, try and close it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Final

from ares_celery.ids import AgentId
from ares_celery.runtime.loop_thread import LoopThread
from ares_celery.store.base import AsyncIncarnationStore

__all__ = ["close_loop", "close_store", "connect_store", "open_on_loop"]

log: Final = logging.getLogger(__name__)

#: Seconds that connections may take to close, which is far more than a loop needs that turns.
_LONGEST_CLOSE: Final = 2.0


async def open_on_loop(open_async: Callable[[], AsyncIncarnationStore]) -> AsyncIncarnationStore:
    """Opens it on the loop that will use it."""
    return open_async()


async def connect_store(store: AsyncIncarnationStore) -> None:
    """Makes its first connection."""
    await store.inbox(AgentId("-"), limit=1)


async def close_store(store: AsyncIncarnationStore) -> None:
    """Closes its connections, on the loop that used them."""
    await store.aclose()


def close_loop(loop: LoopThread, store: AsyncIncarnationStore | None) -> None:
    """Closes the connections of a loop, and then the loop; where an agent's code blocks it, as soon as that ends."""
    if store is not None:
        closing = loop.submit(close_store(store))
        try:
            closing.result(timeout=_LONGEST_CLOSE)
        except FutureTimeoutError:
            closing.add_done_callback(lambda _: loop.close())
            log.error(  # noqa: TRY400 - whose code it is was logged with its stack
                "an agent's code blocks the event loop: its connections stay open until that ends, or this process"
            )
            return
        except Exception:
            log.exception("the event loop's connections could not be closed")
    loop.close()
