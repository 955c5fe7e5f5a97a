"""What the worker processes of the outage tests load: `celery -A tests.integration.outage_app.worker worker`."""

from __future__ import annotations

import os

from tests.integration.outage_app.factory import add_tasks, make_app

app = make_app(os.environ["OUTAGE_REDIS_URL"], "stock" if os.environ["OUTAGE_TRANSPORT"] == "stock" else "ours")
add_tasks(app)
