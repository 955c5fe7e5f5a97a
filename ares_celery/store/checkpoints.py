"""The port for executions: where the work inside an agent stands."""

from __future__ import annotations

from typing import Protocol

from ares_celery.model.execution import Execution, ExecutionCommand
from ares_celery.store.steps import StepReader

__all__ = ["CheckpointAccess", "CheckpointStore"]


class CheckpointStore(StepReader, Protocol):
    """Executions of agents, each with its checkpoint.

    Reading is for everybody. Every write shows the fence of the agent's incarnation that now runs, and is refused
    inside the store when that incarnation is over; a repeat with the same ``op`` changes nothing more.
    """

    def load(self, agent_id: str, execution_id: str) -> Execution | None:
        """One execution; None when there is none, or when it was finished longer ago than ``checkpoint_retention``.

        Its checkpoint is decoded when ``envelope`` is asked for: what a newer version wrote stays as it is.

        Raises:
            UnreadableCheckpointError: What is stored is no execution.
        """
        ...

    def list_executions(self, agent_id: str) -> tuple[Execution, ...]:
        """All unfinished executions of an agent and the last finished ones, sorted by id.

        One that cannot be read never hides the others: it is left as it is and logged.
        """
        ...

    def apply(
        self, agent_id: str, execution_id: str, *commands: ExecutionCommand, fence: str, op: str
    ) -> Execution | None:
        """Applies commands, one after the other, all or none, and says what they come to; None when it was deleted.

        Args:
            agent_id: Whose execution.
            execution_id: Its id.
            commands: What is done to it: the values of ``ares_celery.model.execution``.
            fence: Of the incarnation that runs now, ``ctx.fence``.
            op: Operation id; a repeat gets the first outcome.

        Raises:
            AgentNotFoundError: There is no such agent. InvalidSettingError: ``fence`` is no fence at all.
            FencedError: The incarnation is over; nothing was changed.
            ExecutionNotFoundError, ExecutionStateError, ExecutionLimitError, InvalidExecutionIdError: Refused; nothing
            was changed.
            CheckpointSchemaVersionError, UnreadableCheckpointError: The checkpoint would have to be read and cannot; it
            stays as it is.
            UnserialisableError, EventTooLargeError: The new checkpoint is no JSON, or larger than ``max_event_bytes``.
        """
        ...

    def recover(self, agent_id: str, *, fence: str, op: str, lost: bool = True) -> tuple[Execution, ...]:
        """Gives back what earlier incarnations of the agent held; each that was lost with one ``execution.expired``.

        Ready again, with its checkpoint, its attempts and its wait; finished ones stay as they are; a second call
        changes nothing. One that cannot be read is skipped and logged.

        Args:
            agent_id: Whose executions.
            fence: Of the incarnation that runs now.
            op: Operation id.
            lost: The incarnation before has died. After an end in order what it held is released without a word.

        Returns:
            Those that were given back.

        Raises:
            FencedError: The incarnation is over.
        """
        ...


class CheckpointAccess(Protocol):
    """What has the executions of a namespace."""

    @property
    def checkpoints(self) -> CheckpointStore:
        """Executions and their checkpoints."""
        ...
