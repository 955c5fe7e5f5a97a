"""Every type of event that the runtime knows is emitted somewhere, and described as it is emitted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ares_celery.model.event import EventType
from ares_celery.model.event_catalogue import CATALOGUE
from tests.parsed import parse_source
from tools.events_docs import PAGE, render

PACKAGE = Path(__file__).parents[2] / "ares_celery"
#: Files that name types without emitting any.
NAMING_ONLY = {"event.py", "event_catalogue.py", "event_catalogue_faults.py"}


@dataclass(frozen=True)
class Emission:
    """A place where a type is handed on, and the names that its payload has there, as far as the text tells."""

    file: str
    name: str
    payload: frozenset[str] = frozenset()


def emissions(tree: ast.AST, file: str = "") -> Iterator[Emission]:
    """Yield the places of a module that hand a type on; comparing and collecting is not emitting."""
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Attribute) and ast.unparse(node.value) == "EventType" and node.attr.isupper()):
            continue
        call: ast.Call | None = None
        around: ast.AST = parents[node]
        while not isinstance(around, ast.stmt | ast.Compare | ast.Set | ast.pattern | ast.match_case):
            if call is None and isinstance(around, ast.Call):
                call = around
            around = parents[around]
        if not isinstance(around, ast.stmt):
            continue
        function: ast.AST = around
        while not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            function = parents[function]
        yield Emission(file, node.attr, frozenset(payload_names(call, function) if call else ()))


def payload_names(call: ast.Call, function: ast.AST) -> Iterator[str]:
    """Yield the names of a payload: keywords of lifecycle_event, or the dict that is handed on with the type."""
    if ast.unparse(call.func) == "lifecycle_event":
        yield from (keyword.arg for keyword in call.keywords if keyword.arg is not None)
        return
    handed_on = {argument.id for argument in call.args if isinstance(argument, ast.Name)}
    dicts: list[ast.expr | None] = list(call.args)
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if handed_on & {target.id for target in targets if isinstance(target, ast.Name)}:
                dicts.append(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {f"{name}.update" for name in handed_on}:
            yield from (keyword.arg for keyword in node.keywords if keyword.arg is not None)
    for value in dicts:
        if isinstance(value, ast.Dict):
            yield from (str(key.value) for key in value.keys if isinstance(key, ast.Constant) and key.value != "module")


def all_emissions() -> list[Emission]:
    """The places of the package that emit."""
    return [
        found
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name not in NAMING_ONLY and "cli" not in path.parts
        for found in emissions(parse_source(path.read_text()), path.name)
    ]


@pytest.mark.spec(110)
def test_every_type_has_an_emitter() -> None:
    """A type that nobody writes is a promise that nobody keeps: add its emitter, or take it out."""
    assert sorted({kind.name for kind in EventType} - {found.name for found in all_emissions()}) == []


@pytest.mark.spec(110)
def test_every_type_is_described() -> None:
    """Meaning, author and payload; in the reference too, which `python -m tools.events_docs` writes."""
    assert set(CATALOGUE) == set(EventType)
    assert all(facts.meaning.endswith(".") and facts.by and facts.payload for facts in CATALOGUE.values())
    assert PAGE.read_text() == render()


def test_what_is_emitted_is_described() -> None:
    """No call puts a name into a payload that the catalogue does not know."""
    found = all_emissions()
    unknown = [
        f"{one.file}: {one.name} has {name}"
        for one in found
        for name in one.payload
        if name not in CATALOGUE[EventType[one.name]].payload
    ]
    assert unknown == []
    assert sum(bool(one.payload) for one in found) > 20, "the payloads were not found"


def test_a_type_without_emitter_would_be_found() -> None:
    """Comparing, collecting and matching emit nothing; handing on and choosing do."""
    source = """
if event.type == EventType.COMPARED or event.type in {EventType.COLLECTED}:
    pass
match event.type:
    case EventType.MATCHED:
        pass
lifecycle_event(record, EventType.SENT, reason="x")
kind = EventType.ONE if bad else EventType.OTHER
def say():
    payload: dict = {"a": 1}
    payload.update(b=2)
    return NewEvent(EventType.SAID, payload, {"module": "m"})
"""
    assert list(emissions(parse_source(source))) == [
        Emission("", "SENT", frozenset({"reason"})),
        Emission("", "ONE"),
        Emission("", "OTHER"),
        Emission("", "SAID", frozenset({"a", "b"})),
    ]
