"""The end of a message's execution, in the same write as the answer."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

import msgspec

from ares_celery.errors import ExecutionStateError, error_from_wire
from ares_celery.errors.wording import message_of
from ares_celery.ids import AgentId, Instant, check_execution_id
from ares_celery.model.checkpoint import CheckpointEnvelope
from ares_celery.model.execution import Complete, Create, Execution, ExecutionState, Fail, decide_execution
from ares_celery.store.redis.call import Word
from ares_celery.store.redis.checkpoint_calls import MOST_FINISHED
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.stored_events import EncodedEvent, encode_events, lifecycle_events
from ares_celery.store.redis.stored_executions import change_of

__all__ = ["Finish", "ended_by", "finish", "left_over"]

#: Bytes of the event and of the checkpoint, which hold names and a text that is cut.
_MOST_BYTES: Final = 1 << 20
#: Characters of what a failure was like.
_LONGEST_CAUSE: Final = 2_000


class Finish(msgspec.Struct, frozen=True):
    """How an execution ends.

    Attributes:
        execution_id: Its id.
        event: What tells its end.
        made: The checkpoint that an execution of a message is made with.
        envelope: What becomes of that one; empty: it stays.
        put: Fields to set.
        retention: How long it is kept.
    """

    execution_id: str
    event: EncodedEvent
    made: bytes
    envelope: bytes
    put: Mapping[str, str | bytes]
    retention: timedelta

    def words(self) -> tuple[Word, ...]:
        """What every script that ends an execution is given first."""
        return (
            self.execution_id,
            int(self.retention.total_seconds()),
            MOST_FINISHED,
            self.event.data,
            self.event.type,
            self.made,
            self.envelope,
        )

    def fields(self) -> tuple[Word, ...]:
        """And last."""
        return tuple(word for item in self.put.items() for word in item)


def ended_by(keys: Keys, agent_id: AgentId, ended: Finish | str) -> tuple[tuple[str, ...], tuple[Word, ...]]:
    """Keys and first word of the execution that ends with an answer, or that must not be left unfinished by it."""
    execution_id = ended.execution_id if isinstance(ended, Finish) else ended
    if not execution_id:
        return (), ()
    return (keys.checkpoint(agent_id, execution_id), keys.executions(agent_id)), (execution_id,)


def left_over(agent_id: AgentId, ended: Finish | str) -> ExecutionStateError:
    """An earlier incarnation has left the execution of a message unfinished."""
    return ExecutionStateError(
        agent_id=agent_id,
        execution=ended if isinstance(ended, str) else ended.execution_id,
        state="unfinished",
        operation="the answer to its message",
        problem="an earlier incarnation has left it so; open it first, so that it ends with the answer",
    )


def finish(
    agent_id: AgentId, execution_id: str, *, fence: str, error: Mapping[str, Any] | None, retention: timedelta
) -> Finish:
    """Decides how the execution of a message ends: well, or for good with what the answer says.

    It is decided on the execution as its opening left it, so that the answer costs no read before it.

    Args:
        agent_id: Whose it is.
        execution_id: Its id.
        fence: Of the incarnation that answers; it ends only what it holds.
        error: What the answer says went wrong, as it goes over the wire; None: nothing did.
        retention: How long it is kept.
    """
    running = Execution(
        agent_id,
        check_execution_id(execution_id),
        state=ExecutionState.RUNNING,
        fence=fence,
        checkpoint=CheckpointEnvelope(),
    )
    end: Complete | Fail = Complete()
    if error is not None:
        end = Fail(message_of(error_from_wire(error))[:_LONGEST_CAUSE], retryable=False)
    plan = decide_execution(running, end, agent_id=agent_id, execution_id=execution_id, fence=fence, now=Instant(0))
    (event,) = encode_events(agent_id, lifecycle_events(plan.events), epoch=0, limit=_MOST_BYTES)
    change = change_of(plan, limit=_MOST_BYTES)
    made = change_of(
        decide_execution(None, Create(), agent_id=agent_id, execution_id=execution_id, fence=fence, now=Instant(0)),
        limit=_MOST_BYTES,
    ).envelope
    envelope = change.envelope if change.envelope != made else b""
    return Finish(execution_id, event, made, envelope, change.beside, retention)
