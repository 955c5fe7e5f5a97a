"""`manage.py get PATH`: what a page of the project answers, and what its tasks do."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand
from django.test import Client
from typing_extensions import override

from orders.tasks import count


class Command(BaseCommand):
    """Asks a page, and a task."""

    @override
    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("path")

    @override
    def handle(self, *args: object, **options: Any) -> None:
        client: Any = Client()
        self.stdout.write(client.get(options["path"]).content.decode() + "\n")
        self.stdout.write(f"{count.delay().get(timeout=20)}\n")
