"""The project: importing it makes the Celery app, so that shared tasks find it."""

from __future__ import annotations

from shop.celery import app as celery_app

__all__ = ["celery_app"]
