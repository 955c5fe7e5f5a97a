"""An app of somebody's own, whose task uses a manager that was made and used before its pool was forked."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from ares_celery import AgentSpec, connect

app = Celery("own", broker=os.environ["ARES_REDIS_URL"], backend=os.environ["ARES_REDIS_URL"])
app.conf.task_default_queue = os.environ["ARES_NAMESPACE"] + "-own"
manager = connect()
manager.start_agent(AgentSpec(id="before-the-fork", type="ticker"), if_exists="return")
MADE_IN = os.getpid()


@app.task(name="own.start")
def start(agent_id: str) -> dict[str, Any]:
    """Starts an agent from a task."""
    info = manager.start_agent(AgentSpec(id=agent_id, type="ticker"), if_exists="return").info()
    return {"pid": os.getpid(), "made_in": MADE_IN, "id": info.id}
