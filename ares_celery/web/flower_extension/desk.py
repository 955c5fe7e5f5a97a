"""What the routes of one Flower share: ways to the namespace of its app, and the runs that it was asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from ares_celery.celery_app.async_client import AsyncManager
from ares_celery.celery_app.client import Manager
from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import ChaosDisabledError
from ares_celery.web.flower_extension.runs import Runs

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["Desk"]

T = TypeVar("T")
#: Threads for what has no awaitable form: judging, checking files. Flower's own are left to Flower.
_THREADS: Final = 4


class Desk:
    """Opened with the first request; nothing of it ever blocks Flower's event loop.

    Attributes:
        manager: For coroutines.
        blocking: For threads.
        runs: What was started over HTTP.
        streams: How many clients follow events now.
        judging: Held by whoever judges: one at a time.
    """

    def __init__(self, app: Celery, clock: Clock | None = None) -> None:
        """Binds it to the namespace of an app; nothing is opened."""
        self.clock = clock or SystemClock()
        self.manager = AsyncManager.connect(app=app)
        self.blocking = Manager.connect(app=app)
        self.runs = Runs(self.blocking, self.clock)
        self.streams = 0
        self.judging = asyncio.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ares-http")

    def in_thread(self, loop: asyncio.AbstractEventLoop, call: Callable[[], T]) -> asyncio.Future[T]:
        """Makes a call that blocks."""
        return loop.run_in_executor(self._threads, call)

    async def demand_chaos(self, operation: str) -> None:
        """Refuses what is an ordinary operation elsewhere and a disturbance here.

        Raises:
            ChaosDisabledError: Faults are allowed neither by the settings nor for a time.
        """
        if (await self.manager.config).chaos or (await self.manager.introspect()).chaos.get("allowed_until"):
            return
        raise ChaosDisabledError(operation=operation, namespace=self.manager.namespace)

    async def close(self) -> None:
        """Ends runs and closes connections."""
        self.runs.close()
        self._threads.shutdown(wait=False)
        await self.manager.close()
        self.blocking.close()
