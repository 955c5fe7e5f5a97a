"""What an agent's context offers of the things that its process shares: resources, tools, MCP servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any, ParamSpec, Protocol, Self, TypeVar, overload

from ares_celery.agents.steps import Replay

__all__ = ["MCPHandle", "Sharing", "SyncMCPHandle", "SyncSharing", "ToolCall"]

T = TypeVar("T")
P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class ToolCall(Protocol[P, R_co]):
    """A tool, ready to be called."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Calls it, once for these arguments in the execution at hand. What its function raises is raised as it is.

        Raises:
            ToolTimeoutError: It did not return in time; the agent parks if it must not run twice.
            ToolError: Its arguments are no JSON, so that a repeat of the call could not be told.
            Errors of steps: see :meth:`ares_celery.agents.steps.StepCaller.__call__`.
        """
        ...

    def with_options(
        self,
        *,
        timeout: timedelta | float | str | None = ...,
        replay: Replay = ...,
        retries: int = ...,
        step_id: str = ...,
    ) -> Self:
        """The same tool with other options of a call.

        Args:
            timeout: Its limit; None = as long as it takes.
            replay: How the call may be repeated, instead of what the tool says.
            retries: How often it is tried again when it raises.
            step_id: Which step of the execution the call is, instead of the one that its arguments say.

        Raises:
            ToolError: One of them cannot work.
        """
        ...


class MCPHandle(Protocol):
    """The connection to an MCP server that all agents of a process share.

    Every method of the session can be called on it: ``await ctx.mcp("github").call_tool("search", {…})``. Each call
    connects first if need be.
    """

    @property
    def name(self) -> str:
        """The server's, as it was registered."""
        ...

    async def tools(self) -> list[Any]:
        """The server's tools, as it listed them when the connection was made last.

        Raises:
            MCPConnectionLostError: There is no connection, and none could be made.
        """
        ...

    async def session(self) -> Any:  # noqa: ANN401 - whatever the library gives
        """The session itself, for what is no method of it. What breaks in your hands is noticed at the next call."""
        ...

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        """A method of the session.

        A call of it raises MCPConnectionLostError when the connection breaks or cannot be made, and otherwise what the
        session raises.
        """
        ...


class SyncMCPHandle(Protocol):
    """As :class:`MCPHandle`, for plain agents: calls wait for their answer."""

    @property
    def name(self) -> str:
        """See :attr:`MCPHandle.name`."""
        ...

    def tools(self) -> list[Any]:
        """See :meth:`MCPHandle.tools`."""
        ...

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """See :class:`MCPHandle`."""
        ...


class Sharing(Protocol):
    """For agents whose methods are ``async``."""

    @overload
    def resource(self, which: str, /) -> Awaitable[Any]: ...
    @overload
    def resource(self, which: Callable[..., AsyncIterator[T]], /) -> Awaitable[T]: ...
    @overload
    def resource(self, which: Callable[..., Iterator[T]], /) -> Awaitable[T]: ...
    def resource(self, which: Any, /) -> Awaitable[Any]:
        """Something that all agents of this process share: ``llm = await ctx.resource("llm")``.

        Opened at its first use in the process, whoever waits for it meanwhile; a try that failed is made again at the
        next use.

        Args:
            which: The name that ``@worker_resource`` gave it, or its function, which also tells type checkers its type.

        Raises:
            WorkerResourceError: Nobody registered it, or it could not be opened; the ``__cause__`` says why.
        """
        ...

    @overload
    def tool(self, which: str, /) -> ToolCall[..., Coroutine[Any, Any, Any]]: ...
    @overload
    def tool(self, which: Callable[P, Awaitable[T]], /) -> ToolCall[P, Coroutine[Any, Any, T]]: ...
    @overload
    def tool(self, which: Callable[P, T], /) -> ToolCall[P, Coroutine[Any, Any, T]]: ...
    def tool(self, which: Any, /) -> ToolCall[..., Coroutine[Any, Any, Any]]:
        """A registered tool, to be called: ``await ctx.tool("refund")(order="o-1")``.

        A plain function runs on a thread of its own, so it holds up nobody. Plug-ins with hooks are told before and
        after. A call is a step of the execution at hand, known by the tool's name and its arguments, and by its number
        where an execution makes the same call again: after a death what was recorded is returned, and what was not is
        repeated as ``replay`` says. A keyed tool gets the same key in every life, unless you pass one. Outside of
        every execution ``safe`` tools are just called; the others are steps of ``main``, where the same call can be
        made only once.

        Args:
            which: The name that ``@tool`` gave it, or its function.

        Raises:
            ToolError: Nobody registered it.
        """
        ...

    def mcp(self, name: str, /) -> MCPHandle:
        """The connection to an MCP server that this process shares.

        Args:
            name: The one that ``@mcp_server`` gave it.

        Raises:
            MCPServerError: Nobody registered it.
        """
        ...


class SyncSharing(Protocol):
    """For agents whose methods are plain; the same names, and calls wait."""

    @overload
    def resource(self, which: str, /) -> Any: ...  # noqa: ANN401
    @overload
    def resource(self, which: Callable[..., Iterator[T]], /) -> T: ...
    def resource(self, which: Any, /) -> Any:
        """See :meth:`Sharing.resource`; only what a plain generator opens, as the others live on the event loop."""
        ...

    @overload
    def tool(self, which: str, /) -> ToolCall[..., Any]: ...
    @overload
    def tool(self, which: Callable[P, T], /) -> ToolCall[P, T]: ...
    def tool(self, which: Any, /) -> ToolCall[..., Any]:
        """See :meth:`Sharing.tool`; an async tool runs on the event loop of this process."""
        ...

    def mcp(self, name: str, /) -> SyncMCPHandle:
        """See :meth:`Sharing.mcp`."""
        ...
