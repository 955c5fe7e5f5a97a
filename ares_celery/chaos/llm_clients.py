"""HTTP clients for the SDKs of language models, made of our transports over connections that a process shares."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakKeyDictionary

from ares_celery.chaos.http_kit import HttpKit

__all__ = ["Connections", "make_client"]

log: Final = logging.getLogger(__name__)
#: Seconds for connections to close on their loop.
_LONGEST_CLOSE: Final = 2.0


@dataclass(frozen=True, slots=True)
class _Routes:
    """Transports of a library: the one for everything, and those for some addresses; None there: the first."""

    default: Any
    mounts: Mapping[str, Any]

    def all(self) -> list[Any]:
        """Every one that there is."""
        return [self.default, *(one for one in self.mounts.values() if one is not None)]


class Connections:
    """The connections that all clients of one process share, unless they want some of their own.

    Made at first use; those for an event loop belong to the loop that asks. Safe to share between threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plain: _Routes | None = None
        self._of_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Routes] = WeakKeyDictionary()

    def routes(self, kit: HttpKit, *, is_async: bool) -> _Routes:
        """Those of this process, or of the loop at hand."""
        with self._lock:
            if is_async:
                loop = asyncio.get_running_loop()
                if loop not in self._of_loops:
                    self._of_loops[loop] = _routes(kit, {}, is_async=True)
                return self._of_loops[loop]
            if self._plain is None:
                self._plain = _routes(kit, {}, is_async=False)
            return self._plain

    def close(self) -> None:
        """Closes all of them, from a thread; what a loop that stands still holds goes with it."""
        with self._lock:
            plain, self._plain = self._plain, None
            of_loops, self._of_loops = dict(self._of_loops), WeakKeyDictionary()
        for transport in plain.all() if plain is not None else ():
            transport.close()
        for loop, routes in of_loops.items():
            if loop.is_running():
                closing = asyncio.run_coroutine_threadsafe(_close_all(routes), loop)
                try:
                    closing.result(_LONGEST_CLOSE)
                except FutureTimeoutError:
                    log.warning("connections to language models do not close in time; they go with their process")


def make_client(
    kit: HttpKit,
    connections: Connections,
    wrap: Callable[[Any], Any],
    options: Mapping[str, Any],
    *,
    is_async: bool,
) -> Any:  # noqa: ANN401 - the library's
    """A client of the library, each of whose requests passes through our transport.

    Args:
        kit: The library.
        connections: Those of the process; used unless an option is about connections.
        wrap: Puts our transport around one of the library's.
        options: What the library's client takes, ``transport`` and ``mounts`` included.
        is_async: For an event loop.

    Raises:
        InvalidSettingError: An option that the library does not know, or a value that does not fit.
    """
    chosen, of_connections = kit.split(options)
    own_mounts: dict[str, Any] = dict(chosen.pop("mounts", None) or {})
    given = chosen.pop("transport", None)
    if given is not None:
        routes = _Routes(given, {})
    elif of_connections:
        routes = _routes(kit, of_connections, is_async=is_async)
    else:
        shared = connections.routes(kit, is_async=is_async)
        lent = {pattern: one if one is None else _Lent(one) for pattern, one in shared.mounts.items()}
        routes = _Routes(_Lent(shared.default), lent)
    mounts = {**routes.mounts, **own_mounts}
    wrapped = {pattern: one if one is None else wrap(one) for pattern, one in mounts.items()}
    return kit.client({**chosen, "transport": wrap(routes.default), "mounts": wrapped}, is_async=is_async)


def _routes(kit: HttpKit, options: Mapping[str, Any], *, is_async: bool) -> _Routes:
    direct = {name: value for name, value in options.items() if name != "proxy"}
    mounts = {
        pattern: proxy if proxy is None else kit.transport(is_async=is_async, **direct, proxy=proxy)
        for pattern, proxy in kit.proxies(options).items()
    }
    return _Routes(kit.transport(is_async=is_async, **direct), mounts)


async def _close_all(routes: _Routes) -> None:
    for transport in routes.all():
        await transport.aclose()


class _Lent:
    """A transport of the process, as one client has it: closing the client closes nothing of the others."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - the library's
        self.handle_request = getattr(inner, "handle_request", None)
        self.handle_async_request = getattr(inner, "handle_async_request", None)

    def close(self) -> None:
        """Nothing."""

    async def aclose(self) -> None:
        """Nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing."""
