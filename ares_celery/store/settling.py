"""The port for settling steps whose outcome nobody knows."""

from __future__ import annotations

from typing import Protocol

from ares_celery.ids import AgentId
from ares_celery.model.settlement import Done, Settlement

__all__ = ["SettlingStore"]


class SettlingStore(Protocol):
    """What people say came of steps that were begun, must not be repeated, and have no outcome."""

    def settle_intent(  # noqa: PLR0913 - the parts of one write
        self,
        agent_id: AgentId,
        execution_id: str,
        step_id: str,
        *,
        done: Done | None,
        actor: str,
        reason: str,
        op: str,
    ) -> Settlement:
        """Settles one step, once, in one atomic call: its record or its repetition, event, audit entry.

        With the last one of an agent the deadline is set by which it goes on, so that whoever settles it may die.

        Args:
            agent_id: Whose step; the agent must be parked.
            execution_id: Of which execution.
            step_id: Which step.
            done: What it returned; None: it did not take effect and runs again.
            actor: Who says so.
            reason: Why.
            op: Operation id; a repeat gets the first outcome.

        Returns:
            How it was settled.

        Raises:
            AgentNotFoundError, AgentNotParkedError: Nobody waits for a word.
            StepIntentNotFoundError: The step has no unknown outcome. StepSettledError: Somebody was faster.
            StepResultTooLargeError, UnserialisableError: The value cannot be recorded.
            UnreadableCheckpointError: What is stored of the step is damaged, so it can only run again.
            OperationIdReusedError: ``op`` has settled another step. In all these cases nothing was changed.
        """
        ...

    def settlements(self, agent_id: AgentId) -> tuple[Settlement, ...]:
        """What was settled lately, newest first: 100 at most, and nothing older than ``checkpoint_retention``."""
        ...
