"""Values of files that may be anything: as mappings and lists, or as none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

__all__ = ["as_list", "as_mapping", "entries", "is_list_of_texts"]


def as_mapping(value: object) -> Mapping[str, Any]:
    """The value, if it is a mapping; else an empty one.

    Example:
        >>> as_mapping({"a": 1}), as_mapping(7)
        ({'a': 1}, {})
    """
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def as_list(value: object) -> list[Any]:
    """The value, if it is a list; else an empty one.

    Example:
        >>> as_list([1]), as_list("a")
        ([1], [])
    """
    return [*cast("list[object]", value)] if isinstance(value, list) else []


def is_list_of_texts(value: object) -> bool:
    """It is a list, and all that it holds is text.

    Example:
        >>> is_list_of_texts(["a"]), is_list_of_texts("a"), is_list_of_texts([1])
        (True, False, False)
    """
    return isinstance(value, list) and all(isinstance(one, str) for one in as_list(cast("object", value)))


def entries(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The entries of a list that are mappings, with their numbers."""
    for number, one in enumerate(as_list(value)):
        if isinstance(one, Mapping):
            yield number, as_mapping(cast("object", one))
