"""The ports for a namespace's settings, and for who asked for what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ares_celery.config import RuntimeConfig
from ares_celery.ids import AgentId, Instant
from ares_celery.model.audit import AuditEntry, AuditNote

__all__ = ["AuditStore", "SettingsStore"]


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


class SettingsStore(Protocol):
    """The settings that a namespace has for everyone, as they are now."""

    @property
    def config(self) -> RuntimeConfig:
        """The settings, at most a second behind what is stored while the store is used; reading asks nobody."""
        ...

    def refresh_config(self) -> RuntimeConfig:
        """Reads the settings now."""
        ...

    def set_config(
        self, changes: Mapping[str, Any], *, reason: str = "", actor: str = "", op: str = ""
    ) -> RuntimeConfig:
        """Changes some settings, all of them or none, noted in the audit stream; the same values again: no effect.

        Raises:
            InvalidSettingError: A name is unknown, a value wrong, or the whole would not fit together; ``shards`` is
                fixed when a namespace is made.
        """
        ...
