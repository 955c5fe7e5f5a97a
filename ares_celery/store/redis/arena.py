"""Who holds the arena, in Redis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ares_celery.model.arena import ArenaHold
from ares_celery.model.audit import AuditNote
from ares_celery.store.redis import arena_calls
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.json_values import encode_json
from ares_celery.store.redis.records import safe_text

__all__ = ["RedisArena"]

#: Characters of a reason that is kept.
_LONGEST = 1_000


class RedisArena(Part):
    """Implements :class:`~ares_celery.store.arena.ArenaStore`."""

    def hold_arena(self, owner: str, info: Mapping[str, Any], *, note: AuditNote) -> tuple[bool, ArenaHold]:
        """Takes the arena for a run, or keeps it."""
        data, _ = encode_json(dict(info), what="the arena", agent_id="")
        return self._bound.client.run(arena_calls.hold_arena(self._bound.keys, owner=owner, info=data, note=note))

    def stop_arena(self, why: str, *, note: AuditNote) -> ArenaHold | None:
        """Asks the run that has the arena to end."""
        text = safe_text(why, _LONGEST) or "it was asked to"
        return self._bound.client.run(arena_calls.stop_arena(self._bound.keys, why=text, note=note))

    def release_arena(self, owner: str) -> bool:
        """Frees the arena of a run that is over."""
        return self._bound.client.run(arena_calls.release_arena(self._bound.keys, owner=owner))

    def arena(self) -> ArenaHold | None:
        """Who has the arena now."""
        return self._bound.client.run(arena_calls.read_arena(self._bound.keys))
