"""The project's Celery app, as Celery's own documentation for Django shows it, and one line more."""

from __future__ import annotations

import os

from celery import Celery

from ares_celery import install

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
install(app, agent_modules=["orders.agents"])
