"""The host of one process, put together."""

from __future__ import annotations

from ares_celery.agents.registry import REGISTRY
from ares_celery.celery_app.process_end import end_process
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.host import ProcessHost
from ares_celery.runtime.ports import EventListener
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.store.redis.store import RedisStore

__all__ = ["open_host"]


def open_host(
    store: RedisStore, committer: Committer, *, exclusive: bool, listener: EventListener | None = None
) -> ProcessHost:
    """Makes the host that all agents of this process share.

    Args:
        store: The namespace, opened in this process.
        committer: Through which every change of a life goes.
        exclusive: The process hosts one agent at a time, so whatever it leaves behind is ended.
        listener: Told of the events that the agents store.
    """
    return ProcessHost(
        store=store,
        config=lambda: store.config,
        committer=committer,
        registry=REGISTRY,
        open_async=store.open_async,
        wakeups=store.wakeups(ProcessIdentity.current().encode()),
        exclusive=exclusive,
        on_stuck=end_process,
        listener=listener,
    )
