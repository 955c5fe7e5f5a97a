"""Calls about supervision groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import msgspec

from ares_celery.clock import micros
from ares_celery.errors import OperationIdReusedError
from ares_celery.ids import Instant
from ares_celery.model.audit import AuditNote
from ares_celery.model.command import Deadline
from ares_celery.model.group import Group
from ares_celery.store.groups import GroupConflict, GroupRead, NextStep
from ares_celery.store.redis.agent_calls import OUTCOME_TTL
from ares_celery.store.redis.audit_calls import audit_words
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import Keys, deadline_member
from ares_celery.store.redis.records import safe_text
from ares_celery.store.redis.replies import as_texts, instant, unknown_reply

__all__ = ["MARK", "commit_group", "group_names", "read_group"]

#: Stands before the name where a deadline names an agent; no agent id has it.
MARK: Final = "@"


def read_group(keys: Keys, *, name: str) -> Call[GroupRead]:
    """Reads a group, with Redis TIME."""
    return Call(_parse_read, script="read_group", keys=(keys.group(name), keys.clock(keys.shard_of(name))), args=())


def _parse_read(reply: Sequence[Any]) -> GroupRead:
    now, offset, revision, data = reply
    group, problem = None, ""
    try:
        group = None if data is None else msgspec.json.decode(data, type=Group)
    except (msgspec.MsgspecError, ValueError) as error:
        problem = str(error)
    read_at: Instant = instant(now)
    return GroupRead(group, revision.decode() if revision else "", read_at, read_at - int(offset), problem)


def commit_group(  # noqa: PLR0913 - the parts of one write
    keys: Keys,
    *,
    name: str,
    after: Group | None,
    read: GroupRead,
    op: str,
    next_step: timedelta | NextStep,
    counters: Mapping[str, int],
    note: AuditNote | None,
) -> Call[None]:
    """Writes a group, or deletes it."""
    shard = keys.shard_of(name)
    operation = "group.step" if note is None else note.operation
    words = {NextStep.KEEP: "", NextStep.NONE: "-"}
    due = words[next_step] if isinstance(next_step, NextStep) else micros(next_step)
    return Call(
        lambda reply: _parse_commit(name, op, operation, reply),
        script="commit_group",
        keys=(
            keys.group(name),
            keys.op(name, op),
            keys.deadlines(shard),
            keys.groups(shard),
            keys.counters(shard),
            keys.audit(shard),
        ),
        args=(
            name,
            read.revision,
            "" if after is None else msgspec.json.encode(replace(after, reason=safe_text(after.reason))),
            deadline_member(Deadline.GROUP, MARK + name),
            due,
            int(OUTCOME_TTL.total_seconds()),
            *audit_words(note),
            operation,
            *(word for item in counters.items() for word in item),
        ),
    )


def _parse_commit(name: str, op: str, operation: str, reply: Sequence[bytes]) -> None:
    match reply:
        case [b"done", _]:
            return
        case [b"repeated", outcome]:
            # Older versions wrote a revision alone.
            used_for = outcome.decode().rpartition("|")[2] if b"|" in outcome else operation
            if used_for != operation:
                raise OperationIdReusedError(op=op, subject=f"group {name!r}", used_for=used_for, operation=operation)
        case [b"conflict"]:
            raise GroupConflict(name=name)
        case _:
            raise unknown_reply("commit_group", reply)


def group_names(keys: Keys, *, shard: int) -> Call[list[str]]:
    """Reads the names of the groups whose home a shard is."""
    return Call(lambda reply: as_texts(list(reply)), args=("SMEMBERS", keys.groups(shard)))
