"""What a value that JSON cannot hold has in it, in words. Pure."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Final, cast

__all__ = ["as_dict", "why_no_json"]

_PLAIN: Final = (str, int, float, bool, type(None))


def as_dict(value: object) -> Any:  # noqa: ANN401 - JSON values
    """The value, if it is a mapping of another kind, as a dict."""
    is_foreign = type(value) is not dict and isinstance(value, Mapping)
    return dict(cast("Mapping[object, object]", value)) if is_foreign else cast("Any", value)


def why_no_json(value: object) -> str:
    """Which part of a value JSON cannot hold, and where it is.

    Example:
        >>> why_no_json({"a": [1, {2}]}), why_no_json(float("nan"))
        ("the value at 'a[1]' is a set", 'nan as the outermost value is no JSON number')
    """
    try:
        return _find(as_dict(value), "") or "it cannot be written as JSON"
    except RecursionError:
        return "it is nested too deeply or contains itself"


def _find(value: object, place: str) -> str:
    """Says what the first part without a place in JSON is, and where; empty when every part has one."""
    if isinstance(value, dict):
        items = cast("dict[object, object]", value).items()
        return next(filter(None, (_find_in(key, item, place) for key, item in items)), "")
    if isinstance(value, list):
        parts = enumerate(cast("list[object]", value))
        return next(filter(None, (_find(item, f"{place}[{number}]") for number, item in parts)), "")
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} {_at(place)} is no JSON number"
    if isinstance(value, str) and not value.isascii() and not _is_text(value):
        return f"the text {_at(place)} holds half of a surrogate pair"
    return "" if isinstance(value, _PLAIN) else f"{_the_value(place)} is {_kind(value)}"


def _find_in(key: object, item: object, place: str) -> str:
    if not isinstance(key, str):
        return f"the key {key!r:.100} {_of(place)} is {_kind(key)}, not a str"
    return _find(key, f"{place}.{key}") or _find(item, f"{place}.{key}")


def _kind(value: object) -> str:
    name = type(value).__name__
    hint = " (was await forgotten?)" if inspect.isawaitable(value) else ""
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}{hint}"


def _at(place: str) -> str:
    return f"at {place.removeprefix('.')!r}" if place else "as the outermost value"


def _of(place: str) -> str:
    return f"of the object at {place.removeprefix('.')!r}" if place else "of the outermost object"


def _the_value(place: str) -> str:
    return f"the value at {place.removeprefix('.')!r}" if place else "the outermost value"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
