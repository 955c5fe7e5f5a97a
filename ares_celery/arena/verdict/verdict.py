"""The verdict of a run as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the events say."""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        return {}
