"""What an error carries, as plain JSON: one odd value must not cost a caller all the others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

__all__ = ["plain_fields"]

#: Levels of nested data that are kept as they are.
_DEEPEST: Final = 20
_AS_THEY_ARE: Final = frozenset({type(None), bool, int})


def plain_fields(fields: Mapping[Any, Any]) -> dict[str, Any]:
    """The fields of an error as JSON: of what is none its text.

    Example:
        >>> plain_fields({"ids": {"a"}, "cause": ValueError("no"), "share": float("nan")})
        {'ids': ['a'], 'cause': 'no', 'share': 'nan'}
    """
    return {str(name): _plain(value, 1) for name, value in fields.items()}


def _plain(value: object, level: int) -> Any:  # noqa: ANN401 - JSON
    if type(value) in _AS_THEY_ARE:
        return value
    if isinstance(value, str):
        # Of an enumeration's member its value.
        return _readable(str.__str__(value))
    if isinstance(value, (int, float)):
        return _number(value)
    if level < _DEEPEST and isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        return {_text(name): _plain(one, level + 1) for name, one in entries.items()}
    if level < _DEEPEST and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(one, level + 1) for one in cast("list[object]", value)]
    return _text(value)


def _number(value: float) -> Any:  # noqa: ANN401 - a number, or its text where JSON has none
    if isinstance(value, int):
        return int(value)
    return float(value) if math.isfinite(value) else str(value)


def _text(value: object) -> str:
    try:
        return _readable(str(value))
    except Exception as error:  # noqa: BLE001 - whatever the text of a stranger's object raises
        return f"<{type(value).__name__} without a text: {type(error).__name__}>"


def _readable(text: str) -> str:
    """Halves of surrogate pairs are no Unicode, and other languages refuse them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
