"""``${name}`` in a scenario: what its configuration says, or who runs it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any, Final, cast

from ares_celery.arena.problems import Place, Problems
from ares_celery.arena.values import as_list, as_mapping

__all__ = [
    "Filling",
    "Room",
    "Typed",
    "check_given",
    "defaults",
    "has_variable",
    "is_about_given",
    "resolve",
    "without_value",
]

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
    configuration: object, given: Mapping[str, Any], problems: Problems, *, environ: Mapping[str, str]
) -> dict[str, Any]:
    """The values of a configuration; what is given wins, what is missing is a problem.

    Args:
        configuration: As the file has it: values, or ``{type: env, key, default, env_var_type}``.
        given: Values of whoever runs it; a :class:`Typed` one is read as the configuration declares its name.
        problems: What is wrong is added.
        environ: The environment, as far as it is for whoever wrote the file.
    """
    found: dict[str, Any] = {}
    declared = as_mapping(configuration)
    said = {name: _said(name, value, declared.get(name), problems) for name, value in given.items()}
    for name, value in declared.items():
        if name in said:
            continue
        if isinstance(value, Mapping) and "type" in value:
            found.update(_from_env(name, as_mapping(cast("object", value)), problems, environ))
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


#: Stands for what was given, among the places of a file.
_GIVEN: Final = "variables"


def check_given(given: Collection[str], configuration: object, used: Collection[str], problems: Problems) -> None:
    """Adds each name that was given a value and stands nowhere in the scenario: a slip would change nothing unseen."""
    known = sorted({*as_mapping(configuration), *used})
    for name in given:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            problems.add((_GIVEN, name), f"the scenario has no variable {name!r}; {_meant(name, known) or has}")


def is_about_given(place: str) -> bool:
    """A problem of :func:`check_given`, by its place.

    Example:
        >>> is_about_given("variables.agentid"), is_about_given("method[0].name")
        (True, False)
    """
    return place.startswith(f"{_GIVEN}.")


def without_value(name: str, configuration: object, known: Collection[str]) -> str:
    """What to tell of a variable that has no value, and how to give it one.

    Example:
        >>> without_value("victm", {}, ["victim"])
        "variable 'victm' has no value; did you mean 'victim'? Else pass --var victm=…, or configure it"
        >>> without_value("who", {"who": {"type": "env", "key": "SHOP_WHO"}}, [])
        "variable 'who' has no value; pass --var who=…, or set SHOP_WHO"
    """
    key = as_mapping(as_mapping(configuration).get(name)).get("key")
    meant = _meant(name, known)
    give = f"{meant} Else pass" if meant else "pass"
    return f"variable {name!r} has no value; {give} --var {name}=…, or {f'set {key}' if key else 'configure it'}"


def _meant(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else ""


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
    elif value["key"].isprintable() and value["key"] in environ:
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


class Room:
    """How much variables may still add to a scenario: a few lines can stand for terabytes.

    Args:
        characters: In all.
    """

    def __init__(self, characters: int) -> None:
        self._left = characters
        self._sizes: dict[str, int] = {}

    @property
    def is_full(self) -> bool:
        """Something had no room."""
        return self._left < 0

    def takes(self, name: str, value: object) -> bool:
        """Whether there is room for one more use of a variable."""
        if not self.is_full:
            self._sizes.setdefault(name, _size(value))
            self._left -= self._sizes[name]
        return not self.is_full


def _size(value: object) -> int:
    """Characters of a value, roughly."""
    if isinstance(value, Mapping):
        return 2 + sum(len(str(name)) + _size(item) for name, item in as_mapping(cast("object", value)).items())
    if isinstance(value, list):
        return 2 + sum(_size(item) for item in as_list(cast("object", value)))
    return len(value) if isinstance(value, str) else 8


class Filling:
    """Replaces the variables of a scenario.

    Args:
        known: Their values.
        missing: Told the place and the name of each that has none.
        room: For what is filled in; what has none stays as it is.

    Example:
        >>> Filling({"x": 3}, print, Room(1_000)).of({"a": "${x}", "b": ["is ${x}"]})
        {'a': 3, 'b': ['is 3']}
    """

    def __init__(self, known: Mapping[str, Any], missing: Callable[[Place, str], object], room: Room) -> None:
        self._known = known
        self._missing = missing
        self._room = room
        #: The names that stood somewhere, with a value or without.
        self.used: set[str] = set()

    def of(self, value: Any, place: Place = ()) -> Any:  # noqa: ANN401 - JSON values
        """The value with its variables replaced; one that is its whole text keeps its type."""
        if isinstance(value, Mapping):
            items = as_mapping(cast("object", value)).items()
            return {name: self.of(item, (*place, name)) for name, item in items}
        if isinstance(value, list):
            return [self.of(item, (*place, number)) for number, item in enumerate(as_list(cast("object", value)))]
        if not isinstance(value, str):
            return value
        whole = _VARIABLE.fullmatch(value)
        if whole and whole[1] in self._known:
            self.used.add(whole[1])
            return self._known[whole[1]] if self._room.takes(whole[1], self._known[whole[1]]) else value
        return _VARIABLE.sub(lambda match: self._in_text(match, place), value)

    def _in_text(self, match: re.Match[str], place: Place) -> str:
        name = match[1]
        self.used.add(name)
        if name not in self._known:
            self._missing(place, name)
            return match[0]
        return str(self._known[name]) if self._room.takes(name, self._known[name]) else match[0]
