"""Calls about the namespace itself: how it was made, the state of its runtime, who sweeps, who hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import msgspec

from ares_celery.clock import micros
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import RuntimeState
from ares_celery.model.audit import AuditNote
from ares_celery.model.command import Deadline
from ares_celery.store.base import ClockStand, Rebased, RuntimeRead
from ares_celery.store.redis.audit_calls import audit_words
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import RUNTIME, Keys, deadline_member
from ares_celery.store.redis.records import flat_fields, safe_text
from ares_celery.store.redis.replies import as_it_is, instant

__all__ = [
    "HOST_TTL",
    "Opened",
    "StoredRuntime",
    "copy_runtime",
    "count",
    "elect",
    "known_types",
    "open_namespace",
    "read_background",
    "read_clock",
    "read_hosts",
    "read_runtime",
    "rebase",
    "report_background",
    "report_host",
    "report_sweep",
    "report_types",
    "server_time",
    "set_runtime",
    "settle_runtime",
    "sweep_age",
]

#: A process that reported nothing for so long is no longer listed.
HOST_TTL: Final = timedelta(minutes=1)
#: How long a repeat of the same count is known.
COUNTED_TTL: Final = timedelta(hours=1)
#: A process reports its detached work every second; that of one which is gone is forgotten so soon.
BACKGROUND_TTL: Final = timedelta(seconds=5)
#: The mover of the runtime's state copies it itself; somebody else goes on when it has not done so by then.
COPY_GRACE: Final = timedelta(seconds=1)

#: What moving the runtime's state is called in the audit stream.
_RUNTIME_WORDS: Final = {
    RuntimeState.NEW: "runtime.reset",
    RuntimeState.RUNNING: "runtime.start",
    RuntimeState.STOPPED: "runtime.stop",
    RuntimeState.FROZEN: "runtime.freeze",
}
_COPY_DEADLINE: Final = deadline_member(Deadline.RECONCILE, RUNTIME)


@dataclass(frozen=True, slots=True)
class Opened:
    """How a namespace was made.

    Attributes:
        made: It was made by this very call.
        meta: Schema, shards, time of creation, as texts.
        config: Its settings as JSON.
    """

    made: bool
    meta: Mapping[str, str]
    config: bytes


def open_namespace(keys: Keys, *, schema: int, config: str) -> Call[Opened]:
    """Makes the namespace when it does not exist."""
    return Call(
        lambda reply: Opened(bool(reply[0]), flat_fields(reply[1]), reply[2] or b"{}"),
        script="open_namespace",
        keys=(keys.meta, keys.config),
        args=(schema, keys.shards, config),
    )


@dataclass(frozen=True, slots=True)
class StoredRuntime:
    """The runtime's state: as read, and as the fields that a copy consists of."""

    read: RuntimeRead
    fields: Mapping[str, str]


def read_runtime(keys: Keys) -> Call[StoredRuntime]:
    """Reads the runtime's state."""
    return Call(_parse_runtime, script="read_runtime", keys=(keys.runtime(0),), args=())


def _parse_runtime(reply: Sequence[Any]) -> StoredRuntime:
    fields = flat_fields(reply[1])
    read = RuntimeRead(
        state=RuntimeState(fields.get("state", "new")),
        generation=int(fields.get("generation", "0")),
        since=Instant(int(fields.get("since", "0"))),
        now=instant(reply[0]),
        reason=fields.get("reason", ""),
        actor=fields.get("actor", ""),
        first_started=Instant(int(fields.get("first_started", "0"))),
        started_at=Instant(int(fields.get("started_at", "0"))),
        stopped_at=Instant(int(fields.get("stopped_at", "0"))),
    )
    return StoredRuntime(read, fields)


def set_runtime(
    keys: Keys, *, state: RuntimeState, only_from: Sequence[RuntimeState], reason: str, actor: str
) -> Call[StoredRuntime]:
    """Moves the runtime's state in its home shard."""
    note = AuditNote(operation=_RUNTIME_WORDS[state], actor=actor, reason=reason, state=state.value)
    return Call(
        _parse_runtime,
        script="set_runtime",
        keys=(keys.runtime(0), keys.deadlines(0), keys.audit(0)),
        args=(
            state.value,
            safe_text(reason),
            safe_text(actor),
            _COPY_DEADLINE,
            micros(COPY_GRACE),
            *audit_words(note),
            *(allowed.value for allowed in only_from),
        ),
    )


def copy_runtime(keys: Keys, *, shard: int, stored: StoredRuntime) -> Call[int]:
    """Copies the runtime's state to a shard whose copy is older."""
    return Call(
        as_it_is,
        script="copy_runtime",
        keys=(keys.runtime(shard),),
        args=(stored.read.generation, *(word for item in stored.fields.items() for word in item)),
    )


def settle_runtime(keys: Keys, *, generation: int) -> Call[int]:
    """Drops the deadline of a move that every shard has a copy of."""
    return Call(
        as_it_is, script="settle_runtime", keys=(keys.runtime(0), keys.deadlines(0)), args=(generation, _COPY_DEADLINE)
    )


def count(keys: Keys, *, by: Mapping[str, int], op: str) -> Call[None]:
    """Raises the home shard's part of the namespace's counters, once for each operation id."""
    return Call(
        lambda _: None,
        script="count",
        keys=(keys.counters(0), keys.counted(op)),
        args=(int(COUNTED_TTL.total_seconds()), *(word for item in by.items() for word in item)),
    )


def elect(keys: Keys, *, identity: str, ttl_ms: int) -> Call[bool]:
    """Takes or keeps the sweeper's lease."""
    return Call(bool, script="elect", keys=(keys.sweeper,), args=(identity, ttl_ms))


def report_sweep(keys: Keys, *, identity: str) -> Call[Any]:
    """Notes that a sweep was finished now."""
    return Call(as_it_is, script="report_sweep", keys=(keys.last_sweep,), args=(identity,))


def sweep_age(keys: Keys) -> Call[int]:
    """Reads how many milliseconds ago the last sweep was finished; -1 when there was none."""
    return Call(int, script="sweep_age", keys=(keys.last_sweep,), args=())


def report_host(keys: Keys, *, identity: str, worker: str) -> Call[Any]:
    """Notes that a process hosts agents or watches others."""
    return Call(
        as_it_is,
        script="report_host",
        keys=(keys.process,),
        args=(f"{identity}|{worker}", int(HOST_TTL.total_seconds())),
    )


def read_hosts(keys: Keys) -> Call[dict[str, str]]:
    """Reads which processes reported lately, with their workers."""
    return Call(_parse_hosts, script="read_hosts", keys=(keys.process,), args=(int(HOST_TTL.total_seconds()),))


def _parse_hosts(reply: Sequence[bytes]) -> dict[str, str]:
    members = (member.decode().partition("|") for member in reply)
    return {identity: worker for identity, _, worker in members}


def report_background(keys: Keys, *, identity: str, work: Mapping[str, int]) -> Call[Any]:
    """Notes the detached work of a process; none is forgotten at once, that of a dead process by itself."""
    key = keys.background(identity)
    if not work:
        return Call(as_it_is, args=("UNLINK", key))
    return Call(as_it_is, args=("SET", key, msgspec.json.encode(work), "EX", int(BACKGROUND_TTL.total_seconds())))


def read_background(keys: Keys, *, identity: str) -> Call[dict[str, int]]:
    """Reads the detached work of a process."""
    return Call(
        lambda reply: msgspec.json.decode(reply, type=dict[str, int]) if reply else {},
        args=("GET", keys.background(identity)),
    )


def read_clock(keys: Keys, *, shard: int) -> Call[ClockStand]:
    """Reads which steps of the clock a shard has followed, and Redis TIME, atomically."""
    return Call(_parse_clock, script="read_clock", keys=(keys.clock(shard),), args=())


def _parse_clock(reply: Sequence[bytes]) -> ClockStand:
    generation, offset, now = reply
    return ClockStand(int(generation), int(offset), instant(now))


def rebase(
    keys: Keys, *, shard: int, stand: ClockStand, lease_ttl: timedelta, agent_ids: Sequence[AgentId]
) -> Call[tuple[Rebased, ClockStand]]:
    """Moves what a shard holds in Redis time by the steps that it has not followed yet.

    Args:
        keys: Of the namespace.
        shard: Which one; the home shard counts the step, and has more to move.
        stand: Generation and offset to follow to.
        lease_ttl: How long every lease lasts from now on.
        agent_ids: The agents of the shard.
    """
    home = (keys.counters(0), keys.last_sweep, keys.process) if shard == 0 else ()
    return Call(
        lambda reply: (Rebased(reply[0].decode()), _parse_clock(reply[1:])),
        script="rebase",
        keys=(keys.clock(shard), keys.deadlines(shard), *map(keys.agent, agent_ids), *home),
        args=(stand.generation, stand.offset, micros(lease_ttl), *agent_ids),
    )


def report_types(keys: Keys, *, types: Mapping[str, Mapping[str, Any]]) -> Call[Any]:
    """Notes agent types; those of other workers stay."""
    words = (word for name, parameters in types.items() for word in (name, msgspec.json.encode(parameters)))
    return Call(as_it_is, args=("HSET", keys.types, *words))


def known_types(keys: Keys) -> Call[dict[str, dict[str, Any]]]:
    """Reads the agent types that were ever reported."""
    return Call(_parse_types, args=("HGETALL", keys.types))


def _parse_types(reply: Mapping[bytes, bytes] | Sequence[bytes]) -> dict[str, dict[str, Any]]:
    pairs = reply.items() if isinstance(reply, Mapping) else zip(reply[::2], reply[1::2], strict=True)
    return {name.decode(): msgspec.json.decode(parameters) for name, parameters in pairs}


def server_time() -> Call[Instant]:
    """Reads Redis TIME."""
    return Call(lambda reply: Instant(reply[0] * 1_000_000 + reply[1]), args=("TIME",))
