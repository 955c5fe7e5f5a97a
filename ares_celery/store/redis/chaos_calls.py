"""Calls about when faults on purpose are allowed: one shard keeps the truth, the others have copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ares_celery.clock import micros, to_datetime
from ares_celery.ids import Instant
from ares_celery.model.command import Deadline
from ares_celery.model.event import EventType
from ares_celery.store.faults import ChaosState
from ares_celery.store.redis.agent_calls import OUTCOME_TTL
from ares_celery.store.redis.audit_calls import audit_words
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.event_calls import FEED_LENGTH
from ares_celery.store.redis.fault_calls import KEPT, Asked, behind, encode_event
from ares_celery.store.redis.feed_calls import pointer_name
from ares_celery.store.redis.keys import CHAOS, Keys, deadline_member
from ares_celery.store.redis.records import safe_text
from ares_celery.store.redis.replies import instant, unknown_reply

__all__ = ["ChaosRead", "copy_chaos", "read_chaos", "set_chaos", "settle_chaos"]

#: Whoever changes what is allowed copies it itself; somebody else goes on when it has not done so by then.
_COPY_GRACE: Final = timedelta(seconds=1)
_CHAOS_DEADLINE: Final = deadline_member(Deadline.FAULT, CHAOS)
#: What the changes are called, in outcomes and in the audit stream.
ENABLE: Final = "chaos.enable"
DISABLE: Final = "chaos.disable"


@dataclass(frozen=True, slots=True)
class ChaosRead:
    """Until when faults are allowed, as a shard knows it.

    Attributes:
        now: Redis TIME of the read.
        until: Until when; 0 = they are not.
        generation: Of this knowledge; grows with each change.
        actor: Who allowed them.
        reason: Why.
    """

    now: Instant
    until: Instant
    generation: int
    actor: str = ""
    reason: str = ""

    @property
    def state(self) -> ChaosState:
        """As a person sees it."""
        if self.until <= self.now:
            return ChaosState()
        return ChaosState(to_datetime(self.until), self.reason, self.actor)


def read_chaos(keys: Keys, *, shard: int) -> Call[ChaosRead]:
    """Reads until when faults are allowed."""
    return Call(
        lambda reply: ChaosRead(
            instant(reply[0]), instant(reply[1]), int(reply[2]), reply[3].decode(), reply[4].decode()
        ),
        script="read_chaos",
        keys=(keys.chaos(shard),),
        args=(),
    )


def set_chaos(keys: Keys, *, duration: timedelta, asked: Asked | None) -> Call[bool]:
    """Allows faults for a time, zero: no longer; if nobody asked, only once that time is over. False: it was so."""
    shard, allows = keys.shard_of(CHAOS), duration > timedelta(0)
    payload: dict[str, Any] = {"duration": duration.total_seconds()} if allows else {}
    if not allows:
        payload["by"] = "time" if asked is None else "request"
    if asked is not None:
        payload |= {"reason": asked.reason, "actor": asked.actor}
    kind = EventType.CHAOS_ENABLED if allows else EventType.CHAOS_DISABLED
    operation = ENABLE if allows else DISABLE
    return Call(
        lambda reply: _parse_set(asked, operation, reply),
        script="set_chaos",
        keys=(
            keys.chaos(shard),
            keys.op(CHAOS, asked.op if asked else ""),
            keys.deadlines(shard),
            keys.streams(shard),
            keys.events(CHAOS),
            keys.feed(shard),
            keys.audit(shard),
        ),
        args=(
            micros(duration),
            int(asked is None),
            safe_text(asked.actor if asked else ""),
            safe_text(asked.reason if asked else ""),
            _CHAOS_DEADLINE,
            micros(_COPY_GRACE),
            CHAOS,
            pointer_name(CHAOS),
            encode_event(CHAOS, kind, payload),
            kind.value,
            FEED_LENGTH,
            *audit_words(asked.note(operation) if asked else None),
            int(OUTCOME_TTL.total_seconds()) if asked else 0,
            operation,
            int(KEPT.total_seconds()),
        ),
    )


def _parse_set(asked: Asked | None, operation: str, reply: Sequence[bytes]) -> bool:
    match reply:
        case [b"done" | b"repeated", outcome]:
            behind(CHAOS, asked or Asked(""), operation, outcome)
            return True
        case [b"same"]:
            return False
        case _:
            raise unknown_reply("set_chaos", reply)


def copy_chaos(keys: Keys, *, shard: int, read: ChaosRead) -> Call[int]:
    """Copies to a shard until when faults are allowed, if what it has is older."""
    return Call(
        int,
        script="copy_chaos",
        keys=(keys.chaos(shard),),
        args=(read.until, read.generation, int(KEPT.total_seconds())),
    )


def settle_chaos(keys: Keys, *, generation: int) -> Call[int]:
    """Puts the deadline off to the end of that time, once every shard has a copy."""
    shard = keys.shard_of(CHAOS)
    return Call(
        int,
        script="settle_chaos",
        keys=(keys.chaos(shard), keys.deadlines(shard)),
        args=(generation, _CHAOS_DEADLINE),
    )
