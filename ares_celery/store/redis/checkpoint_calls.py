"""Calls about executions and their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from ares_celery.errors import ExecutionLimitError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.execution import Execution, ExecutionPlan
from ares_celery.store.base import CommitConflict
from ares_celery.store.redis.call import Call, Word
from ares_celery.store.redis.event_calls import FEED_LENGTH
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import fenced, instant, unknown_reply
from ares_celery.store.redis.stored_events import EncodedEvent
from ares_celery.store.redis.stored_executions import FIELDS, ExecutionChange, decode_execution

__all__ = [
    "MOST_FINISHED",
    "MOST_UNFINISHED",
    "ExecutionRead",
    "Move",
    "delete_execution",
    "list_executions",
    "move_execution",
    "read_execution",
    "requeue_execution",
]

#: Unfinished executions of one agent: delete_agent removes them all in one script, which must not hold up the others.
MOST_UNFINISHED: Final = 10_000
#: Finished executions that stay listed; older ones end unlisted, by their TTL.
MOST_FINISHED: Final = 1_000


@dataclass(frozen=True, slots=True)
class ExecutionRead:
    """One atomic read.

    Attributes:
        agent_id: Whose execution.
        execution_id: Its id.
        now: Redis TIME.
        fence: Of the incarnation that runs now; empty when none does, None without such an agent.
        values: What the hash holds; None when it does not exist.
    """

    agent_id: AgentId
    execution_id: str
    now: Instant
    fence: str | None
    values: Sequence[Any] | bytes | None

    def execution(self) -> Execution | None:
        """The execution, or None when it does not exist.

        Raises:
            UnreadableCheckpointError: What is stored is none.
        """
        if self.values is None:
            return None
        return decode_execution(self.agent_id, self.execution_id, self.values, now=self.now)


def read_execution(keys: Keys, *, agent_id: AgentId, execution_id: str) -> Call[ExecutionRead]:
    """Reads an execution without its steps; never refuses one."""
    return Call(
        lambda reply: _parse_read(agent_id, execution_id, reply),
        script="read_execution",
        keys=(keys.agent(agent_id), keys.checkpoint(agent_id, execution_id)),
        args=FIELDS,
    )


def _parse_read(agent_id: AgentId, execution_id: str, reply: Sequence[Any]) -> ExecutionRead:
    now, fence, *rest = reply
    return ExecutionRead(
        agent_id, execution_id, instant(now), None if fence is None else fence.decode(), rest[0] if rest else None
    )


def list_executions(keys: Keys, *, agent_id: str) -> Call[list[tuple[str, bool]]]:
    """Reads the ids of an agent's executions, each with whether it is unfinished."""
    return Call(_parse_list, args=("ZRANGE", keys.executions(agent_id), 0, -1, "WITHSCORES"))


def _parse_list(reply: Sequence[Any]) -> list[tuple[str, bool]]:
    # Pairs with newer protocols, a flat list with the old one.
    flat = reply if not reply or not isinstance(reply[0], (list, tuple)) else [word for pair in reply for word in pair]
    return [(name.decode(), float(score) == float("inf")) for name, score in zip(flat[::2], flat[1::2], strict=True)]


@dataclass(frozen=True, slots=True)
class Move:
    """A plan that is ready to be sent: the same whichever script does it."""

    plan: ExecutionPlan
    change: ExecutionChange
    events: Sequence[EncodedEvent]
    fence: str
    op: str

    @property
    def after(self) -> Execution:
        """What the plan leads to."""
        assert self.plan.after is not None  # noqa: S101 - a plan that leaves nothing is a deletion
        return self.plan.after

    @property
    def revision(self) -> Word:
        """What the script demands."""
        return self.plan.before.revision if self.plan.before else ""

    @property
    def pairs(self) -> list[Word]:
        """The events as words."""
        return [word for event in self.events for word in (event.data, event.type)]


def move_execution(keys: Keys, *, move: Move, retention: timedelta) -> Call[Execution]:
    """Makes or changes an execution."""
    agent_id, execution_id = move.after.agent_id, move.after.id
    put = [word for item in move.change.put.items() for word in item]
    return Call(
        lambda reply: _parse_move(move, reply),
        script="move_execution",
        keys=(
            keys.agent(agent_id),
            keys.executions(agent_id),
            keys.checkpoint(agent_id, execution_id),
            keys.events(agent_id),
            keys.feed(keys.shard_of(agent_id)),
        ),
        args=(
            agent_id,
            execution_id,
            move.fence,
            move.op,
            move.revision,
            max(1, int(retention.total_seconds())) if move.after.finished else "",
            MOST_UNFINISHED,
            MOST_FINISHED,
            FEED_LENGTH,
            len(put) // 2,
            *put,
            len(move.change.clear),
            *move.change.clear,
            len(move.events),
            *move.pairs,
        ),
    )


def requeue_execution(keys: Keys, *, move: Move) -> Call[Execution]:
    """Gives back an execution that an incarnation held."""
    agent_id = move.after.agent_id
    return Call(
        lambda reply: _parse_move(move, reply),
        script="requeue_execution",
        keys=(
            keys.agent(agent_id),
            keys.checkpoint(agent_id, move.after.id),
            keys.events(agent_id),
            keys.feed(keys.shard_of(agent_id)),
        ),
        args=(agent_id, move.fence, move.op, move.revision, move.after.state.value, FEED_LENGTH, *move.pairs),
    )


def _parse_move(move: Move, reply: Sequence[bytes]) -> Execution:
    after = move.after
    match reply:
        case [b"done", now, revision]:
            return replace(
                after,
                revision=int(revision),
                created_at=after.created_at or instant(now),
                changed_at=instant(now),
                now=instant(now),
                checkpoint=move.change.envelope,
                op=move.op,
            )
        case [b"fenced"]:
            raise fenced(after.agent_id, move.fence)
        case [b"conflict"]:
            raise CommitConflict(agent_id=after.agent_id, changed=f"execution {after.id}")
        case [b"full"]:
            raise ExecutionLimitError(agent_id=after.agent_id, execution=after.id, limit=MOST_UNFINISHED)
        case _:
            raise unknown_reply("move_execution", reply)


def delete_execution(keys: Keys, *, execution: Execution, fence: str) -> Call[None]:
    """Forgets an execution."""
    agent_id = execution.agent_id
    return Call(
        lambda reply: _parse_delete(agent_id, fence, reply),
        script="delete_execution",
        keys=(keys.agent(agent_id), keys.executions(agent_id), keys.checkpoint(agent_id, execution.id)),
        args=(execution.id, fence, execution.revision),
    )


def _parse_delete(agent_id: AgentId, fence: str, reply: Sequence[bytes]) -> None:
    match reply:
        case [b"done"]:
            return
        case [b"fenced"]:
            raise fenced(agent_id, fence)
        case [b"conflict"]:
            raise CommitConflict(agent_id=agent_id, changed="execution")
        case _:
            raise unknown_reply("delete_execution", reply)
