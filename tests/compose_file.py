"""Reads compose/compose.yaml and compose/Dockerfile as a container engine would, as far as the tests need it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compose_spec import PyCompose

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "compose"
COMPOSE_FILE = FOLDER / "compose.yaml"
DOCKERFILE = FOLDER / "Dockerfile"

#: ${NAME}, ${NAME:-default}, ${NAME:?why it is needed}
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<text>[^}]*))?\}")

#: A service as it is written, validated against the Compose specification.
Service = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a Dockerfile, continuation lines joined."""

    name: str
    arguments: str


def load(text: str | None = None) -> dict[str, Any]:
    """Return the Compose file's content; a key that the specification does not know is a ValueError with its place."""
    content: dict[str, Any] = PyCompose.from_yaml(COMPOSE_FILE.read_text() if text is None else text).to_dict()
    return content


def services() -> dict[str, Service]:
    """Return every service by its name."""
    found: dict[str, Service] = load()["services"]
    return found


def variables() -> set[str]:
    """Return the names that the file takes from .env."""
    return {match["name"] for match in _VARIABLE.finditer(COMPOSE_FILE.read_text())}


def environment(service: Service, variables: Mapping[str, str]) -> dict[str, str]:
    """Return what the container's environment would be, with `variables` as .env.

    Raises:
        KeyError: A variable that must be set is not; the text is what the engine would print.
    """

    def value_of(match: re.Match[str]) -> str:
        value = variables.get(match["name"], "")
        if value or not match["kind"]:
            return value
        if match["kind"] == "?":
            raise KeyError(match["text"])
        return match["text"]

    return {name: _VARIABLE.sub(value_of, str(value)) for name, value in service.get("environment", {}).items()}


def instructions() -> list[Instruction]:
    """Return the Dockerfile's instructions in order."""
    text = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", DOCKERFILE.read_text()))
    split = [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]
    return [Instruction(name, arguments) for name, arguments in split]


def copied_sources() -> list[str]:
    """Return the paths, from the repository's root, that the Dockerfile copies out of the build context."""
    found: list[str] = []
    for instruction in instructions():
        if instruction.name == "COPY" and "--from=" not in instruction.arguments:
            found += [word for word in instruction.arguments.split()[:-1] if not word.startswith("--")]
    return found


def image_command() -> list[str]:
    """Return the image's own CMD; the shell form, which would swallow SIGTERM, is a ValueError."""
    (command,) = [instruction.arguments for instruction in instructions() if instruction.name == "CMD"]
    words: list[str] = json.loads(command)
    return words
