"""What user code raised, as text: the exception is user code, too, and may fail when it is asked for its text."""

from __future__ import annotations

import contextlib
import traceback
from typing import TypeVar, cast

from ares_celery.errors.signals import AgentSignal

__all__ = ["describe_error", "found_in", "message_of", "place_of", "say_place", "traceback_of"]

E = TypeVar("E", bound=BaseException)


def found_in(error: BaseException | None, kind: type[E]) -> E | None:
    """The exception itself if it is one of this kind, or the first in its group that is.

    Example:
        >>> found_in(ExceptionGroup("both", [KeyError("a"), ValueError("boom")]), ValueError)
        ValueError('boom')
    """
    if isinstance(error, kind):
        return error
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        return next((found for one in members if (found := found_in(one, kind)) is not None), None)
    return None


def message_of(error: BaseException) -> str:
    """The exception's own text, whatever its methods do.

    Example:
        >>> message_of(ValueError("boom"))
        'boom'
    """
    try:
        return str(error)
    except AgentSignal:
        raise  # meant for the thread, not a failure of the text
    except BaseException as unspeakable:  # noqa: BLE001 - a user's code
        return f"(its text cannot be had: {type(unspeakable).__name__})"


def describe_error(error: BaseException) -> str:
    """Type and text of an exception.

    Example:
        >>> describe_error(ValueError("boom"))
        'ValueError: boom'
    """
    return f"{type(error).__name__}: {message_of(error)}"


def traceback_of(error: BaseException) -> str:
    """Its traceback, as far as it can be had."""
    try:
        return "".join(traceback.format_exception(error))
    except AgentSignal:
        raise
    except BaseException as unspeakable:  # noqa: BLE001 - a user's code
        return f"{type(error).__name__}: (its traceback cannot be had: {type(unspeakable).__name__})"


def say_place(error: BaseException, place: str) -> None:
    """Notes on an exception what was asked of the user's code when it raised.

    Example:
        >>> error = KeyError("a")
        >>> say_place(error, "apply raised on event 'x', version 7")
        >>> place_of(error)
        "apply raised on event 'x', version 7: "
    """
    with contextlib.suppress(Exception):  # a class may refuse to hold it
        BaseException.add_note(error, place)


def place_of(error: BaseException) -> str:
    """What was noted by :func:`say_place`, to stand before its text; empty when nothing was."""
    try:
        found = [note for note in error.__notes__ if " raised on " in note]
    except Exception:  # noqa: BLE001 - a user's code
        return ""
    return f"{found[0]}: " if found else ""
