"""Errors about faults on purpose."""

from __future__ import annotations

from ares_celery.errors.base import AresError, NotFoundError

__all__ = ["FaultLimitError", "FaultNotFoundError", "MemoryCorruptedError", "WorkerNotFoundError"]


class FaultLimitError(AresError):
    """The agent has as many active faults as it may; nothing was injected."""

    code = "fault_limit"
    template = "agent {agent_id!r} has {limit} active faults, the most it may; `ares chaos heal {agent_id}` ends them"


class FaultNotFoundError(NotFoundError):
    """What shall be healed is neither a kind of fault nor the id of one that is active; nothing was healed."""

    code = "fault_not_found"
    template = (
        "no active fault has the id {fault!r}, and no kind is called so; "
        "kinds are {kinds}, and `ares chaos ls` shows ids"
    )


class MemoryCorruptedError(AresError):
    """A fault has corrupted the memory of the agent's instance, which ends as by a crash and is brought back."""

    code = "memory_corrupted"
    template = "the memory of agent {agent_id!r} was corrupted on purpose (fault {fault}); this instance ends"


class WorkerNotFoundError(NotFoundError):
    """No worker of this name has reported lately; ``known`` lists those that have."""

    code = "worker_not_found"
    template = "no worker {worker!r} serves this namespace; those that do are {known}"
