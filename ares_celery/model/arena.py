"""Who holds the arena of a namespace: one survival run at a time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

__all__ = ["ARENA_TTL_SECONDS", "ArenaHold"]

#: Seconds until the arena of a run whose process is gone is free again; a run keeps it several times in that time.
ARENA_TTL_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class ArenaHold:
    """A survival run that is under way.

    Attributes:
        owner: Id of the run.
        info: What it is: ``actor``, ``seed``, ``duration``, ``interval``.
        since: When it began, by the clock of Redis.
        stop: Why it was asked to end; empty while it was not.
    """

    owner: str
    info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    since: datetime | None = None
    stop: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "owner": self.owner,
            **self.info,
            "since": self.since.isoformat() if self.since else None,
            "stopping": bool(self.stop),
            "stop_reason": self.stop,
        }
