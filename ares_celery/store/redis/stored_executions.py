"""An execution as the fields of a Redis hash, and back. A field that holds nothing is absent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ares_celery.clock import micros
from ares_celery.errors import EventTooLargeError, UnreadableCheckpointError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.checkpoint import CheckpointEnvelope, encode_checkpoint
from ares_celery.model.execution import Execution, ExecutionPlan, ExecutionState, RetryPolicy
from ares_celery.store.redis.json_values import encode_json

__all__ = ["FIELDS", "ExecutionChange", "change_of", "decode_execution"]

#: What a read brings along, in this order; the steps' results are fields of their own.
FIELDS: Final = (
    "state",
    "fence",
    "attempts",
    "retry",
    "next_attempt_at",
    "revision",
    "created_at",
    "changed_at",
    "op",
    "envelope",
)


@dataclass(frozen=True, slots=True)
class ExecutionChange:
    """What a plan writes.

    Attributes:
        put: Fields to set.
        clear: Fields that hold nothing any more.
        envelope: The checkpoint afterwards, as bytes.
    """

    put: Mapping[str, str | bytes]
    clear: tuple[str, ...]
    envelope: bytes

    @property
    def beside(self) -> Mapping[str, str | bytes]:
        """The fields to set, without the checkpoint's."""
        return {name: value for name, value in self.put.items() if name != "envelope"}


def change_of(plan: ExecutionPlan, *, limit: int) -> ExecutionChange:
    """What turns the execution before a plan into the one after it.

    Raises:
        UnserialisableError: The checkpoint is no plain JSON.
        EventTooLargeError: It has more than ``limit`` bytes.
    """
    assert plan.after is not None  # noqa: S101 - a plan that leaves nothing is a deletion
    old = _fields(plan.before) if plan.before else {}
    new = _fields(plan.after)
    put: dict[str, str | bytes] = {name: value for name, value in new.items() if old.get(name) != value}
    envelope = _envelope(plan.after, limit)
    if plan.before is None or plan.before.checkpoint != plan.after.checkpoint:
        put["envelope"] = envelope
    if plan.aside:
        put["envelope_aside"] = plan.aside
    return ExecutionChange(put, tuple(name for name in old if name not in new), envelope)


def _fields(execution: Execution) -> dict[str, str]:
    retry = execution.retry
    fields = {
        "state": execution.state.value,
        "fence": execution.fence,
        "attempts": str(execution.attempts or ""),
        "retry": f"{retry.max_attempts}|{micros(retry.base)}|{micros(retry.longest)}",
        "next_attempt_at": str(execution.next_attempt_at or ""),
    }
    return {name: value for name, value in fields.items() if value}


def _envelope(execution: Execution, limit: int) -> bytes:
    if not isinstance(execution.checkpoint, CheckpointEnvelope):
        return execution.checkpoint
    what = f"the checkpoint of execution {execution.id!r}"
    data, _ = encode_json(encode_checkpoint(execution.checkpoint), what=what, agent_id=execution.agent_id)
    if len(data) > limit:
        kind = f"checkpoint of execution {execution.id}"
        raise EventTooLargeError(type=kind, agent_id=execution.agent_id, size=len(data), limit=limit)
    return data


def decode_execution(agent_id: AgentId, execution_id: str, values: Sequence[Any] | bytes, *, now: Instant) -> Execution:
    """The execution in what a read brought.

    Args:
        agent_id: Whose it is.
        execution_id: Its id.
        values: Those of ``FIELDS``, None where a field is absent; or what Redis said of a key that holds no hash.
        now: Redis TIME of the read.

    Raises:
        UnreadableCheckpointError: It is no execution that this version knows.
    """
    if isinstance(values, bytes):
        raise UnreadableCheckpointError(
            agent_id=agent_id, execution=execution_id, problem=values.decode(errors="replace")
        )
    stored: dict[str, bytes] = {name: value for name, value in zip(FIELDS, values, strict=True) if value is not None}
    try:
        texts = {name: value.decode() for name, value in stored.items() if name != "envelope"}
        most, base, longest = map(int, texts["retry"].split("|"))
        return Execution(
            agent_id,
            execution_id,
            state=ExecutionState(texts["state"]),
            fence=texts.get("fence", ""),
            attempts=int(texts.get("attempts", "0")),
            retry=RetryPolicy(most, timedelta(microseconds=base), timedelta(microseconds=longest)),
            next_attempt_at=Instant(int(texts.get("next_attempt_at", "0"))),
            revision=int(texts["revision"]),
            created_at=Instant(int(texts["created_at"])),
            changed_at=Instant(int(texts["changed_at"])),
            now=now,
            checkpoint=stored.get("envelope", b"null"),
            op=texts.get("op", ""),
        )
    except KeyError as error:
        problem = f"field {error} is absent"
    except (ValueError, OverflowError) as error:
        problem = str(error)
    raise UnreadableCheckpointError(agent_id=agent_id, execution=execution_id, problem=problem)
