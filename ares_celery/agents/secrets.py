"""What must not be stored as it is: a function of the deployment's own says what is stored instead."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, cast, overload

from ares_celery.agents.named import origin_of
from ares_celery.errors import AresError, InvalidSettingError, SecretsHookError

__all__ = ["SECRETS", "SecretsHooks", "StoredPlace", "secrets_hook"]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class StoredPlace:
    """Where a value is about to be stored.

    Attributes:
        agent_id: Whose step.
        agent_type: The agent's type.
        execution: The execution that the step belongs to.
        step: The step's id, behind those of the steps around it.
        function: The function that is recorded.
        what: ``result`` of a step; ``arguments`` or ``error`` of one that must not run twice.
    """

    agent_id: str
    agent_type: str
    execution: str
    step: str
    function: str
    what: Literal["result", "arguments", "error"]


Hide = Callable[[Any, StoredPlace], Any]


class SecretsHooks:
    """The hook of a process, and its way back."""

    def __init__(self) -> None:
        self._hide: Hide | None = None
        self._reveal: Hide | None = None

    @property
    def is_set(self) -> bool:
        """There is one."""
        return self._hide is not None

    def register(self, hide: Hide, reveal: Hide | None = None) -> None:
        """Makes it the hook of this process; the same function again, as when its module is loaded again, replaces it.

        Raises:
            InvalidSettingError: One of them cannot be called, or another hook is registered.
        """
        for name, function in (("secrets_hook", hide), ("reveal", reveal)):
            if function is not None and not callable(cast("object", function)):
                raise InvalidSettingError(
                    field=name, value=repr(function)[:200], problem="give a function of (value, place)"
                )
        if self._hide is not None and origin_of(self._hide) != origin_of(hide):
            problem = f"{origin_of(self._hide)} is the hook of this process already; call the one from the other"
            raise InvalidSettingError(field="secrets_hook", value=origin_of(hide), problem=problem)
        self._hide, self._reveal = hide, reveal

    def hide(self, value: Any, place: StoredPlace) -> Any:  # noqa: ANN401 - JSON values
        """What is stored instead.

        Raises:
            SecretsHookError: The hook raised; nothing may be stored.
        """
        return value if self._hide is None else _called(self._hide, value, place)

    def reveal(self, value: Any, place: StoredPlace) -> Any:  # noqa: ANN401 - JSON values
        """What the agent gets of what is stored. Raises SecretsHookError."""
        return value if self._reveal is None else _called(self._reveal, value, place)

    @contextmanager
    def override(self, hide: Hide | None, reveal: Hide | None = None) -> Generator[None]:
        """Has another hook, or none, while the block runs; for tests."""
        before = self._hide, self._reveal
        self._hide, self._reveal = hide, reveal
        try:
            yield
        finally:
            self._hide, self._reveal = before


def _called(function: Hide, value: Any, place: StoredPlace) -> Any:  # noqa: ANN401 - JSON values
    try:
        return function(value, place)
    except AresError:
        raise
    except Exception as error:
        # Without what it raised in words: that may be the secret itself.
        raise SecretsHookError(
            agent_id=place.agent_id,
            execution=place.execution,
            step=place.step,
            what=place.what,
            problem=f"{origin_of(function)} raised {type(error).__name__}",
        ) from error


#: The process's own, which ``@secrets_hook`` fills.
SECRETS: Final = SecretsHooks()


@overload
def secrets_hook(function: F, /) -> F: ...
@overload
def secrets_hook(*, reveal: Hide | None = None) -> Callable[[F], F]: ...
def secrets_hook(function: Callable[..., Any] | None = None, /, *, reveal: Hide | None = None) -> Any:
    """Registers what this process asks before a result of a step, or an argument of a ``never`` one, is stored.

    The function gets the value and a :class:`StoredPlace` and returns what is stored instead, as JSON. The agent gets
    what is stored, in its first life too, unless ``reveal`` makes the value of it again: encrypt in the one, decrypt in
    the other. It runs where the step runs, on the event loop of an async agent, so it does not wait for anything. When
    it raises, nothing is stored. Register the same one in every worker.

    Args:
        function: When it is written without parentheses.
        reveal: Makes what the agent gets of what is stored.

    Raises:
        InvalidSettingError: It cannot be called, or this process has another hook.

    Example:
        >>> from ares_celery.agents.secrets import SECRETS
        >>> def mask(value, place):
        ...     return {**value, "token": "***"} if "token" in value else value
        >>> with SECRETS.override(None):
        ...     secrets_hook(mask) is mask
        True
    """

    def register(hide: F) -> F:
        SECRETS.register(hide, reveal)
        return hide

    return register if function is None else register(function)
