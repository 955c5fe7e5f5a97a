"""Recovery plug-ins as the runtime asks them: bounded, and without a plug-in at no cost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from ares_celery.clock import Clock
from ares_celery.model.failure import Failure
from ares_celery.plugins.bus import PluginBus

__all__ = ["Allowance", "BusJudge", "judge_of_all", "judge_of_one"]

log: Final = logging.getLogger(__name__)

#: How long the process of an agent that failed waits for the verdict of recovery plug-ins.
_HOST_PATIENCE: Final = timedelta(seconds=5)
#: The same for threads that serve every agent (the sweep, the desk for deaths): for one agent …
_SHARED_PATIENCE: Final = timedelta(seconds=1)
#: … and in seconds for all within ten seconds, so that slow plug-ins never take more than a fifth of their time.
_SHARED_ALLOWANCE: Final = 2.0
_ALLOWANCE_PERIOD: Final = 10.0


class Allowance:
    """How long a thread that others depend on may wait for plug-ins: so much in each period, used up by waiting.

    Args:
        seconds: Waiting that is allowed at once.
        period: Within which it is given back.
        clock: Monotonic time.
    """

    def __init__(self, seconds: float, period: float, clock: Clock) -> None:
        self._most = seconds
        self._rate = seconds / period
        self._clock = clock
        self._left = seconds
        self._at = clock.monotonic()
        self._lock = threading.Lock()

    @property
    def left(self) -> float:
        """Seconds that may be waited now."""
        with self._lock:
            now = self._clock.monotonic()
            self._left = min(self._most, self._left + (now - self._at) * self._rate)
            self._at = now
            return self._left

    def use(self, seconds: float) -> None:
        """So long was waited."""
        with self._lock:
            self._left = max(0.0, self._left - seconds)


class BusJudge:
    """Implements the runtime's RecoveryJudge with the plug-ins of a bus.

    Args:
        bus: The process's bus; None while there is none.
        limit: Longest wait for all plug-ins together; without an answer the agent comes back.
        clock: Monotonic time.
        allowance: For a thread that serves many agents: when it is used up nobody is asked and all come back.
    """

    def __init__(
        self,
        bus: Callable[[], PluginBus | None],
        limit: timedelta,
        clock: Clock,
        *,
        allowance: Allowance | None = None,
    ) -> None:
        self._bus = bus
        self._limit = limit
        self._clock = clock
        self._allowance = allowance

    def refusal(self, failure: Failure) -> str:
        """The name of the plug-in that says no; empty = it comes back. Never raises."""
        bus = self._bus()
        if bus is None:
            return ""
        limit = self._limit
        if self._allowance is not None:
            limit = min(limit, timedelta(seconds=self._allowance.left))
        began = self._clock.monotonic()
        # Before it has started nobody knows whether some plug-in wants to be asked.
        has_time = limit > timedelta(0) and bus.wait_started(limit)
        if not bus.has_judges:
            return ""
        if not has_time:
            log.warning("agent %s comes back unasked: recovery plug-ins are too slow", failure.agent_id)
            bus.count_late_answer()
            return ""
        refused = bus.refusal(failure, limit=limit - timedelta(seconds=self._clock.monotonic() - began))
        if self._allowance is not None:
            self._allowance.use(self._clock.monotonic() - began)
        if refused:
            log.warning("plug-in %s refuses to recover agent %s: %s", refused, failure.agent_id, failure.reason)
        return refused


def judge_of_one(bus: Callable[[], PluginBus | None], clock: Clock) -> BusJudge:
    """For the process of an agent that failed: only this agent waits."""
    return BusJudge(bus, _HOST_PATIENCE, clock)


def judge_of_all(bus: Callable[[], PluginBus | None], clock: Clock) -> BusJudge:
    """For threads that serve every agent."""
    allowance = Allowance(_SHARED_ALLOWANCE, _ALLOWANCE_PERIOD, clock)
    return BusJudge(bus, _SHARED_PATIENCE, clock, allowance=allowance)
