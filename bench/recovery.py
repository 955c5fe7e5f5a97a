"""How fast history is read into typed events, next to a bare XRANGE; what a recovery from a fresh snapshot takes."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ares_celery import Event, NewEvent
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.ids import Version
from ares_celery.model.command import Release
from ares_celery.runtime.recovery import Recovery, StateCode, recover_agent_state
from ares_celery.runtime.replay import PAGE
from ares_celery.store.redis.connections import Connector
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.open import open_store
from ares_celery.store.redis.store import RedisStore
from bench.figures import Spread, spread
from tests.contract.store.acting import AGENT, act, record_of, run, run_namespace, take
from tests.redis_server import RedisServer

__all__ = ["FreshSnapshot", "ReplayCost", "fresh_snapshot", "replay_cost"]

#: Bytes of an event as it is stored.
SIZE = 300
BATCH = 500


@dataclass(frozen=True, slots=True)
class ReplayCost:
    """Events a second of one stream: typed, and as the driver's bare XRANGE gives them, page by page in turns."""

    typed: float
    bare: float

    @property
    def ratio(self) -> float:
        """What the types cost: bare reads in one typed read."""
        return self.bare / self.typed


@dataclass(frozen=True, slots=True)
class FreshSnapshot:
    """Milliseconds from the claim to the recovered agent, and the most memory that a replay of all events holds."""

    recovery: Spread
    replay_peak_mb: float


@contextmanager
def _filled(events: int) -> Generator[tuple[RedisStore, str]]:
    """A store, and its URL, with an agent that has so many events; version 1 is its agent.started."""
    with RedisServer() as redis:
        settings = ProcessSettings(redis_url=redis.url, namespace="bench")
        store = run_namespace(open_store(settings, RuntimeConfig(shards=1)))
        try:
            run(store)
            batch = [NewEvent("counted", {"by": 1, "text": "x" * (SIZE - 90)})] * BATCH
            for _ in range(events // BATCH):
                store.events.append(AGENT, batch)
            yield store, redis.url
        finally:
            store.close()


def replay_cost(events: int, rounds: int = 5) -> ReplayCost:
    """Takes turns: all events of one stream by the store, then by the driver, in pages of the same size."""
    with _filled(events) as (store, url):
        driver: Any = Connector.to(url).driver()
        key = Keys(store.namespace, store.config.shards).events(AGENT)

        def typed() -> int:
            return len(store.events.read(AGENT))

        def bare() -> int:
            count, last = 0, "-"
            while page := driver.xrange(key, min=last, count=PAGE):
                count += len(page)
                last = b"(" + page[-1][0]
            return count

        best = {typed: 0.0, bare: 0.0}
        for _ in range(rounds):
            for read, known in list(best.items()):
                best[read] = max(known, _rate(read))
        return ReplayCost(best[typed], best[bare])


def _rate(read: Callable[[], int]) -> float:
    began = time.perf_counter()
    count = read()
    return count / (time.perf_counter() - began)


class _Sum:
    """Adds up its events."""

    def __init__(self) -> None:
        self.total = 0

    def apply(self, event: Event) -> None:
        self.total += event.payload["by"]

    def snapshot(self) -> Mapping[str, Any]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


def fresh_snapshot(events: int, rounds: int = 20) -> FreshSnapshot:
    """Recovers an agent with so many events and a snapshot of the last one, again and again; then without one."""
    with _filled(events) as (store, _):
        tracemalloc.start()
        assert _recovered(store)[0].total == events
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        times: list[float] = []
        for _ in range(rounds):
            record = record_of(store)
            state = {"total": events, "filler": "x" * 10_000}
            store.save_snapshot(AGENT, record.fence, state, version=Version(record.version), schema=1)
            agent, seconds = _recovered(store)
            assert agent.total == events
            times.append(seconds * 1000)
        return FreshSnapshot(spread(times), peak / (1 << 20))


def _recovered(store: RedisStore) -> tuple[_Sum, float]:
    act(store, Release(fence=record_of(store).fence, reason="bench"))
    epoch, agent = record_of(store).epoch, _Sum()
    began = time.perf_counter()
    claimed = take(store, epoch, page=PAGE, claimer=f"t{epoch}")
    recover_agent_state(Recovery(store, claimed, StateCode("counter")), agent)
    return agent, time.perf_counter() - began
