"""Limits that the whole fleet shares: how many calls in a time, how many at once. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from ares_celery.errors import InvalidSettingError
from ares_celery.model.arguments import as_shown
from ares_celery.model.durations import parse_duration

__all__ = ["Admission", "ClosedLimit", "FleetLimit", "LimitAsk", "check_limit"]

#: What is asked for: a place and a call in it, one more call in a place that is held, or only whether it is closed.
LimitAsk = Literal["place", "call", "look"]

_RATE: Final = re.compile(r"(?P<count>\d{1,9})\s*/\s*(?P<period>.{1,20})")
_WORDS: Final = {"sec": "1s", "second": "1s", "min": "1m", "minute": "1m", "hour": "1h", "day": "1d"}
_RATE_RULE: Final = "write how many and in which time: 600/min, 10/s, 5/30s"
_LONGEST_NAME: Final = 200
_MOST: Final = 1_000_000
_LONGEST_PERIOD: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class FleetLimit:
    """One limit, as whoever asks for a place in it wants it.

    Attributes:
        name: Whoever says the same name shares it.
        interval: Microseconds between two calls; 0: no rate.
        concurrency: Places that may be held at once; 0: as many as come.
    """

    name: str
    interval: int = 0
    concurrency: int = 0

    def told(self) -> str:
        """As people read it.

        Example:
            >>> FleetLimit("anthropic", interval=100_000, concurrency=50).told()
            'a call every 100 ms, 50 at once'
        """
        rate = f"a call every {self.interval / 1000:g} ms" if self.interval else "calls at any rate"
        return f"{rate}, {self.concurrency or 'any number'} at once"


@dataclass(frozen=True, slots=True)
class Admission:
    """What a limit answered.

    Attributes:
        admitted: Go on.
        wait: Otherwise, seconds after which to ask again.
        why: What is waited for: the limit is ``closed``, the ``rate``, or ``places``.
        before: The limit as somebody else had asked for it last, where that differs; None: it does not.
    """

    admitted: bool
    wait: float = 0.0
    why: str = ""
    before: FleetLimit | None = None


@dataclass(frozen=True, slots=True)
class ClosedLimit:
    """A limit that lets nobody through for a time.

    Attributes:
        name: Of the limit.
        until: When it opens, as far as this closes it; somebody else may close it for longer.
        agent_id: Whose fault closes it; empty: its provider has refused a call.
        fault: Id of that fault; it may have ended by its count.
    """

    name: str
    until: datetime
    agent_id: str = ""
    fault: str = ""


def check_limit(name: object, rate: object = None, concurrency: object = None) -> FleetLimit:
    """The limit that an agent asks for, each part of it checked.

    Raises:
        InvalidSettingError: Something cannot work; it is named.

    Example:
        >>> check_limit("anthropic", "600/min", 50)
        FleetLimit(name='anthropic', interval=100000, concurrency=50)
    """
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME or not name.isprintable():
        problem = f"a limit needs a name of 1 to {_LONGEST_NAME} printable characters"
        raise InvalidSettingError(field="name", value=as_shown(name), problem=problem)
    if concurrency is not None and (
        isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= _MOST
    ):
        problem = f"write a whole number from 1 to {_MOST}, or None for any number"
        raise InvalidSettingError(field="concurrency", value=as_shown(concurrency), problem=problem)
    return FleetLimit(name, 0 if rate is None else _interval(rate), concurrency or 0)


def _interval(rate: object) -> int:
    found = _RATE.fullmatch(rate.strip()) if isinstance(rate, str) else None
    if found is not None and int(found["count"]) > 0:
        period = _period(found["period"])
        if period is not None:
            return max(1, round(period / timedelta(microseconds=1) / int(found["count"])))
    raise InvalidSettingError(field="rate", value=as_shown(rate), problem=_RATE_RULE)


def _period(text: str) -> timedelta | None:
    """Of ``min``, ``30s`` and the like; None where that is no time, or too long a one."""
    word = _WORDS.get(text, text)
    if word[0].isalpha():
        word = f"1{word}"
    elif word.replace(".", "").isdigit():
        return None  # 600/60: of what?
    try:
        period = parse_duration(word)
    except ValueError:
        return None
    return period if timedelta(0) < period <= _LONGEST_PERIOD else None
