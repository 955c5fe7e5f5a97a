"""A task of the project, as any Django project has them."""

from __future__ import annotations

from celery import shared_task
from django_celery_results.models import TaskResult


@shared_task
def count() -> int:
    """How many results are in the database."""
    return int(TaskResult.objects.count())
