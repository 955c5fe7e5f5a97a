"""A failure, as recovery plug-ins are asked about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Failure", "FailureStage"]

#: ``death``: an incarnation died. ``attempt``: a try to bring the agent back failed. ``step``: a step of it failed.
FailureStage = Literal["death", "attempt", "step"]


@dataclass(frozen=True, slots=True)
class Failure:
    """What failed, before it is decided whether it comes back.

    Attributes:
        agent_id: The agent.
        agent_type: Its type.
        stage: What failed: the incarnation (``death``), a try to bring it back (``attempt``), or a ``step``.
        cause: The class of the cause: crash, lost, hung, unhealthy, co_tenant, restore_failed and so on.
        reason: The sentence for people.
        incarnation: Which life it was, from 1.
        attempt: Tries of the failover at hand so far; 0 when it ran.
        failures: Failures in a row, this one included.
        restarts: Resurrections so far.
        step_id: Which step failed; empty when it was no step.

    Example:
        >>> Failure(agent_id="counter-1", agent_type="counter", stage="death", cause="crash", reason="boom").attempt
        0
    """

    agent_id: str
    agent_type: str
    stage: FailureStage = "death"
    cause: str = ""
    reason: str = ""
    incarnation: int = 0
    attempt: int = 0
    failures: int = 1
    restarts: int = 0
    step_id: str = ""
