"""Errors about agents that wait for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ares_celery.errors.base import AresError

__all__ = ["AgentNotParkedError", "AgentParkedError"]


class AgentParkedError(AresError):
    """The agent was given up on and waits for a person."""

    code = "agent_parked"
    template = "agent {agent_id!r} is parked ({cause}): {reason}; look at `ares agents show {agent_id}`, then {cure}"

    def __init__(self, data: Mapping[str, Any] | None = None, /, **fields: object) -> None:
        """Names the way out of this cause, in field ``cure``."""
        known: dict[str, Any] = {**(data or {}), **fields}
        agent_id = known.get("agent_id", "?")
        cure = f"`ares agents restart {agent_id}`"
        if known.get("cause") == "integrity":
            cure = (
                f"`ares agents unpark {agent_id} --accept-loss` to go on without what is lost, or "
                f"`ares agents rm {agent_id}` to forget the agent"
            )
        elif known.get("cause") == "budget":
            cure = (
                f"allow more with `ares agents update {agent_id} --budget …` (or of the agent that the reason names), "
                f"then `ares agents unpark {agent_id}`"
            )
        elif known.get("cause") == "step_changed":
            cure = (
                f"deploy the function that recorded the step again, or say `formerly=` where its result holds, then "
                f"`ares agents restart {agent_id}`"
            )
        elif known.get("cause") == "step_rejected":
            cure = (
                f"`ares agents unpark {agent_id}` to have the same question asked again, or deploy code that goes on "
                "without the step where StepRejectedError is raised"
            )
        elif known.get("cause") == "step_result":
            cure = (
                f"deploy a function whose result can be recorded (plain JSON, small enough, or a reference), then "
                f"`ares agents restart {agent_id}`"
            )
        elif known.get("cause") == "reconcile" and known.get("intents", 1):
            cure = f"say with `ares agents reconcile {agent_id}` what became of the step"
        super().__init__({"cure": cure, **known})


class AgentNotParkedError(AresError):
    """Only a parked agent can be unparked, and the outcome of its steps settled."""

    code = "agent_not_parked"
    template = "agent {agent_id!r} is {state}, not parked; there is nothing to unpark"
