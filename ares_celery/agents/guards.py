"""Notices that a function which must not simply run twice is called by an agent's code outside of every step."""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast

__all__ = ["AGENT", "AROUND", "guarded", "unguarded"]

F = TypeVar("F", bound=Callable[..., Any])
log: Final = logging.getLogger(__name__)

#: The agent whose code runs; empty: none's.
AGENT: Final[ContextVar[str]] = ContextVar("ares_agent_code", default="")
#: The block or step around the code that runs, as the runtime keeps it; its ``prefix`` is empty outside of a step.
AROUND: Final[ContextVar[Any]] = ContextVar("ares_step_scope", default=None)
#: Where a guarded function keeps itself and what it stands for.
_GUARDED: Final = "__ares_guarded__"
_told: Final[set[str]] = set()


def guarded(function: F, replay: str) -> F:
    """The function; one that is not ``safe`` says once in a process that it was called where it protects nothing."""
    if replay == "safe" or type(function) is not types.FunctionType or hasattr(function, _GUARDED):
        return function
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return function
    made: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever the function takes and gives
            _look(function, replay)
            return await function(*args, **kwargs)

        made = call_async
    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as above
            _look(function, replay)
            return function(*args, **kwargs)

        made = call
    setattr(made, _GUARDED, (made, function))
    return cast("F", made)


def unguarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, for whoever calls it outside of a step on purpose."""
    found = getattr(function, _GUARDED, None)
    # A decorator around it has taken the attribute over, and is no guard.
    return cast("Callable[..., Any]", found[1]) if found is not None and found[0] is function else function


def _look(function: Callable[..., Any], replay: str) -> None:
    agent_id = AGENT.get()
    if not agent_id:
        return
    around = AROUND.get()
    if around is not None and around.prefix:
        return
    name = function.__qualname__.rpartition("<locals>.")[2]
    known = f"{function.__module__}.{function.__qualname__}"
    if known in _told:
        return
    _told.add(known)
    why = "its next life makes the call again" if replay == "never" else "it gets no key that its next life knows"
    log.warning(
        "agent %s: %s() says replay=%r and is called outside of every step: nothing of it is recorded, and %s; call it "
        "as a step: ctx.step(%r, %s, …)",
        agent_id, name, replay, why, name.rpartition(".")[2], name,
        extra={"agent_id": agent_id},
    )  # fmt: skip
