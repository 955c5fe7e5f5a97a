"""``${name}`` in a scenario: what its configuration says, or who runs it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from ares_celery.arena.problems import Place, Problems
from ares_celery.arena.values import as_list, as_mapping

__all__ = ["Typed", "defaults", "filled", "has_variable", "resolve"]

_VARIABLE: Final = re.compile(r"\$\{([^{}]+)\}")


class Typed(str):
    """A value as a person typed it: what it stands for, the configuration says, or else its look."""

    __slots__ = ()


def _bool(text: str) -> bool:
    if text.lower() in {"1", "true", "yes"}:
        return True
    if text.lower() in {"0", "false", "no", ""}:
        return False
    message = f"{text!r} is neither true nor false"
    raise ValueError(message)


_KINDS: Final[Mapping[str, Callable[[str], Any]]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": _bool,
    "json": json.loads,
}


def resolve(
    configuration: object, given: Mapping[str, Any], problems: Problems, *, environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The values of a configuration; what is given wins, what is missing is a problem.

    Args:
        configuration: As the file has it: values, or ``{type: env, key, default, env_var_type}``.
        given: Values of whoever runs it; a :class:`Typed` one is read as the configuration declares its name.
        problems: What is wrong is added.
        environ: Injected in tests.
    """
    found: dict[str, Any] = {}
    declared = as_mapping(configuration)
    said = {name: _said(name, value, declared.get(name), problems) for name, value in given.items()}
    for name, value in declared.items():
        if name in said:
            continue
        if isinstance(value, Mapping) and "type" in value:
            found.update(_from_env(name, as_mapping(cast("object", value)), problems, environ or os.environ))
        else:
            found[name] = value
    return {**found, **said}


def defaults(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """What holds for each variable when neither the environment nor anybody says so; None: nothing does.

    Example:
        >>> defaults({"agent_id": {"type": "env", "key": "WHO"}, "count": 3})
        {'agent_id': None, 'count': 3}
    """
    return {
        name: as_mapping(value).get("default") if as_mapping(value).get("type") == "env" else value
        for name, value in configuration.items()
    }


def _said(name: str, value: Any, declared: object, problems: Problems) -> Any:  # noqa: ANN401 - JSON
    """A given value as what it stands for: an agent may be called 7."""
    if not isinstance(value, Typed):
        return value
    text, told = str(value), as_mapping(declared)
    if told.get("type") == "env":
        kind = _KINDS.get(str(told.get("env_var_type", "str")), str)
        try:
            return kind(text)
        except ValueError as error:
            problems.add(("configuration", name), f"what was given for it cannot be used: {error}")
            return text
    try:
        seen = json.loads(text)
    except ValueError:
        return text
    return seen if isinstance(seen, (bool, int, float)) else text


def _from_env(name: str, value: Mapping[str, Any], problems: Problems, environ: Mapping[str, str]) -> Mapping[str, Any]:
    place: Place = ("configuration", name)
    extra = sorted(set(value) - {"type", "key", "default", "env_var_type"})
    kind = _KINDS.get(str(value.get("env_var_type", "str")))
    if value["type"] != "env":
        problems.add((*place, "type"), f"{value['type']!r} is not supported here; give a value, or `type: env`")
    elif not isinstance(value.get("key"), str):
        problems.add((*place, "key"), "name the environment variable")
    elif extra:
        problems.add((*place, extra[0]), "there is no such field; there are type, key, default, env_var_type")
    elif kind is None:
        problems.add((*place, "env_var_type"), f"it is one of {', '.join(_KINDS)}")
    elif value["key"] in environ:
        try:
            return {name: kind(environ[value["key"]])}
        except ValueError as error:
            problems.add(place, f"environment variable {value['key']} cannot be used: {error}")
    elif "default" in value:
        return {name: value["default"]}
    return {}


def has_variable(value: object) -> bool:
    """A text that stands for something that is not known yet.

    Example:
        >>> has_variable("${agent_id}"), has_variable("a")
        (True, False)
    """
    return isinstance(value, str) and _VARIABLE.search(value) is not None


def filled(value: Any, known: Mapping[str, Any], missing: Callable[[Place, str], object], place: Place = ()) -> Any:  # noqa: ANN401 - JSON values
    """The value with its variables replaced; one that is its whole text keeps its type.

    Example:
        >>> filled({"a": "${x}", "b": ["is ${x}"]}, {"x": 3}, print)
        {'a': 3, 'b': ['is 3']}
    """
    if isinstance(value, Mapping):
        items = as_mapping(cast("object", value)).items()
        return {name: filled(item, known, missing, (*place, name)) for name, item in items}
    if isinstance(value, list):
        numbered = enumerate(as_list(cast("object", value)))
        return [filled(item, known, missing, (*place, number)) for number, item in numbered]
    if not isinstance(value, str):
        return value
    whole = _VARIABLE.fullmatch(value)
    if whole and whole[1] in known:
        return known[whole[1]]

    def replaced(match: re.Match[str]) -> str:
        if match[1] in known:
            return str(known[match[1]])
        missing(place, match[1])
        return match[0]

    return _VARIABLE.sub(replaced, value)
