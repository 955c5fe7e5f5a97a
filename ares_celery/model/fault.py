"""Faults: disturbances of one agent on purpose, each with an end. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Any, Final

from ares_celery.clock import to_datetime
from ares_celery.errors import AgentNotRunningError, InvalidSettingError
from ares_celery.ids import AgentId, check_agent_id
from ares_celery.model.arguments import as_shown, check_choice, check_timeout

__all__ = [
    "DEFAULT_DURATION",
    "LLM_ERRORS",
    "LONGEST_DURATION",
    "REPLACED",
    "Draw",
    "Fault",
    "FaultKind",
    "Injection",
    "by_precedence",
    "check_fault_duration",
    "nobody_hosts",
]


class FaultKind(StrEnum):
    """What is done to an agent, in order of precedence: what comes first is felt first.

    Example:
        >>> [kind.value for kind in FaultKind][:4]
        ['partition', 'memory', 'mcp', 'llm']
    """

    #: The agent's incarnation reaches its store no more, so that its lease runs out.
    PARTITION = "partition"
    #: The newest snapshot is damaged, and the living instance is not to be trusted any more.
    MEMORY = "memory"
    #: Its connections to MCP servers are cut.
    MCP = "mcp"
    #: Its calls of language models fail.
    LLM = "llm"
    #: Each call waits first.
    SLOW = "slow"
    #: Each call of a tool is cut off.
    TOOL_TIMEOUT = "tool_timeout"


#: How a call of a language model can fail.
LLM_ERRORS: Final = (
    "rate_limit",
    "timeout",
    "connection",
    "server_error",
    "overloaded",
    "auth",
    "malformed",
    "cut_stream",
)
#: How long a fault lasts when nobody says so, and how long one may last: nobody forgets one for ever.
DEFAULT_DURATION: Final = timedelta(seconds=60)
LONGEST_DURATION: Final = timedelta(hours=24)
#: Kinds of which an agent has one: a value that the next one replaces, and that zero clears.
REPLACED: Final = frozenset({FaultKind.SLOW, FaultKind.TOOL_TIMEOUT})
#: Kinds that are done to an incarnation, not to whatever incarnation comes.
OF_AN_INCARNATION: Final = frozenset({FaultKind.PARTITION, FaultKind.MEMORY})

_RANK: Final = {kind: rank for rank, kind in enumerate(FaultKind)}
_LONGEST_SERVER: Final = 200
_MOST_CALLS: Final = 2**31
_LARGEST_SEED: Final = 2**53
_NEVER: Final = to_datetime(0)


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that is, or was, active on an agent.

    Attributes:
        id: The operation id of its injection.
        agent_id: Whose.
        kind: What is done.
        since: When it was injected, by the clock of Redis.
        until: When it ends by itself.
        count: Calls that it may affect in all; None: all until it ends.
        probability: Of affecting a call, above 0, up to 1.
        seed: Decides which calls those are: the same seed, the same calls.
        used: Calls that it has affected, as far as they are counted one by one.
        delay: Seconds that each call waits; of ``slow``.
        timeout: Seconds that each call of a tool has; of ``tool_timeout``.
        error_type: How calls of models fail, one of ``LLM_ERRORS``; of ``llm``.
        retry_after: Seconds that the failing model asks to wait; None: it does not say; of ``llm``.
        server: The MCP server that is cut off; empty: all; of ``mcp``.
        epoch: The incarnation that it is on; of ``partition`` and ``memory``; 0 for the others, which outlive deaths.
        reason: Why somebody injected it.
        actor: Who did.
    """

    id: str
    agent_id: str
    kind: FaultKind
    since: datetime = _NEVER
    until: datetime = _NEVER
    count: int | None = None
    probability: float = 1.0
    seed: int = 0
    used: int = 0
    delay: float = 0.0
    timeout: float = 0.0
    error_type: str = ""
    retry_after: float | None = None
    server: str = ""
    epoch: int = 0
    reason: str = ""
    actor: str = ""

    @property
    def is_counted(self) -> bool:
        """Whether it affects a call is asked of the store, call by call: it may spare some, or end after some."""
        return self.count is not None or self.probability < 1

    def to_json(self) -> dict[str, Any]:
        """Plain values, the same names for every kind: times as ISO 8601, durations in seconds.

        Example:
            >>> Fault("op-1", "counter-1", FaultKind.SLOW, delay=0.5).to_json()["delay"]
            0.5
        """
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            **shown,
            "kind": self.kind.value,
            "since": self.since.isoformat(),
            "until": self.until.isoformat(),
        }


def by_precedence(fault: Fault) -> tuple[int, datetime, str]:
    """Sorts faults as they are felt: by kind, then the oldest first.

    Example:
        >>> faults = [Fault("1", "a", FaultKind.LLM), Fault("2", "a", FaultKind.PARTITION)]
        >>> [fault.kind.value for fault in sorted(faults, key=by_precedence)]
        ['partition', 'llm']
    """
    return _RANK[fault.kind], fault.since, fault.id


@dataclass(frozen=True, slots=True)
class Injection:
    """What somebody asks for: a fault without the moment that the store gives it.

    Made by :meth:`of`, which checks everything; the attributes are those of :class:`Fault`.
    """

    agent_id: AgentId
    kind: FaultKind
    duration: timedelta = DEFAULT_DURATION
    count: int | None = None
    probability: float = 1.0
    seed: int = 0
    delay: float = 0.0
    timeout: float = 0.0
    error_type: str = ""
    retry_after: float | None = None
    server: str = ""

    @classmethod
    def of(  # noqa: PLR0913 - whatever a fault may have
        cls,
        agent_id: object,
        kind: FaultKind,
        *,
        duration: object = None,
        count: object = None,
        probability: object = 1.0,
        seed: object = None,
        delay: object = None,
        timeout: object = None,
        error_type: object = None,
        retry_after: object = None,
        server: object = "",
    ) -> Injection:
        """Checks what a caller gave; durations are seconds, timedeltas or text such as ``1m30s``.

        Raises:
            InvalidAgentIdError.
            InvalidSettingError: Names the argument, its value and what may be.

        Example:
            >>> Injection.of("counter-1", FaultKind.SLOW, delay="500ms", seed=7).delay
            0.5
        """
        checks = _KIND_CHECKS.get(kind, ())
        given = {"delay": delay, "timeout": timeout, "error_type": error_type, "retry_after": retry_after}
        given["server"] = server
        return cls(
            check_agent_id(agent_id),
            kind,
            check_fault_duration(duration),
            _check_count(count),
            _check_probability(probability),
            secrets.randbelow(2**31) if seed is None else _check_seed(seed),
            **{name: check(name, given[name]) for name, check in checks},
        )


def nobody_hosts(agent_id: str, state: str, operation: str) -> AgentNotRunningError:
    """What a fault of an incarnation meets where there is none; an agent on its way needs nobody to start it.

    Example:
        >>> str(nobody_hosts("counter-1", "resurrecting", "kill_agent"))
        "agent 'counter-1' is resurrecting, so kill_agent is not possible; it comes by itself, so try again then"
    """
    error = AgentNotRunningError(agent_id=agent_id, state=state, operation=operation)
    if state not in ("starting", "resurrecting"):
        return error
    text = str(error).replace("start_agent starts it", "it comes by itself, so try again then")
    return AgentNotRunningError(agent_id=agent_id, state=state, operation=operation, message=text)


def check_fault_duration(value: object, field: str = "duration") -> timedelta:
    """How long a fault may last: a minute when nobody says, a day at most.

    Raises:
        InvalidSettingError: It is no duration, is not above zero, or is too long.

    Example:
        >>> check_fault_duration("25h")
        Traceback (most recent call last):
        ares_celery.errors.InvalidSettingError: duration='25h' is not valid: at most 24h, as every fault has an end
    """
    if value is None:
        return DEFAULT_DURATION
    duration = _positive(field, value)
    if duration > LONGEST_DURATION:
        problem = "at most 24h, as every fault has an end"
        raise InvalidSettingError(field=field, value=as_shown(value), problem=problem)
    return duration


def _positive(field: str, value: object) -> timedelta:
    duration = check_timeout(value, field)
    if duration < timedelta(microseconds=1):
        raise InvalidSettingError(field=field, value=as_shown(value), problem="must be longer than zero")
    return duration


def _seconds(field: str, value: object) -> float:
    return check_fault_duration(_missing(field, value), field).total_seconds()


def _missing(field: str, value: object) -> object:
    if value is None:
        raise InvalidSettingError(field=field, value=None, problem="say how long, such as 2 or '500ms'")
    return value


def _check_error_type(field: str, value: object) -> str:
    check_choice(field, value, LLM_ERRORS)
    return str(value)


def _check_retry_after(field: str, value: object) -> float | None:
    return None if value is None else check_timeout(value, field).total_seconds()


def _check_server(field: str, value: object) -> str:
    if isinstance(value, str) and value.isprintable() and len(value) <= _LONGEST_SERVER:
        return value
    problem = "name an MCP server, or leave it empty for all"
    raise InvalidSettingError(field=field, value=as_shown(value), problem=problem)


def _check_count(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST_CALLS):
        return value
    problem = "give how many calls it may affect, from 1, or leave it out for all"
    raise InvalidSettingError(field="count", value=as_shown(value), problem=problem)


def _check_probability(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise InvalidSettingError(field="probability", value=as_shown(value), problem="give a number above 0, up to 1")


def _check_seed(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST_SEED:
        return value
    problem = f"give a whole number from 0, below {_LARGEST_SEED}, or leave it out"
    raise InvalidSettingError(field="seed", value=as_shown(value), problem=problem)


#: What each kind has of its own, and how it is checked; what is given for another kind is left out.
_KIND_CHECKS: Final[dict[FaultKind, tuple[tuple[str, Callable[[str, object], Any]], ...]]] = {
    FaultKind.SLOW: (("delay", _seconds),),
    FaultKind.TOOL_TIMEOUT: (("timeout", _seconds),),
    FaultKind.LLM: (("error_type", _check_error_type), ("retry_after", _check_retry_after)),
    FaultKind.MCP: (("server", _check_server),),
}


# -- which calls a fault affects --------------------------------------------------------------------------------------


class Draw:
    """The numbers that decide which calls a fault affects, the same here and in the store's script.

    A Lehmer generator: its products stay below 2^53, so a script's floating point computes them exactly.
    """

    MODULUS: Final = 2**31 - 1
    FACTOR: Final = 48_271

    @classmethod
    def first(cls, seed: int) -> int:
        """What the generator begins with; seeds side by side begin far apart."""
        return int.from_bytes(sha256(str(seed).encode()).digest()[:8]) % (cls.MODULUS - 1) + 1

    @classmethod
    def hits(cls, seed: int, probability: float) -> Iterator[bool]:
        """For each call that comes: whether the fault affects it.

        Example:
            >>> hits = Draw.hits(7, 0.5)
            >>> [next(hits) for _ in range(8)] == [next(again) for again in [Draw.hits(7, 0.5)] for _ in range(8)]
            True
        """
        state = cls.first(seed)
        while True:
            state = state * cls.FACTOR % cls.MODULUS
            yield state < probability * cls.MODULUS
