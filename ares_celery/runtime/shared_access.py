"""The part of both contexts that leads to what the agents of a process share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from typing import Any, Final

from ares_celery.errors import OperationNotSupportedError, WorkerResourceError
from ares_celery.runtime.async_steps import AsyncSteps
from ares_celery.runtime.calling import ThreadCaller
from ares_celery.runtime.fault_points import AsyncFaultPoints, SyncFaultPoints
from ares_celery.runtime.mcp_holder import GivenSession, MCPHolder
from ares_celery.runtime.openings import Failed, Opened, Submitter, outcome_of, value_of, wait_in_thread
from ares_celery.runtime.shared_things import SharedThings
from ares_celery.runtime.sync_steps import SyncSteps
from ares_celery.runtime.tool_calls import AsyncToolCall, SyncToolCall, ToolCaller

__all__ = ["AsyncAccess", "SyncAccess", "things_without_loop"]

_HIDDEN: Final = "__"


class AsyncAccess:
    """Implements :class:`~ares_celery.agents.sharing.Sharing` for one incarnation.

    Args:
        things: What the process shares.
        caller: The incarnation, as it calls tools.
        alive: Awaited before each use: waits while the incarnation is suspended, raises once it is over. So nothing
            outside is touched by one that another has followed.
        gate: Awaited before each call of a tool or an MCP server; raises when the agent may do no more.
        steps: Where calls of tools are recorded; None: nowhere.
        points: Where faults are felt; None: nowhere.
    """

    def __init__(
        self,
        things: SharedThings,
        caller: ToolCaller,
        alive: Callable[[], Awaitable[None]] | None = None,
        *,
        gate: Callable[[], Awaitable[None]] | None = None,
        steps: AsyncSteps | None = None,
        points: AsyncFaultPoints | None = None,
    ) -> None:
        self._points = points
        self._things = things
        self._caller = caller
        self._alive = alive or _always
        self._gate = gate or _always
        self._steps = steps

    def resource(self, which: Any, /) -> Awaitable[Any]:  # noqa: ANN401 - a name or a function
        """See :meth:`Sharing.resource`."""
        return _Shared(self._things, which, self._alive)

    def tool(self, which: Any, /) -> AsyncToolCall:  # noqa: ANN401 - as above
        """See :meth:`Sharing.tool`."""
        return AsyncToolCall(self._things.tool(which), self._caller, self._permitted, self._steps, points=self._points)

    def mcp(self, name: str, /) -> _MCPHandle:
        """See :meth:`Sharing.mcp`."""
        return _MCPHandle(self._things.mcp(name), self._permitted)

    async def _permitted(self) -> None:
        await self._alive()
        await self._gate()


class SyncAccess:
    """Implements :class:`~ares_celery.agents.sharing.SyncSharing` for one incarnation.

    Args:
        things: What the process shares.
        caller: The incarnation, as it calls tools.
        look: Called while something is waited for; raises once the incarnation is over.
        alive: Called before each use; see :class:`AsyncAccess`. Default: ``look``.
        gate: Called before each call of a tool or an MCP server; see :class:`AsyncAccess`.
        steps: Where calls of tools are recorded; None: nowhere.
        points: Where faults are felt; None: nowhere.
    """

    def __init__(  # noqa: PLR0913 - what a context gives
        self,
        things: SharedThings,
        caller: ToolCaller,
        look: Callable[[], None],
        alive: Callable[[], None] | None = None,
        *,
        gate: Callable[[], None] | None = None,
        steps: SyncSteps | None = None,
        points: SyncFaultPoints | None = None,
    ) -> None:
        self._points = points
        self._things = things
        self._caller = caller
        self._look = look
        self._alive = alive or look
        self._gate = gate
        self._steps = steps
        #: Runs functions of either colour for the agent's thread.
        self.calls = ThreadCaller(self._on_loop, look, caller.clock)

    def resource(self, which: Any, /) -> Any:  # noqa: ANN401 - a name or a function
        """See :meth:`SyncSharing.resource`."""
        self._alive()
        return self._things.resource_in_thread(which, self._look)

    def tool(self, which: Any, /) -> SyncToolCall:  # noqa: ANN401 - as above
        """See :meth:`SyncSharing.tool`."""
        return SyncToolCall(
            self._things.tool(which), self._caller, self.calls, self._permitted, self._steps, points=self._points
        )

    def mcp(self, name: str, /) -> _SyncMCPHandle:
        """See :meth:`SyncSharing.mcp`."""
        return _SyncMCPHandle(self._things.mcp(name), self._run)

    def _on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return self._things.loop().submit(coroutine)

    def _permitted(self) -> None:
        self._alive()
        if self._gate is not None:
            self._gate()

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401 - any answer
        self._permitted()
        running: Future[Opened | Failed] = self._on_loop(outcome_of(function, *args))
        try:
            outcome = wait_in_thread(running, None, self._look, self._caller.clock)
        finally:
            running.cancel()
        assert outcome is not None  # noqa: S101 - without a limit there is one
        return value_of(outcome)


class _Shared:
    """A resource that is awaited; whoever forgets to is told so."""

    def __init__(self, things: SharedThings, which: object, alive: Callable[[], Awaitable[None]]) -> None:
        self._things = things
        self._which = which
        self._alive = alive

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._get().__await__()

    async def _get(self) -> Any:  # noqa: ANN401 - whatever its function yields
        await self._alive()
        return await self._things.resource(self._which)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - there is none
        if name.startswith(_HIDDEN):
            raise AttributeError(name)
        which = self._which if isinstance(self._which, str) else getattr(self._which, "__qualname__", "?")
        problem = f"it may not be open yet, so it has no {name!r}: write (await ctx.resource({which!r})).{name}"
        raise WorkerResourceError(name=which, problem=problem)


class _MCPHandle:
    """Implements :class:`~ares_celery.agents.sharing.MCPHandle`."""

    def __init__(self, holder: MCPHolder | GivenSession, alive: Callable[[], Awaitable[None]]) -> None:
        self._holder = holder
        self._alive = alive
        self.name = holder.name

    async def tools(self) -> list[Any]:
        await self._alive()
        return await self._holder.tools()

    async def session(self) -> Any:  # noqa: ANN401 - whatever the library gives
        await self._alive()
        return await self._holder.session()

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if name.startswith(_HIDDEN):
            raise AttributeError(name)

        async def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any method
            await self._alive()
            return await self._holder.call(name, args, kwargs)

        return call


class _SyncMCPHandle:
    """Implements :class:`~ares_celery.agents.sharing.SyncMCPHandle`."""

    def __init__(self, holder: MCPHolder | GivenSession, run: Callable[..., Any]) -> None:
        self._holder = holder
        self._run = run
        self.name = holder.name

    def tools(self) -> list[Any]:
        tools: list[Any] = self._run(self._holder.tools)
        return tools

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith(_HIDDEN):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any method
            return self._run(self._holder.call, name, args, kwargs)

        return call


async def _always() -> None:
    """Nobody can be over."""


def things_without_loop() -> SharedThings:
    """For a context outside any host: what is registered in this process, without a loop for calls from threads."""

    def refuse() -> Submitter:
        raise OperationNotSupportedError(
            operation="an async tool or MCP server for a plain agent", reason="no event loop runs beside it here"
        )

    return SharedThings(refuse)
