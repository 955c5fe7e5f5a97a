"""What is wrong with a scenario: gathered, so that a person hears of all of it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ares_celery.errors import InvalidScenarioError

__all__ = ["Place", "Problems", "written"]

#: Where something stands: names of fields and numbers of entries, from the outermost in.
Place = tuple[str | int, ...]
#: More than a person reads; the rest is counted.
_MOST_SHOWN: Final = 100


def written(place: Place) -> str:
    """The place as people write it.

    Example:
        >>> written(("method", 2, "provider", "url")), written(())
        ('method[2].provider.url', 'file')
    """
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "file"


@dataclass(slots=True)
class Problems:
    """The faults of one scenario, in the order of their places in the file where that is known.

    Attributes:
        name: Of the scenario or its file.
        lines: Line of the file for each place, as far as known.
    """

    name: str
    lines: Mapping[Place, int] = field(default_factory=dict[Place, int])
    _found: dict[tuple[str, str], Place] = field(default_factory=dict[tuple[str, str], Place])

    def add(self, place: Sequence[str | int], problem: str) -> None:
        """Notes a fault; the same one twice is one."""
        where = tuple(place)
        self._found.setdefault((written(where), problem), where)

    def __bool__(self) -> bool:
        """Something is wrong."""
        return bool(self._found)

    def listed(self) -> list[dict[str, Any]]:
        """All faults, each with ``place``, ``problem`` and, where it is known, ``line``."""
        return list(self._in_order())[:_MOST_SHOWN] + self._rest()

    def demand_none(self) -> None:
        """Raises InvalidScenarioError, with all faults, if there is one."""
        if self._found:
            raise InvalidScenarioError.of(self.name, self.listed())

    def _in_order(self) -> Iterator[dict[str, Any]]:
        placed = sorted(self._found.items(), key=lambda item: self._line(item[1]) or 0)
        for (place, problem), where in placed:
            line = self._line(where)
            yield {"place": place, "problem": problem, **({"line": line} if line else {})}

    def _line(self, place: Place) -> int:
        while place not in self.lines and place:
            place = place[:-1]
        return self.lines.get(place, 0)

    def _rest(self) -> list[dict[str, Any]]:
        more = len(self._found) - _MOST_SHOWN
        return [{"place": "file", "problem": f"and {more} more"}] if more > 0 else []
