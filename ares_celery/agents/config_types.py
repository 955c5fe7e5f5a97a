"""What a constructor's annotations say of a config, in a form that other processes can read."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

__all__ = ["Alternatives", "fits", "in_words", "kind_of", "parameter_types"]

#: What a value may be, any of these: the name of a plain type; ``{"list": …}`` and ``{"dict": …}`` with what they hold,
#: null for anything; ``{"literal": […]}`` with the values.
Alternatives = Sequence[Any]

_PLAIN: Final[Mapping[object, str]] = {
    int: "int",
    float: "float",
    str: "str",
    bool: "bool",
    type(None): "None",
    None: "None",
    list: "list",
    dict: "dict",
}
_HOLDERS: Final[Mapping[object, str]] = {list: "list", dict: "dict", Mapping: "dict"}
_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "int": lambda value: isinstance(value, int) or (isinstance(value, float) and value.is_integer()),
    "float": lambda value: isinstance(value, (int, float)),
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "None": lambda value: value is None,
    "list": lambda value: isinstance(value, (list, tuple)),
    "dict": lambda value: isinstance(value, Mapping),
}
#: What a person calls the JSON values.
_KINDS: Final = ((bool, "a truth value"), ((int, float), "a number"), (str, "a text"), (Mapping, "an object"))


def parameter_types(factory: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> dict[str, Alternatives]:
    """What each parameter takes; those are left out of which the annotation says nothing that JSON values could break.

    Example:
        >>> def make(agent_id: str, pause: float = 1.0, words: "list[str] | None" = None): ...
        >>> parameter_types(make, list(inspect.signature(make).parameters.values())[1:])
        {'pause': ['float'], 'words': [{'list': ['str']}, 'None']}
    """
    inner: Any = inspect.unwrap(factory)
    if inspect.isclass(inner):
        inner = inspect.unwrap(cast("Any", inner).__init__)
    names = getattr(inner, "__globals__", {})
    found: dict[str, Alternatives] = {}
    for parameter in parameters:
        takes = _alternatives(_resolved(parameter.annotation, names))
        if takes is not None:
            # As people wrote `name: str = None` for long.
            found[parameter.name] = [*takes, "None"] if parameter.default is None and "None" not in takes else takes
    return found


def _resolved(annotation: object, names: dict[str, Any]) -> object:
    if annotation is inspect.Parameter.empty:
        return Any
    try:
        return get_type_hints(SimpleNamespace(__annotations__={"it": annotation}), globalns=names)["it"]
    except Exception:  # noqa: BLE001 - a name that is imported for type checkers alone, or anything else a text may hold
        return Any


def _alternatives(annotation: object) -> list[Any] | None:
    """None: anything, as far as we can tell."""
    if annotation in (list, dict, int, float, str, bool, type(None), None):
        return [_PLAIN[annotation]]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        parts = [_alternatives(part) for part in inner]
        return None if any(part is None for part in parts) else [one for part in parts for one in part or ()]
    if origin is Literal:
        plain = all(isinstance(value, (str, int, bool, type(None))) and type(value) in _PLAIN for value in inner)
        return [{"literal": list(inner)}] if plain else None
    if origin in _HOLDERS:
        return [{_HOLDERS[origin]: _alternatives(inner[-1])}]
    return None


def fits(value: object, takes: Alternatives | None) -> bool:
    """Whether a constructor that takes this can use the JSON value as it is; a whole number passes for a float.

    Example:
        >>> fits(2, ["float"]), fits("2", ["float"]), fits([1, "a"], [{"list": ["int"]}])
        (True, False, False)
    """
    return takes is None or any(_fits_one(value, one) for one in takes)


def _fits_one(value: object, one: object) -> bool:
    # A word that is not known here is one of a newer version.
    if not isinstance(one, Mapping):
        check = _CHECKS.get(str(one))
        return check is None or check(value)
    ((kind, inner),) = cast("Mapping[str, Any]", one).items()
    if kind == "literal":
        return value in inner
    if not _CHECKS[kind](value):
        return False
    held = cast("Mapping[str, Any]", value).values() if kind == "dict" else cast("Sequence[Any]", value)
    return all(fits(item, inner) for item in held)


def in_words(takes: Alternatives | None) -> str:
    """The types as code has them.

    Example:
        >>> in_words([{"list": ["int"]}, {"literal": ["a", 1]}, "None"])
        "list[int] | Literal['a', 1] | None"
    """
    return "Any" if takes is None else " | ".join(_word(one) for one in takes)


def _word(one: object) -> str:
    if not isinstance(one, Mapping):
        return str(one)
    ((kind, inner),) = cast("Mapping[str, Any]", one).items()
    if kind == "literal":
        return f"Literal[{', '.join(map(repr, inner))}]"
    return f"{kind}[{'str, ' if kind == 'dict' else ''}{in_words(inner)}]"


def kind_of(value: object) -> str:
    """What a value is, without the value: configs may hold what no log may show."""
    if value is None:
        return "null"
    return next((word for kind, word in _KINDS if isinstance(value, kind)), "a list")
