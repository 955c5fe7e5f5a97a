"""The port for the arena: one survival run of a namespace at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ares_celery.model.arena import ArenaHold
from ares_celery.model.audit import AuditNote

__all__ = ["ArenaStore"]


class ArenaStore(Protocol):
    """Who runs faults by chance."""

    def hold_arena(self, owner: str, info: Mapping[str, Any], *, note: AuditNote) -> tuple[bool, ArenaHold]:
        """Takes the arena for a run, or keeps it: for 15 s each time. Atomic.

        Args:
            owner: Id of the run; the same again keeps the arena.
            info: What others see of the run.
            note: For the audit stream, when it is taken.

        Returns:
            Whether the run has it now, and who has it.
        """
        ...

    def stop_arena(self, why: str, *, note: AuditNote) -> ArenaHold | None:
        """Asks the run that has the arena to end; it learns of it within seconds. None when nobody has it."""
        ...

    def release_arena(self, owner: str) -> bool:
        """Frees the arena of a run that is over; False when it is not its own any more."""
        ...

    def arena(self) -> ArenaHold | None:
        """Who has the arena now."""
        ...
