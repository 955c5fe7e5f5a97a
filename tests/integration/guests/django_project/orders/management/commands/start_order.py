"""`manage.py start_order ID`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from typing_extensions import override

from ares_celery import AgentSpec
from orders.views import manager


class Command(BaseCommand):
    """Starts an agent."""

    @override
    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("agent_id")

    @override
    def handle(self, *args: object, **options: Any) -> None:
        handle = manager.start_agent(AgentSpec(id=options["agent_id"], type="order"), if_exists="return")
        self.stdout.write(f"{handle.id}\n")
