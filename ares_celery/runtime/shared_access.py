"""The part of both contexts that leads to what the agents of a process share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import cached_property
from typing import Any, Final

from ares_celery.errors import MCPConnectionLostError, OperationNotSupportedError, WorkerResourceError
from ares_celery.model.event import NewEvent
from ares_celery.runtime.async_steps import AsyncSteps
from ares_celery.runtime.calling import ThreadCaller
from ares_celery.runtime.fault_points import AsyncFaultPoints, SyncFaultPoints, cut_by
from ares_celery.runtime.mcp_holder import GivenSession, MCPHolder
from ares_celery.runtime.mcp_use import Degraded, MCPUse
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
        tell: Told in what the agent is degraded, empty: in nothing, and the events that say so.
    """

    def __init__(  # noqa: PLR0913 - what a context gives
        self,
        things: SharedThings,
        caller: ToolCaller,
        alive: Callable[[], Awaitable[None]] | None = None,
        *,
        gate: Callable[[], Awaitable[None]] | None = None,
        steps: AsyncSteps | None = None,
        points: AsyncFaultPoints | None = None,
        tell: Callable[[str, list[NewEvent]], Awaitable[object]] | None = None,
    ) -> None:
        self._tell = tell
        self._degraded = Degraded(caller.agent_id)
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
        return _MCPHandle(self._things.mcp(name), self)

    @cached_property
    def use(self) -> MCPUse:
        """The MCP servers, as this incarnation uses them."""
        return MCPUse(self._things.connections, self._caller.agent_id, self._points)

    async def through(self, holder: MCPHolder | GivenSession, call: Callable[..., Awaitable[Any]], *args: Any) -> Any:  # noqa: ANN401 - any answer
        """Calls a server, and says when the agent has lost it or found it again."""
        await self._permitted()
        server = holder.name
        try:
            if self._points is not None and self._points.is_disturbed:
                await self._feel(self._points, server)
            answer = await call(holder, *args)
        except MCPConnectionLostError as error:
            await self._say(self._degraded.lost(server, error))
            raise
        if self._degraded.is_lost(server):
            await self._say(self._degraded.found(server))
        return answer

    async def _feel(self, points: AsyncFaultPoints, server: str) -> None:
        fault = await points.before_server(server)
        if fault is not None:
            await self.use.cut(server)
            raise cut_by(server, fault)

    async def _say(self, events: list[NewEvent]) -> None:
        if events and self._tell is not None:
            await self._tell(self._degraded.text, events)

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
        tell: Told in what the agent is degraded, empty: in nothing, and the events that say so.
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
        tell: Callable[[str, list[NewEvent]], object] | None = None,
    ) -> None:
        self._tell = tell
        self._degraded = Degraded(caller.agent_id)
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
        return _SyncMCPHandle(self._things.mcp(name), self)

    @cached_property
    def use(self) -> MCPUse:
        """The MCP servers, as this incarnation uses them."""
        return MCPUse(self._things.connections, self._caller.agent_id, self._points)

    def through(self, holder: MCPHolder | GivenSession, call: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401 - any answer
        """See :meth:`AsyncAccess.through`."""
        self._permitted()
        server = holder.name
        try:
            if self._points is not None and self._points.is_disturbed:
                self._feel(self._points, server)
            answer = self._run(call, holder, *args)
        except MCPConnectionLostError as error:
            self._say(self._degraded.lost(server, error))
            raise
        if self._degraded.is_lost(server):
            self._say(self._degraded.found(server))
        return answer

    def _feel(self, points: SyncFaultPoints, server: str) -> None:
        fault = points.before_server(server)
        if fault is not None:
            self._run(self.use.cut, server)
            raise cut_by(server, fault)

    def _say(self, events: list[NewEvent]) -> None:
        if events and self._tell is not None:
            self._tell(self._degraded.text, events)

    def _on_loop(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return self._things.loop().submit(coroutine)

    def _permitted(self) -> None:
        self._alive()
        if self._gate is not None:
            self._gate()

    def _run(self, function: Callable[..., Any], *args: Any) -> Any:  # noqa: ANN401 - any answer
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

    def __init__(self, holder: MCPHolder | GivenSession, access: AsyncAccess) -> None:
        self._holder = holder
        self._access = access
        self.name = holder.name

    async def tools(self) -> list[Any]:
        tools: list[Any] = await self._access.through(self._holder, self._access.use.tools)
        return tools

    async def session(self) -> Any:  # noqa: ANN401 - whatever the library gives
        return await self._access.through(self._holder, self._access.use.session)

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if name.startswith(_HIDDEN):
            raise AttributeError(name)

        async def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any method
            return await self._access.through(self._holder, self._access.use.call, name, args, kwargs)

        return call


class _SyncMCPHandle:
    """Implements :class:`~ares_celery.agents.sharing.SyncMCPHandle`."""

    def __init__(self, holder: MCPHolder | GivenSession, access: SyncAccess) -> None:
        self._holder = holder
        self._access = access
        self.name = holder.name

    def tools(self) -> list[Any]:
        tools: list[Any] = self._access.through(self._holder, self._access.use.tools)
        return tools

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith(_HIDDEN):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any method
            return self._access.through(self._holder, self._access.use.call, name, args, kwargs)

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
