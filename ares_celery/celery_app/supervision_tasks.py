"""``ares.health_check`` and ``ares.notify_agent_dead``: what others may tell or ask supervision."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery import Celery

from ares_celery.celery_app.due_task import AresTask
from ares_celery.celery_app.names import HEALTH_CHECK, NOTIFY_AGENT_DEAD
from ares_celery.celery_app.wiring import wiring_of
from ares_celery.manager import CoreManager
from ares_celery.supervision.health import check_health
from ares_celery.supervision.sweep import Sweeper

__all__ = ["add_supervision_tasks"]


def add_supervision_tasks(app: Celery, namespace: str) -> None:
    """Adds both tasks to the app."""

    @app.task(name=HEALTH_CHECK, base=AresTask, bind=True, shared=False, ares_namespace=namespace)
    def health_check(self: AresTask) -> dict[str, Any]:
        wiring = wiring_of(self.app)
        sweeper = Sweeper(wiring.store, wiring.committer, wiring.config)
        return asdict(check_health(wiring.store, sweeper))

    @app.task(name=NOTIFY_AGENT_DEAD, base=AresTask, bind=True, shared=False, ares_namespace=namespace)
    def notify_agent_dead(
        self: AresTask, agent_id: str, reason: str, epoch: int | None = None, actor: str = ""
    ) -> None:
        manager = CoreManager(wiring_of(self.app))
        actor = actor or f"task {self.request.id}"
        manager.notify_agent_dead(agent_id, reason, epoch=epoch, actor=actor, op=str(self.request.id))

    _ = health_check, notify_agent_dead
