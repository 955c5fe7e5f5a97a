"""JSON in and out, strictly: what is read back equals what was written, or the writing is refused."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from ares_celery.errors import UnserialisableError
from ares_celery.model.json_words import as_dict, why_no_json

__all__ = ["JSON_ERRORS", "decode_json", "encode_json", "exact_json", "unserialisable"]

#: What the codec raises for a value that JSON cannot hold.
JSON_ERRORS: Final = (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError)
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
    return UnserialisableError(what=what, agent_id=agent_id, problem=why_no_json(value))
