"""The deployment's app with settings of a test's own, as JSON in OWN_SETTINGS; and a task that only takes its time."""

from __future__ import annotations

import json
import os
import time

from ares_celery.celery_app.factory import create_app

app = create_app(celery_settings=json.loads(os.environ["OWN_SETTINGS"]))


@app.task(name="tests.nap", shared=False, acks_late=True)
def nap(seconds: float) -> str:
    """Runs for so long; acknowledged at its end, as many tasks of others are."""
    time.sleep(seconds)  # on purpose: a task of somebody else that the fleet's time limit ends
    return "awake"
