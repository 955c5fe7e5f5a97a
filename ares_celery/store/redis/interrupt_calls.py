"""Calls about what agents ask people."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec

from ares_celery.clock import micros, to_datetime
from ares_celery.errors import InterruptLimitError, InterruptOpenError
from ares_celery.ids import AgentId, Instant, Version
from ares_celery.model.audit import AuditNote
from ares_celery.model.command import Deadline
from ares_celery.model.event import RUNTIME_MODULE, EventType, NewEvent
from ares_celery.model.waits import InterruptInfo, InterruptState, is_approved
from ares_celery.store.interrupts import Decided, InterruptLook, Question
from ares_celery.store.redis.agent_calls import OUTCOME_TTL
from ares_celery.store.redis.audit_calls import audit_words
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.event_calls import FEED_LENGTH
from ares_celery.store.redis.json_values import decode_json, encode_json
from ares_celery.store.redis.keys import Keys, deadline_member
from ares_celery.store.redis.records import safe_text
from ares_celery.store.redis.replies import as_it_is, fenced, instant, unknown_reply
from ares_celery.store.redis.stored_events import EncodedEvent, encode_events

__all__ = [
    "APPROVE",
    "MOST_DECIDED",
    "MOST_OPEN",
    "decide_interrupt",
    "look_interrupt",
    "open_interrupt",
    "read_interrupts",
    "ruling_of",
]

#: Open questions of one agent: delete_agent removes them in one script, and people have to see them all.
MOST_OPEN: Final = 1_000
#: Decided ones that are kept, to tell whoever decides too late.
MOST_DECIDED: Final = 1_000
#: What the operation is called in outcomes and in the audit stream.
APPROVE: Final = "approve"
_METADATA: Final = {"module": RUNTIME_MODULE}
_FIELDS_OF_A_QUESTION: Final = 6
_FIELDS_OF_A_DECISION: Final = 4


def _encode(agent_id: AgentId, event: NewEvent, limit: int) -> EncodedEvent:
    (encoded,) = encode_events(agent_id, [event], epoch=0, limit=limit)
    return encoded


def open_interrupt(
    keys: Keys, *, agent_id: AgentId, fence: str, question: Question, replaces: str, limit: int
) -> Call[InterruptLook]:
    """Asks something, or finds it asked; ``limit`` in bytes of what people are told.

    Raises:
        UnserialisableError, EventTooLargeError: They cannot be told that.
    """
    payload, plain = encode_json(question.payload, what=f"what {question.name!r} asks", agent_id=agent_id)
    new_id = uuid.uuid4().hex
    told: dict[str, Any] = {
        "agent_id": agent_id,
        "execution": question.execution,
        "interrupt_id": new_id,
        "name": question.name,
        "payload": plain,
    }
    if question.timeout is not None:
        told["timeout"] = question.timeout.total_seconds()
    created = _encode(agent_id, NewEvent(EventType.INTERRUPT_CREATED, told, _METADATA), limit)
    abandoned = _encode(agent_id, _ended(agent_id, question.name, replaces, InterruptState.ABANDONED), limit)
    shard = keys.shard_of(agent_id)
    return Call(
        lambda reply: _parse_open(agent_id, fence, question, created, reply),
        script="open_interrupt",
        keys=(
            keys.agent(agent_id),
            keys.interrupts(agent_id),
            keys.checkpoint(agent_id, question.execution),
            keys.events(agent_id),
            keys.feed(shard),
        ),
        args=(
            agent_id,
            fence,
            question.name,
            new_id,
            f"{quote(question.execution, safe='')}/{quote(question.step, safe='')}",
            0 if question.timeout is None else max(1, micros(question.timeout)),
            payload,
            created.data,
            created.type,
            replaces,
            abandoned.data,
            abandoned.type,
            MOST_OPEN,
            MOST_DECIDED,
            FEED_LENGTH,
        ),
    )


def _ended(agent_id: AgentId, name: str, interrupt_id: str, state: InterruptState) -> NewEvent:
    """Nobody has decided, and nobody will."""
    payload = {"agent_id": agent_id, "interrupt_id": interrupt_id, "name": name, "state": state.value}
    return NewEvent(EventType.INTERRUPT_RESOLVED, payload, _METADATA)


def _parse_open(
    agent_id: AgentId, fence: str, question: Question, created: EncodedEvent, reply: Sequence[bytes]
) -> InterruptLook:
    match reply:
        case [b"asked", found, asked, expires, now, decisions, version]:
            event = created.stored(agent_id, Version(int(version)), int(now))
            return _open_look(found, asked, expires, now, decisions, event)
        case [b"taken", other, found]:
            raise InterruptOpenError(
                agent_id=agent_id,
                name=question.name,
                execution=question.execution,
                other=unquote(other.decode().partition("/")[0]),
                other_step=unquote(other.decode().partition("/")[2]),
                interrupt_id=found.decode(),
            )
        case [b"full"]:
            raise InterruptLimitError(agent_id=agent_id, name=question.name, limit=MOST_OPEN)
        case _:
            look = _parse_look("open_interrupt", agent_id, fence, reply)
            assert look is not None  # noqa: S101 - it makes what it does not find
            return look


def _open_look(  # noqa: PLR0917 - the parts of one reply
    found: bytes,
    asked: bytes,
    expires: bytes,
    now: bytes,
    decisions: bytes,
    event: Any = None,  # noqa: ANN401
) -> InterruptLook:
    return InterruptLook(
        found.decode(), None, instant(asked), instant(expires), instant(now), int(decisions), event=event
    )


def look_interrupt(
    keys: Keys, *, agent_id: AgentId, fence: str, name: str, interrupt_id: str
) -> Call[InterruptLook | None]:
    """Looks how a question stands; None when it is known no longer."""
    shard = keys.shard_of(agent_id)
    late = _encode(agent_id, _ended(agent_id, name, interrupt_id, InterruptState.TIMEOUT), 1 << 20)
    return Call(
        lambda reply: _parse_look("look_interrupt", agent_id, fence, reply),
        script="look_interrupt",
        keys=(keys.agent(agent_id), keys.interrupts(agent_id), keys.events(agent_id), keys.feed(shard)),
        args=(
            agent_id,
            fence,
            name,
            interrupt_id,
            f"{InterruptState.TIMEOUT.value}|{{}}",
            late.data,
            late.type,
            FEED_LENGTH,
        ),
    )


def _parse_look(script: str, agent_id: AgentId, fence: str, reply: Sequence[bytes]) -> InterruptLook | None:
    match reply:
        case [b"open", found, asked, expires, now, decisions]:
            return _open_look(found, asked, expires, now, decisions)
        case [b"decided", found, decision]:
            return InterruptLook(found.decode(), _decided(decision))
        case [b"gone"]:
            return None
        case [b"fenced"]:
            raise fenced(agent_id, fence)
        case _:
            raise unknown_reply(script, reply)


def _decided(stored: bytes) -> Decided:
    _, time, state, data = stored.split(b"|", _FIELDS_OF_A_DECISION - 1)
    kept: Mapping[str, Any] = decode_json(data)
    return Decided(
        InterruptState(state.decode()),
        instant(time),
        kept.get("decision", ""),
        kept.get("answer"),
        kept.get("actor", ""),
        kept.get("reason", ""),
    )


def decide_interrupt(  # noqa: PLR0913 - the parts of one decision
    keys: Keys,
    *,
    agent_id: AgentId,
    name: str,
    interrupt_id: str,
    decided: Decided,
    op: str,
    limit: int,
) -> Call[Sequence[bytes]]:
    """Decides a question; the reply is read by :func:`ruling_of`.

    Raises:
        UnserialisableError, EventTooLargeError: The answer cannot be kept.
    """
    actor, reason = safe_text(decided.actor), safe_text(decided.reason)
    _, answer = encode_json(decided.answer, what=f"the answer to {name!r}", agent_id=agent_id)
    told: dict[str, Any] = {
        "agent_id": agent_id,
        "interrupt_id": interrupt_id,
        "name": name,
        "state": InterruptState.RESOLVED.value,
        "decision": decided.decision,
        "approved": is_approved(decided.decision),
        "actor": actor,
        "reason": reason,
    }
    if answer is not None:
        told["payload"] = answer
    resolved = _encode(agent_id, NewEvent(EventType.INTERRUPT_RESOLVED, told, _METADATA), limit)
    kept = {"decision": decided.decision, "actor": actor, "reason": reason, "answer": answer}
    note = AuditNote(operation=APPROVE, agent_id=agent_id, actor=decided.actor, reason=decided.reason, op=op)
    shard = keys.shard_of(agent_id)
    return Call(
        as_it_is,
        script="decide_interrupt",
        keys=(
            keys.agent(agent_id),
            keys.op(agent_id, op),
            keys.interrupts(agent_id),
            keys.events(agent_id),
            keys.feed(shard),
            keys.deadlines(shard),
            keys.audit(shard),
        ),
        args=(
            agent_id,
            name,
            interrupt_id,
            f"{InterruptState.RESOLVED.value}|".encode() + msgspec.json.encode(kept),
            resolved.data,
            resolved.type,
            deadline_member(Deadline.APPROVAL, agent_id),
            *audit_words(note),
            FEED_LENGTH,
            int(OUTCOME_TTL.total_seconds()),
            APPROVE,
            keys.wake_prefix,
        ),
    )


def ruling_of(reply: Sequence[bytes]) -> tuple[str, str, Instant]:
    """What became of a decision: a word, the kind of the operation that the id is known for, and the deadline."""
    match reply:
        case [b"done", _, score]:
            return "done", APPROVE, instant(score) if score else Instant(0)
        case [b"repeated", outcome]:
            return "repeated", ([*outcome.split(b"|"), b"", b"", b"", b"", b""])[4].decode(), Instant(0)
        case [b"missing" | b"changed" | b"decided" | b"late" as word]:
            return word.decode(), "", Instant(0)
        case _:
            raise unknown_reply("decide_interrupt", reply)


def read_interrupts(keys: Keys, *, agent_id: AgentId) -> Call[dict[str, InterruptInfo]]:
    """Reads all questions of an agent that are known, by name."""
    return Call(lambda reply: _parse_all(agent_id, reply), args=("HGETALL", keys.interrupts(agent_id)))


def _parse_all(agent_id: AgentId, reply: Mapping[bytes, bytes]) -> dict[str, InterruptInfo]:
    fields = {field.decode(): value for field, value in reply.items()}
    return {
        field[2:]: _info(agent_id, field[2:], value, fields.get(f"d|{field[2:]}"))
        for field, value in fields.items()
        if field.startswith("a|")
    }


def _info(agent_id: AgentId, name: str, question: bytes, decision: bytes | None) -> InterruptInfo:
    found, execution, _, asked, expires, payload = question.split(b"|", _FIELDS_OF_A_QUESTION - 1)
    is_decided = decision is not None and decision.split(b"|", 1)[0] == found
    decided = _decided(decision) if decision is not None and is_decided else None
    word = None if decided is None or decided.state is not InterruptState.RESOLVED else decided.decision
    return InterruptInfo(
        id=found.decode(),
        name=name,
        agent_id=agent_id,
        execution=unquote(execution.decode().partition("/")[0]),
        state=InterruptState.OPEN if decided is None else decided.state,
        payload=decode_json(payload),
        created_at=to_datetime(instant(asked)),
        expires_at=to_datetime(instant(expires)) if expires != b"0" else None,
        decision=word,
        approved=None if word is None else is_approved(word),
        answer=None if decided is None else decided.answer,
        actor="" if decided is None else decided.actor,
        reason="" if decided is None else decided.reason,
        decided_at=None if decided is None else to_datetime(decided.time),
    )
