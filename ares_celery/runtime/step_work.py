"""One use of a step, and the words in which it is recorded."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, cast

import msgspec

from ares_celery.agents.steps import KEY, StepOptions, is_async
from ares_celery.agents.tools import Tool
from ares_celery.errors import AgentSignal, BudgetExceededError, StepChangedError, StepRejectedError, ToolError
from ares_celery.errors.wording import found_in
from ares_celery.runtime.step_scope import Opening

__all__ = [
    "LONGEST_MESSAGE",
    "LONGEST_TRACEBACK",
    "Work",
    "as_noted",
    "cut_arguments",
    "digest_of_call",
    "is_outcome",
    "is_refusal",
    "storable",
]

_JSON_ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
#: Characters of an error's text and traceback, and of the JSON of arguments, that are kept.
LONGEST_MESSAGE: Final = 2_000
LONGEST_TRACEBACK: Final = 8_000
_LONGEST_ARGUMENTS: Final = 10_000


def is_outcome(error: BaseException) -> bool:
    """The function came to its end with it; else it was cut off, and nobody knows how far it had come.

    A step inside of it that is refused for now cuts it off, too: once a person has dealt with that, the function may be
    meant to go on, and a failure that is recorded for good would keep it from that.
    """
    if is_refusal(error):
        return False
    if isinstance(error, Exception):
        return True
    return not isinstance(error, (AgentSignal, asyncio.CancelledError, GeneratorExit, BaseExceptionGroup))


def is_refusal(error: BaseException) -> bool:
    """A step did not run because a person has to do something first; also in a group."""
    return any(found_in(error, kind) for kind in (BudgetExceededError, StepChangedError, StepRejectedError))


class Work:
    """One use of a step.

    Attributes:
        opening: Of the execution that it belongs to.
        path: Its id, behind those of the steps around it.
        function: What is run.
        name: What a record calls it.
        args: For it.
        kwargs: For it.
        options: How it may be repeated.
        tool: The tool that it calls; empty: none.
        is_inner: It runs inside of another step.
        began: When its first try began, monotonic.
        is_late: It did not return in time, which says nothing of what it did.
        is_recorded: The store knows what came of it.
        after: Tells hooks that it has run, once it is recorded; None: nobody is to be told.
    """

    __slots__ = (
        "after",
        "args",
        "began",
        "function",
        "is_inner",
        "is_late",
        "is_recorded",
        "kwargs",
        "name",
        "opening",
        "options",
        "path",
        "tool",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
        tool: str = "",
    ) -> None:
        self.function = function
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.tool = tool
        self.path = ""
        self.is_inner = False
        self.began = 0.0
        self.is_late = False
        self.is_recorded = False
        self.after: Callable[[], object] | None = None

    def place(self, opening: Opening, path: str, *, is_inner: bool) -> None:
        """Says which step it is."""
        self.opening = opening
        self.path = path
        self.is_inner = is_inner

    @property
    def is_async(self) -> bool:
        """Its function is to be awaited."""
        return is_async(self.function)


def digest_of_call(tool: Tool, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What tells calls of a tool apart: its arguments, by name where the tool tells its names, but not its key.

    Raises:
        ToolError: They are no JSON.
        TypeError: They do not fit the tool.
    """
    signature = _signature(tool.function)
    if signature is None:
        given: Any = [list(args), {name: value for name, value in kwargs.items() if name != KEY}]
    else:
        bound = signature.bind(*args, **kwargs).arguments
        given = {name: value for name, value in bound.items() if name != KEY}
    try:
        data = msgspec.json.encode(given, order="deterministic")
    except _JSON_ERRORS as error:
        problem = (
            f"its arguments are no JSON ({error}), so that a repeat of the call could not be told from another one; "
            f"name the call: ctx.tool({tool.name!r}).with_options(step_id=…)(…)"
        )
        raise ToolError(tool=tool.name, problem=problem) from error
    if b"null" in data and _holds_no_number(given):
        problem = (
            "its arguments hold NaN or an infinity, which JSON cannot tell from null; "
            f"name the call: ctx.tool({tool.name!r}).with_options(step_id=…)(…)"
        )
        raise ToolError(tool=tool.name, problem=problem)
    return sha256(data).hexdigest()[:16]


def _holds_no_number(value: object) -> bool:
    """NaN or an infinity is in it."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(map(_holds_no_number, cast("Mapping[object, object]", value).values()))
    return isinstance(value, (list, tuple)) and any(map(_holds_no_number, cast("Sequence[object]", value)))


@functools.lru_cache(maxsize=1_000)
def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def as_noted(value: object) -> Any:  # noqa: ANN401 - a JSON value
    """An argument as a person may read it; of what is no JSON only its kind."""
    try:
        decoded: Any = msgspec.json.decode(msgspec.json.encode(value))
        return decoded if decoded == value else f"<{type(value).__name__}>"
    except _JSON_ERRORS:
        return f"<{type(value).__name__}>"


def cut_arguments(arguments: Any) -> Any:  # noqa: ANN401 - JSON values
    """Arguments for people: of very long ones the beginning."""
    shown = msgspec.json.encode(arguments)
    if len(shown) <= _LONGEST_ARGUMENTS:
        return arguments
    return {"cut": shown[:_LONGEST_ARGUMENTS].decode(errors="ignore")}


def storable(text: str, longest: int) -> str:
    """The text in a form that JSON can carry, cut."""
    return text[:longest].encode("utf-8", "backslashreplace").decode()
