"""What the parts of a store share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ares_celery.clock import Clock
from ares_celery.config import RuntimeConfig
from ares_celery.store.redis.client import RedisClient
from ares_celery.store.redis.keys import Keys

__all__ = ["Bound", "Part"]


@dataclass(frozen=True, slots=True)
class Bound:
    """One open namespace: where it is, how it is set, and who speaks to it.

    Attributes:
        client: For calls that are answered at once.
        waiting: For calls that wait on the server; they must not use up the other client's connections, as leases are
            renewed through it.
        listening: Makes a client with a connection of its own, for one that waits on the server again and again.
    """

    client: RedisClient
    waiting: RedisClient
    keys: Keys
    config: RuntimeConfig
    clock: Clock
    listening: Callable[[], RedisClient]


class Part:
    """Base of everything that works in one open namespace."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
