"""Two hundred thousand events: recovery takes a moment after a snapshot, and holds a page in memory, never all."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.ids import Version
from ares_celery.model.command import Die
from ares_celery.model.event import Event
from ares_celery.runtime.recovery import Recovered, Recovery, StateCode, recover_agent_state
from ares_celery.runtime.replay import PAGE
from ares_celery.store.redis.open import open_store
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, record_of, run, run_namespace, take
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]

EVENTS = 200_000
#: Made inside the server, as an append for each would only cost time.
FILL = """
local text = '","type":"counted","payload":{"by":1,"text":"' .. string.rep('x', 230) .. '"},"epoch":1}'
for n = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local number = string.format('%.0f', n)
  redis.call('XADD', KEYS[1], number .. '-0', 'd', '{"id":"e' .. number .. text, 't', '1795975978273137')
end
return redis.call('HSET', KEYS[2], 'version', ARGV[2])
"""


class Sum:
    """Adds up, and notices what is missing or comes twice."""

    def __init__(self) -> None:
        self.total, self.last, self.restored = 0, 0, -1

    def apply(self, event: Event) -> None:
        assert event.version > self.last
        self.last = event.version
        self.total += event.payload["by"]

    def snapshot(self) -> Mapping[str, Any]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.total = self.restored = state["total"]


@pytest.fixture
def store(redis_server: RedisServer, namespace: str) -> Iterator[RedisStore]:
    """An agent with that many events; version 1 is its agent.started."""
    made = run_namespace(
        open_store(ProcessSettings(redis_url=redis_server.url, namespace=namespace), RuntimeConfig(shards=1))
    )
    yield made
    made.wipe()
    made.close()


def filled(store: RedisStore) -> str:
    """The fence of the agent, its events in place."""
    fence = run(store)
    raw, keys = store._bound.client._driver, store._bound.keys
    raw.execute_command("EVAL", FILL, 2, keys.events(AGENT), keys.agent(AGENT), 2, EVENTS + 1)
    return fence


def recover(store: RedisStore, agent: Sum) -> tuple[Recovered, float]:
    """Claims the next incarnation and recovers it, as a host does; with the seconds it took."""
    act(store, Die(epoch=record_of(store).epoch, reason="killed", proof=True))
    epoch = record_of(store).epoch
    began = time.perf_counter()
    claimed = take(store, epoch, page=PAGE, claimer=f"t{epoch}")
    done = recover_agent_state(Recovery(store, claimed, StateCode("counter")), agent)
    return done, time.perf_counter() - began


@pytest.mark.pain("P24")
def test_a_history_of_two_hundred_thousand_events(store: RedisStore) -> None:
    """After a snapshot well below 5 s; without one all are applied, twenty times max_replay_events, and none dropped.

    Memory is that of a few pages, whatever the number of events after the snapshot.
    """
    fence = filled(store)
    assert 20 * store.config.max_replay_events <= EVENTS

    whole = Sum()
    done, _ = recover(store, whole)
    assert (whole.total, done.replayed, done.snapshot) == (EVENTS, EVENTS, None)

    fence = record_of(store).fence
    store.save_snapshot(AGENT, fence, {"total": EVENTS - 40_000}, version=Version(EVENTS + 1 - 40_000), schema=1)
    tail = Sum()
    tracemalloc.start()
    try:
        recover(store, tail)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tail.restored, tail.total) == (EVENTS - 40_000, EVENTS)
    assert peak < 12 << 20, "a few pages of 1,000 events of 300 bytes; 40,000 of them take 40 MiB and more"

    fence = record_of(store).fence
    store.save_snapshot(AGENT, fence, {"total": EVENTS}, version=Version(EVENTS + 1), schema=1)
    fresh = Sum()
    done, seconds = recover(store, fresh)
    assert (fresh.restored, fresh.total, done.replayed) == (EVENTS, EVENTS, 0)
    assert seconds < 5
