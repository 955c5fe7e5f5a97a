"""What comes in: bodies and queries, checked before anything is asked of a store."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NoReturn, cast

from ares_celery.errors import InvalidSettingError

__all__ = ["LARGEST_BODY", "demand_known", "demand_one_of_each", "read_body"]

#: Bytes; the same as for the file of a scenario.
LARGEST_BODY: Final = 10 * 1024 * 1024


def read_body(raw: bytes) -> dict[str, Any]:
    """The fields of a JSON body; an empty one has none.

    Raises:
        InvalidSettingError: It is no JSON object, or too large.

    Example:
        >>> read_body(b'{"delay": "500ms"}'), read_body(b"")
        ({'delay': '500ms'}, {})
    """
    if len(raw) > LARGEST_BODY:
        raise _no_body(raw[:0], f"it has {len(raw)} bytes, the limit is {LARGEST_BODY}")
    if not raw.strip():
        return {}
    try:
        found: object = json.loads(raw, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise _no_body(raw, "it is nested too deeply") from error
    except ValueError as error:
        raise _no_body(raw, f"it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _no_body(raw, 'it has to be a JSON object, such as {"reason": "game day"}')
    return cast("dict[str, Any]", found)


def _refuse_constant(name: str) -> NoReturn:
    message = f"{name} is no JSON"
    raise ValueError(message)


def _no_body(raw: bytes, problem: str) -> InvalidSettingError:
    return InvalidSettingError(field="body", value=raw[:100].decode(errors="replace"), problem=problem)


def demand_known(given: Mapping[str, object], known: Collection[str], what: str = "field") -> None:
    """Refuses what nobody would look at: a slip in a name must not pass for a default.

    Raises:
        InvalidSettingError: Names the first that is unknown, and what there is.
    """
    for name in given:
        if name not in known:
            listed = f"; there are {', '.join(known)}" if known else ""
            raise InvalidSettingError(field=name, value=given[name], problem=f"there is no such {what} here{listed}")


def demand_one_of_each(given: Mapping[str, Sequence[bytes]], known: Collection[str]) -> dict[str, str]:
    """A query's values by name, each given once.

    Raises:
        InvalidSettingError: A name is unknown or given twice, or a value is not UTF-8.
    """
    found: dict[str, str] = {}
    for name, values in given.items():
        try:
            texts = [value.decode() for value in values]
        except UnicodeDecodeError as error:
            raise InvalidSettingError(field=name, value=repr(values[0])[:100], problem="it is not UTF-8") from error
        if len(texts) > 1:
            raise InvalidSettingError(field=name, value=", ".join(texts), problem="give it once")
        found[name] = texts[0]
    demand_known(found, known, "parameter")
    return found
