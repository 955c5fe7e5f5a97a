"""The port for who asked for what in a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ares_celery.ids import AgentId, Instant
from ares_celery.model.audit import AuditEntry, AuditNote

__all__ = ["AuditStore"]


class AuditStore(Protocol):
    """Who asked for what, and why: written in the same atomic step as the change itself."""

    def audit(
        self, *, agent_id: AgentId | None = None, since: Instant = Instant(0), limit: int = 100
    ) -> Sequence[AuditEntry]:
        """The newest entries of a namespace, or those of one agent, oldest first.

        Entries of a deleted agent stay. Each part of a namespace keeps some 10,000; older ones are gone.
        """
        ...

    def note_down(self, note: AuditNote) -> None:
        """Writes an entry about something that the store itself does not see, such as a signal to a process."""
        ...
