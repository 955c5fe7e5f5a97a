"""The ports for durable steps: what an incarnation records of them, and what everybody may read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from ares_celery.ids import AgentId, Version
from ares_celery.model.event import Event, NewEvent
from ares_celery.model.execution import Execution
from ares_celery.model.step import RecordedSteps, StepIntent, StepRecord

__all__ = ["NOT_SEEN", "AsyncStepStore", "Begun", "OpenExecution", "Recorded", "StepReader", "StepStore"]

#: The version that is expected by whoever demands none.
NOT_SEEN: Final = Version(0)


@dataclass(frozen=True, slots=True)
class OpenExecution:
    """An execution that an incarnation works on.

    Attributes:
        execution: It; a finished one is there for reading only.
        steps: What its steps have recorded so far, by id; those recorded from now on are not in it.
    """

    execution: Execution
    steps: RecordedSteps


@dataclass(frozen=True, slots=True)
class Recorded:
    """What became of a record.

    Attributes:
        record: What is recorded now, as everybody will read it.
        version: Of the event that tells it; None without one: it was not to be told, or this was a repeat.
        steps_spent: Steps that the agent has recorded in its life so far.
        is_own: False: another record of this id was there before, it is ``record``, and nothing was written.
        event: The agent's own event that was stored with it; None without one, or where this was a repeat.
    """

    record: StepRecord
    version: Version | None
    steps_spent: int
    is_own: bool = True
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """What became of an intent.

    Attributes:
        record: What the step has recorded already, so that it must not run; None: it may.
        version: Of the event that tells the beginning; None without one: this was a repeat, or nothing was written.
        steps_spent: As in :class:`Recorded`.
    """

    record: StepRecord | None
    version: Version | None
    steps_spent: int


class StepReader(Protocol):
    """What everybody may read of an agent's steps."""

    def steps(self, agent_id: str, execution_id: str) -> tuple[StepRecord, ...]:
        """What an execution has recorded, in the order of recording; empty for one that does not exist.

        Raises:
            UnreadableCheckpointError: A record is damaged; it stays as it is.
        """
        ...

    def intents(self, agent_id: str) -> tuple[StepIntent, ...]:
        """The steps that were begun, must not be repeated, and whose outcome is not known, oldest first.

        One that cannot be read never hides the others: it is left as it is and logged.
        """
        ...


class StepStore(StepReader, Protocol):
    """Steps of an incarnation. Every write shows its fence, and is refused when the incarnation is over.

    A repeat changes nothing more: the first record of an id stands.
    """

    def open_steps(
        self, agent_id: AgentId, execution_id: str, *, fence: str, op: str, anew: bool = False
    ) -> OpenExecution:
        """Makes the execution if need be, takes and starts it, and reads all that its steps have recorded.

        One that is finished is opened too, for reading only. At most two round trips, and one more for hundreds of
        steps.

        Args:
            agent_id: Whose execution.
            execution_id: Its id.
            fence: Of the incarnation that runs now.
            op: Operation id.
            anew: One that is finished is forgotten with its steps, and begun again; takes up to two trips more.

        Raises:
            FencedError: The incarnation is over.
            ExecutionStateError: It waits for its next attempt. ExecutionLimitError, InvalidExecutionIdError: Refused.
            CheckpointSchemaVersionError, UnreadableCheckpointError: It is stored, and cannot be read; it stays.
        """
        ...

    def record_step(  # noqa: PLR0913 - the parts of one write
        self,
        agent_id: AgentId,
        fence: str,
        execution_id: str,
        record: StepRecord,
        *,
        op: str,
        closes_intent: bool = False,
        told: bool = True,
        took_ms: int = 0,
        expected: Version = NOT_SEEN,
        event: NewEvent | None = None,
        begun: str = "",
    ) -> Recorded:
        """Records what a step came to; one round trip. The first record of an id stands.

        Args:
            agent_id: Whose step.
            fence: Demanded to be equal to the record's; the execution must be running, and this fence's.
            execution_id: Of which execution.
            record: What is recorded; its ``number`` and ``time`` are the store's.
            op: Operation id; it becomes the id of the event.
            closes_intent: The step's intent has found its outcome.
            told: An event tells it, if ``step_events`` is on; failures and steps that are never repeated always are.
            took_ms: Milliseconds that the step took, for the event.
            expected: The last version of the stream that the writer has seen. A smaller one in Redis means that the
                store came back older: VersionConflictError with field ``rolled_back`` true.
            event: An event of the agent's own that is stored with the record, in the same write, and tells it. It must
                have an id.
            begun: The inbox entry of the message at hand, where earlier handlings of it did not come to its end: what
                is recorded now makes this its first beginning. Empty: nothing is counted anew.

        Raises:
            FencedError: The incarnation is over. ExecutionStateError: The execution is not running.
            EventTooLargeError: The event is too large.
            StepLimitError: It has as many recorded steps as it may.
            StepResultTooLargeError: The record has more than ``max_event_bytes``.
            UnserialisableError: The value is no plain JSON. In all these cases nothing was recorded.
        """
        ...

    def record_intent(
        self,
        agent_id: AgentId,
        fence: str,
        execution_id: str,
        intent: StepIntent,
        *,
        op: str,
        expected: Version = NOT_SEEN,
    ) -> Begun:
        """Notes that a step is begun which must not be repeated; one round trip, with the event ``step.started``.

        Raises:
            StepOutcomeUnknownError: It was begun before with other arguments or by another incarnation, and its outcome
                is not known.
            As for :meth:`record_step`.
        """
        ...

    def close_steps(
        self, agent_id: AgentId, execution_id: str, *, fence: str, op: str, completed: bool
    ) -> Execution | None:
        """Completes an execution, or gives it back ready with nothing counted; None when there is none.

        One that is finished, or was given back, stays as it is.

        Raises:
            FencedError: The incarnation is over.
            ExecutionStateError: It is to be completed, and this incarnation does not hold it.
        """
        ...


class AsyncStepStore(Protocol):
    """The same as :class:`StepStore`, awaitable."""

    async def open_steps(
        self, agent_id: AgentId, execution_id: str, *, fence: str, op: str, anew: bool = False
    ) -> OpenExecution:
        """See :meth:`StepStore.open_steps`."""
        ...

    async def record_step(  # noqa: PLR0913 - the parts of one write
        self,
        agent_id: AgentId,
        fence: str,
        execution_id: str,
        record: StepRecord,
        *,
        op: str,
        closes_intent: bool = False,
        told: bool = True,
        took_ms: int = 0,
        expected: Version = NOT_SEEN,
        event: NewEvent | None = None,
        begun: str = "",
    ) -> Recorded:
        """See :meth:`StepStore.record_step`."""
        ...

    async def record_intent(
        self,
        agent_id: AgentId,
        fence: str,
        execution_id: str,
        intent: StepIntent,
        *,
        op: str,
        expected: Version = NOT_SEEN,
    ) -> Begun:
        """See :meth:`StepStore.record_intent`."""
        ...

    async def close_steps(
        self, agent_id: AgentId, execution_id: str, *, fence: str, op: str, completed: bool
    ) -> Execution | None:
        """See :meth:`StepStore.close_steps`."""
        ...
