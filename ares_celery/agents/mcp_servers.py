"""MCP servers that the agents of a process share a connection to, as modules register them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from ares_celery.agents.named import NamedFunctions, check_decorated
from ares_celery.errors import MCPServerError

__all__ = ["MCP_SERVERS", "MCPServer", "MCPServerRegistry", "mcp_server", "override_mcp"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class MCPServer:
    """One registered server.

    Attributes:
        name: What agents call it.
        function: An async generator function that yields a connected session, or what makes an async context manager.
    """

    name: str
    function: Callable[..., Any]

    def manager(self) -> AbstractAsyncContextManager[Any]:
        """What opens and closes one connection.

        Raises:
            MCPServerError: The function gave something else.
        """
        if inspect.isasyncgenfunction(self.function):
            return asynccontextmanager(self.function)()
        made: object = self.function()
        if not hasattr(made, "__aenter__") or not hasattr(made, "__aexit__"):
            raise _refused(self.name, f"its function gave a {type(made).__name__}, no async context manager")
        return cast("AbstractAsyncContextManager[Any]", made)


class MCPServerRegistry(NamedFunctions[MCPServer]):
    """A set of servers; a process has one, tests may have their own."""

    def __init__(self) -> None:
        super().__init__(_refused)

    def register(self, name: str, function: Callable[..., Any]) -> MCPServer:
        """Adds a server.

        Raises:
            MCPServerError: The function cannot give a connection, or another function holds the name.
        """
        if not callable(cast("object", function)):
            raise _refused(name, f"{type(function).__name__} cannot be called")
        if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
            cure = "write an async generator that yields the session, or a function that returns a context manager"
            raise _refused(name, cure)
        if any(p.default is p.empty and p.kind not in _OPEN for p in inspect.signature(function).parameters.values()):
            raise _refused(name, "its function is called without arguments")
        return self.add(MCPServer(name, function))


_OPEN: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _refused(name: str, problem: str) -> MCPServerError:
    return MCPServerError(server=name, problem=problem)


#: The process's own, which ``@mcp_server`` fills.
MCP_SERVERS: Final = MCPServerRegistry()


def mcp_server(name: str, /) -> Callable[[F], F]:
    """Registers a function that connects to an MCP server; agents talk to it with ``ctx.mcp(name)``.

    An async generator that yields the connected session, or a function that returns an async context manager, such as
    ``mcp.Client(…)``. One connection a process, shared by all its agents: made at the first call, made again, with
    growing pauses, after it broke, and closed when the process ends. It is entered and left in one task of its own, as
    that library demands.

    Raises:
        MCPServerError: The function cannot give a connection, or another function holds the name.

    Example:
        >>> @mcp_server("doc-github")
        ... async def github():
        ...     yield "a session"
        >>> "doc-github" in MCP_SERVERS.names()
        True
    """
    check_decorated(name, "mcp_server", _refused)

    def register(function: F) -> F:
        MCP_SERVERS.register(name, function)
        return function

    return register


def override_mcp(which: str | Callable[..., Any], session: object) -> AbstractContextManager[None]:
    """Has every agent of this process talk to ``session`` instead of a server while the block runs; for tests.

    Raises:
        MCPServerError: Nobody registered it in this process, or the name is mistyped.

    Example:
        >>> @mcp_server("doc-search")
        ... async def search():
        ...     yield "a real session"
        >>> with override_mcp("doc-search", "a fake session"):
        ...     MCP_SERVERS.replacement("doc-search")[0]
        True
    """
    name = which if isinstance(which, str) else MCP_SERVERS.name_of(cast("object", which))
    return MCP_SERVERS.override(name, session)
