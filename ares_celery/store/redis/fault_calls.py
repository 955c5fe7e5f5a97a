"""Calls about faults on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final

from ares_celery.clock import micros
from ares_celery.errors import (
    AgentForkingError,
    AgentNotFoundError,
    ChaosDisabledError,
    FaultLimitError,
    OperationIdReusedError,
)
from ares_celery.ids import AgentId
from ares_celery.model.audit import AuditNote
from ares_celery.model.event import RUNTIME_MODULE, EventType, NewEvent
from ares_celery.model.fault import OF_AN_INCARNATION, REPLACED, Draw, Fault, FaultKind, Injection, nobody_hosts
from ares_celery.model.fork import ForkOrigin
from ares_celery.store.base import CommitConflict
from ares_celery.store.faults import FaultUse
from ares_celery.store.redis.agent_calls import OUTCOME_TTL
from ares_celery.store.redis.audit_calls import audit_words
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.event_calls import FEED_LENGTH
from ares_celery.store.redis.keys import CHAOS, Keys
from ares_celery.store.redis.replies import as_texts, instant, unknown_reply
from ares_celery.store.redis.stored_events import encode_events, lifecycle_events
from ares_celery.store.redis.stored_faults import decode_fault, decode_faults, decode_listed, encode_fault

__all__ = [
    "HEAL",
    "KEPT",
    "MOST_FAULTS",
    "Asked",
    "Ending",
    "Last",
    "behind",
    "encode_event",
    "end_faults",
    "inject_fault",
    "list_disturbed",
    "read_ending",
    "read_faults",
    "use_fault",
]

#: Active faults of one agent: all of them are read together, and people have to see them all.
MOST_FAULTS: Final = 100
#: Faults are kept so long behind the end of the last one, for a sweep that comes late to tell of it.
KEPT: Final = timedelta(days=1)
#: The answer to one call is remembered so long: beyond any repeat of it.
_USE_TTL: Final = timedelta(minutes=5)
_EVENT_BYTES: Final = 1 << 20
_MILLIONTHS: Final = 1_000_000
_METADATA: Final = {"module": RUNTIME_MODULE}

#: What the injection of each kind is called, in outcomes and in the audit stream.
OPERATIONS: Final[Mapping[FaultKind, str]] = {
    FaultKind.PARTITION: "partition_network",
    FaultKind.MEMORY: "corrupt_memory",
    FaultKind.MCP: "disconnect_mcp",
    FaultKind.LLM: "inject_llm_failure",
    FaultKind.SLOW: "slow_agent",
    FaultKind.TOOL_TIMEOUT: "tool_timeout",
}
HEAL: Final = "heal"


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks, why, and under which operation id."""

    op: str
    reason: str = ""
    actor: str = ""

    def note(self, operation: str, agent_id: str | None = None) -> AuditNote:
        """The audit entry of what is asked."""
        return AuditNote(operation=operation, agent_id=agent_id, actor=self.actor, reason=self.reason, op=self.op)


def encode_event(stream_id: str, kind: EventType, payload: Mapping[str, Any]) -> bytes:
    """One of the runtime's own events, ready to be sent."""
    told = lifecycle_events([NewEvent(kind, payload, _METADATA)])
    (event,) = encode_events(stream_id, told, epoch=0, limit=_EVENT_BYTES)
    return event.data


@dataclass(frozen=True, slots=True)
class Ending:
    """A fault that ends: its id, and the word for its kind, which may be one of a newer version."""

    fault_id: str
    kind: str

    @classmethod
    def of(cls, fault: Fault) -> Ending:
        """That of a fault."""
        return cls(fault.id, fault.kind.value)


def _ended(agent_id: str, ending: Ending, told: EventType, **more: str) -> bytes:
    payload = {"agent_id": agent_id, "fault": ending.fault_id, "kind": ending.kind, **more}
    return encode_event(agent_id, told, payload)


def _injected(injection: Injection, asked: Asked) -> bytes:
    own: dict[FaultKind, dict[str, Any]] = {
        FaultKind.SLOW: {"delay": injection.delay},
        FaultKind.TOOL_TIMEOUT: {"timeout": injection.timeout},
        FaultKind.LLM: {"error_type": injection.error_type, "retry_after": injection.retry_after},
        FaultKind.MCP: {"server": injection.server},
    }
    payload: dict[str, Any] = {
        "agent_id": injection.agent_id,
        "fault": asked.op,
        "kind": injection.kind.value,
        "duration": injection.duration.total_seconds(),
        "count": injection.count,
        "probability": injection.probability,
        "seed": injection.seed,
        **own.get(injection.kind, {}),
        "reason": asked.reason,
        "actor": asked.actor,
    }
    shown = {name: value for name, value in payload.items() if value is not None}
    return encode_event(injection.agent_id, EventType.FAULT_INJECTED, shown)


def _damage(injection: Injection) -> tuple[str, int]:
    """How the newest snapshot is damaged, and where: as the seed says."""
    if injection.kind is not FaultKind.MEMORY:
        return "", 0
    drawn = sha256(f"damage:{injection.seed}".encode()).digest()
    return ("flip", "cut")[drawn[0] % 2], int.from_bytes(drawn[1:9]) % _MILLIONTHS


# -- faults -----------------------------------------------------------------------------------------------------------


def inject_fault(
    keys: Keys, *, injection: Injection, allowed: bool, asked: Asked, present: Sequence[Fault]
) -> Call[Fault]:
    """Makes a fault active; ``present`` are those that are there, as far as it may replace one."""
    agent_id, kind = injection.agent_id, injection.kind
    shard = keys.shard_of(agent_id)
    replaced = [Ending.of(fault) for fault in present if fault.kind is kind] if kind in REPLACED else []
    return Call(
        lambda reply: _parse_injected(keys, injection, asked, reply),
        script="inject_fault",
        keys=(
            keys.agent(agent_id),
            keys.op(agent_id, asked.op),
            keys.faults(agent_id),
            keys.disturbed(shard),
            keys.chaos(shard),
            keys.deadlines(shard),
            keys.events(agent_id),
            keys.feed(shard),
            keys.audit(shard),
            keys.snapshots(agent_id),
        ),
        args=(
            agent_id,
            asked.op,
            kind.value,
            int(allowed),
            int(kind in OF_AN_INCARNATION),
            micros(injection.duration),
            encode_fault(injection, reason=asked.reason, actor=asked.actor),
            int(kind in REPLACED),
            MOST_FAULTS,
            *_damage(injection),
            _injected(injection, asked),
            EventType.FAULT_INJECTED.value,
            FEED_LENGTH,
            *audit_words(asked.note(OPERATIONS[kind], agent_id)),
            int(OUTCOME_TTL.total_seconds()),
            OPERATIONS[kind],
            keys.wake_prefix,
            int(KEPT.total_seconds()),
            EventType.FAULT_ENDED.value,
            *(
                word
                for one in replaced
                for word in (one.fault_id, _ended(agent_id, one, EventType.FAULT_ENDED, by="replaced"))
            ),
        ),
    )


def _parse_injected(keys: Keys, injection: Injection, asked: Asked, reply: Sequence[bytes]) -> Fault:
    agent_id, operation = injection.agent_id, OPERATIONS[injection.kind]
    match reply:
        case [b"done" | b"repeated", outcome]:
            until, _, stored = behind(agent_id, asked, operation, outcome).partition(b"|")
            fault = decode_fault(agent_id, asked.op, instant(until), stored)
            assert fault is not None  # noqa: S101 - of a kind that was just written
            return fault
        case [b"missing"]:
            raise AgentNotFoundError(agent_id=agent_id)
        case [b"forking", text]:
            origin = ForkOrigin.parse(text.decode())
            raise AgentForkingError(agent_id=agent_id, source=origin.source, at=origin.at, operation=operation)
        case [b"disabled"]:
            raise ChaosDisabledError(operation=operation, namespace=keys.namespace)
        case [b"state", state]:
            raise nobody_hosts(agent_id, state.decode(), operation)
        case [b"full"]:
            raise FaultLimitError(agent_id=agent_id, limit=MOST_FAULTS)
        case [b"conflict"]:
            raise CommitConflict(agent_id=agent_id, changed=f"faults of kind {injection.kind.value}")
        case _:
            raise unknown_reply("inject_fault", reply)


def behind(agent_id: str, asked: Asked, operation: str, outcome: bytes) -> bytes:
    """What an outcome says behind its five fields; an operation id is for one kind of operation."""
    *_, used_for, said = ([*outcome.split(b"|", 5), b"", b"", b"", b"", b"", b""])[:6]
    if used_for.decode() != operation:
        subject = "the namespace" if agent_id == CHAOS else f"agent {agent_id!r}"
        raise OperationIdReusedError(op=asked.op, subject=subject, used_for=used_for.decode(), operation=operation)
    return said


def read_faults(keys: Keys, *, agent_id: AgentId, overdue: bool = False) -> Call[tuple[Fault, ...]]:
    """Reads the active faults of an agent, as they are felt; with ``overdue`` also those that nobody ended yet."""
    shard = keys.shard_of(agent_id)
    return Call(
        lambda reply: decode_faults(agent_id, reply),
        script="read_faults",
        keys=(keys.faults(agent_id), keys.deadlines(shard), keys.agent(agent_id)),
        args=(agent_id, int(overdue)),
    )


def list_disturbed(keys: Keys, *, shard: int) -> Call[list[str]]:
    """Reads which agents of a shard have faults."""
    return Call(lambda reply: sorted(as_texts(list(reply))), args=("SMEMBERS", keys.disturbed(shard)))


def read_ending(keys: Keys, *, agent_id: AgentId, fault_id: str) -> Call[Ending]:
    """Reads what has to be known of a fault to end it; one that is gone already has no kind."""
    return Call(
        lambda reply: Ending(fault_id, (reply or b"").partition(b"|")[0].decode()),
        args=("HGET", keys.faults(agent_id), fault_id),
    )


def end_faults(
    keys: Keys, *, agent_id: AgentId, endings: Sequence[Ending], asked: Asked | None
) -> Call[tuple[Fault, ...]]:
    """Ends faults that somebody heals; or, if nobody asked, those of them whose time is over."""
    shard = keys.shard_of(agent_id)
    kind = EventType.FAULT_ENDED if asked is None else EventType.FAULT_HEALED
    more = {"by": "time"} if asked is None else {"reason": asked.reason, "actor": asked.actor}
    return Call(
        lambda reply: _parse_ended(agent_id, asked, reply),
        script="end_faults",
        keys=(
            keys.agent(agent_id),
            keys.op(agent_id, asked.op if asked else ""),
            keys.faults(agent_id),
            keys.disturbed(shard),
            keys.deadlines(shard),
            keys.events(agent_id),
            keys.feed(shard),
            keys.audit(shard),
        ),
        args=(
            agent_id,
            int(asked is None),
            kind.value,
            FEED_LENGTH,
            *audit_words(asked.note(HEAL, agent_id) if asked else None),
            int(OUTCOME_TTL.total_seconds()) if asked else 0,
            HEAL,
            keys.wake_prefix,
            *(word for one in endings for word in (one.fault_id, _ended(agent_id, one, kind, **more))),
        ),
    )


def _parse_ended(agent_id: AgentId, asked: Asked | None, reply: Sequence[bytes]) -> tuple[Fault, ...]:
    match reply:
        case [b"done" | b"repeated", outcome]:
            return decode_listed(agent_id, behind(agent_id, asked or Asked(""), HEAL, outcome))
        case [b"missing"] if asked is None:
            return ()
        case [b"missing"]:
            raise AgentNotFoundError(agent_id=agent_id)
        case _:
            raise unknown_reply("end_faults", reply)


@dataclass(frozen=True, slots=True)
class Last:
    """The call would be the last one that this fault may affect; nothing was counted, as its event is needed first."""

    ending: Ending


def use_fault(
    keys: Keys, *, agent_id: AgentId, fault_id: str, op: str, last: Last | None = None
) -> Call[FaultUse | Last]:
    """Draws whether a fault affects a call; with ``last`` its end may be told."""
    shard = keys.shard_of(agent_id)
    return Call(
        lambda reply: _parse_use(fault_id, reply),
        script="use_fault",
        keys=(
            keys.agent(agent_id),
            keys.fault_call(agent_id, f"{fault_id}:{op}"),
            keys.faults(agent_id),
            keys.disturbed(shard),
            keys.deadlines(shard),
            keys.events(agent_id),
            keys.feed(shard),
        ),
        args=(
            agent_id,
            fault_id,
            Draw.FACTOR,
            Draw.MODULUS,
            "" if last is None else _ended(agent_id, last.ending, EventType.FAULT_ENDED, by="count"),
            EventType.FAULT_ENDED.value,
            FEED_LENGTH,
            int(_USE_TTL.total_seconds()),
            keys.wake_prefix,
        ),
    )


def _parse_use(fault_id: str, reply: Sequence[bytes]) -> FaultUse | Last:
    match reply:
        case [b"hit" | b"pass" as word, used, over]:
            return FaultUse(word == b"hit", int(used), over == b"1")
        case [b"over"]:
            return FaultUse(hit=False, over=True)
        case [b"last", stored]:
            return Last(Ending(fault_id, stored.partition(b"|")[0].decode()))
        case _:
            raise unknown_reply("use_fault", reply)
