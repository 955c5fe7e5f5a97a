"""Following, compacting and trimming events while agents really run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from ares_celery import BEGINNING, AgentContext, AgentSpec, Event, EventFilter, EventType, NewEvent
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.store.redis.open import open_store
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class Tally:
    """Counts ticks; snapshots often."""

    def __init__(self, agent_id: str) -> None:
        self.ticks = 0

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.emit("tally.ticked", {})
            await ctx.sleep(0.002)

    def apply(self, event: Event) -> None:
        self.ticks += event.type == "tally.ticked"

    async def process(self, ctx: AgentContext, message: object) -> object:
        return self.ticks

    def snapshot(self) -> dict[str, object]:
        return {"ticks": self.ticks}

    def restore_state(self, state: dict[str, int]) -> None:
        self.ticks = state["ticks"]


class Unsnapped(Tally):
    """The same, but its events are all it has."""

    snapshot = None  # type: ignore[assignment]


@pytest.mark.spec(111)
def test_a_hosting_process_compacts_by_itself_and_what_it_trims_is_never_needed(
    redis_server: RedisServer, namespace: str
) -> None:
    """Summaries without overlap come with the events; the state outlives them exactly, and without them fails loudly.

    The count after a restart is that of all ticks ever stored, although their events are gone; when the snapshots are
    taken away too, the agent is parked with the first missing version instead of starting from less.
    """
    settings: dict[str, Any] = {
        "compaction_threshold": 40,
        "compaction_keep": 10,
        "trim_events": True,
        "snapshots_kept": 1,
    }
    with Runtime(redis_server.url, namespace, **settings) as runtime:
        runtime.register("tally", Tally)
        ticked = runtime.store.events.subscribe(EventFilter(streams=["t"], types=["tally.ticked"]))
        ticks: list[Event] = []
        threading.Thread(target=lambda: ticks.extend(ticked), daemon=True).start()
        runtime.manager.start()
        runtime.manager.start_agent(AgentSpec(id="t", type="tally"), wait="running")
        wait_until(lambda: len(runtime.store.events.summaries("t")) > 2, "summaries to be made")
        wait_until(lambda: runtime.events("t")[0].version > 60, "events to be trimmed", timeout=20)
        runtime.manager.restart_agent("t")
        runtime.until("t", "running", incarnation=2)
        runtime.manager.stop_agent("t")
        summaries = runtime.store.events.summaries("t")
        ends = [0, *(summary.end_version for summary in summaries)]
        assert [summary.start_version for summary in summaries] == [end + 1 for end in ends[:-1]]
        stored = runtime.store.stored_snapshots("t")  # type: ignore[arg-type]
        newest = runtime.events("t", "tally.ticked")[-1]
        wait_until(lambda: newest in ticks, "the last tick to arrive")
        assert [snapshot.state for snapshot in stored] == [{"ticks": len(ticks)}]  # type: ignore[union-attr]
        first = runtime.events("t")[0].version
        assert first > 60
        runtime.store.snapshots.delete("t")
        runtime.manager.start_agent("t")
        parked = runtime.until("t", "parked")
        assert parked.cause == "integrity"
        assert "damaged at version 1:" in parked.last_error


def test_an_agent_without_snapshots_keeps_all_its_events(redis_server: RedisServer, namespace: str) -> None:
    """It gets summaries like others, and nothing is removed."""
    settings: dict[str, Any] = {"compaction_threshold": 40, "compaction_keep": 10, "trim_events": True}
    with Runtime(redis_server.url, namespace, **settings) as runtime:
        runtime.register("unsnapped", Unsnapped)
        runtime.manager.start()
        runtime.manager.start_agent(AgentSpec(id="u", type="unsnapped"), wait="running")
        wait_until(lambda: runtime.store.events.summaries("u"), "a summary")
        runtime.manager.stop_agent("u")
        assert runtime.manager.compact_all().trimmed == 0
        versions = [event.version for event in runtime.events("u")]
        assert versions == list(range(1, len(versions) + 1))


@pytest.mark.spec(103)
def test_a_subscription_outlives_a_restart_of_the_server(
    make_redis_server: Callable[..., RedisServer], namespace: str
) -> None:
    """It waits, goes on at its cursor, and leaves out nothing that was stored before, meanwhile or afterwards."""
    server = make_redis_server(appendonly=True)
    settings = ProcessSettings(redis_url=server.url, namespace=namespace)
    store = open_store(settings, RuntimeConfig(shards=2))
    subscription = store.events.subscribe()
    found: list[Event] = []
    reader = threading.Thread(target=lambda: found.extend(subscription), daemon=True)
    reader.start()

    def append(number: int) -> None:
        store.events.append("a", [NewEvent("n", {"n": number})])

    append(1)
    wait_until(lambda: '"a":1' in subscription.cursor, "the first event")
    server.stop()
    server.start()
    for number in (2, 3):
        append(number)
    wait_until(lambda: '"a":3' in subscription.cursor, "the events after the restart")
    subscription.close()
    reader.join(timeout=5)
    assert [event.payload["n"] for event in found] == [1, 2, 3]
    store.close()


def test_lifecycle_events_reach_a_subscriber(redis_server: RedisServer, namespace: str) -> None:
    """Those that commits write and those of agents, by type, from the beginning on."""
    with Runtime(redis_server.url, namespace) as runtime:
        runtime.register("tally", Tally)
        runtime.manager.start()
        runtime.manager.start_agent(AgentSpec(id="t", type="tally"), wait="running")
        wanted = EventFilter(types=[EventType.AGENT_STARTED, EventType.AGENT_STOPPED])
        with runtime.store.events.subscribe(wanted, cursor=BEGINNING) as subscription:
            assert next(subscription).type == "agent.started"
            runtime.manager.stop_agent("t")
            assert next(subscription).payload["reason"] == "explicit_stop"
