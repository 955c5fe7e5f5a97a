"""The part of a Manager that keeps two survival runs apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ares_celery.errors import ArenaBusyError
from ares_celery.model.arena import ArenaHold
from ares_celery.model.audit import AuditNote
from ares_celery.runtime.callers import check_texts, me
from ares_celery.runtime.queries import AgentQueries

__all__ = ["ArenaHolds"]


class ArenaHolds(AgentQueries):
    """Who runs faults by chance in the namespace: one run at a time, as two would spoil each other's verdict."""

    def hold_arena(self, owner: str, info: Mapping[str, Any], *, reason: str = "", actor: str = "") -> ArenaHold:
        """Takes the arena for a survival run, or keeps it; free again 15 s after the last call.

        Args:
            owner: Id of the run; the same again keeps it.
            info: What others see of the run.
            reason: Kept in the audit stream when it is taken.
            actor: Who asks; default user@host.

        Returns:
            What is stored of the run; its ``stop`` says whether somebody wants it to end.

        Raises:
            ArenaBusyError: Another run has it.
        """
        check_texts(owner=owner, reason=reason, actor=actor)
        who = actor or me()
        note = AuditNote(operation="survival.start", actor=who, reason=reason)
        is_ours, hold = self._ports.store.hold_arena(owner, {"actor": who, **info}, note=note)
        if not is_ours:
            raise ArenaBusyError(
                owner=hold.info.get("actor", "?"), seed=hold.info.get("seed"), namespace=self._ports.store.namespace
            )
        return hold

    def release_arena(self, owner: str) -> bool:
        """Frees the arena of a run that is over; False when it is another's by now."""
        check_texts(owner=owner)
        return self._ports.store.release_arena(owner)

    def arena(self) -> ArenaHold | None:
        """The survival run that is under way in the namespace; None when there is none."""
        return self._ports.store.arena()

    def stop_arena(self, *, reason: str = "", actor: str = "") -> ArenaHold | None:
        """Asks the survival run that is under way to end, wherever it runs; it heals its faults and reports its part.

        Args:
            reason: Kept in the audit stream, and in the run's report.
            actor: Who asks; default user@host.

        Returns:
            The run; None when there is none.
        """
        check_texts(reason=reason, actor=actor)
        note = AuditNote(operation="survival.stop", actor=actor or me(), reason=reason)
        return self._ports.store.stop_arena(reason or f"stopped by {note.actor}", note=note)
