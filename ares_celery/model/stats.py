"""What a namespace looks like in numbers."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict

__all__ = ["RuntimeStats"]


class RuntimeStats(BaseModel):
    """Counts of one namespace.

    Attributes:
        active_agents: Agents that are starting, running, stopping or resurrecting.
        paused_agents: Agents that somebody paused; not active.
        registered_agents: Agents that nobody has started yet; not active.
        total_restarts: Resurrections and restarts by hand, of all agents, ever.
        uptime: Since the runtime was started last; frozen while it is stopped, zero before.
        background_tasks: Labelled detached work in progress, label to count: of this process as it is, of the workers
            as they said within a second. A copy.
        by_state: Agents in each state; states without agents are absent.
        counters: Every counter of the namespace.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    active_agents: int
    paused_agents: int = 0
    registered_agents: int = 0
    total_restarts: int
    uptime: timedelta
    background_tasks: dict[str, int] = {}
    by_state: dict[str, int] = {}
    counters: dict[str, int] = {}
