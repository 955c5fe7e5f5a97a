"""Restart policy as data: what a death costs, who is suspected, and how long the next try waits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TypeVar

from ares_celery.clock import micros
from ares_celery.model.agent import AgentRecord, RestartType

__all__ = [
    "CHARGED",
    "PROBATION_AFTER",
    "PROBATION_PERIOD",
    "TOGETHER",
    "DeathCause",
    "LifecyclePolicy",
    "Suspicion",
    "backoff_delay",
    "charged_deaths",
    "failures_before",
    "kept_charges",
    "lost_together",
    "separation",
    "suspicions",
]

K = TypeVar("K")


class DeathCause(StrEnum):
    """Why an incarnation ended without being asked to."""

    CRASH = "crash"
    LOST = "lost"
    HUNG = "hung"
    UNHEALTHY = "unhealthy"
    RESTORE_FAILED = "restore_failed"
    #: Its host was lost with others, and it was lost together with others more often than any of them.
    SUSPECT = "suspect"
    CO_TENANT = "co_tenant"
    DRAIN = "drain"
    #: A language model refused for now (429, 5xx) or did not answer.
    LLM = "llm"
    #: The connection to an MCP server was lost.
    MCP = "mcp"
    STORE_ROLLED_BACK = "store_rolled_back"


class Suspicion(StrEnum):
    """What the loss of a host with several tenants says about one of them."""

    NONE = "none"
    #: Of those that were lost together most often lately, it is one of several.
    TIED = "tied"
    #: It was lost together with others more often than any of them.
    PRIME = "prime"


#: Causes that use up the restart budget. A lost host with several tenants is nobody's fault that could be named, unless
#: one of them is suspected.
CHARGED = frozenset(
    {
        DeathCause.CRASH,
        DeathCause.LOST,
        DeathCause.HUNG,
        DeathCause.UNHEALTHY,
        DeathCause.RESTORE_FAILED,
        DeathCause.SUSPECT,
    }
)
#: The loss of a host that others were lost with.
TOGETHER = frozenset({DeathCause.CO_TENANT, DeathCause.SUSPECT})
#: Losses together with others that are nobody's fault; from the next one on, agents are told apart.
PROBATION_AFTER = 2
#: Without a loss together with others for so long, the earlier ones are forgotten.
PROBATION_PERIOD = timedelta(minutes=10)
#: Longest wait that tells agents on probation apart.
_LONGEST_SEPARATION = timedelta(minutes=4)
_BITS = 32
#: Instants of charged deaths that are kept where no cap asks for more.
_MOST_CHARGES = 1_000


@dataclass(frozen=True, slots=True)
class LifecyclePolicy:
    """Every number that a decision about one agent needs; made from its spec and the namespace's settings."""

    restart: RestartType
    #: Charged deaths allowed (in ``restart_period``, if set); 0 = unlimited.
    max_restarts: int
    restart_period: timedelta | None
    #: Failures in a row without reaching running, then parked.
    restore_attempts: int
    backoff: timedelta
    backoff_max: timedelta
    jitter: float
    #: Running that long forgets failures in a row.
    stable_after: timedelta
    agent_stop_timeout: timedelta
    start_timeout: timedelta
    restore_timeout: timedelta
    lease_ttl: timedelta


def backoff_delay(policy: LifecyclePolicy, failures: int, *, seed: str = "") -> timedelta:
    """How long the next try waits after ``failures`` failures in a row: 0, then backoff doubled each time, capped.

    The jitter takes away up to its fraction, chosen by ``seed`` so that a decision stays a pure function.

    Example (defaults): 1 failure waits 0 s, 2: 1 s, 3: 2 s, 4: 4 s, 5: 8 s, 6: 16 s, 7 and more: 30 s.
    """
    if failures <= 1:
        return timedelta(0)
    doublings: int = 1 << min(failures - 2, 32)
    # As integers: a timedelta overflows where a long backoff is doubled often.
    delay = timedelta(microseconds=min(micros(policy.backoff) * doublings, micros(policy.backoff_max)))
    if policy.jitter == 0:
        return delay
    part = int.from_bytes(hashlib.sha256(f"{seed}|{failures}".encode()).digest()[:4]) / 2**32
    kept: float = 1 - policy.jitter * part
    return delay * kept


def kept_charges(charged_at: tuple[int, ...], max_restarts: int) -> tuple[int, ...]:
    """The newest of the instants, as many as a cap can ask for: without a cap they would grow with a long period.

    Example:
        >>> len(kept_charges(tuple(range(10_000)), 0)), len(kept_charges(tuple(range(10_000)), 3_000))
        (1000, 3000)
    """
    return charged_at[-max(max_restarts, _MOST_CHARGES) :]


def failures_before(record: AgentRecord, policy: LifecyclePolicy, now: int) -> int:
    """Failures in a row that still count at ``now``: none once the incarnation ran for ``stable_after``."""
    stable = record.running_since and now - record.running_since >= micros(policy.stable_after)
    return 0 if stable else record.failures


def charged_deaths(record: AgentRecord, policy: LifecyclePolicy, now: int) -> tuple[int, ...]:
    """The instants of the charged deaths that still count at ``now``; without a period, of all.

    Instants are only kept with a period; without one the counter is enough and a record stays small.
    """
    if policy.restart_period is None:
        return ()
    oldest = now - micros(policy.restart_period)
    return tuple(at for at in record.charged_at if at > oldest)


def lost_together(record: AgentRecord, now: int) -> tuple[int, ...]:
    """The instants at which the agent was lost together with others; all are forgotten when none was for a while."""
    is_over = not record.lost_together or now - record.lost_together[-1] >= micros(PROBATION_PERIOD)
    return () if is_over else record.lost_together


def suspicions(losses: Mapping[K, int]) -> dict[K, Suspicion]:
    """Whom the loss of a host casts suspicion on: what ends its hosts is there each time, and its neighbours are not.

    Args:
        losses: For every agent that was lost now, how often it was lost together with others before.

    Example:
        >>> [one.value for one in suspicions({"poison": 4, "innocent": 3}).values()]
        ['prime', 'none']
    """
    most = max(losses.values(), default=0)
    leaders = [who for who, count in losses.items() if count == most]
    if most < PROBATION_AFTER:
        return dict.fromkeys(losses, Suspicion.NONE)
    found = Suspicion.PRIME if len(leaders) == 1 else Suspicion.TIED
    return {who: found if count == most else Suspicion.NONE for who, count in losses.items()}


def separation(policy: LifecyclePolicy, agent_id: str, losses: int) -> timedelta:
    """How much longer an agent waits that was lost ``losses`` times with others which are as suspect as it is.

    Whoever ends its host while the others still wait is no longer tied with them. By each bit of a hash of the id, in
    turn, one half waits and then the other, so that any two agents come apart; longer with each bit, as nobody knows
    how long it takes until the host ends.
    """
    turn = max(losses - PROBATION_AFTER - 1, 0)
    bit = turn // 2 % _BITS
    waits = (int.from_bytes(hashlib.sha256(agent_id.encode()).digest()) >> bit & 1) != turn % 2
    doubled: int = micros(policy.stable_after) << min(turn // 2, _BITS)
    return timedelta(microseconds=min(doubled, micros(_LONGEST_SEPARATION))) if waits else timedelta(0)
