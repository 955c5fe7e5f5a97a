"""The Celery settings of an app of ours, each with its reason; a deployment's own come on top (celeryconfig.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["BROKER_OPTIONS", "RESULT_OPTIONS", "SETTINGS"]

#: Bounded waits: a server that is silent must not hold a worker's main thread, or a task, for ever.
_SOCKETS: Final[Mapping[str, Any]] = {
    "socket_connect_timeout": 5.0,
    # Above the 1 s that kombu's own blocking read takes.
    "socket_timeout": 10.0,
    "socket_keepalive": True,
}

BROKER_OPTIONS: Final[Mapping[str, Any]] = {
    **_SOCKETS,
    # Our tasks acknowledge early, so only tasks of others, and messages in an outage, ever wait for it.
    "visibility_timeout": 3600,
}

RESULT_OPTIONS: Final[Mapping[str, Any]] = {
    # A result that cannot be stored is tried again for a few seconds, then the task ends with an error in the log.
    "retry_policy": {"max_retries": 5, "interval_start": 0, "interval_step": 0.2, "interval_max": 1.0},
}

SETTINGS: Final[Mapping[str, Any]] = {
    # Messages name agents and carry JSON; no code is ever named or unpickled.
    "accept_content": ["json"],
    "task_serializer": "json",
    "result_serializer": "json",
    # An agents worker with free slots takes what it can run and no more; the rest stays where others find it.
    "worker_disable_prefetch": True,
    "worker_prefetch_multiplier": 1,
    # After a broker's restart Celery would take one message less for each task that runs, until it ends: agents do not.
    "worker_enable_prefetch_count_reduction": False,
    # A message is a nudge: acknowledged early, so that none is unacknowledged when the broker goes away.
    "task_acks_late": False,
    "task_reject_on_worker_lost": False,
    # STARTED is what an agent's task shows for months.
    "task_track_started": True,
    "task_send_sent_event": False,
    # Workers, Manager and beat may start before their Redis.
    "broker_connection_retry_on_startup": True,
    # For ever: an agents worker outlives any outage of its broker.
    "broker_connection_max_retries": None,
    # An outage is no death: agents run on while the broker is away.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    # Celery's redirection splits what agents print, and hides it.
    "worker_redirect_stdouts": False,
    # Results of agents are looked at within a day or not at all.
    "result_expires": 24 * 3600,
    "redis_socket_timeout": 10.0,
    "redis_socket_connect_timeout": 5.0,
    "redis_retry_on_timeout": True,
    # Log lines and events say when in UTC, on every machine.
    "timezone": "UTC",
    "enable_utc": True,
}
