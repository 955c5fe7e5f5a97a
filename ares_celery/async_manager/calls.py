"""What the parts of an AsyncManager share: a Manager beneath, a few threads, and a way to the store for each loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ares_celery.async_manager.call_threads import CallThreads
from ares_celery.async_manager.per_loop import PerLoop
from ares_celery.async_manager.state_watch import StateWatch
from ares_celery.clock import Clock
from ares_celery.manager import CoreManager
from ares_celery.store.async_access import AsyncAccess

__all__ = ["Calls"]

P = ParamSpec("P")
T = TypeVar("T")


class Calls:
    """Passes short calls to a Manager on a few threads; waits are the event loop's own."""

    def __init__(self, core: CoreManager, open_access: Callable[[], AsyncAccess], clock: Clock) -> None:
        """Binds it; nothing is opened and no thread is started before the first call.

        Args:
            core: The Manager; closed with this.
            open_access: Opens what one event loop waits with. It may block: it is called on a thread.
            clock: For pauses and deadlines.
        """
        self.core = core
        self.clock = clock
        self._open_access = open_access
        self._threads = CallThreads("ares-async-calls")
        self._loops = PerLoop(lambda: self.run(self._open_access), clock)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Makes a short blocking call on a thread; see :meth:`CallThreads.call`."""
        return await self._threads.call(function, *args, **kwargs)

    async def access(self) -> AsyncAccess:
        """The running loop's way to the store. Raises EventStoreClosedError."""
        return (await self._loops.get()).access

    async def watch(self) -> StateWatch:
        """The running loop's watch over states. Raises EventStoreClosedError."""
        return (await self._loops.get()).watch

    async def close(self) -> None:
        """Closes everything; later calls raise EventStoreClosedError. Idempotent."""
        await self._loops.close()
        await self.run(self.core.close)
        self._threads.close()
