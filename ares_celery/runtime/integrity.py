"""Is a history whole? Pure functions over events."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from ares_celery.model.event import Event

__all__ = ["Violation", "find_violations", "integrity_digest"]


@dataclass(frozen=True, slots=True)
class Violation:
    """A place where a history is not whole.

    Attributes:
        kind: ``gap``: events are missing; ``truncated``: the last ones are; ``damaged``: the bytes are no event.
        first: First version concerned.
        last: Last version concerned.
    """

    kind: Literal["gap", "truncated", "damaged"]
    first: int
    last: int


def find_violations(events: Iterable[Event], stream_version: int | None = None) -> list[Violation]:
    """Finds where versions are missing between events, and after the last one.

    Args:
        events: In order of their versions, from any version on. Version 0 stands for no version, and is passed over.
        stream_version: The stream's last version; None: the end is not looked at.

    Example:
        >>> from datetime import UTC, datetime
        >>> at = datetime(2026, 1, 1, tzinfo=UTC)
        >>> find_violations([Event(str(n), "a", n, "t", {}, at) for n in (1, 2, 4)], stream_version=5)
        [Violation(kind='gap', first=3, last=3), Violation(kind='truncated', first=5, last=5)]
    """
    found: list[Violation] = []
    before = 0
    for event in events:
        if event.version == 0:
            continue
        if before and event.version > before + 1:
            found.append(Violation("gap", before + 1, event.version - 1))
        before = event.version
    if stream_version is not None and before and before < stream_version:
        found.append(Violation("truncated", before + 1, stream_version))
    return found


def integrity_digest(events: Iterable[Event]) -> str:
    """Sixteen hex digits that two histories share only when their events have the same ids, types and versions.

    The first eight bytes of SHA-256 over id, type and version of each event.

    Example:
        >>> integrity_digest([])
        'e3b0c44298fc1c14'
    """
    digest = sha256()
    for event in events:
        digest.update(f"{event.id}{event.type}{event.version}".encode("utf-8", "backslashreplace"))
    return digest.hexdigest()[:16]
