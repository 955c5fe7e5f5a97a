"""Which task goes to which queue, and what becomes of a message that came to the wrong namespace."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, Final

from celery import Celery
from celery.app.task import Context
from kombu import Exchange, Queue

from ares_celery.celery_app.names import (
    AGENTS_QUEUE,
    CONTROL_QUEUE,
    FORWARDED_HEADER,
    HEALTH_CHECK,
    NAMESPACE_HEADER,
    NOTIFY_AGENT_DEAD,
    RESURRECT_AGENT,
    RUN_AGENT,
    SUPERVISION_QUEUE,
    TASK_PREFIX,
    queue_kind,
    queue_name,
)

__all__ = ["DEAD_LETTERS", "DeadLetters", "make_queue", "make_queues", "route_task", "send_home"]

log: Final = logging.getLogger(__name__)

_QUEUES: Final[Mapping[str, str]] = {
    RUN_AGENT: AGENTS_QUEUE,
    RESURRECT_AGENT: AGENTS_QUEUE,
    HEALTH_CHECK: SUPERVISION_QUEUE,
    NOTIFY_AGENT_DEAD: SUPERVISION_QUEUE,
}


def make_queues(namespace: str) -> list[Queue]:
    """The three queues of a namespace, each a direct exchange of its own."""
    return [make_queue(queue_name(namespace, kind)) for kind in (AGENTS_QUEUE, SUPERVISION_QUEUE, CONTROL_QUEUE)]


def make_queue(name: str) -> Queue:
    """One of our queues, as every app declares it, whatever its own settings for queues say.

    RabbitMQ refuses a queue that two apps declare differently.

    Example:
        >>> make_queue("shop.gpu").exchange.type
        'direct'
    """
    return Queue(name, Exchange(name, type="direct"), routing_key=name)


def route_task(namespace: str, task: str) -> str | None:
    """The queue of one of our tasks; None for a task that is not ours.

    Example:
        >>> route_task("shop", "ares.health_check"), route_task("shop", "ares.start_agent"), route_task("shop", "mail")
        ('shop.supervision', 'shop.control', None)
    """
    if not task.startswith(TASK_PREFIX):
        return None
    return queue_name(namespace, _QUEUES.get(task, CONTROL_QUEUE))


class DeadLetters:
    """Counts the messages that nobody could take, by the namespace they were meant for."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, int] = {}

    def add(self, namespace: str) -> int:
        """Notes one more; returns how many there were for this namespace."""
        with self._lock:
            self._counts[namespace] = self._counts.get(namespace, 0) + 1
            return self._counts[namespace]

    def counts(self) -> Mapping[str, int]:
        """A copy of the counts."""
        with self._lock:
            return dict(self._counts)


#: Of this process.
DEAD_LETTERS: Final = DeadLetters()


def send_home(
    app: Celery, own: str, task: str, request: Context, payload: tuple[Iterable[Any], Mapping[str, Any]]
) -> str:
    """Sends a foreign message to its own namespace's queue, once; one that comes back is given up on.

    Args:
        app: Publishes it.
        own: The namespace of this worker.
        task: Name of the task.
        request: The message's context.
        payload: Its args and kwargs.

    Returns:
        What was done, for the task's result.
    """
    meant = str(request.get(NAMESPACE_HEADER))
    args, kwargs = payload
    came_by = str((request.delivery_info or {}).get("routing_key") or "")
    if request.get(FORWARDED_HEADER):
        count = DEAD_LETTERS.add(meant)
        log.error(
            "%s[%s] is meant for namespace %r, came to a worker of %r again and is dropped (%d so far): do two "
            "namespaces share queue %r?",
            *(task, request.id, meant, own, count, came_by),
        )
        return "foreign namespace, dropped"
    name = queue_name(meant, queue_kind(own, came_by) or _QUEUES.get(task, CONTROL_QUEUE))
    log.warning("%s[%s] is meant for namespace %r: sent on to queue %r", task, request.id, meant, name)
    # The type stubs know names of queues only.
    queue: Any = make_queue(name)
    app.send_task(
        task,
        args=list(args),
        kwargs=dict(kwargs),
        queue=queue,
        serializer="json",
        root_id=request.root_id,
        headers={NAMESPACE_HEADER: meant, FORWARDED_HEADER: True},
        retries=request.retries or 0,
        ignore_result=True,
        add_to_parent=False,
    )
    return "foreign namespace, sent on"
