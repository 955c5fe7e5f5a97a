"""A user's own words for summaries."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from ares_celery.errors import InvalidSettingError
from ares_celery.model.event import Event
from ares_celery.model.summary import Summary

__all__ = ["Summariser", "check_summariser", "forget_summariser", "registered_summariser", "summariser"]


class Summariser(Protocol):
    """Writes the text of a summary; the facts in it (numbers, versions, times, outcome) stay the runtime's.

    It may take thirty seconds, on a thread of its own. One that raises, takes longer or returns no text is logged and
    counted (``summariser_failures``), and the runtime's own text is used.
    """

    def __call__(self, summary: Summary, events: Iterable[Event], /) -> str:
        """The text, at most 10,000 characters.

        Args:
            summary: What the runtime has found, with its own text.
            events: The events in their order, read while they are asked for, so their number costs no memory.
        """
        ...


S = TypeVar("S", bound=Summariser)


class _Registered:
    """The one that this process uses."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.function: Summariser | None = None


_registered: Final = _Registered()


def summariser(function: S) -> S:
    """Registers the function that writes the summaries of this process; a later one takes its place.

    Put it into a module of ``ARES_AGENT_MODULES``, so that the workers import it.

    Raises:
        InvalidSettingError: It is no plain function of a summary and its events.

    Example:
        >>> @summariser
        ... def in_short(summary: Summary, events: Iterable[Event]) -> str:
        ...     return f"{summary.event_count} events, {summary.outcome}"
        >>> registered_summariser() is in_short
        True
        >>> forget_summariser()
    """
    check_summariser(function)
    with _registered.lock:
        _registered.function = function
    return function


def registered_summariser() -> Summariser | None:
    """The function that this process uses; None = the runtime's own text."""
    with _registered.lock:
        return _registered.function


def forget_summariser() -> None:
    """Lets the runtime write the summaries of this process again."""
    with _registered.lock:
        _registered.function = None


def check_summariser(function: object) -> None:
    """Refuses what can never work.

    Raises:
        InvalidSettingError: It is no plain function of a summary and its events.
    """
    problem = ""
    if not callable(function):
        problem = "it cannot be called"
    elif inspect.iscoroutinefunction(function):
        problem = "it is async; write a plain function"
    else:
        try:
            inspect.signature(function).bind(None, None)
        except TypeError:
            problem = "it has to take two arguments, a Summary and its events"
        except ValueError:
            problem = ""  # a builtin that tells nothing of its arguments: its first call will show
    if problem:
        raise InvalidSettingError(field="summariser", value=f"{function!r:.100}", problem=problem)
