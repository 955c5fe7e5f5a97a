"""The Celery app of the outage tests: late acknowledgement and prefetch on, which our product uses neither of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from celery import Celery

from ares_celery.celery_app.transport import register_transports
from ares_celery.celery_app.urls import translate_urls

if TYPE_CHECKING:
    from celery.app.task import Task

Transport = Literal["stock", "ours"]

#: Seconds after which Redis gives out again what nobody acknowledged.
VISIBILITY_TIMEOUT = 10


def make_app(redis_url: str, transport: Transport) -> Celery:
    """Return an app on this server whose broker connections use Kombu's own Redis transport, or ours."""
    register_transports()
    settings = translate_urls(redis_url).settings()
    if transport == "stock":
        settings["broker_url"] = redis_url
    settings["broker_transport_options"] = {
        "visibility_timeout": VISIBILITY_TIMEOUT,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    app = Celery("outage", set_as_current=False)
    app.conf.update(
        settings,
        broker_connection_retry_on_startup=True,
        task_acks_late=True,
        task_ignore_result=True,
        worker_disable_prefetch=False,
        worker_prefetch_multiplier=1,
    )
    return app


def add_tasks(app: Celery) -> dict[str, Task[..., None]]:
    """Register the two tasks: `note` ends at once, `hold` when somebody writes to the FIFO it is given."""

    @app.task(name="outage.note")
    def note(journal: str, word: str) -> None:
        _write(journal, word)

    @app.task(name="outage.hold")
    def hold(journal: str, fifo: str) -> None:
        _write(journal, "hold-begins")
        Path(fifo).read_bytes()
        _write(journal, "hold-ends")

    return {"note": note, "hold": hold}


def _write(journal: str, word: str) -> None:
    """Add a line to a file that several processes write to: one short append is not torn."""
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{word}\n".encode())
    finally:
        os.close(file)
