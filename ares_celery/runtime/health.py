"""The agent's own word on its health, asked between its other calls; too many bad answers are a death."""

from __future__ import annotations

from typing import Any

from ares_celery.agents.contract import Heartbeater
from ares_celery.config import RuntimeConfig
from ares_celery.errors import AgentSignal
from ares_celery.errors.wording import describe_error

__all__ = ["HealthWatch"]

_DEAD_STATUS = frozenset({"offline", "stopping"})


class HealthWatch:
    """Counts the misses of one incarnation."""

    __slots__ = ("_agent", "_allowed", "_grace_until", "_misses", "_next", "_period")

    def __init__(self, agent: object, config: RuntimeConfig, now: float) -> None:
        """Begins with the start-up grace.

        Args:
            agent: Whose word is asked.
            config: health_check_interval, startup_grace, allowed_misses.
            now: Monotonic seconds.
        """
        self._agent = agent
        self._allowed = config.allowed_misses
        self._period = config.health_check_interval.total_seconds()
        self._grace_until = now + config.startup_grace.total_seconds()
        self._next = now + self._period
        self._misses = 0

    @staticmethod
    def wanted(agent: object) -> bool:
        """The agent has something to say."""
        return isinstance(agent, Heartbeater) or hasattr(agent, "is_alive") or hasattr(agent, "status")

    def ask(self, now: float) -> str | None:
        """Asks when it is time; returns the reason of the death that the answer means, else None.

        An exception of the agent's heartbeat or is_alive counts as a miss.
        """
        if now < self._next:
            return None
        self._next = now + self._period
        problem = self._problem()
        if problem is None or now < self._grace_until:
            self._misses = 0
            return None
        self._misses += 1
        return problem if self._misses > self._allowed else None

    def _problem(self) -> str | None:
        agent: Any = self._agent
        try:
            if hasattr(agent, "heartbeat"):
                agent.heartbeat()
            if hasattr(agent, "is_alive"):
                return None if agent.is_alive() else "health check: heartbeat failed"
            status = str(getattr(agent, "status", "ready"))
        except AgentSignal:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever user code raises here is the finding
            return f"health check: heartbeat failed: {describe_error(error)}"
        return f"health check: status={status}" if status in _DEAD_STATUS else None
