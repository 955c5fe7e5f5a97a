"""Bringing old states to the schema of the code at hand: one function for each step, chained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast

from ares_celery.errors import AgentSignal, AgentTypeError, StateUpcastError
from ares_celery.errors.wording import describe_error

__all__ = ["UPCASTERS", "Upcaster", "Upcasters", "upcaster"]

Upcaster = Callable[[dict[str, Any]], Mapping[str, Any]]
F = TypeVar("F", bound=Upcaster)


class Upcasters:
    """The upcasters of some agent types."""

    def __init__(self) -> None:
        """Begins empty."""
        self._steps: dict[tuple[str, int], Upcaster] = {}

    def add(self, agent_type: str, from_version: int, function: Upcaster) -> None:
        """Adds the step from one schema to the next; again from the same module and name it is replaced.

        Raises:
            AgentTypeError: Another function does this step already, or the version is none.
        """
        if from_version < 1 or not callable(cast("object", function)):
            problem = f"an upcaster is a function and begins at version 1 or later, not {from_version}"
            raise AgentTypeError(type=agent_type, problem=problem)
        known = self._steps.get((agent_type, from_version))
        if known is not None and _origin(known) != _origin(function):
            problem = f"{_origin(known)} upcasts from version {from_version} already"
            raise AgentTypeError(type=agent_type, problem=problem)
        self._steps[agent_type, from_version] = function

    def upcast(
        self, state: Mapping[str, Any], *, agent_id: str, agent_type: str, found: int, wanted: int
    ) -> dict[str, Any]:
        """The state at schema ``wanted``, step by step from ``found``.

        Raises:
            StateUpcastError: A step is missing, raised, or gave no mapping; the text names it.
        """
        current = dict(state)
        for version in range(found, wanted):
            try:
                current = self._step(current, agent_type, version)
            except AgentSignal:
                raise
            except BaseException as error:
                problem = error.problem if isinstance(error, AgentTypeError) else describe_error(error)
                raise StateUpcastError(
                    agent_id=agent_id, type=agent_type, from_version=version, to_version=version + 1, problem=problem
                ) from error
        return current

    def _step(self, state: dict[str, Any], agent_type: str, version: int) -> dict[str, Any]:
        step = self._steps.get((agent_type, version))
        if step is None:
            problem = f"there is no upcaster; write one with @upcaster({agent_type!r}, from_version={version})"
            raise AgentTypeError(type=agent_type, problem=problem)
        given = step(state)
        if not isinstance(cast("object", given), Mapping):
            problem = f"{_origin(step)} returned a {type(given).__name__}, not a mapping"
            raise AgentTypeError(type=agent_type, problem=problem)
        return dict(given)


def _origin(function: Callable[..., Any]) -> str:
    """Module and qualified name."""
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


#: The process's own upcasters, which ``@upcaster`` fills.
UPCASTERS: Final = Upcasters()


def upcaster(agent_type: str, /, *, from_version: int) -> Callable[[F], F]:
    """Registers a function that turns a state of one schema into one of the next; they are chained.

    It gets the state as a dict of its own and returns the new one; it must have no effect outside.

    Args:
        agent_type: Whose state.
        from_version: The schema that it takes; it gives the next one.

    Raises:
        AgentTypeError: Another function does this step already.

    Example:
        >>> @upcaster("doc-counter", from_version=1)
        ... def name_the_total(state: dict[str, object]) -> dict[str, object]:
        ...     return {"total": state["n"]}
        >>> UPCASTERS.upcast({"n": 3}, agent_id="c", agent_type="doc-counter", found=1, wanted=2)
        {'total': 3}
    """

    def register(function: F) -> F:
        UPCASTERS.add(agent_type, from_version, function)
        return function

    return register
