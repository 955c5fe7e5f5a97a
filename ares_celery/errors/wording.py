"""What user code raised, as text: the exception is user code, too, and may fail when it is asked for its text."""

from __future__ import annotations

import traceback

from ares_celery.errors.signals import AgentSignal

__all__ = ["describe_error", "message_of", "traceback_of"]


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
