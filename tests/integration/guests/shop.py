"""A Celery app of somebody else, with settings that would be the end of an agent; workers load it by name."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from celery import Celery
from kombu import serialization

#: Seconds that one of their tasks may take; an agent must take no notice of it.
TIME_LIMIT = 2

SETTINGS: Mapping[str, Any] = {
    "accept_content": ["shop", "json"],
    "beat_schedule": {"nightly": {"task": "shop.sum", "schedule": 86400.0, "args": (1, 2)}},
    "broker_connection_retry_on_startup": True,
    "result_extended": True,
    "result_serializer": "shop",
    "task_acks_late": True,
    "task_annotations": {"*": {"rate_limit": "6000/m"}},
    "task_compression": "zlib",
    "task_reject_on_worker_lost": True,
    "task_routes": {"shop.mail": {"queue": "mail"}, "*": {"queue": "celery"}},
    "task_serializer": "shop",
    "task_time_limit": TIME_LIMIT,
    "worker_prefetch_multiplier": 4,
}


def _loads(body: str | bytes) -> Any:
    text = body if isinstance(body, str) else bytes(body).decode()
    assert text.startswith("shop:")
    return json.loads(text.removeprefix("shop:"))


def make_shop(settings: Mapping[str, Any]) -> Celery:
    """The app, with these settings on top of its usual ones."""
    # A serializer of their own: JSON with a mark, so that nobody else reads it.
    serialization.register(
        "shop",
        lambda value: "shop:" + json.dumps(value),
        _loads,
        content_type="application/x-shop",
        content_encoding="utf-8",
    )
    app = Celery("shop", set_as_current=False)
    app.config_from_object({**SETTINGS, **settings})

    @app.task(name="shop.sum", shared=False)
    def add(first: int, second: int) -> int:
        return first + second

    @app.task(name="shop.sleep", shared=False)
    def sleep(seconds: float) -> str:
        time.sleep(seconds)  # on purpose: longer than their limit
        return "slept"

    _ = add, sleep
    return app


app = make_shop(json.loads(os.environ.get("SHOP_SETTINGS", "{}")))
