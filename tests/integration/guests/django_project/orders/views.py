"""A page that asks an agent."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, JsonResponse
from shop import celery_app

from ares_celery import Manager

# Opens nothing before its first call; one for the whole process.
manager = Manager.connect(app=celery_app)


def order(request: HttpRequest, agent_id: str) -> Any:
    """What the agent says of itself."""
    return JsonResponse(manager.process(agent_id, {"ask": "results"}, timeout=10))
