"""The audit stream: what is written by the scripts that change something, and how it is read."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from pydantic import ValidationError

from ares_celery.clock import to_datetime
from ares_celery.model.audit import AuditEntry, AuditNote
from ares_celery.store.redis.call import Call, Word
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.records import safe_text
from ares_celery.store.redis.replies import entry_fields

__all__ = ["AUDIT_LENGTH", "audit_words", "note_down", "read_audit"]

log: Final = logging.getLogger(__name__)

#: Entries kept in each audit stream, about: years of operators, or days of a busy service.
AUDIT_LENGTH: Final = 10_000
#: Longest reason or name that is kept: who and why fit into less.
_LONGEST: Final = 1_000


def audit_words(note: AuditNote | None) -> list[Word]:
    """A note as the scripts take it: its bytes, or an empty text for none; then how many entries are kept."""
    if note is None:
        return ["", AUDIT_LENGTH]
    safe = note.model_copy(
        update={"actor": safe_text(note.actor, _LONGEST), "reason": safe_text(note.reason, _LONGEST)}
    )
    return [safe.model_dump_json(exclude_defaults=True), AUDIT_LENGTH]


def note_down(keys: Keys, *, shard: int, note: AuditNote) -> Call[Any]:
    """Writes an entry about something that Redis itself does not see."""
    return Call(lambda _: None, script="note_down", keys=(keys.audit(shard),), args=tuple(audit_words(note)))


def read_audit(key: str, *, first: str, last: str, limit: int) -> Call[list[tuple[str, AuditEntry | None]]]:
    """Reads entries between two ids, newest first; one that cannot be read is None, and is logged."""
    return Call(lambda reply: [_parse(entry) for entry in reply], args=("XREVRANGE", key, last, first, "COUNT", limit))


def _parse(entry: Sequence[Any]) -> tuple[str, AuditEntry | None]:
    entry_id, fields = entry[0].decode(), entry_fields(entry[1])
    try:
        note = AuditNote.model_validate_json(fields[b"d"])
        return entry_id, AuditEntry(time=to_datetime(int(fields[b"t"])), **note.model_dump())
    except (ValidationError, KeyError, ValueError):
        log.warning("entry %s of the audit stream cannot be read; the others are", entry_id)
        return entry_id, None
