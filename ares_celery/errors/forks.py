"""Errors about agents that begin with the history of another one."""

from __future__ import annotations

from ares_celery.errors.base import AresError

__all__ = ["AgentForkingError", "ForkVersionError"]


class AgentForkingError(AresError):
    """The history of this agent is still being copied, so nothing of it may run or be written yet."""

    code = "agent_forking"
    template = (
        "agent {agent_id!r} is a fork whose history is not copied yet, so {operation} is not possible; "
        "`ares agents fork {source} --at {at} --as {agent_id}` goes on with it, `ares agents rm {agent_id}` gives it up"
    )


class ForkVersionError(AresError, ValueError):
    """The agent cannot be forked at this version; nothing was made."""

    code = "fork_version"
    template = "agent {agent_id!r} cannot be forked at version {at}: {problem}"
