"""Functions of agent modules that are called with each dead letter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from ares_celery.errors import WorkerHookError
from ares_celery.model.message import DeadLetter

__all__ = ["HANDLERS", "DeadLetterHandlers", "dead_letter_handler"]

F = TypeVar("F", bound=Callable[[DeadLetter], Any])
#: The decorator was called with nothing, instead of being written above a function.
_NOTHING: Final[Any] = None


class DeadLetterHandlers:
    """The handlers of one process; filled when modules are imported, never by a message."""

    def __init__(self) -> None:
        """Begins empty."""
        self._handlers: dict[str, Callable[[DeadLetter], Any]] = {}

    def register(self, handler: Callable[[DeadLetter], Any]) -> None:
        """Adds a handler; the same again, as when its module is loaded again, replaces itself.

        Raises:
            WorkerHookError: It is no function.
        """
        if not callable(cast("object", handler)):
            problem = "write @dead_letter_handler above a function, without parentheses"
            raise WorkerHookError(hook="dead_letter_handler", problem=problem)
        module = getattr(handler, "__module__", "?")
        self._handlers[f"{module}.{getattr(handler, '__qualname__', repr(handler))}"] = handler

    def forget(self) -> None:
        """Knows no handler any more; for tests."""
        self._handlers.clear()

    def items(self) -> list[tuple[str, Callable[[DeadLetter], Any]]]:
        """Each handler with its name."""
        return list(self._handlers.items())


#: The process's own handlers, which the decorator fills.
HANDLERS: Final = DeadLetterHandlers()


def dead_letter_handler(function: F = _NOTHING, /) -> F:
    """Registers a plain function that some worker calls with each dead letter, at least once.

    A letter is removed once every handler has returned for it. One that raises, or takes longer than 30 s, is called
    again later; the others go on. Without a handler letters stay, see ``ares dead ls``.

    Raises:
        WorkerHookError: It is no function.

    Example:
        >>> @dead_letter_handler
        ... def tell(letter: DeadLetter) -> None:
        ...     print(letter.agent_id, letter.reason.value, letter.body)
        >>> HANDLERS.forget()  # only here: a worker's module keeps it
    """
    HANDLERS.register(function)
    return function
