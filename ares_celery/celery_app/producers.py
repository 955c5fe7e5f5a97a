"""Connections to the broker that belong to one manager."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu.pools import ProducerPool

__all__ = ["Producers"]


class Producers:
    """A pool of producers beside Kombu's own, which is one for the whole process and for all apps of the same broker.

    A forked child inherits the process's pool with connections that are its parent's, and with locks that a thread of
    the parent may have held. What belongs to a manager is left behind instead, and made anew; and closing a manager
    closes its connections, nobody else's.
    """

    def __init__(self, app: Celery) -> None:
        """Binds the pool; connects when it is first used.

        Args:
            app: Names the broker, and how many connections there may be.
        """
        limit = app.conf.broker_pool_limit
        connection: Any = app.connection_for_write()
        self.connections: Any = connection.Pool(limit)
        self._producers: Any = ProducerPool(self.connections, limit=limit)

    def acquire(self) -> Any:  # noqa: ANN401 - kombu's, without types
        """A producer, given back at the end of the ``with`` block."""
        return self._producers.acquire(block=True)

    def close(self) -> None:
        """Closes the connections."""
        self._producers.force_close_all()
        self.connections.force_close_all()
