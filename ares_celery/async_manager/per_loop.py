"""One way to the store for each event loop, made when the loop first needs it and closed with it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from ares_celery.async_manager.state_watch import CLOSED, StateWatch
from ares_celery.clock import Clock
from ares_celery.errors import EventStoreClosedError
from ares_celery.store.async_access import AsyncAccess

__all__ = ["LoopState", "PerLoop"]

log: Final = logging.getLogger(__name__)

#: Times that closing is begun again when it is cancelled.
_MOST_CANCELS: Final = 3
#: What a forked child got of its parent: never used, and never closed, as closing may say goodbye on the parent's
#: connections.
_INHERITED: Final[list[object]] = []


@dataclass(frozen=True, slots=True)
class LoopState:
    """What a manager has on one event loop."""

    access: AsyncAccess
    watch: StateWatch


class PerLoop:
    """The states of all loops that use a manager; safe to share between threads, each with a loop of its own."""

    def __init__(self, open_access: Callable[[], Awaitable[AsyncAccess]], clock: Clock) -> None:
        """Binds it; nothing is opened.

        Args:
            open_access: Opens the namespace for the running loop.
            clock: For the pauses between looks at states.
        """
        self._open_access = open_access
        self._clock = clock
        self._pid = os.getpid()
        self._keepers: dict[asyncio.AbstractEventLoop, tuple[asyncio.Task[None], asyncio.Future[LoopState]]] = {}
        self._closed = False

    async def get(self) -> LoopState:
        """That of the running loop.

        Raises:
            EventStoreClosedError: The manager was closed.
        """
        if self._closed:
            raise EventStoreClosedError(message=CLOSED)
        if self._pid != os.getpid():
            _INHERITED.append(self._keepers)
            self._keepers, self._pid = {}, os.getpid()
        loop = asyncio.get_running_loop()
        kept = self._keepers.get(loop)
        if kept is None or kept[0].done():
            for other in [one for one in self._keepers if one.is_closed()]:
                self._keepers.pop(other, None)
            opened: asyncio.Future[LoopState] = loop.create_future()
            kept = loop.create_task(self._keep(opened), name="ares-async-manager"), opened
            self._keepers[loop] = kept
        # One caller that is cancelled must not take the opening away from the others.
        return await asyncio.shield(kept[1])

    async def close(self) -> None:
        """Closes what the running loop has, and lets the other loops close theirs; idempotent."""
        self._closed = True
        if self._pid != os.getpid():
            return
        here = asyncio.get_running_loop()
        keepers, self._keepers = dict(self._keepers), {}
        for loop, (keeper, _) in keepers.items():
            if loop is here:
                keeper.cancel()
                await asyncio.wait([keeper])
            elif not loop.is_closed():
                loop.call_soon_threadsafe(keeper.cancel)

    async def _keep(self, opened: asyncio.Future[LoopState]) -> None:
        """Opens, and closes when its task is cancelled: by close(), or by the end of ``asyncio.run``."""
        try:
            access = await self._open_access()
        except BaseException as error:
            _fail(opened, error)
            if isinstance(error, Exception):
                return
            raise
        state = LoopState(access, StateWatch(access, self._clock))
        if not opened.done():
            opened.set_result(state)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            state.watch.close()
            await _close(access)


async def _close(access: AsyncAccess) -> None:
    """Closes it, also when the task is cancelled once more meanwhile: by close(), and then by the loop's end."""
    for _ in range(_MOST_CANCELS):
        closing = asyncio.ensure_future(access.aclose())
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            if not closing.cancelled():
                await asyncio.wait([closing])
            if closing.cancelled():
                continue
        except Exception:
            log.exception("the connections of an event loop could not be closed")
        return


def _fail(opened: asyncio.Future[Any], error: BaseException) -> None:
    if opened.done():
        return
    if isinstance(error, asyncio.CancelledError):
        opened.cancel()
    else:
        opened.set_exception(error)
        # Who asked may be gone; asked or not, it is said once.
        opened.exception()
