"""An agent of the project. It uses the database, so its methods are plain ones."""

from __future__ import annotations

from django.db import close_old_connections, connection
from django_celery_results.models import TaskResult

from ares_celery import Event, SyncAgentContext, agent


@agent("order")
class Order:
    """Counts steps, and looks into the database when it is asked."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id, self.steps = agent_id, 0
        # Celery has just written that the task has begun, on this thread.
        self.connected_at_start = connection.connection is not None

    def start(self, ctx: SyncAgentContext) -> None:
        """Goes on until it is stopped."""
        while not ctx.stop_requested:
            ctx.emit("ticked", {"n": self.steps + 1})
            ctx.sleep(0.1)

    def apply(self, event: Event) -> None:
        """One step more."""
        self.steps += 1

    def process(self, ctx: SyncAgentContext, message: object) -> object:
        """Answers what the database says."""
        close_old_connections()
        return {
            "results": TaskResult.objects.count(),
            "connected_at_start": self.connected_at_start,
            "incarnation": ctx.incarnation,
        }
