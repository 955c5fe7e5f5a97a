"""JSON in and out, strictly: what is read back equals what was written, or the writing is refused."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from ares_celery.errors import UnserialisableError

__all__ = ["JSON_ERRORS", "as_dict", "decode_json", "encode_json", "exact_json", "unserialisable"]

#: What the codec raises for a value that JSON cannot hold.
JSON_ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
_PLAIN: Final = (str, int, float, bool, type(None))
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder()


def decode_json(data: bytes) -> Any:  # noqa: ANN401 - JSON values
    """Reads a JSON value.

    Raises:
        ValueError: It is none.
    """
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        # A ValueError only in newer versions of msgspec.
        raise ValueError(str(error)) from error


def encode_json(value: object, *, what: str, agent_id: str) -> tuple[bytes, Any]:
    """Writes a value as compact JSON.

    Args:
        value: dict, list, str, int, float, bool or None, nested as you like; the outermost may be any mapping.
        what: Names the value in the error.
        agent_id: Whose it is, for the error.

    Returns:
        The bytes, and the value as everybody will read it.

    Raises:
        UnserialisableError: Something in it has no place in JSON (a set, a datetime, NaN, a key that is not a text, …);
            names where.
    """
    exact = exact_json(value)
    if exact is None:
        raise unserialisable(value, what=what, agent_id=agent_id)
    return exact


def exact_json(value: object) -> tuple[bytes, Any] | None:
    """Does what :func:`encode_json` does, but for a value that JSON cannot hold it returns None."""
    plain = as_dict(value)
    try:
        data = _encoder.encode(plain)
        decoded = _decoder.decode(data)
        # The encoder is generous: tuples become lists, dates texts, NaN null. Nothing that was bent comes back equal.
        faithful = bool(decoded == plain)
    except JSON_ERRORS:
        return None
    return (data, decoded) if faithful else None


def unserialisable(value: object, *, what: str, agent_id: str) -> UnserialisableError:
    """The error for a value that JSON cannot hold; says which part of it, and where."""
    return UnserialisableError(what=what, agent_id=agent_id, problem=_problem(as_dict(value)))


def as_dict(value: object) -> Any:  # noqa: ANN401 - JSON values
    """The value, if it is a mapping of another kind, as a dict."""
    is_foreign = type(value) is not dict and isinstance(value, Mapping)
    return dict(cast("Mapping[object, object]", value)) if is_foreign else cast("Any", value)


def _problem(value: object) -> str:
    try:
        return _find(value, "") or "it cannot be written as JSON"
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
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def _at(place: str) -> str:
    return f"at {place.removeprefix('.')}" if place else "as the outermost value"


def _of(place: str) -> str:
    return f"of the object at {place.removeprefix('.')}" if place else "of the outermost object"


def _the_value(place: str) -> str:
    return f"the value at {place.removeprefix('.')}" if place else "the outermost value"


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
