"""Writes docs/reference/api.md from the public names and their docstrings: `python -m tools.api_docs`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pydantic import BaseModel

import ares_celery
from ares_celery import testing

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "api.md"

HEAD: Final = """\
# Every public name

Made from the docstrings by `python -m tools.api_docs`; do not edit. All names are imported from `ares_celery`, those
for tests from `ares_celery.testing`; nothing else is public.
"""

#: The modules whose names are public, and what their groups are called by beside the groups' own names.
MODULES: Final = ((ares_celery, ""), (testing, "For tests: "))

#: Characters of a heading.
WIDTH: Final = 100
#: The first words of a docstring's sections, as the page shows them.
SECTIONS: Final = {
    "Args": "Arguments",
    "Attributes": "Fields",
    "Raises": "Raises",
    "Returns": "Returns",
    "Yields": "Yields",
    "Example": "Example",
    "Examples": "Example",
}


def groups() -> Iterator[tuple[str, dict[str, Any]]]:
    """The names of each ``__all__`` with what they stand for, under the comments that group them."""
    for module, prefix in MODULES:
        for title, names in _groups_of(module):
            yield prefix + title, {name: getattr(module, name) for name in names}


def _groups_of(module: ModuleType) -> Iterator[tuple[str, list[str]]]:
    source = inspect.getsource(module)
    listed = source.partition("__all__ = [")[2].partition("\n]")[0]
    title, names = "", list[str]()
    for line in listed.splitlines()[1:]:
        if (comment := re.fullmatch(r"    # (.+)", line)) is not None:
            if names:
                yield title, names
            title, names = comment[1], []
        elif (name := re.fullmatch(r'    "(\w+)",', line)) is not None:
            names.append(name[1])
    yield title, names


def render() -> str:
    """The page's text."""
    lines = [HEAD]
    for title, names in groups():
        lines.append(f"## {title}\n")
        for name, thing in names.items():
            lines.extend(_described(name, thing))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def undescribed() -> list[str]:
    """Public names without a word on what they are for."""
    public = [pair for _, names in groups() for pair in names.items()]
    return [name for name, thing in public if callable(thing) and not _doc(thing)]


def _described(name: str, thing: Any) -> Iterator[str]:  # noqa: ANN401 - any public name
    if inspect.isclass(thing):
        yield f"### `{name}`\n"
        yield from _text(thing)
        yield from _members(thing)
    elif hasattr(thing, "__supertype__"):
        yield f"### `{name}`\n"
        yield f"An `{thing.__supertype__.__name__}` with a name of its own.\n"
    elif callable(thing):
        yield from _headed("###", name, thing)
        yield from _text(thing)
    else:
        yield f"### `{name}`\n"
        yield f"The constant `{thing!r}`.\n"


def _members(made: type[Any]) -> Iterator[str]:
    if issubclass(made, BaseException):
        if code := vars(made).get("code"):
            yield f"Code `{code}`; bases: {', '.join(f'`{base.__name__}`' for base in made.__bases__)}.\n"
        return
    if issubclass(made, Enum):
        yield f"Values: {', '.join(f'`{member.value}`' for member in made)}.\n"
        return
    if issubclass(made, BaseModel):
        yield "| field | type | default |\n|---|---|---|"
        for field_name, field in made.model_fields.items():
            default = "required" if field.is_required() else f"`{field.get_default(call_default_factory=True)!r}`"
            yield f"| `{field_name}` | `{_annotation(made, field_name)}` | {default} |"
        yield ""
    elif is_dataclass(made):
        yield "| field | type | default |\n|---|---|---|"
        for entry in fields(made):
            default = _default(entry)
            yield f"| `{entry.name}` | `{str(entry.type).replace('|', chr(92) + '|')}` | {default} |"
        yield ""
    yield from _methods(made)


def _default(entry: Field[Any]) -> str:
    if entry.default is not MISSING:
        return f"`{entry.default!r}`"
    return "required" if entry.default_factory is MISSING else "empty"


def _annotation(made: type[Any], field_name: str) -> str:
    """The annotation as it is written, without what pydantic adds to it."""
    for parent in made.__mro__:
        written = vars(parent).get("__annotations__", {}).get(field_name)
        if written is not None:
            plain = re.sub(r"^Annotated\[(.+?), .+\](?= \||$)", r"\1", str(written))
            return plain.replace("|", "\\|")
    return "?"


def _methods(made: type[Any]) -> Iterator[str]:
    found: dict[str, Any] = {}
    for parent in reversed(made.__mro__):
        if parent.__module__.startswith("ares_celery"):
            found.update({name: value for name, value in vars(parent).items() if not name.startswith("_")})
    for name, value in found.items():
        if isinstance(value, property):
            yield f"#### `{made.__name__}.{name}`\n"
            yield from _text(value.fget)
        elif isinstance(value, (classmethod, staticmethod)) or inspect.isfunction(value):
            yield from _headed("####", f"{made.__name__}.{name}", getattr(made, name))
            yield from _text(getattr(made, name))


def _signature(function: Any) -> str:  # noqa: ANN401 - any callable
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "(…)"
    hidden = [parameter for parameter in signature.parameters.values() if parameter.name != "self"]
    shown = re.sub(r"<[\w.]+ object at 0x\w+>", "…", str(signature.replace(parameters=hidden)))
    # Annotations are texts here, and are shown with quotes.
    return re.sub(r"""(: |-> )('|")(.*?)\2(?=,|\)| = |$)""", r"\1\3", shown)


def _headed(level: str, name: str, function: Any) -> Iterator[str]:  # noqa: ANN401 - any callable
    """The name with its parameters; those of a long list stand below it, one a line."""
    signature = _signature(function)
    if inspect.iscoroutinefunction(function):
        name = f"async {name}"
    if len(name + signature) <= WIDTH:
        yield f"{level} `{name}{signature}`\n"
        return
    yield f"{level} `{name}`\n\n```text"
    inside, closing, rest = signature[1:].rpartition(")" if "->" not in signature else ") ->")
    yield f"{name}("
    yield from (f"    {part}," for part in re.split(r", (?=[\w*/]+(?::|$|,))", inside))
    yield f"{closing}{rest}\n```\n"


def _doc(thing: Any) -> str:  # noqa: ANN401 - any public name
    return inspect.getdoc(thing) or ""


def _text(thing: Any) -> Iterator[str]:  # noqa: ANN401 - any public name
    """The docstring as Markdown: sections become bold words and lists, examples code."""
    section, code = "", False
    for raw in re.sub(r":\w+:`~?([^`]+)`", r"`\1`", _doc(thing).replace("``", "`")).splitlines():
        line = raw.rstrip()
        if (head := re.fullmatch(r"(\w+):", line)) is not None and head[1] in SECTIONS:
            if code:
                yield "```\n"
            section, code = SECTIONS[head[1]], False
            yield f"\n**{section}**\n"
            continue
        if (head := re.fullmatch(r"(Example.*):", line)) is not None:
            section = "Example"
            yield f"\n**{head[1]}**\n"
            continue
        if section == "Example":
            if not code and line:
                code = True
                yield "```pycon" if line.lstrip().startswith(">>>") else "```text"
            yield line.removeprefix("    ")
        elif section and (item := re.fullmatch(r"    (\*{0,2}[\w, ]+): (.*)", line)) is not None:
            yield f"- `{item[1]}`: {item[2]}"
        elif section and line:
            yield f"  {line.strip()}"
        else:
            yield line
    if code:
        yield "```"
    yield ""


if __name__ == "__main__":
    PAGE.write_text(render())
    print(f"wrote {PAGE.name}")
