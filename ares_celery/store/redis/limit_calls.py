"""Calls about limits that the whole fleet shares."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

from ares_celery.clock import micros
from ares_celery.model.limits import Admission, FleetLimit, LimitAsk
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import unknown_reply

__all__ = ["close_limit", "enter_limit", "keep_limit", "leave_limit"]

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


def close_limit(keys: Keys, *, name: str, delay: timedelta, op: str) -> Call[timedelta]:
    """Closes a limit for everybody."""
    return Call(_parse_close, script="close_limit", keys=(keys.limit(name),), args=(op, micros(delay)))


def _parse_close(reply: Sequence[bytes]) -> timedelta:
    match reply:
        case [b"closed", bytes(left)]:
            return timedelta(microseconds=int(left))
        case _:
            raise unknown_reply("close_limit", reply)


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
