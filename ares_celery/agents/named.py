"""Functions that modules register under a name, and what tests put in their place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar, cast

from ares_celery.errors import AresError

__all__ = ["NamedFunctions", "check_decorated", "origin_of"]


class _Named(Protocol):
    """What is registered."""

    @property
    def name(self) -> str: ...
    @property
    def function(self) -> Callable[..., Any]: ...


D = TypeVar("D", bound=_Named)


class NamedFunctions(Generic[D]):
    """A set of registered functions of one kind, each with what is known of it.

    Args:
        refusal: Makes the error of this kind from a name and a problem.
    """

    def __init__(self, refusal: Callable[[str, str], AresError]) -> None:
        self._refusal = refusal
        self._known: dict[str, D] = {}
        self._replaced: dict[str, list[object]] = {}

    def add(self, made: D) -> D:
        """Adds one; again by the same function, as when its module is loaded again, it is replaced.

        Raises:
            AresError: Another function holds the name, or it has none.
        """
        if not cast("object", made.name) or not isinstance(cast("object", made.name), str):
            raise self._refusal(str(made.name), "a name is needed: a string that is not empty")
        known = self._known.get(made.name)
        if known is not None and origin_of(known.function) != origin_of(made.function):
            raise self._refusal(made.name, f"{origin_of(known.function)} holds the name already; choose another")
        self._known[made.name] = made
        return made

    def get(self, name: str) -> D:
        """The one of this name.

        Raises:
            AresError: Nobody registered it here; the text names those that are.
        """
        found = self._known.get(name)
        if found is None:
            known = ", ".join(self.names()) or "none"
            cure = "correct the name, or import the module that registers it"
            raise self._refusal(name, f"nobody registered it in this process; known: {known}; {cure}")
        return found

    def name_of(self, which: object) -> str:
        """The name itself, or that of a registered function.

        Raises:
            AresError: The function is not registered.
        """
        if isinstance(which, str):
            return which
        for known in self._known.values():
            if known.function is which:
                return known.name
        raise self._refusal(getattr(which, "__qualname__", repr(which)), "this function is not registered here")

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(self._known)

    def override(self, name: str, value: object) -> AbstractContextManager[None]:
        """Has everybody in this process get ``value`` while the block runs.

        Raises:
            AresError: The name is not registered: with a mistyped one, the real thing would be used.
        """
        self.get(name)
        return self._override(name, value)

    @contextmanager
    def _override(self, name: str, value: object) -> Generator[None]:
        values = self._replaced.setdefault(name, [])
        values.append(value)
        try:
            yield
        finally:
            # By identity, as blocks of two threads may end in any order.
            place = next(at for at in range(len(values) - 1, -1, -1) if values[at] is value)
            del values[place]

    def replacement(self, name: str) -> tuple[bool, Any]:
        """Whether something stands in for the name, and what."""
        values = self._replaced.get(name)
        return (True, values[-1]) if values else (False, None)


def check_decorated(name: object, decorator: str, refusal: Callable[[str, str], AresError]) -> None:
    """Refuses a decorator that is written without its name.

    Raises:
        AresError: The name is the decorated thing, or no text.
    """
    if isinstance(name, str):
        return
    shown = getattr(name, "__qualname__", None) or repr(name)
    raise refusal(shown, f'the decorator takes a name, which is a text: write @{decorator}("name")')


def origin_of(function: Callable[..., Any]) -> str:
    """Module and qualified name of a function."""
    inner = inspect.unwrap(function)
    return f"{getattr(inner, '__module__', '?')}.{getattr(inner, '__qualname__', repr(inner))}"
