"""Which functions a scenario may call, and whether its arguments fit them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, Final

from ares_celery.arena.problems import Place, Problems
from ares_celery.arena.values import as_mapping
from ares_celery.arena.variables import has_variable
from ares_celery.chaos.moved_clock import parse_offset
from ares_celery.errors import OperationNotSupportedError
from ares_celery.ids import check_agent_id
from ares_celery.model.durations import parse_duration
from ares_celery.model.fault import LLM_ERRORS

__all__ = ["OUR_MODULES", "check_call", "find_function"]

#: What a scenario may call unless whoever runs it allows more: a file is data of somebody else.
OUR_MODULES: Final = ("ares_celery.arena.actions", "ares_celery.arena.probes")
#: Longest of all spans: those of faults, which end by themselves.
_LONGEST: Final = timedelta(hours=24)


def find_function(module: str, func: str, allowed: Collection[str]) -> Callable[..., Any]:
    """The function that a scenario names.

    Raises:
        OperationNotSupportedError: The module is not allowed, or has no such public function.
    """
    if module not in (*OUR_MODULES, *allowed):
        raise OperationNotSupportedError(
            operation=f"calling module {module!r}",
            reason=f"a scenario may call {' and '.join(OUR_MODULES)}; allow more with --allow-module",
        )
    try:
        found = import_module(module)
    except Exception as error:
        raise OperationNotSupportedError(
            operation=f"calling module {module!r}", reason=f"it cannot be imported: {type(error).__name__}: {error}"
        ) from error
    names = getattr(found, "__all__", None)
    function = None if func.startswith("_") or (names is not None and func not in names) else getattr(found, func, None)
    if not inspect.isfunction(function):
        listed = ", ".join(sorted(names)) if names else "its public ones"
        raise OperationNotSupportedError(
            operation=f"calling {module}.{func}", reason=f"there is no such function; there are {listed}"
        )
    return function


def check_call(
    module: str, func: str, arguments: object, *, allowed: Collection[str], place: Place, problems: Problems
) -> None:
    """Adds what is wrong with a call: its module, its function, names and values of its arguments."""
    try:
        function = find_function(module, func, allowed)
    except OperationNotSupportedError as error:
        is_module = "there is no such function" not in str(error)
        problems.add((*place, "module" if is_module else "func"), f"{error.operation} is not possible: {error.reason}")
        return
    given = as_mapping(arguments)
    parameters = inspect.signature(function).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    for name in given:
        if name not in parameters and not takes_any:
            problems.add((*place, "arguments", name), f"{func} takes {', '.join(parameters) or 'nothing'}")
    for name, parameter in parameters.items():
        # Chaos Toolkit fills these in.
        is_needed = parameter.default is parameter.empty and parameter.kind not in (2, 4)
        if is_needed and name not in given and name not in {"configuration", "secrets"}:
            problems.add((*place, "arguments", name), f"{func} needs it, and it is missing")
    if module in OUR_MODULES:
        for name, value in given.items():
            if not has_variable(value) and (problem := _wrong_value(name, value, parameters)):
                problems.add((*place, "arguments", name), problem)


def _wrong_value(name: str, value: Any, parameters: Mapping[str, inspect.Parameter]) -> str:  # noqa: ANN401 - JSON
    """What is wrong with the value of one of our actions' arguments; empty when it may be right."""
    check = _CHECKS.get(name)
    if check is None or name not in parameters or (value is None and parameters[name].default is None):
        return ""
    try:
        check(value)
    except ValueError as error:
        return str(error)
    return ""


def _span(value: object) -> None:
    span = parse_duration(value)
    if not timedelta(0) <= span <= _LONGEST:
        message = f"{value!r} is not possible; it is from 0 to 24 hours"
        raise ValueError(message)


def _count(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        message = f"{value!r} is not possible; it is a whole number of 1 or more"
        raise ValueError(message)


def _probability(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
        message = f"{value!r} is not possible; it is above 0 and at most 1"
        raise ValueError(message)


def _error_type(value: object) -> None:
    if value not in LLM_ERRORS:
        message = f"{value!r} is no such error; there are {', '.join(LLM_ERRORS)}"
        raise ValueError(message)


def _flag(value: object) -> None:
    if not isinstance(value, bool):
        message = f"{value!r} is neither true nor false"
        raise ValueError(message)  # noqa: TRY004 - what is wrong is the value of a file


def _agent_id(value: object) -> None:
    if not isinstance(value, str):
        message = f"{value!r} is no agent id"
        raise ValueError(message)  # noqa: TRY004 - as above
    check_agent_id(value)


_CHECKS: Final[Mapping[str, Callable[[Any], object]]] = {
    "agent_id": _agent_id,
    "delay": _span,
    "duration": _span,
    "offset": parse_offset,
    "timeout": _span,
    "wait": _span,
    "within": _span,
    "retry_after": _span,
    "count": _count,
    "probability": _probability,
    "error_type": _error_type,
    "force": _flag,
}
