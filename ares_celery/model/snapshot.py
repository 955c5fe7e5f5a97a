"""A snapshot: state at a version; a shortcut, never the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ares_celery.ids import Epoch, Instant, Version

__all__ = ["Snapshot"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of an agent after ``version`` of its stream was applied.

    Attributes:
        state: What the agent's ``snapshot()`` returned, as JSON values.
        version: The last event that it covers.
        epoch: The incarnation that took it.
        schema: The agent type's state schema version.
        time: When it was taken, by the clock of Redis.
    """

    state: Mapping[str, Any]
    version: Version
    epoch: Epoch
    schema: int
    time: Instant
