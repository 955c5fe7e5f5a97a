"""Errors about the executions of an agent and their checkpoints."""

from __future__ import annotations

from ares_celery.errors.base import AresError, NotFoundError

__all__ = [
    "CheckpointSchemaVersionError",
    "ExecutionLimitError",
    "ExecutionNotFoundError",
    "ExecutionStateError",
    "InvalidExecutionIdError",
    "UnreadableCheckpointError",
]


class CheckpointSchemaVersionError(AresError):
    """The checkpoint was written by a newer version; it stays untouched."""

    code = "checkpoint_schema_version"
    template = "checkpoint schema {found} is newer than {known}, the newest this version reads; upgrade this worker"


class UnreadableCheckpointError(AresError):
    """A stored checkpoint is damaged; its bytes are kept."""

    code = "unreadable_checkpoint"
    template = "checkpoint {execution!r} of agent {agent_id!r} cannot be read: {problem}; its bytes are kept"


class ExecutionNotFoundError(NotFoundError):
    """The agent has no execution of this id."""

    code = "execution_not_found"
    template = "agent {agent_id!r} has no execution {execution!r}; it may have been finished longer ago than is kept"


class ExecutionStateError(AresError):
    """The execution is in a state in which this cannot be done; nothing was changed."""

    code = "execution_state"
    template = "execution {execution!r} of agent {agent_id!r} is {state}: {operation} is refused: {problem}"


class ExecutionLimitError(AresError):
    """The agent has as many unfinished executions as it may."""

    code = "execution_limit"
    template = (
        "agent {agent_id!r} has {limit} unfinished executions, so {execution!r} was not made; finish or delete some"
    )


class InvalidExecutionIdError(AresError, ValueError):
    """The execution id is not acceptable."""

    code = "invalid_execution_id"
    template = "execution id {execution!r} is not valid: 1 to 400 printable characters"
