"""Errors about agents that spawn others."""

from __future__ import annotations

from ares_celery.errors.base import AresError

__all__ = ["ChildLimitError"]


class ChildLimitError(AresError):
    """The agent has spawned as many agents as it may; those that were deleted do not count."""

    code = "child_limit"
    template = (
        "agent {agent_id!r} has {limit} children, so no other one was spawned; delete those that are done "
        "(delete_agent), or let children spawn some of them"
    )
