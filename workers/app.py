"""The app of this deployment: ``celery -A workers.app worker|beat|flower|ares``."""

from __future__ import annotations

import celeryconfig
from ares_celery.celery_app.factory import create_app

app = create_app(
    celery_settings={name: value for name, value in vars(celeryconfig).items() if name.islower() and name[0] != "_"}
)
