"""A subscription for threads: does what following asks for, on a connection of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, Self

from ares_celery.clock import Clock
from ares_celery.errors import AresError, StoreUnavailableError
from ares_celery.model.arguments import check_timeout
from ares_celery.model.event import Event
from ares_celery.store.redis.client import RedisClient
from ares_celery.store.redis.following import Ask, Following, Found, Step, Wait

__all__ = ["RedisSubscription"]

_log: Final = logging.getLogger(__name__)

#: Milliseconds of one wait on the server; so long closing may take.
BLOCK_MS: Final = 250
#: Seconds until a store that does not answer is asked again; doubled each time, up to the second number.
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 2.0


class RedisSubscription:
    """Implements :class:`~ares_celery.store.base.Subscription`."""

    def __init__(self, following: Following, client: RedisClient, *, namespace: str, clock: Clock) -> None:
        """Begins; nothing is sent before the first event is asked for.

        Args:
            following: What to do.
            client: Only this subscription's, as it waits on the server; closed with it.
            namespace: Whose events they are, for the cursor.
            clock: For waits.
        """
        self._following = following
        self._steps = following.steps()
        self._client = client
        self._namespace = namespace
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._step: Step | None = None
        self._answer: list[Any] | None = None
        self._pause = FIRST_PAUSE
        self._away = False

    @property
    def cursor(self) -> str:
        """Where it stands, the last event that it gave included."""
        return self._following.state.show(self._namespace)

    @property
    def missed(self) -> int:
        """Events that had left the feed and were read from their streams."""
        return self._following.missed

    @property
    def lost(self) -> int:
        """Events that were trimmed before this subscriber came for them."""
        return self._following.lost

    @property
    def lagging(self) -> bool:
        """More waits than it takes at once."""
        return self._following.lagging

    @property
    def closed(self) -> bool:
        """It gives nothing more."""
        return self._closed.is_set()

    def poll(self, timeout: timedelta | float | None = None) -> Event | None:
        """The next event; None when none came in time, or it was closed."""
        until = None if timeout is None else self._clock.monotonic() + check_timeout(timeout).total_seconds()
        try:
            with self._lock:
                return self._poll(until)
        finally:
            self._tidy()

    def close(self) -> None:
        """Ends the iteration; idempotent."""
        self._closed.set()
        self._tidy()

    def __iter__(self) -> Iterator[Event]:
        """The subscription itself."""
        return self

    def __next__(self) -> Event:
        """The next event, as long as it takes."""
        event = self.poll()
        if event is None:
            raise StopIteration
        return event

    def __enter__(self) -> Self:
        """The subscription itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Closes it."""
        self.close()

    def _poll(self, until: float | None) -> Event | None:
        while not self._closed.is_set():
            step = self._next_step()
            if isinstance(step, Found):
                self._step, self._answer = None, []
                if isinstance(step.item, AresError):
                    raise step.item
                return step.item
            answer = self._do(step, until)
            if answer is not None:
                self._step, self._answer = None, answer
            elif until is not None and self._clock.monotonic() >= until:
                return None
        return None

    def _next_step(self) -> Step:
        """The step that is due; the same one until it has its answer."""
        if self._step is None:
            self._step = next(self._steps) if self._answer is None else self._steps.send(self._answer)
        return self._step

    def _do(self, step: Ask | Wait, until: float | None) -> list[Any] | None:
        """The answer; None when there is none yet."""
        try:
            answer = self._client.run_many(step.calls) if isinstance(step, Ask) else self._wait(step, until)
        except StoreUnavailableError as error:
            self._wait_for_the_store(error, until)
            return None
        except Exception:
            # A store around a driver of the caller's own closes that under us; what a driver then raises varies.
            if self._closed.is_set():
                return None
            raise
        if self._away:
            _log.warning("a subscription to events goes on")
            self._away = False
        self._pause = FIRST_PAUSE
        return answer

    def _wait(self, step: Wait, until: float | None) -> list[Any] | None:
        left = BLOCK_MS if until is None else int((until - self._clock.monotonic()) * 1_000)
        # Never 0, which means for ever.
        found = self._client.run(step.call(block_ms=max(1, min(BLOCK_MS, left))))
        return [found] if found else None

    def _wait_for_the_store(self, error: StoreUnavailableError, until: float | None) -> None:
        if not self._away:
            _log.warning("a subscription to events waits for the store: %s", error)
        self._away = True
        left = self._pause if until is None else min(self._pause, until - self._clock.monotonic())
        self._clock.wait(self._closed, left)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def _tidy(self) -> None:
        """Gives the connection back once nobody uses it."""
        if self._closed.is_set() and self._lock.acquire(blocking=False):
            try:
                self._client.close()
            finally:
                self._lock.release()
