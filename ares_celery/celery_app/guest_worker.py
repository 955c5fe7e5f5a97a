"""What a worker of somebody else's app needs in order to host or supervise, and gets only when it reads our queues."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final

from celery import Celery

from ares_celery.celery_app.due_task import AresTask
from ares_celery.celery_app.guest_amqp import OUR_TASKS, set_here, use_our_transport
from ares_celery.celery_app.names import queue_kind

__all__ = ["prepare_guest_worker"]

log: Final = logging.getLogger(__name__)

_JSON: Final = frozenset({"json", "application/json"})


def prepare_guest_worker(worker: Any, namespace: str) -> None:  # noqa: ANN401 - Celery's WorkController
    """Before the worker's parts are made: no prefetch, our transport, and a word about what it does beside agents.

    Raises:
        SystemExit: The app's settings do not let it host or supervise; the text names setting and cure.
    """
    app: Celery = worker.app
    _demand_json(app)
    _demand_our_tasks(app)
    if app.conf.task_always_eager:
        log.critical("task_always_eager is set: this worker refuses every task of ares; unset it for workers")
    if app.conf.broker_transport:
        log.warning(
            "broker_transport=%r is kept: a broker outage may leave this worker deaf, as our own transport is not used",
            app.conf.broker_transport,
        )
    use_our_transport(app)
    # Celery has made this one before its workers are told of anything; the consumer takes its errors from it.
    worker._conninfo = app.connection_for_read()  # noqa: SLF001 - there is no other way to it
    if worker._conninfo.transport.driver_type == "redis":  # noqa: SLF001 - as above
        # Read by the consumer; in this process only.
        set_here(app, "worker_disable_prefetch", value=True)
    else:
        # A full worker holds messages until a slot is free. RabbitMQ closes its channel for that after half an hour,
        # and it would end, agents and all, where it can as well begin to read anew.
        set_here(app, "broker_channel_error_retry", value=True)
        # After a broker's restart Celery would take one message less for each task that runs, until it ends: agents
        # do not end, and have acknowledged theirs long ago.
        set_here(app, "worker_enable_prefetch_count_reduction", value=False)
    # Elsewhere the broker hands out so many messages for each slot before the slots are free: one is the least.
    worker.prefetch_multiplier = 1
    _tell_of_others(app.amqp.queues.consume_from, namespace)


def _demand_json(app: Celery) -> None:
    """A worker that does not take JSON would throw away every message of ours."""
    accepted = app.conf.accept_content or ()
    if not _JSON & set(accepted):
        raise SystemExit(
            f"accept_content={list(accepted)!r} has no 'json', and messages about agents are JSON: add 'json' to it "
            "for workers that read the queues of agents"
        )


def _demand_our_tasks(app: Celery) -> None:
    """An app that had a task of the same name before keeps its own; then ours is not there."""
    theirs = sorted(name for name in OUR_TASKS if not isinstance(app.tasks.get(name), AresTask))
    if theirs:
        raise SystemExit(
            f"the app has tasks of its own named {', '.join(theirs)}: rename them, as these names are ours"
        )


def _tell_of_others(consumed: Iterable[str], namespace: str) -> None:
    others = sorted(name for name in consumed if queue_kind(namespace, name) is None)
    if others:
        log.warning(
            "this worker reads %s beside the queues of agents: their tasks share its slots, are taken one a slot at "
            "most (no prefetch), and end with it; a worker of their own is better",
            ", ".join(others),
        )
