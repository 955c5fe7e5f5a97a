"""Errors about what the agents of a process share: resources, tools, connections to models and MCP servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ares_celery.errors.base import AresError

__all__ = [
    "LLMUnavailableError",
    "MCPConnectionLostError",
    "MCPServerError",
    "ToolError",
    "ToolTimeoutError",
    "WorkerResourceError",
]


class WorkerResourceError(AresError):
    """A resource of the worker is unknown, cannot be registered, or could not be opened; the next use tries again.

    What its function raised is the ``__cause__``, so a language model that refuses for now stays uncharged.
    """

    code = "worker_resource"
    template = "worker resource {name!r}: {problem}"


class ToolError(AresError):
    """A tool is unknown, cannot be registered, or cannot be called like this; its function did not run."""

    code = "tool"
    template = "tool {tool!r}: {problem}"


class ToolTimeoutError(ToolError, TimeoutError):
    """A tool did not return in time; whether it took effect is unknown."""

    code = "tool_timeout"
    template = "tool {tool!r} of agent {agent_id!r} did not return within {limit} s; whether it took effect is unknown"


class LLMUnavailableError(AresError):
    """Raise it from an agent when a language model refuses for now or does not answer: the death is never charged.

    Example:
        >>> str(LLMUnavailableError(reason="429, try again in 20 s"))
        'the language model is not available: 429, try again in 20 s'
    """

    code = "llm_unavailable"
    template = "the language model is not available: {reason}"


class MCPServerError(AresError):
    """An MCP server is unknown or cannot be registered, or what its function gives is no session."""

    code = "mcp_server"
    template = "MCP server {server!r}: {problem}"


class MCPConnectionLostError(AresError):
    """The connection to an MCP server is lost, or could not be made: a death of it is never charged.

    ``ctx.mcp`` raises it; an agent with connections of its own may raise it, too.
    """

    code = "mcp_connection_lost"
    template = "the connection to MCP server {server!r} is lost: {problem}"

    def __init__(self, data: Mapping[str, Any] | None = None, /, **fields: object) -> None:
        """Without a ``problem`` it says that nobody told more."""
        super().__init__({"problem": "no more is known", **(data or {}), **fields})
