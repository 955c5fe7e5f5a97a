"""An ASGI service whose AsyncManager is made when it is imported; no framework."""

from __future__ import annotations

import json
import os
from typing import Any

from ares_celery import AgentSpec, AsyncManager

manager = AsyncManager.connect()


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Starts the agent that the path names, and says what is known of it."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await manager.close()
        await send({"type": "lifespan.shutdown.complete"})
        return
    agent_id = scope["path"].strip("/")
    handle = await manager.start_agent(AgentSpec(id=agent_id, type="ticker"), if_exists="return")
    info = await handle.info()
    body = json.dumps({"pid": os.getpid(), "id": info.id}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": body})
