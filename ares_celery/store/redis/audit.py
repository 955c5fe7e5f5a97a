"""The audit stream in Redis: one a shard, and one beside the settings; merged when read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ares_celery.clock import instant_from
from ares_celery.ids import AgentId, Instant
from ares_celery.model.audit import AuditEntry, AuditNote
from ares_celery.store.redis.audit_calls import note_down, read_audit
from ares_celery.store.redis.bound import Part

__all__ = ["RedisAudit"]

#: Entries of one page when those of one agent are looked for.
_PAGE: Final = 500
#: How much later than its entry's id an entry's own time may be, in milliseconds.
_SLACK: Final = 1_000


class RedisAudit(Part):
    """Implements :class:`~ares_celery.store.administration.AuditStore`."""

    def audit(
        self, *, agent_id: AgentId | None = None, since: Instant = Instant(0), limit: int = 100
    ) -> Sequence[AuditEntry]:
        """The newest entries of a namespace, or those of one agent, oldest first."""
        first = str(max(0, since // 1000 - _SLACK)) if since else "-"
        found = self._of_all(first, limit) if agent_id is None else self._of_agent(agent_id, first, limit)
        # Instants of one server: equal ones keep the order of their stream.
        in_order = sorted(found, key=lambda entry: entry.time)
        return [entry for entry in in_order if instant_from(entry.time) >= since][-limit:]

    def note_down(self, note: AuditNote) -> None:
        """Writes an entry about something that Redis itself does not see."""
        keys = self._bound.keys
        shard = keys.shard_of(note.agent_id) if note.agent_id else 0
        self._bound.client.run(note_down(keys, shard=shard, note=note))

    def _of_all(self, first: str, limit: int) -> list[AuditEntry]:
        keys = self._bound.keys
        streams = [keys.settings_audit, *map(keys.audit, range(keys.shards))]
        pages = self._bound.client.run_many(read_audit(key, first=first, last="+", limit=limit) for key in streams)
        return [entry for page in pages for _, entry in reversed(page) if entry is not None]

    def _of_agent(self, agent_id: AgentId, first: str, limit: int) -> list[AuditEntry]:
        key, last = self._bound.keys.audit(self._bound.keys.shard_of(agent_id)), "+"
        found: list[AuditEntry] = []
        while True:
            page = self._bound.client.run(read_audit(key, first=first, last=last, limit=_PAGE))
            found += [entry for _, entry in page if entry is not None and entry.agent_id == agent_id]
            if len(page) < _PAGE or len(found) >= limit:
                return found[::-1]
            last = f"({page[-1][0]}"
