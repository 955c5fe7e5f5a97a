"""Calls about durable steps."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ares_celery.errors import (
    AresError,
    ExecutionStateError,
    StepLimitError,
    StepOutcomeUnknownError,
    StepResultTooLargeError,
)
from ares_celery.ids import AgentId, Version
from ares_celery.model.event import EventType, NewEvent
from ares_celery.model.step import (
    MOST_STEPS,
    RecordedSteps,
    StepIntent,
    StepRecord,
    decode_intent,
    encode_intent,
    encode_step,
)
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.checkpoint_calls import ExecutionRead
from ares_celery.store.redis.event_calls import FEED_LENGTH
from ares_celery.store.redis.json_values import JSON_ERRORS, unserialisable
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.records import safe_text
from ares_celery.store.redis.replies import epoch_of, fenced, instant, rolled_back, unknown_reply
from ares_celery.store.redis.stored_events import EncodedEvent, encode_events, encode_own
from ares_celery.store.redis.stored_executions import FIELDS
from ares_celery.store.steps import NOT_SEEN, Begun, Recorded

__all__ = [
    "EncodedIntent",
    "EncodedStep",
    "Holder",
    "StepsRead",
    "Told",
    "encode_begun",
    "encode_recorded",
    "intent_field",
    "open_execution",
    "read_intents",
    "read_steps",
    "record_intent",
    "record_step",
    "step_field",
]

log: Final = logging.getLogger(__name__)

#: Characters of a failure in its event.
_LONGEST_ERROR: Final = 2_000


#: Fields of an execution whose steps are read along with it.
_MOST_READ_ALONG: Final = 500
#: What the field of a step begins with.
_STEP: Final = b"step:"


def step_field(step_id: str) -> str:
    """The field of a step in the hash of its execution."""
    return f"step:{step_id}"


def intent_field(execution_id: str, step_id: str) -> str:
    """The field of an intent in the hash of its agent.

    Example:
        >>> intent_field("msg:1", "charge|7")
        'msg%3A1|charge%7C7'
    """
    return f"{quote(execution_id, safe='')}|{quote(step_id, safe='')}"


# -- reading -----------------------------------------------------------------------------------------------------------


class StepsRead(msgspec.Struct, frozen=True):
    """An execution with its steps, in one atomic read.

    Attributes:
        execution: It.
        steps: What they recorded, by id; None: they are many, so that :func:`read_steps` reads them.
    """

    execution: ExecutionRead
    steps: Mapping[str, bytes] | None


def open_execution(keys: Keys, *, agent_id: AgentId, execution_id: str) -> Call[StepsRead]:
    """Reads an execution with all that its steps recorded; never refuses one."""
    return Call(
        lambda reply: _parse_open(agent_id, execution_id, reply),
        script="open_execution",
        keys=(keys.agent(agent_id), keys.checkpoint(agent_id, execution_id)),
        args=(_MOST_READ_ALONG, *FIELDS),
    )


def _parse_open(agent_id: AgentId, execution_id: str, reply: Sequence[Any]) -> StepsRead:
    now, fence, *rest = reply
    execution = ExecutionRead(
        agent_id, execution_id, instant(now), None if fence is None else fence.decode(), rest[0] if rest else None
    )
    match rest:
        case [_, lengths, whole]:
            return StepsRead(execution, _cut(lengths, whole))
        case [fields] if not isinstance(fields, bytes):
            return StepsRead(execution, None)
        case _:
            return StepsRead(execution, {})


def _cut(lengths: bytes, whole: bytes) -> dict[str, bytes]:
    """The ids and records that came in one piece."""
    found: dict[str, bytes] = {}
    numbers = iter(map(int, lengths.split()))
    start = 0
    for name, data in zip(numbers, numbers, strict=True):
        end = start + name
        found[whole[start:end].decode()] = whole[end : end + data]
        start = end + data
    return found


def read_steps(keys: Keys, *, agent_id: AgentId, execution_id: str) -> Call[Mapping[str, bytes]]:
    """Reads what many steps of an execution recorded: 10,000 of 1 kB in a tenth of a second."""
    return Call(_parse_steps, args=("HGETALL", keys.checkpoint(agent_id, execution_id)))


def _parse_steps(reply: Mapping[bytes, bytes]) -> Mapping[str, bytes]:
    start = len(_STEP)
    return {name[start:].decode(): data for name, data in reply.items() if name.startswith(_STEP)}


def read_intents(keys: Keys, *, agent_id: AgentId) -> Call[tuple[StepIntent, ...]]:
    """Reads the open intents of an agent, oldest first; logs and leaves what cannot be read."""
    return Call(lambda reply: _parse_intents(agent_id, reply), args=("HVALS", keys.intents(agent_id)))


def _parse_intents(agent_id: AgentId, reply: Sequence[bytes]) -> tuple[StepIntent, ...]:
    found: list[StepIntent] = []
    for data in reply:
        try:
            found.append(decode_intent(data))
        except (ValueError, RecursionError) as error:
            log.error(  # noqa: TRY400 - the sentence says it all
                "an intent of agent %s cannot be read: %s; it is left as it is",
                agent_id,
                error,
                extra={"agent_id": agent_id},
            )
    return tuple(sorted(found, key=lambda intent: (intent.time, intent.execution, intent.step)))


# -- writing -----------------------------------------------------------------------------------------------------------


class Holder(msgspec.Struct, frozen=True):
    """Who writes: the incarnation of a fence, in one of its agent's executions."""

    agent_id: AgentId
    fence: str
    execution_id: str
    #: The last version of the stream that it has seen.
    expected: Version = NOT_SEEN


class Told(msgspec.Struct, frozen=True):
    """An event that is ready to be sent: its type and its bytes."""

    type: str
    data: bytes


class EncodedStep(msgspec.Struct, frozen=True):
    """A record that is ready to be sent.

    Attributes:
        record: As everybody will read it.
        data: Its bytes.
        event: What tells it; None: nothing does.
        emitted: The agent's own event, where that tells it.
    """

    record: StepRecord
    data: bytes
    event: Told | None
    emitted: EncodedEvent | None = None


class EncodedIntent(msgspec.Struct, frozen=True):
    """An intent that is ready to be sent, with what tells it."""

    intent: StepIntent
    data: bytes
    event: Told


def encode_recorded(  # noqa: PLR0913 - the parts of one write
    holder: Holder,
    record: StepRecord,
    *,
    op: str,
    told: bool,
    took_ms: int,
    limit: int,
    event: NewEvent | None = None,
) -> EncodedStep:
    """Makes a record ready, with its event: the agent's own, or what tells that there is a record.

    Raises:
        EventTooLargeError: The agent's own event has more than ``limit`` bytes.
        UnserialisableError: The value is no plain JSON.
        StepResultTooLargeError: It has more than ``limit`` bytes.
    """
    try:
        data, read = encode_step(record)
        faithful = bool(read.value == record.value)
    except JSON_ERRORS:
        faithful, data, read = False, b"", record
    if not faithful:
        what = f"the result of step {record.id!r}"
        raise unserialisable(record.value, what=what, agent_id=holder.agent_id)
    if len(data) > limit:
        raise _too_large(holder, record.id, what="the result", size=len(data), limit=limit)
    if event is not None:
        epoch = epoch_of(holder.agent_id, holder.fence)
        (emitted,) = encode_events(holder.agent_id, [event], epoch=epoch, limit=limit)
        return EncodedStep(read, data, Told(emitted.type, emitted.data), emitted)
    return EncodedStep(read, data, _completed_or_failed(holder, read, took_ms, op) if told else None)


def encode_begun(holder: Holder, intent: StepIntent, *, op: str, limit: int) -> EncodedIntent:
    """Makes an intent ready, with its event.

    Raises:
        UnserialisableError: The arguments are no plain JSON.
        StepResultTooLargeError: It has more than ``limit`` bytes.
    """
    try:
        data = encode_intent(intent)
        faithful = bool(decode_intent(data).arguments == intent.arguments)
    except JSON_ERRORS:
        faithful, data = False, b""
    if not faithful:
        what = f"the arguments of step {intent.step!r}"
        raise unserialisable(intent.arguments, what=what, agent_id=holder.agent_id)
    if len(data) > limit:
        what = "what is noted of the arguments"
        raise _too_large(holder, intent.step, what=what, size=len(data), limit=limit)
    told = {
        "agent_id": holder.agent_id,
        "execution": holder.execution_id,
        "step": intent.step,
        "function": intent.function,
        "replay": intent.replay,
    }
    return EncodedIntent(intent, data, _told(holder, EventType.STEP_STARTED, told, op))


def _completed_or_failed(holder: Holder, record: StepRecord, took_ms: int, op: str) -> Told:
    told: dict[str, Any] = {
        "agent_id": holder.agent_id,
        "execution": holder.execution_id,
        "step": record.id,
        "function": record.function,
        "replay": record.replay,
        "attempts": record.attempts,
        "took_ms": took_ms,
    }
    if record.error is None:
        return _told(holder, EventType.STEP_COMPLETED, told, op)
    problem = f"{record.error.get('type', 'error')}: {record.error.get('message', '')}"
    failed = {**told, "problem": safe_text(problem, _LONGEST_ERROR), "will_retry": False}
    return _told(holder, EventType.STEP_FAILED, failed, op)


def _told(holder: Holder, kind: EventType, payload: Mapping[str, Any], op: str) -> Told:
    return Told(kind.value, encode_own(op, kind, payload, epoch=epoch_of(holder.agent_id, holder.fence)))


def _too_large(holder: Holder, step_id: str, *, what: str, size: int, limit: int) -> StepResultTooLargeError:
    return StepResultTooLargeError(
        agent_id=holder.agent_id, execution=holder.execution_id, step=step_id, what=what, size=size, limit=limit
    )


def record_step(
    keys: Keys, *, holder: Holder, step: EncodedStep, closes_intent: bool, begun: str = ""
) -> Call[Recorded]:
    """Records what a step came to; ``begun``: the inbox entry of a message that has come on by that."""
    step_id, event = step.record.id, step.event
    return Call(
        lambda reply: _parse_recorded(holder, step, reply),
        script="record_step",
        keys=(*keys.recorded(holder.agent_id, holder.execution_id), keys.handling(holder.agent_id)),
        args=(
            holder.fence,
            step_field(step_id),
            step.data,
            # An intent was let in by the limit: its outcome is not refused because of steps that ran beside it.
            2 * MOST_STEPS if closes_intent else MOST_STEPS,
            holder.agent_id,
            event.data if event else "",
            event.type if event else "",
            FEED_LENGTH,
            intent_field(holder.execution_id, step_id) if closes_intent else "",
            holder.expected,
            begun,
        ),
    )


def _parse_recorded(holder: Holder, step: EncodedStep, reply: Sequence[Any]) -> Recorded:
    match reply:
        case [b"done", version, spent, number, now]:
            record = msgspec.structs.replace(step.record, number=int(number), time=instant(now))
            at = Version(int(version)) if version else None
            emitted = step.emitted.stored(holder.agent_id, at, int(now)) if step.emitted and at else None
            return Recorded(record, at, int(spent), event=emitted)
        case [b"recorded", stored, spent]:
            is_own = stored.split(b"|", 2)[-1] == step.data
            return Recorded(_stored(holder, step.record.id, stored), None, int(spent), is_own)
        case _:
            raise _refusal("record_step", holder, step.record.id, reply)


def record_intent(keys: Keys, *, holder: Holder, intent: EncodedIntent) -> Call[Begun]:
    """Notes that a step is begun which must not be repeated."""
    step_id = intent.intent.step
    return Call(
        lambda reply: _parse_begun(holder, step_id, reply),
        script="record_intent",
        keys=keys.recorded(holder.agent_id, holder.execution_id),
        args=(
            holder.fence,
            step_field(step_id),
            intent_field(holder.execution_id, step_id),
            intent.data,
            MOST_STEPS,
            holder.agent_id,
            intent.event.data,
            intent.event.type,
            FEED_LENGTH,
            holder.expected,
        ),
    )


def _parse_begun(holder: Holder, step_id: str, reply: Sequence[Any]) -> Begun:
    match reply:
        case [b"done" | b"repeated", version, spent]:
            return Begun(None, Version(int(version)) if version else None, int(spent))
        case [b"recorded", stored, spent]:
            return Begun(_stored(holder, step_id, stored), None, int(spent))
        case [b"open"]:
            raise StepOutcomeUnknownError(agent_id=holder.agent_id, execution=holder.execution_id, step=step_id)
        case _:
            raise _refusal("record_intent", holder, step_id, reply)


def _stored(holder: Holder, step_id: str, data: bytes) -> StepRecord:
    return RecordedSteps(holder.agent_id, holder.execution_id, {step_id: data})[step_id]


def _refusal(script: str, holder: Holder, step_id: str, reply: Sequence[Any]) -> AresError:
    whose = {"agent_id": holder.agent_id, "execution": holder.execution_id}
    match reply:
        case [b"fenced"]:
            return fenced(holder.agent_id, holder.fence)
        case [b"rolled back", version]:
            return rolled_back(holder.agent_id, actual=int(version), expected=holder.expected)
        case [b"state", state]:
            return ExecutionStateError(
                **whose,
                state=state.decode() or "not there",
                operation=f"step {step_id!r}",
                problem="only the incarnation that has opened it, and while it runs, records steps",
            )
        case [b"full"]:
            return StepLimitError(**whose, step=step_id, limit=MOST_STEPS)
        case _:
            return unknown_reply(script, reply)
