"""What the parts of a store share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ares_celery.clock import Clock
from ares_celery.config import RuntimeConfig
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.client import RedisClient
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.live_settings import LiveSettings
from ares_celery.store.redis.settings_calls import read_generation, read_settings

__all__ = ["Bound", "Part"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bound:
    """One open namespace: where it is, how it is set, and who speaks to it.

    Attributes:
        client: For calls that are answered at once.
        waiting: For calls that wait on the server; they must not use up the other client's connections, as leases are
            renewed through it.
        settings: The namespace's, as far as this process knows.
        listening: Makes a client with a connection of its own, for one that waits on the server again and again.
    """

    client: RedisClient
    waiting: RedisClient
    keys: Keys
    settings: LiveSettings
    clock: Clock
    listening: Callable[[], RedisClient]

    @property
    def config(self) -> RuntimeConfig:
        """How the namespace is set now. Asks nobody."""
        return self.settings.config


class Part:
    """Base of everything that works in one open namespace."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound

    def _run(self, call: Call[T]) -> T:
        """Runs a call; now and then the same round trip brings along whether the settings have changed."""
        return self._bound.client.run(call) if not self._bound.settings.is_due() else self._run_along([call])[0]

    def _run_many(self, calls: Sequence[Call[T]]) -> list[T]:
        """Runs calls in one round trip; now and then it brings along whether the settings have changed."""
        return self._run_along(calls) if self._bound.settings.is_due() else self._bound.client.run_many(calls)

    def _run_along(self, calls: Sequence[Call[T]]) -> list[T]:
        bound = self._bound
        asked: list[Call[Any]] = [*calls, read_generation(bound.keys)]
        *answers, generation = bound.client.run_many(asked)
        if generation != bound.settings.generation:
            stored = bound.client.run(read_settings(bound.keys))
            if stored.data is not None:
                bound.settings.take(bound.keys.namespace, stored.generation, stored.data)
        return cast("list[T]", answers)
