"""What people decide for agents: the part of a Manager that answers what agents ask."""

from __future__ import annotations

import logging
import uuid
from typing import Any, Final

from ares_celery.errors import AresError, InvalidSettingError
from ares_celery.ids import AgentId, Instant, check_agent_id
from ares_celery.model.arguments import as_shown
from ares_celery.model.command import Deadline, DeadlineDue
from ares_celery.model.waits import InterruptInfo
from ares_celery.runtime.callers import check_texts, me
from ares_celery.runtime.queries import AgentQueries
from ares_celery.store.base import DueDeadline

__all__ = ["Approvals", "check_decision"]

log: Final = logging.getLogger(__name__)
#: Characters of a decision that is a word.
_LONGEST_DECISION: Final = 1_000


class Approvals(AgentQueries):
    """Questions that agents ask people."""

    def approve(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        name: str,
        decision: str | bool = True,  # noqa: FBT001, FBT002 - the public name
        payload: Any = None,  # noqa: ANN401 - a JSON value
        *,
        interrupt_id: str | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> InterruptInfo:
        """Decides what an agent has asked with ``ctx.wait_for_approval``. The first decision stands; the agent goes on.

        Also of an agent that is paused, stopped or between two incarnations: it finds the decision when it runs again.

        Args:
            agent_id: Which agent.
            name: What it has asked; ``interrupts`` lists it.
            decision: True, False, or a word. True and the words approve, approved, yes and ok are a yes.
            payload: What the agent is told beside it; a JSON value.
            interrupt_id: Only if it is still this very question.
            reason: Kept with the decision and in the audit stream.
            actor: Who decides; default user@host.
            op: Operation id; a repeat returns the first outcome. Default a fresh one.

        Returns:
            The question, as it is decided now.

        Raises:
            InterruptResolvedError: Somebody was faster, or it is too late; the error says who, what and when.
            InterruptNotFoundError: It asks nothing of this name; the error lists what it asks. AgentNotFoundError.
            InvalidSettingError: The decision is neither a bool nor a word.
            UnserialisableError, EventTooLargeError: The payload cannot be kept.

        Example:
            ``manager.approve("deployer-1", "deploy", True, {"window": "tonight"}, reason="checked")``
        """
        checked, decided = check_agent_id(agent_id), check_decision(decision)
        check_texts(name=name, interrupt_id=interrupt_id or "", reason=reason, actor=actor, op=op)
        ruling = self._ports.store.decide_interrupt(
            checked,
            name,
            decision=decided,
            answer=payload,
            interrupt_id=interrupt_id,
            actor=actor or me(),
            reason=reason,
            op=op or uuid.uuid4().hex,
        )
        if ruling.due:
            self._bring_on(checked, ruling.due)
        return ruling.interrupt

    def _bring_on(self, agent_id: AgentId, due: Instant) -> None:
        """At once, instead of waiting for the sweep, which does it in any case."""
        try:
            self._ports.committer.apply(
                agent_id,
                DeadlineDue(kind=Deadline.APPROVAL, score=due),
                guard=DueDeadline(Deadline.APPROVAL, agent_id, "", due),
            )
        except AresError as error:
            log.warning("agent %s: the decision is stored; the sweep brings it on: %s", agent_id, error)

    def interrupts(self, agent_id: str) -> list[InterruptInfo]:
        """What the agent asks and has asked people, open questions first, each oldest first.

        Raises:
            AgentNotFoundError.
        """
        checked = check_agent_id(agent_id)
        found = self._ports.store.interrupts(checked)
        if not found:
            self._record(checked)
        return found


def check_decision(decision: object) -> str | bool:
    """A decision, or an error that says what one is.

    Raises:
        InvalidSettingError: It is neither a bool nor a word.

    Example:
        >>> check_decision("approved"), check_decision(False)
        ('approved', False)
    """
    if isinstance(decision, bool):
        return decision
    if not isinstance(decision, str) or not decision.strip() or len(decision) > _LONGEST_DECISION:
        problem = f"decide with True, False or a word of at most {_LONGEST_DECISION} characters, such as 'approve'"
        raise InvalidSettingError(field="decision", value=as_shown(decision), problem=problem)
    check_texts(decision=decision)
    return decision
