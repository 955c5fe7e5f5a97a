"""The demo's work: which names the Python sources of the standard library use, and how often. Pure but for the reading.

``python -m ares_celery.cli.demo.counting`` prints the plain count of all files as JSON: what the agents must reach.
"""

from __future__ import annotations

import json
import keyword
import os
import sys
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

__all__ = ["Counts", "count_files", "count_names", "library", "share_of", "source_files"]

#: Folders that are not the library itself: what was installed into it, and its tests, which are twice as much code.
_NOT_LIBRARY: Final = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})


def _counter() -> Counter[str]:
    return Counter()


@dataclass(slots=True)
class Counts:
    """How often each name occurs.

    Example:
        >>> total = Counts()
        >>> total.add({"identifiers": {"self": 2}, "keywords": {"def": 1}})
        >>> total.identifiers["self"], total.names
        (2, 3)
    """

    identifiers: Counter[str] = field(default_factory=_counter)
    keywords: Counter[str] = field(default_factory=_counter)

    @property
    def names(self) -> int:
        """All occurrences."""
        return self.identifiers.total() + self.keywords.total()

    def add(self, counts: Mapping[str, Any]) -> None:
        """Adds counts in the form of :meth:`to_json`."""
        self.identifiers.update(counts["identifiers"])
        self.keywords.update(counts["keywords"])

    def to_json(self) -> dict[str, Any]:
        """The counts as JSON values."""
        return {"identifiers": dict(self.identifiers), "keywords": dict(self.keywords)}


def library() -> Path:
    """Where the running interpreter keeps its standard library."""
    return Path(sysconfig.get_path("stdlib"))


@cache
def source_files() -> tuple[str, ...]:
    """The library's Python sources, relative to it and sorted, so that every process gets the same list."""
    root = library()
    found: list[str] = []
    for folder, below, names in os.walk(root):
        below[:] = [name for name in below if name not in _NOT_LIBRARY]
        found += [(Path(folder) / name).relative_to(root).as_posix() for name in names if name.endswith(".py")]
    return tuple(sorted(found))


def share_of(files: Sequence[str], index: int, of: int) -> list[str]:
    """The files of one agent: file i belongs to agent i modulo the number of agents.

    Example:
        >>> share_of(["a", "b", "c", "d"], 1, 3)
        ['b']
    """
    return list(files[index::of])


def count_names(path: Path) -> Counts:
    """Counts the identifiers and keywords of one file; of one that is no valid Python, those before its first error."""
    counts = Counts()
    try:
        with path.open("rb") as source:
            for token in tokenize.tokenize(source.readline):
                if token.type == tokenize.NAME:
                    kind = counts.keywords if keyword.iskeyword(token.string) else counts.identifiers
                    kind[token.string] += 1
    except (SyntaxError, tokenize.TokenError, UnicodeDecodeError):
        # A few sources of the library are broken on purpose; the same error at the same place for everybody.
        return counts
    return counts


def count_files(files: Iterable[str]) -> Counts:
    """The plain loop over all files."""
    total = Counts()
    for name in files:
        counts = count_names(library() / name)
        total.identifiers.update(counts.identifiers)
        total.keywords.update(counts.keywords)
    return total


if __name__ == "__main__":
    json.dump(count_files(source_files()).to_json(), sys.stdout)
