"""What a namespace looks like in numbers."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel, ConfigDict

__all__ = ["RuntimeStats"]


class RuntimeStats(BaseModel):
    """Counts of one namespace.

    Attributes:
        active_agents: Agents that are starting, running, stopping or resurrecting.
        total_restarts: Resurrections and restarts by hand, of all agents, ever.
        uptime: Since the runtime was started; frozen while it is stopped, zero before.
        background_tasks: Labelled detached work in progress, label to count.
        by_state: Agents in each state; states without agents are absent.
        counters: Every counter of the namespace.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    active_agents: int
    total_restarts: int
    uptime: timedelta
    background_tasks: dict[str, int] = {}
    by_state: dict[str, int] = {}
    counters: dict[str, int] = {}
