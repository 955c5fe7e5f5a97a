"""Restart policy as data: what a death costs, and how long the next try waits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from ares_celery.clock import micros
from ares_celery.model.agent import AgentRecord, RestartType

__all__ = ["CHARGED", "DeathCause", "LifecyclePolicy", "backoff_delay", "charged_deaths", "failures_before"]


class DeathCause(StrEnum):
    """Why an incarnation ended without being asked to."""

    CRASH = "crash"
    LOST = "lost"
    HUNG = "hung"
    UNHEALTHY = "unhealthy"
    RESTORE_FAILED = "restore_failed"
    CO_TENANT = "co_tenant"
    DRAIN = "drain"
    STORE_ROLLED_BACK = "store_rolled_back"


#: Causes that use up the restart budget. A lost host with several tenants is nobody's fault that could be named.
CHARGED = frozenset({DeathCause.CRASH, DeathCause.LOST, DeathCause.HUNG, DeathCause.UNHEALTHY})


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
