"""A WSGI service whose manager is made, and used, when it is imported: before gunicorn forks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from ares_celery import AgentSpec, connect

manager = connect()
before = manager.start_agent(AgentSpec(id="before-the-fork", type="ticker"), reason="preloaded").info()
MADE_IN = os.getpid()


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Starts the agent that the path names, which publishes, and says what is known of it."""
    agent_id = environ["PATH_INFO"].strip("/")
    info = manager.start_agent(AgentSpec(id=agent_id, type="ticker"), if_exists="return").info()
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"pid": os.getpid(), "made_in": MADE_IN, "id": info.id, "before": before.id}).encode()]
