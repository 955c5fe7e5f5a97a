"""What a probe has to give: the tolerances of Chaos Toolkit that need nobody else's language."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from ares_celery.arena.problems import Place, Problems
from ares_celery.arena.scenario import NOTHING
from ares_celery.arena.values import as_list, as_mapping

__all__ = ["check_tolerance", "is_tolerated"]

_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    "regex": frozenset({"type", "name", "pattern", "target"}),
    "range": frozenset({"type", "name", "range", "target"}),
}
_TWO: Final = 2
#: Characters of an answer that a pattern is looked for in.
_LONGEST: Final = 100_000


def check_tolerance(tolerance: object, place: Place, problems: Problems) -> None:
    """Adds what is wrong with a tolerance: a scalar, a list of values, two bounds, a regex or a range."""
    if not isinstance(tolerance, Mapping):
        return
    given = as_mapping(cast("object", tolerance))
    kind = given.get("type")
    fields = _FIELDS.get(str(kind))
    if fields is None:
        problems.add((*place, "type"), f"{kind!r} is not supported here; it is regex or range")
        return
    for name in sorted(set(given) - fields):
        problems.add((*place, name), f"there is no such field; there are {', '.join(sorted(fields))}")
    if kind == "regex":
        try:
            re.compile(given.get("pattern", None))
        except (re.error, TypeError) as error:
            problems.add((*place, "pattern"), f"it is no regular expression: {error}")
    elif not _bounds(given.get("range")):
        problems.add((*place, "range"), "give two numbers, the smaller first")


def _bounds(value: object) -> tuple[float, float] | None:
    given = as_list(value)
    if len(given) != _TWO:
        return None
    low, high = given
    numbers = all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (low, high))
    return (low, high) if numbers and low <= high else None


def is_tolerated(tolerance: object, value: Any) -> bool:  # noqa: ANN401 - whatever a probe gives
    """The value is one that the tolerance allows.

    Example:
        >>> is_tolerated([1, 5], 3), is_tolerated(200, {"status": 200, "body": "ok"}), is_tolerated(True, False)
        (True, True, False)
    """
    if tolerance is NOTHING:
        return True
    if isinstance(tolerance, Mapping):
        return _matches(as_mapping(cast("object", tolerance)), value)
    # What a request and a program gave is judged by their status.
    if isinstance(value, Mapping) and "status" in value and not isinstance(tolerance, (str, bool)):
        value = as_mapping(cast("object", value))["status"]
    if isinstance(tolerance, list):
        bounds = _bounds(cast("object", tolerance))
        if bounds and isinstance(value, (int, float)):
            return bounds[0] <= value <= bounds[1]
        return any(_same(one, cast("object", value)) for one in as_list(cast("object", tolerance)))
    return _same(tolerance, cast("object", value))


def _same(expected: object, value: object) -> bool:
    # True is no 1: a probe that counts and one that decides are told apart.
    return expected == value and isinstance(expected, bool) == isinstance(value, bool)


def _matches(tolerance: Mapping[str, Any], value: Any) -> bool:  # noqa: ANN401 - whatever a probe gives
    target = tolerance.get("target")
    if target and isinstance(value, Mapping):
        value = as_mapping(cast("object", value)).get(str(target), cast("object", value))
    if tolerance["type"] == "regex":
        return re.search(tolerance["pattern"], str(value)[:_LONGEST]) is not None
    bounds = _bounds(tolerance["range"])
    try:
        number = float(value)
    except (TypeError, ValueError):
        return False
    return bounds is not None and not math.isnan(number) and bounds[0] <= number <= bounds[1]
