"""Supervision groups in Redis."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from ares_celery.errors import UnreadableGroupError
from ares_celery.model.audit import AuditNote
from ares_celery.model.group import Group
from ares_celery.store.groups import GroupRead, NextStep
from ares_celery.store.redis import group_calls
from ares_celery.store.redis.bound import Part

__all__ = ["RedisGroupStore"]


class RedisGroupStore(Part):
    """Implements :class:`~ares_celery.store.groups.GroupStore`."""

    def read_group(self, name: str, *, damaged_too: bool = False) -> GroupRead:
        """Reads a group and Redis TIME in one atomic call."""
        read: GroupRead = self._bound.client.run(group_calls.read_group(self._bound.keys, name=name))
        if read.problem and not damaged_too:
            # Never taken for one that does not exist: a newer version may have written it, and members wait for it.
            raise UnreadableGroupError(name=name, problem=read.problem)
        return read

    def commit_group(  # noqa: PLR0913 - the parts of one write
        self,
        name: str,
        after: Group | None,
        read: GroupRead,
        *,
        op: str,
        next_step: timedelta | NextStep = NextStep.KEEP,
        counters: Mapping[str, int] | None = None,
        note: AuditNote | None = None,
    ) -> None:
        """Writes a group as it was decided on ``read``; None deletes it."""
        call = group_calls.commit_group(
            self._bound.keys,
            name=name,
            after=after,
            read=read,
            op=op,
            next_step=next_step,
            counters=counters or {},
            note=note,
        )
        self._bound.client.run(call)

    def group_names(self) -> list[str]:
        """The names of all groups, sorted."""
        keys = self._bound.keys
        found = self._bound.client.run_many(group_calls.group_names(keys, shard=shard) for shard in range(keys.shards))
        return sorted(name for some in found for name in some)
