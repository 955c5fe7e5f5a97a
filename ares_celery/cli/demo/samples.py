"""An agent to play with: what ``ares up`` offers where nobody has agents of their own. The one of the README."""

from __future__ import annotations

from typing import Any

from ares_celery.agents.context import AgentContext
from ares_celery.agents.registry import agent
from ares_celery.model.event import Event

__all__ = ["Counter"]


@agent("counter")
class Counter:
    """Counts; its total outlives every process that runs it."""

    def __init__(self, agent_id: str, step: int = 1) -> None:
        """Takes the spec's config as keywords."""
        self.agent_id, self.step, self.total = agent_id, step, 0

    async def start(self, ctx: AgentContext) -> None:
        """Counts ten times a second."""
        while not ctx.stop_requested:
            await ctx.emit("counter.ticked", {"by": self.step})
            await ctx.sleep(0.1)

    def apply(self, event: Event) -> None:
        """Folds one tick."""
        if event.type == "counter.ticked":
            self.total += event.payload["by"]

    async def process(self, ctx: AgentContext, message: object) -> object:  # noqa: ARG002 - the contract's parameters
        """Answers with the total."""
        return {"total": self.total}

    def snapshot(self) -> dict[str, Any]:
        """The state."""
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        """Takes the state back."""
        self.total = int(state["total"])
