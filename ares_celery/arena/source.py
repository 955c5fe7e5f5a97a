"""From the bytes of a scenario to plain values: YAML or JSON, of a bounded size, each key once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final, cast

from ares_celery.arena.problems import Place, Problems
from ares_celery.errors import OperationNotSupportedError

__all__ = ["LARGEST", "TOO_MUCH", "Source", "is_bounded", "read_source"]

#: Bytes of a scenario.
LARGEST: Final = 10 << 20
#: Values of a scenario, each use of an alias counted: a few lines of YAML can stand for billions.
_MOST_VALUES: Final = 200_000
#: How deep values may nest.
_DEEPEST: Final = 60
#: What is wrong with one that has more.
TOO_MUCH: Final = f"it stands for more than {_MOST_VALUES} values, or nests deeper than {_DEEPEST}"


@dataclass(frozen=True, slots=True)
class Source:
    """Plain values, and the line of the file that each stands on.

    Attributes:
        data: What the file holds; None when it cannot be read.
        lines: By place; for JSON only that of an error.
    """

    data: Any
    lines: dict[Place, int] = field(default_factory=dict[Place, int])


def read_source(text: str | bytes, problems: Problems) -> Source:
    """Reads YAML or JSON; what is wrong is added to the problems.

    Raises:
        OperationNotSupportedError: It is YAML, and no reader of YAML is installed.
    """
    try:
        raw = text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        problems.add((), f"it is no text: {error}")
        return Source(None)
    if len(raw) > LARGEST:
        problems.add((), f"it has {len(raw)} bytes, the limit is {LARGEST} (10 MiB)")
        return Source(None)
    try:
        decoded = raw.decode()
    except UnicodeDecodeError as error:
        problems.add((), f"it is no UTF-8 text: {error}")
        return Source(None)
    if decoded.lstrip().startswith(("{", "[")):
        return _from_json(decoded, problems)
    return _from_yaml(decoded, problems)


def is_bounded(value: object) -> bool:
    """Values, of JSON say, that are no more and nest no deeper than those of a scenario may.

    Example:
        >>> is_bounded({"a": [1, 2]}), is_bounded(list(range(1_000_000)))
        (True, False)
    """
    count, level = 0, [value]
    for _ in range(_DEEPEST + 1):
        count += len(level)
        if not level or count > _MOST_VALUES:
            break
        level = [item for one in level for item in _items(one)]
    return not level


def _items(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _from_json(text: str, problems: Problems) -> Source:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                problems.add((), f"key {key!r} stands twice in one mapping")
            found[key] = value
        return found

    try:
        return Source(json.loads(text, object_pairs_hook=once))
    except json.JSONDecodeError as error:
        problems.add((), f"it is no JSON: {error.msg}, in column {error.colno}")
        return Source(None, {(): error.lineno})
    except (ValueError, RecursionError) as error:
        problems.add((), f"it is no JSON: {error}")
        return Source(None)


def _from_yaml(text: str, problems: Problems) -> Source:
    try:
        yaml = import_module("yaml")
    except ImportError as error:
        raise OperationNotSupportedError(
            operation="reading a scenario in YAML",
            reason="PyYAML is not installed; `pip install 'ares-celery[arena]'`, or write it as JSON",
        ) from error
    kind: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = kind(text)
    try:
        if len(text) > _MOST_VALUES:
            _demand_not_too_many(yaml.parse(text, kind))
        node = loader.get_single_node()
        lines: dict[Place, int] = {}
        return Source(None if node is None else _Builder(loader, problems, lines).value(node, ()), lines)
    except yaml.MarkedYAMLError as error:
        return _not_yaml(error, problems)
    except (yaml.YAMLError, RecursionError) as error:
        problems.add((), f"it is no YAML: {' '.join(str(error).split())}")
    except _TooMuchError:
        problems.add((), TOO_MUCH)
    finally:
        loader.dispose()
    return Source(None)


def _not_yaml(error: Any, problems: Problems) -> Source:  # noqa: ANN401 - an error of PyYAML
    """Where it stops being YAML, and what it was about there."""
    began = f" that begins in line {error.context_mark.line + 1}" if error.context and error.context_mark else ""
    told = ", ".join(one for one in (error.problem, error.context and f"{error.context}{began}") if one)
    at = error.problem_mark or error.context_mark
    problems.add((), f"it is no YAML: {told}{f', in column {at.column + 1}' if at else ''}")
    return Source(None, {(): at.line + 1} if at else {})


class _TooMuchError(Exception):
    """The file stands for more than a scenario can be."""


def _demand_not_too_many(events: Iterable[object]) -> None:
    """Before a node is made of each, as millions of them are gigabytes; a short text cannot have so many."""
    if any(number > 2 * _MOST_VALUES for number, _ in enumerate(events)):
        raise _TooMuchError


class _Builder:
    """Makes values of YAML's nodes; only what JSON has, and each key once."""

    def __init__(self, loader: Any, problems: Problems, lines: dict[Place, int]) -> None:  # noqa: ANN401 - untyped
        self._loader = loader
        self._problems = problems
        self._lines = lines
        self._count = 0

    def value(self, node: Any, place: Place) -> Any:  # noqa: ANN401 - a node of YAML, and a value of JSON
        """The value of a node."""
        self._count += 1
        if self._count > _MOST_VALUES or len(place) > _DEEPEST:
            raise _TooMuchError
        self._lines[place] = node.start_mark.line + 1
        kind = node.id
        if kind == "mapping":
            return self._mapping(node, place)
        if kind == "sequence":
            return [self.value(item, (*place, number)) for number, item in enumerate(node.value)]
        try:
            value = self._loader.construct_object(node)
        except ValueError:
            # The thirteenth month, or a number of ten thousand digits.
            value = node
        if value is None or isinstance(value, (str, bool, int, float)):
            return value
        # A date, say: what it would be depends on the reader.
        return str(node.value)

    def _mapping(self, node: Any, place: Place) -> dict[str, Any]:  # noqa: ANN401 - a node of YAML
        own: set[str] = set()
        for key, _ in cast("Iterable[Any]", node.value):
            name = _name(key)
            if not isinstance(key.value, str):
                self._problems.add((*place, name), "a key has to be text")
            if key.tag != "tag:yaml.org,2002:merge" and name in own:
                self._problems.add((*place, name), "this key stands twice in one mapping")
            own.add(name)
        # Merged keys come first, so that the mapping's own win.
        self._loader.flatten_mapping(node)
        found: dict[str, Any] = {}
        for key, item in node.value:
            name = _name(key)
            found[name] = self.value(item, (*place, name))
        return found


def _name(key: Any) -> str:  # noqa: ANN401 - a node of YAML
    """A key as it is shown; one that is a mapping or a list is refused."""
    return key.value if isinstance(key.value, str) else f"<{key.id}>"
