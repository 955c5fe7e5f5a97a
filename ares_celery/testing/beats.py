"""Heartbeats in simulated time: what the lease keeper of a fleet does for an agent while it waits."""

from __future__ import annotations

import math
from typing import Protocol

from ares_celery.store.redis.store import RedisStore
from ares_celery.testing.clock import ManualClock
from ares_celery.testing.process import AgentProcess

__all__ = ["Beats"]


class _Bench(Protocol):
    """What drives the agent, as far as its heartbeats need it."""

    clock: ManualClock
    process: AgentProcess | None

    @property
    def store(self) -> RedisStore: ...


class Beats:
    """Keeps the places in limits that the agent's process holds, one heartbeat after the other.

    Nobody else judges its lease here, so a process that holds no place has no beats: time may jump.
    """

    def __init__(self, bench: _Bench) -> None:
        self._bench = bench
        self._last = 0.0

    @property
    def next_at(self) -> float:
        """When the next one is due; infinite where it would do nothing: for a process that is dead, or cut off."""
        process = self._bench.process
        if process is None or not process.lives or not process.host.holds_places or process.host.is_cut_off:
            return math.inf
        return self._last + self._bench.store.config.heartbeat_interval.total_seconds()

    def meet(self) -> None:
        """Lets it happen."""
        self._last = self._bench.clock.monotonic()
        if self._bench.process is not None:
            self._bench.process.host.keep_places()
