"""The wire format that other services rely on: names of tasks, queues and headers."""

from __future__ import annotations

from typing import Final

__all__ = [
    "AGENTS_QUEUE",
    "CONTROL_QUEUE",
    "FORWARDED_HEADER",
    "HEALTH_CHECK",
    "NAMESPACE_HEADER",
    "NOTIFY_AGENT_DEAD",
    "RESURRECT_AGENT",
    "RUN_AGENT",
    "SUPERVISION_QUEUE",
    "TASK_PREFIX",
    "queue_kind",
    "queue_name",
]

TASK_PREFIX: Final = "ares."
RUN_AGENT: Final = "ares.run_agent"
RESURRECT_AGENT: Final = "ares.resurrect_agent"
HEALTH_CHECK: Final = "ares.health_check"
NOTIFY_AGENT_DEAD: Final = "ares.notify_agent_dead"

#: Queues, without the namespace in front.
AGENTS_QUEUE: Final = "agents"
SUPERVISION_QUEUE: Final = "supervision"
CONTROL_QUEUE: Final = "control"

#: The namespace that a message is meant for; absent: that of the queue.
NAMESPACE_HEADER: Final = "ares_namespace"
#: Set on a message that came to a wrong namespace and was sent on, so that it is sent on once only.
FORWARDED_HEADER: Final = "ares_forwarded"


def queue_name(namespace: str, queue: str | None = None) -> str:
    """The queue as the broker knows it; None = the agents queue.

    Example:
        >>> queue_name("ares"), queue_name("shop", "gpu")
        ('ares.agents', 'shop.gpu')
    """
    return f"{namespace}.{queue or AGENTS_QUEUE}"


def queue_kind(namespace: str, name: str) -> str | None:
    """The queue without its namespace; None for a queue of somebody else.

    Example:
        >>> queue_kind("shop", "shop.gpu"), queue_kind("shop", "celery")
        ('gpu', None)
    """
    prefix = f"{namespace}."
    return name.removeprefix(prefix) if name.startswith(prefix) and name != prefix else None
