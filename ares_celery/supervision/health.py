"""What one look at a namespace says of its health: the answer of ``ares.health_check``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from ares_celery.clock import micros
from ares_celery.config import RuntimeConfig
from ares_celery.model.agent import RuntimeState
from ares_celery.store.base import AgentRead, Store
from ares_celery.supervision.sweep import Sweeper

__all__ = ["Health", "Liveness", "check_health", "judge_liveness"]


class Liveness(StrEnum):
    """What the lease says of an agent. Whether its own code is well, its host judges."""

    #: Nobody hosts it, so there is nothing to be alive.
    UNHOSTED = "unhosted"
    #: Its lease is renewed.
    ALIVE = "alive"
    #: A renewal is overdue and the lease still holds.
    SILENT = "silent"
    #: The lease ran out; a sweeper with unbroken contact will judge it, unless its owner renews first.
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a namespace.

    Attributes:
        runtime: Whether agents are meant to run at all.
        agents: How many are in each state.
        sweep_age_ms: Milliseconds since the last sweep by anybody, before this look; -1 when there was none.
        applied: Deadlines that this look applied.
        withheld: Leases that ran out and wait for a sweeper with unbroken contact.
        failed: Deadlines that could not be applied.
    """

    runtime: RuntimeState
    agents: Mapping[str, int]
    sweep_age_ms: int
    applied: int
    withheld: int
    failed: int


def judge_liveness(read: AgentRead, config: RuntimeConfig) -> Liveness:
    """What the lease of an agent says at the time of the read; pure.

    Args:
        read: Of the agent.
        config: heartbeat_interval and lease_ttl of the namespace.
    """
    if read.record is None or not read.record.hosted:
        return Liveness.UNHOSTED
    left = read.lease_until - read.now
    if left <= 0:
        return Liveness.EXPIRED
    # A renewal may be as late as the next heartbeat before anybody should wonder.
    expected = micros(config.lease_ttl - 2 * config.heartbeat_interval)
    return Liveness.ALIVE if left >= expected else Liveness.SILENT


def check_health(store: Store, sweeper: Sweeper) -> Health:
    """Sweeps once without judging leases, and says how the namespace is.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    age = store.sweep_age_ms()
    report = sweeper.sweep_once(judge_leases=False)
    return Health(
        runtime=store.runtime().state,
        agents={state.value: count for state, count in store.count_by_state().items()},
        sweep_age_ms=age,
        applied=report.applied,
        withheld=report.withheld,
        failed=report.failed,
    )
