"""The app that the command line uses where nobody named one: settings from the environment, agents from ARES_AGENT_MODULES."""

from __future__ import annotations

from ares_celery.celery_app.factory import create_app

app = create_app()
