"""The ports for what agents ask people: who asks, who decides, who looks."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from ares_celery.ids import AgentId, Instant
from ares_celery.model.event import Event
from ares_celery.model.waits import InterruptInfo, InterruptState

__all__ = ["AsyncInterruptStore", "Decided", "InterruptDesk", "InterruptLook", "InterruptStore", "Question", "Ruling"]


@dataclass(frozen=True, slots=True)
class Question:
    """What an execution of an agent asks.

    Attributes:
        name: Of the question; an agent has one open question of a name.
        execution: Which execution asks.
        step: Which step of it; the same step in a later life finds what it has asked.
        payload: What people are told; a JSON value.
        timeout: How long they may take; None = for ever.
    """

    name: str
    execution: str
    step: str = ""
    payload: Any = None
    timeout: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """What came of a question.

    Attributes:
        state: ``resolved``, or why nobody decided.
        time: When.
        decision: What was decided; empty when nobody did.
        answer: What came with it.
        actor: Who decided.
        reason: Why.
    """

    state: InterruptState
    time: Instant
    decision: str | bool = ""
    answer: Any = None
    actor: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class InterruptLook:
    """How a question stands, by one atomic look.

    Attributes:
        id: Of the question.
        decided: What came of it; None while it is open.
        asked_at: When it was asked; 0 once it is decided.
        expires_at: When it is too late; 0 = never.
        now: Redis TIME of the look; 0 once it is decided.
        decisions: How many decisions about the agent there were by then.
        event: What this very call has told.
    """

    id: str
    decided: Decided | None = None
    asked_at: Instant = Instant(0)
    expires_at: Instant = Instant(0)
    now: Instant = Instant(0)
    decisions: int = 0
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class Ruling:
    """What became of somebody's decision.

    Attributes:
        interrupt: The question as it stands now.
        due: Score of the deadline that brings the agent on, which had no slot; 0 = it has one, or is not waiting.
        repeated: This operation id has decided before.
    """

    interrupt: InterruptInfo
    due: Instant = Instant(0)
    repeated: bool = False


class InterruptDesk(Protocol):
    """What people see and decide."""

    def interrupts(self, agent_id: AgentId) -> list[InterruptInfo]:
        """What the agent asks and has asked, open questions first, each oldest first. Empty without such an agent."""
        ...

    def decide_interrupt(  # noqa: PLR0913 - the parts of one decision
        self,
        agent_id: AgentId,
        name: str,
        *,
        decision: str | bool,
        answer: Any,  # noqa: ANN401 - a JSON value
        interrupt_id: str | None,
        actor: str,
        reason: str,
        op: str,
    ) -> Ruling:
        """Decides, once for each question: atomically with the event ``interrupt.resolved`` and the audit entry.

        Raises:
            AgentNotFoundError. InterruptNotFoundError: Nothing of this name, or of this id, is asked.
            InterruptResolvedError: It was decided before, or it is too late.
            UnserialisableError, EventTooLargeError: The answer cannot be kept.
        """
        ...


class InterruptStore(Protocol):
    """What an incarnation asks. Every call shows its fence."""

    def open_interrupt(self, agent_id: AgentId, fence: str, question: Question) -> InterruptLook:
        """Asks, with the event ``interrupt.created``; or finds what this very step has asked under this name before.

        A decided question of another step makes room, and an open one whose execution is over is given up.

        Args:
            agent_id: Who asks.
            fence: Of the incarnation that runs now.
            question: What is asked.

        Raises:
            FencedError: The incarnation is over.
            InterruptOpenError: Another step has an open question of this name; fields ``other``, ``other_step``.
            InterruptLimitError, UnserialisableError, EventTooLargeError: Nothing was asked.
        """
        ...

    def look_interrupt(self, agent_id: AgentId, fence: str, name: str, interrupt_id: str) -> InterruptLook | None:
        """How the question stands; one whose time is over ends by this. None when it is known no longer.

        Raises:
            FencedError: The incarnation is over.
        """
        ...


class AsyncInterruptStore(Protocol):
    """The same as :class:`InterruptStore`, awaitable."""

    async def open_interrupt(self, agent_id: AgentId, fence: str, question: Question) -> InterruptLook:
        """See :meth:`InterruptStore.open_interrupt`."""
        ...

    async def look_interrupt(self, agent_id: AgentId, fence: str, name: str, interrupt_id: str) -> InterruptLook | None:
        """See :meth:`InterruptStore.look_interrupt`."""
        ...
