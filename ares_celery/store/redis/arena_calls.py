"""Calls about who holds the arena."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ares_celery.clock import to_datetime
from ares_celery.model.arena import ARENA_TTL_SECONDS, ArenaHold
from ares_celery.model.audit import AuditNote
from ares_celery.store.redis.audit_calls import audit_words
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.json_values import decode_json
from ares_celery.store.redis.keys import Keys

__all__ = ["hold_arena", "read_arena", "release_arena", "stop_arena"]

_TTL_MS: Final = int(ARENA_TTL_SECONDS * 1000)


def hold_arena(keys: Keys, *, owner: str, info: bytes, note: AuditNote) -> Call[tuple[bool, ArenaHold]]:
    """Takes or keeps the arena."""
    return Call(
        lambda reply: (bool(reply[0]), _hold(reply[1:])),
        script="hold_arena",
        keys=(keys.arena, keys.audit(0)),
        args=(owner, info, _TTL_MS, *audit_words(note)),
    )


def stop_arena(keys: Keys, *, why: str, note: AuditNote) -> Call[ArenaHold | None]:
    """Asks the run to end."""
    return Call(
        lambda reply: _hold(reply) if reply else None,
        script="stop_arena",
        keys=(keys.arena, keys.audit(0)),
        args=(why, *audit_words(note)),
    )


def release_arena(keys: Keys, *, owner: str) -> Call[bool]:
    """Frees the arena."""
    return Call(bool, script="release_arena", keys=(keys.arena,), args=(owner,))


def read_arena(keys: Keys) -> Call[ArenaHold | None]:
    """Reads who has it."""
    return Call(
        lambda reply: _hold(reply) if reply[0] is not None else None,
        args=("HMGET", keys.arena, "owner", "info", "since", "stop"),
    )


def _hold(fields: Sequence[Any]) -> ArenaHold:
    owner, info, since, stop = fields
    return ArenaHold(owner.decode(), decode_json(info), to_datetime(int(since)), stop.decode())
