"""Faults on the agent under test: when they end in simulated time, and what a partition leads to."""

from __future__ import annotations

import math
from typing import Final, Protocol

from ares_celery.clock import micros
from ares_celery.model.agent import AgentRecord
from ares_celery.model.fault import Fault, FaultKind
from ares_celery.store.redis.store import RedisStore
from ares_celery.testing.clock import ManualClock
from ares_celery.testing.process import AgentProcess

__all__ = ["Disturbances"]

#: Seconds behind an end at which it is looked at: deadlines are whole microseconds.
_BEHIND: Final = 0.001
#: Turns that an incarnation which is over may take to see it.
_MOST_TURNS: Final = 200


class _Bench(Protocol):
    """What drives the agent, as far as faults need it."""

    clock: ManualClock
    process: AgentProcess | None

    @property
    def store(self) -> RedisStore: ...
    @property
    def record(self) -> AgentRecord: ...
    def look_at_deadlines(self) -> None: ...
    def judge_lease(self) -> None: ...
    def bring_up(self) -> None: ...
    def give_turn(self, process: AgentProcess) -> None: ...


class Disturbances:
    """What is due because of faults; the bench asks for the next moment and lets it happen.

    An agent that is cut off is resurrected in another process when its lease runs out, as in a fleet. The old process
    stands still then until the partition is over; what it still writes meets its fence.
    """

    def __init__(self, bench: _Bench) -> None:
        self._bench = bench
        self._ends: list[float] = []
        self._lease_at = math.inf
        self._left_behind: list[AgentProcess] = []

    @property
    def next_at(self) -> float:
        """When something is due; infinite while nothing is."""
        return min([self._lease_at, *self._ends])

    def begin(self, fault: Fault) -> None:
        """A fault was injected now."""
        now = self._bench.clock.monotonic()
        self._ends.append(now + micros(fault.until - fault.since) / 1_000_000 + _BEHIND)
        if fault.kind is FaultKind.PARTITION:
            self._lease_at = now + self._bench.store.config.lease_ttl.total_seconds() + _BEHIND

    def meet(self) -> None:
        """Lets happen what is due by now; another process may host the agent afterwards."""
        now = self._bench.clock.monotonic()
        if self._lease_at <= now:
            self._lease_at = math.inf
            self._take_over()
        if any(end <= now for end in self._ends):
            self._ends = [end for end in self._ends if end > now]
            self._bench.look_at_deadlines()
            self.look()

    def look(self) -> None:
        """Every process learns what disturbs its agent now; one that was left behind learns that it is over."""
        process = self._bench.process
        if process is not None and process.lives:
            process.look()
        for old in list(self._left_behind):
            old.look()
            if not old.host.is_cut_off:
                self._left_behind.remove(old)
                self._end(old)

    def _take_over(self) -> None:
        """The lease of a process that is cut off has run out."""
        process = self._bench.process
        if process is None or not process.lives or not process.host.is_cut_off:
            return
        self._bench.judge_lease()
        if not self._bench.record.hosted:
            self._left_behind.append(process)
            self._bench.bring_up()

    def _end(self, process: AgentProcess) -> None:
        for _ in range(_MOST_TURNS):
            if process.stage.is_over:
                return
            self._bench.give_turn(process)
            process.stage.poke()
