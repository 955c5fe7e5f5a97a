"""Tools that agents call by name, as modules register them, with how a call may be repeated."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar, cast, get_args

from typing_extensions import override

from ares_celery.agents.guards import guarded
from ares_celery.agents.named import NamedFunctions, check_decorated
from ares_celery.agents.steps import KEY, Replay, is_async, mark_tool, takes_key
from ares_celery.errors import InvalidSettingError, ToolError
from ares_celery.model.durations import parse_duration

__all__ = ["KEY", "TOOLS", "Replay", "Tool", "ToolRegistry", "override_tool", "tool"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Tool:
    """One registered tool.

    Attributes:
        name: What agents call it.
        function: What runs.
        is_async: It runs on the agents' event loop.
        replay: How a call may be repeated.
        timeout: Longest time of a call; None = as long as it takes.
    """

    name: str
    function: Callable[..., Any]
    is_async: bool
    replay: Replay = "never"
    timeout: timedelta | None = None


class ToolRegistry(NamedFunctions[Tool]):
    """A set of tools; a process has one, tests may have their own."""

    def __init__(self) -> None:
        super().__init__(_refused)

    def register(
        self,
        name: str,
        function: Callable[..., Any],
        *,
        replay: Replay = "never",
        timeout: timedelta | float | str | None = None,
    ) -> Tool:
        """Adds a tool.

        Raises:
            ToolError: It is no function, says ``keyed`` and takes no key, or another function holds the name.
        """
        if not callable(cast("object", function)):
            raise _refused(name, f"{type(function).__name__} cannot be called; register a function")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise _refused(name, "a generator gives many values; a tool returns one")
        if replay not in get_args(Replay):
            raise _refused(name, f"replay={replay!r} is not one of {', '.join(get_args(Replay))}")
        if replay == "keyed" and not takes_key(function):
            raise _refused(name, f'a keyed tool takes its key: add the parameter {KEY}: str = ""')
        limit = limit_of(name, timeout)
        try:
            mark_tool(function, replay, limit.total_seconds() if limit is not None else None)
        except InvalidSettingError as error:
            raise _refused(name, f"replay={replay!r}: {error.fields['problem']}") from error
        return self.add(Tool(name, function, is_async(function), replay, limit))

    @override
    def override(self, name: str, value: object) -> AbstractContextManager[None]:
        """See :meth:`NamedFunctions.override`. Raises ToolError when ``value`` cannot be called."""
        if not callable(value):
            raise _refused(name, f"{type(value).__name__} cannot stand in for it: it cannot be called")
        return super().override(name, value)

    def find(self, name: str) -> Tool:
        """The tool of this name, or what stands in for it, which keeps replay and timeout of the tool.

        Raises:
            ToolError: Nobody registered it; the text names those that are.
        """
        is_replaced, function = self.replacement(name)
        if not is_replaced:
            return self.get(name)
        known = self.get(name)
        replay = known.replay if known.replay != "keyed" or takes_key(function) else "never"
        return Tool(name, function, is_async(function), replay, known.timeout)


def limit_of(name: str, timeout: timedelta | float | str | None) -> timedelta | None:
    """A timeout as a duration. Raises ToolError when it is none, or not above 0."""
    if timeout is None:
        return None
    try:
        limit = parse_duration(timeout)
    except ValueError as error:
        raise _refused(name, f"timeout: {error}") from error
    if limit <= timedelta(0):
        raise _refused(name, f"timeout={timeout!r} must be above 0; leave it out for no limit")
    return limit


def _refused(name: str, problem: str) -> ToolError:
    return ToolError(tool=name, problem=problem)


#: The process's own, which ``@tool`` fills.
TOOLS: Final = ToolRegistry()


def tool(name: str, /, *, replay: Replay = "never", timeout: timedelta | float | str | None = None) -> Callable[[F], F]:
    """Registers a function, async or plain, that agents call with ``ctx.tool(name)(…)``.

    Args:
        name: What agents call it.
        replay: How a call may be repeated after a death: ``never`` unless you say otherwise; ``safe`` for pure work
            and reads; ``keyed`` for what takes a parameter ``idempotency_key`` and does its work once for a key. A
            ``never`` tool whose outcome nobody knows parks its agent until a person has said it. It holds for
            ``ctx.step("id", function, …)`` too.
        timeout: Longest time of a call, a timedelta, seconds, or text such as 500ms.

    Raises:
        ToolError: It is no function, says ``keyed`` and takes no key, or another function holds the name.

    Example:
        >>> @tool("doc-refund", replay="keyed", timeout=20)
        ... def refund(order: str, idempotency_key: str = "") -> str:
        ...     return f"refunded {order}"
        >>> TOOLS.get("doc-refund").replay, refund("o-1")
        ('keyed', 'refunded o-1')
    """
    check_decorated(name, "tool", _refused)

    def register(function: F) -> F:
        called = guarded(function, replay)
        TOOLS.register(name, called, replay=replay, timeout=timeout)
        return called

    return register


def override_tool(which: str | Callable[..., Any], function: Callable[..., Any]) -> AbstractContextManager[None]:
    """Has every agent of this process call ``function`` instead of a tool while the block runs; for tests.

    Raises:
        ToolError: Nobody registered it in this process, or ``function`` cannot be called.

    Example:
        >>> @tool("doc-mail")
        ... def mail(to: str) -> str:
        ...     return "really told"
        >>> with override_tool("doc-mail", lambda to: f"told {to}"):
        ...     TOOLS.find("doc-mail").function("eve")
        'told eve'
    """
    name = which if isinstance(which, str) else TOOLS.name_of(cast("object", which))
    return TOOLS.override(name, function)
