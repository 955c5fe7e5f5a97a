"""Calls about limits that the whole fleet shares."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final
from urllib.parse import quote, unquote

from ares_celery.clock import instant_from, micros, to_datetime
from ares_celery.model.fault import LONGEST_DURATION, Fault
from ares_celery.model.limits import Admission, ClosedLimit, FleetLimit, LimitAsk
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import instant, unknown_reply

__all__ = ["close_limit", "enter_limit", "keep_limit", "leave_limit", "look_closings", "open_limit"]

#: Over which those come back who waited while a limit was closed: more than 2 s even for a few dozen of them.
_SPREAD: Final = timedelta(seconds=2.5)


def enter_limit(keys: Keys, *, limit: FleetLimit, member: str, ask: LimitAsk, lease: timedelta) -> Call[Admission]:
    """Asks for a place, or for one more call in it."""
    return Call(
        partial(_parse_enter, limit),
        script="enter_limit",
        keys=(keys.limit(limit.name), *keys.limit_queue(limit.name), keys.limit_passed(limit.name)),
        args=(member, ask, limit.interval, limit.concurrency, micros(lease), micros(_SPREAD)),
    )


def _parse_enter(limit: FleetLimit, reply: Sequence[bytes | None]) -> Admission:
    match reply:
        case [b"in" | b"wait" as word, bytes(wait), bytes(why), interval, most]:
            before = None
            if interval is not None and most is not None:
                stored = FleetLimit(limit.name, int(interval), int(most))
                before = stored if stored != limit else None
            return Admission(word == b"in", int(wait) / 1_000_000, why.decode(), before)
        case _:
            raise unknown_reply("enter_limit", reply)


def close_limit(keys: Keys, *, name: str, delay: timedelta, op: str, by: Fault | None = None) -> Call[timedelta]:
    """Closes a limit for everybody."""
    agent_id, fault_id = ("", "") if by is None else (by.agent_id, by.id)
    return Call(
        _parse_close,
        script="close_limit",
        keys=(keys.limit(name), keys.closings(keys.shard_of(name))),
        args=(
            op,
            micros(delay),
            _closing(name, agent_id, fault_id),
            "" if by is None else instant_from(by.until),
            _closing("", agent_id, fault_id),
        ),
    )


def _closing(name: str, agent_id: str, fault_id: str) -> str:
    return "|".join(quote(part, safe="") for part in (name, agent_id, fault_id))


def _parse_close(reply: Sequence[bytes]) -> timedelta:
    match reply:
        case [b"closed", bytes(left)]:
            return timedelta(microseconds=int(left))
        case _:
            raise unknown_reply("close_limit", reply)


def look_closings(keys: Keys, *, shard: int, healed: Sequence[Fault] = ()) -> Call[tuple[ClosedLimit, ...]]:
    """Reads which limits of a shard are closed; from then on faults that are healed close none."""
    return Call(
        _parse_closings,
        script="look_closings",
        keys=(keys.closings(shard),),
        args=(micros(LONGEST_DURATION), *(_closing("", fault.agent_id, fault.id) for fault in healed)),
    )


def _parse_closings(reply: Sequence[bytes]) -> tuple[ClosedLimit, ...]:
    found = list[ClosedLimit]()
    for field, until in zip(reply[::2], reply[1::2], strict=True):
        name, agent_id, fault_id = (unquote(part) for part in field.decode().split("|"))
        found.append(ClosedLimit(name, to_datetime(instant(until)), agent_id, fault_id))
    return tuple(found)


def open_limit(keys: Keys, *, closed: ClosedLimit) -> Call[int]:
    """Opens a limit that a fault has closed."""
    name = closed.name
    return Call(
        int,
        script="open_limit",
        keys=(keys.limit(name), keys.limit_queue(name)[1], keys.closings(keys.shard_of(name))),
        args=(_closing(name, closed.agent_id, closed.fault), f"{quote(name, safe='')}|"),
    )


def leave_limit(keys: Keys, *, name: str, member: str) -> Call[None]:
    """Gives a place back."""
    return Call(_parse_leave, script="leave_limit", keys=keys.limit_queue(name), args=(member,))


def _parse_leave(reply: Sequence[bytes]) -> None:
    if reply not in ([b"left"], [b"absent"]):
        raise unknown_reply("leave_limit", reply)


def keep_limit(keys: Keys, *, name: str, members: Sequence[str], lease: timedelta) -> Call[int]:
    """Keeps places for those who still hold them."""
    return Call(_parse_keep, script="keep_limit", keys=keys.limit_queue(name), args=(micros(lease), *members))


def _parse_keep(reply: Sequence[bytes | int]) -> int:
    match reply:
        case [b"kept", int(kept)]:
            return kept
        case _:
            raise unknown_reply("keep_limit", reply)
