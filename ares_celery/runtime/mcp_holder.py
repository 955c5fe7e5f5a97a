"""The connection to one MCP server, as all agents of a process share it: held, given up when it breaks, made again."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol

from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import MCPConnectionLostError, MCPServerError
from ares_celery.errors.wording import describe_error
from ares_celery.model.causes import cause_of, is_session_gone
from ares_celery.model.restart import DeathCause
from ares_celery.runtime.openings import Failed, Opened, Opening, TaskOpening, outcome_of, value_of

__all__ = ["GivenSession", "HolderKeeper", "MCPHolder", "is_connection_lost"]

log: Final = logging.getLogger(__name__)

#: A connection that held so long was a good one: the next is tried at once.
_STABLE: Final = 10.0
#: Seconds before the second try in a row, and the most; each waits twice as long as the one before.
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
#: JSON-RPC's "request timed out": the session goes on.
_TIMED_OUT: Final = frozenset({-32001, 408})
_CANCELLED: Final = "the client cancelled the call"
#: Pages of a list of tools that are read.
_MOST_PAGES: Final = 100
#: Seconds for which a list of tools is good: a server that keeps no sessions comes back with others, and says nothing.
_FRESH: Final = 30.0
#: Methods of a session that change nothing.
_READING: Final = ("list_", "read_", "get_")
_HARMLESS: Final = frozenset({"ping", "send_ping", "complete"})
#: What a server says of a tool that may be called again, in the words of both generations of the library.
_HINTS: Final = ("read_only_hint", "idempotent_hint", "readOnlyHint", "idempotentHint")
_CLOSED_DURING: Final = "it was closed during the call"
#: What streams raise whose other end is gone, whoever made them.
_CLOSED: Final = frozenset({"ClosedResourceError", "BrokenResourceError", "EndOfStream"})


class _Limits(Protocol):
    @property
    def open(self) -> float: ...
    @property
    def slack(self) -> float: ...


class HolderKeeper(Protocol):
    """What the holder needs of whoever keeps all openings."""

    @property
    def limits(self) -> _Limits:
        """How long openings may take."""
        ...

    @property
    def is_closed(self) -> bool:
        """Nothing is opened any more."""
        ...

    def begin(self, opening: Opening) -> None:
        """Starts an opening that is closed with the others."""
        ...

    def note_end(self, opening: Opening) -> None:
        """Takes note that one is open, has failed or is over."""
        ...


class MCPHolder:
    """Makes the connection when it is first needed and again after it broke; everything happens on the event loop.

    Args:
        name: The server's.
        make: Gives the context manager of one connection.
        keeper: Closes it at the end of the process.
        clock: Injected in tests.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], AbstractAsyncContextManager[Any]],
        keeper: HolderKeeper,
        *,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.opening: TaskOpening | None = None
        self._make = make
        self._keeper = keeper
        self._clock = clock or SystemClock()
        self._tools: list[Any] = []
        self._listed_at = 0.0
        self._failures = 0
        self._not_before = 0.0
        self._opened_at = 0.0
        self._problem = ""

    async def tools(self, *, cut: asyncio.Future[None] | None = None) -> list[Any]:
        """The tools, as listed when the connection was made, or a moment ago. Raises as :meth:`call`."""
        await self.session()
        if self._clock.monotonic() - self._listed_at > _FRESH:
            await self._through(lambda session: outcome_of(self._list_tools, session), cut, lambda: True)
        return list(self._tools)

    async def session(self) -> Any:  # noqa: ANN401 - whatever the library gives
        """The session. Raises MCPConnectionLostError, MCPServerError."""
        return (await self._connected())[1]

    async def call(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        cut: asyncio.Future[None] | None = None,
    ) -> Any:  # noqa: ANN401 - any answer
        """Calls a method of the session.

        Where the connection breaks, the call is made once more over a new one if that does no harm: when the server
        says that it knows nothing of the session, when the method only reads, or when the server lists the tool as one
        that only reads or may be called again.

        Args:
            method: Its name.
            args: For it.
            kwargs: For it.
            cut: Done once the caller is cut off; then the call is over.

        Raises:
            MCPConnectionLostError: The connection broke, or none could be made.
            AttributeError: The session has no such method.
        """
        return await self._through(
            lambda session: outcome_of(_method(self.name, session, method), *args, **kwargs),
            cut,
            lambda: _only_reads(method) or self._may_repeat(method, args, kwargs),
        )

    async def _through(
        self,
        call: Callable[[Any], Coroutine[Any, Any, Opened | Failed]],
        cut: asyncio.Future[None] | None,
        repeats: Callable[[], bool],
    ) -> Any:  # noqa: ANN401 - any answer
        is_first = True
        while True:
            opening, session = await self._connected()
            outcome = await _until_gone(opening, call(session), cut)
            if isinstance(outcome, Opened):
                return outcome.value
            error = outcome.error if outcome is not None else None
            if error is not None and not is_connection_lost(error):
                raise error
            if error is not None:
                self._broke(opening, error)
            is_cut_off = cut is not None and cut.done()
            harmless = error is not None and is_session_gone(error)
            if is_cut_off or not is_first or not (harmless or repeats()):
                raise self._lost(_CLOSED_DURING if error is None else describe_error(error)) from error
            is_first = False

    def _may_repeat(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """The server has said of the tool that a second call does no harm."""
        if method != "call_tool":
            return False
        name = args[0] if args else kwargs.get("name")
        return any(getattr(tool, "name", None) == name and _is_harmless(tool) for tool in self._tools)

    def cut(self, *, for_seconds: float = 0.0) -> None:
        """Breaks the connection as if the network had, calls in flight included; on the loop.

        Args:
            for_seconds: How long none is made again.
        """
        self._not_before = max(self._not_before, self._clock.monotonic() + for_seconds)
        if self.opening is not None and self.opening.is_open:
            self.opening.ask_to_close()

    # -- connections --------------------------------------------------------------------------------------------------

    async def _connected(self) -> tuple[TaskOpening, Any]:
        opening = self.opening
        if opening is None or opening.is_spent:
            opening = self._connect()
        outcome = await opening.wait(self._keeper.limits.open + self._keeper.limits.slack)
        match outcome:
            case Opened(value):
                return opening, value
            case Failed(MCPServerError() as error):
                raise MCPServerError(error.fields) from error
            case Failed(error):
                raise self._lost(describe_error(error)) from error
            case None:
                raise self._lost(f"no connection within {self._keeper.limits.open:g} s; {self._problem}".rstrip("; "))

    def _connect(self) -> TaskOpening:
        if self._keeper.is_closed:
            raise self._lost("this process is ending")
        opening = self.opening = TaskOpening(
            f"MCP server {self.name!r}",
            self._make_in_time,
            loop=asyncio.get_running_loop(),
            limit=self._keeper.limits.open,
            on_end=self._on_end,
            prepare=self._list_tools,
        )
        self._keeper.begin(opening)
        return opening

    async def _make_in_time(self) -> AbstractAsyncContextManager[Any]:
        """Waits out the pause; shared by all that ask meanwhile."""
        pause = self._not_before - self._clock.monotonic()
        if pause > 0:
            await asyncio.sleep(pause)
        return self._make()

    async def _list_tools(self, session: object) -> None:
        self._tools = await _tools_of(session)
        self._listed_at = self._clock.monotonic()

    def _on_end(self, opening: Opening) -> None:
        now = self._clock.monotonic()
        if opening.is_open:
            self._opened_at = now
            log.info("MCP server %r: connected, %d tools", self.name, len(self._tools))
        elif isinstance(outcome := opening.outcome.result(), Failed):
            self._count_failure(describe_error(outcome.error))
        elif not opening.is_asked_to_close:
            self._count_failure("its connection ended by itself")
        self._keeper.note_end(opening)

    def _broke(self, opening: Opening, error: BaseException) -> None:
        """Gives the connection up, once: all agents that used it come here."""
        if not opening.is_spent:
            self._count_failure(describe_error(error))
            opening.ask_to_close()

    def _count_failure(self, problem: str) -> None:
        now = self._clock.monotonic()
        held = self._opened_at and now - self._opened_at >= _STABLE
        self._opened_at = 0.0
        self._failures = 1 if held else self._failures + 1
        pause = 0.0 if self._failures == 1 else min(_FIRST_PAUSE * 2 ** (self._failures - 2), _LONGEST_PAUSE)
        self._not_before = max(self._not_before, now + pause)
        self._problem = problem
        log.warning("MCP server %r: no connection (%s); a next try waits %.1f s", self.name, problem, pause)

    def _lost(self, problem: str) -> MCPConnectionLostError:
        return MCPConnectionLostError(server=self.name, problem=problem[:1_000])


def is_connection_lost(error: BaseException) -> bool:
    """Tells a connection that is gone from a call that failed or took too long.

    Example:
        >>> is_connection_lost(ConnectionResetError()), is_connection_lost(TimeoutError())
        (True, False)
    """
    if isinstance(error, (ConnectionError, EOFError, MCPConnectionLostError)) or type(error).__name__ in _CLOSED:
        return True
    if isinstance(error, TimeoutError) or getattr(getattr(error, "error", None), "code", None) in _TIMED_OUT:
        return False
    return cause_of(error) is DeathCause.MCP


async def _until_gone(
    opening: TaskOpening, call: Coroutine[Any, Any, Opened | Failed], cut: asyncio.Future[None] | None
) -> Opened | Failed | None:
    """The outcome of a call, or None when the connection is given up, or its caller cut off, before there is one."""
    task = asyncio.create_task(call)
    all_of: set[asyncio.Future[Any]] = {task, opening.gone} if cut is None else {task, opening.gone, cut}
    try:
        await asyncio.wait(all_of, return_when=asyncio.FIRST_COMPLETED)
        if task.cancelled():
            # Not by us: clients do so with the calls that wait when their connection ends.
            return Failed(ConnectionAbortedError(_CANCELLED))
        return task.result() if task.done() else None
    finally:
        task.cancel()


def _only_reads(method: str) -> bool:
    return method.startswith(_READING) or method in _HARMLESS


def _is_harmless(tool: object) -> bool:
    about = getattr(tool, "annotations", None)
    return any(getattr(about, name, None) is True for name in _HINTS)


def _method(server: str, session: object, method: str) -> Callable[..., Any]:
    function: object = getattr(session, method, None)
    if not callable(function):
        problem = f"the session of MCP server {server!r} has no method {method!r}"
        raise AttributeError(problem)  # noqa: TRY004 - what a missing method is
    return function


async def _tools_of(session: object) -> list[Any]:
    """All pages of the list; empty when the session has none."""
    lister: Any = getattr(session, "list_tools", None)
    if lister is None:
        return []
    found: list[Any] = []
    page: Any = await lister()
    for _ in range(_MOST_PAGES):
        found.extend(getattr(page, "tools", page))
        cursor = getattr(page, "next_cursor", None) or getattr(page, "nextCursor", None)
        if not cursor:
            break
        page = await lister(cursor=cursor)
    return found


class GivenSession:
    """What stands in for a server: a session that is there already, and is not watched."""

    def __init__(self, name: str, session: object) -> None:
        self.name = name
        self._session = session

    async def tools(self, *, cut: asyncio.Future[None] | None = None) -> list[Any]:
        """What it lists now."""
        found: list[Any] = await self._until_cut(_tools_of(self._session), cut)
        return found

    async def session(self) -> Any:  # noqa: ANN401 - whatever was given
        """What was given."""
        return self._session

    async def call(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        cut: asyncio.Future[None] | None = None,
    ) -> Any:  # noqa: ANN401 - any answer
        """Calls a method of it. Raises MCPConnectionLostError for what a lost connection raises."""
        return await self._until_cut(self._called(method, args, kwargs), cut)

    async def _until_cut(self, call: Coroutine[Any, Any, Any], cut: asyncio.Future[None] | None) -> Any:  # noqa: ANN401 - as above
        if cut is None:
            return await call
        task = asyncio.create_task(outcome_of(_itself, call))
        both: set[asyncio.Future[Any]] = {task, cut}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return value_of(task.result())
        finally:
            task.cancel()
        raise MCPConnectionLostError(server=self.name, problem=_CLOSED_DURING)

    async def _called(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 - as above
        try:
            made = _method(self.name, self._session, method)(*args, **kwargs)
            return await made if inspect.isawaitable(made) else made
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise MCPConnectionLostError(server=self.name, problem=_CANCELLED) from error
        except Exception as error:
            if not is_connection_lost(error) or isinstance(error, MCPConnectionLostError):
                raise
            raise MCPConnectionLostError(server=self.name, problem=describe_error(error)[:1_000]) from error


def _itself(made: object) -> object:
    return made
