"""What is said of one type of event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["EventFacts"]


@dataclass(frozen=True, slots=True)
class EventFacts:
    """One type of event.

    Attributes:
        meaning: What has happened.
        by: Which part of the runtime writes it.
        payload: The names in its payload, and what each holds.
    """

    meaning: str
    by: str
    payload: Mapping[str, str]
