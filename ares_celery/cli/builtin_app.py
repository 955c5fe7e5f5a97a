"""The app of the command line where nobody named one: settings and agent modules from the environment."""

from __future__ import annotations

from ares_celery.celery_app.factory import create_app

app = create_app()
