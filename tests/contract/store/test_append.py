"""Appends of an incarnation: fenced, contiguous, all or none, and stored once whatever the network does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from ares_celery.config import RuntimeConfig
from ares_celery.errors import EventTooLargeError, UnserialisableError, VersionConflictError
from ares_celery.ids import Version
from ares_celery.model.agent import RuntimeState
from ares_celery.model.command import Stop
from ares_celery.model.event import Event, NewEvent
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, append, record_of, run, run_namespace, ticks
from tests.contract.store.backends import Backend, LosingDriver

pytestmark = pytest.mark.contract


def test_events_come_back_as_they_were_stored(store: RedisStore) -> None:
    """What append returns is what every reader gets: decoded values, version, epoch, time of Redis."""
    fence = run(store)
    payload = {"text": "grün", "list": [1, 2.5, None, True, {"deep": ""}], "big": 2**70, "time": -1}
    before = store.server_time()
    stored = store.append(
        AGENT, fence, [NewEvent("a.b", payload, {"trace": "x"}, "my-id")], op="one", expected=Version(1)
    )
    assert stored == store.events.read(AGENT)[1:]
    (event,) = stored
    assert (event.id, event.stream_id, event.version, event.type) == ("my-id", AGENT, 2, "a.b")
    assert (event.payload, event.metadata) == (payload, {"trace": "x"})
    assert event.epoch == record_of(store).epoch
    assert event.time.timestamp() * 1e6 == pytest.approx(before, abs=5e6)
    assert record_of(store).last_progress == int(event.time.timestamp() * 1e6 + 0.5)


def test_the_payload_is_a_copy(store: RedisStore) -> None:
    """Who changes its dict afterwards changes no event."""
    fence = run(store)
    payload: dict[str, object] = {"list": [1]}
    (event,) = store.append(AGENT, fence, [NewEvent("x", payload)], op="one", expected=Version(1))
    payload["list"] = "changed"
    assert event.payload == {"list": [1]}


def test_the_runtime_may_have_written_in_between(store: RedisStore) -> None:
    """The writer has seen version 1; above it stand others' events; the append goes above those."""
    fence = run(store)
    store.events.append(AGENT, ticks(100, 101))
    assert append(store, fence, 1, expected=1) == [4]
    store.events.append(AGENT, ticks(102))
    assert append(store, fence, 2, 3, expected=4) == [6, 7]


@pytest.mark.parametrize("numbers", [(1,), (1, 2, 3)])
def test_an_append_whose_answer_is_lost_is_stored_once(backend: Backend, numbers: tuple[int, ...]) -> None:
    """The same op again returns the stored events, with their ids, also after the runtime has written."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(driver=driver))
    fence = run(store)
    append(store, fence, 7, 8, expected=1)
    append(store, fence, 9, expected=3)
    driver.lose_next = True
    with pytest.raises(ConnectionError):
        store.append(AGENT, fence, ticks(*numbers), op="lost", expected=Version(4))
    store.events.append(AGENT, ticks(50))
    again = store.append(AGENT, fence, ticks(*numbers), op="lost", expected=Version(4))
    assert again == store.events.read(AGENT)[4:-1]
    assert [event.payload["n"] for event in again] == list(numbers)
    assert append(store, fence, 60, expected=4 + len(numbers)) == [6 + len(numbers)]


def test_a_store_that_came_back_older_is_noticed(store: RedisStore, raw: redis.Redis) -> None:
    """Redis holds less than the writer has seen acknowledged: nothing is written, and the writer learns it."""
    fence = run(store)
    append(store, fence, 1, 2, expected=1)
    keys = Keys(store.namespace, store.config.shards)
    raw.hset(keys.agent(AGENT), mapping={"version": "1"})
    raw.hdel(keys.agent(AGENT), "append_op")
    raw.xdel(keys.events(AGENT), "2-0", "3-0")
    for numbers in ((3,), (3, 4)):
        with pytest.raises(VersionConflictError) as conflict:
            append(store, fence, *numbers, expected=3)
        assert (conflict.value.rolled_back, conflict.value.actual, conflict.value.expected) == (True, 1, 3)
    assert len(store.events.read(AGENT)) == 1


def test_twenty_threads_leave_no_gap(store: RedisStore) -> None:
    """Versions are contiguous, whoever writes."""
    fence = run(store)

    def write(number: int) -> list[int]:
        if number % 2:
            return [event.version for event in store.events.append(AGENT, ticks(*range(number % 3 + 1)))]
        return append(store, fence, *range(number % 3 + 1), expected=1, op=f"op-{number}")

    with ThreadPoolExecutor(20) as pool:
        versions = sorted(version for some in pool.map(write, range(60)) for version in some)
    assert versions == list(range(2, 122))
    assert [event.version for event in store.events.read(AGENT)] == list(range(1, 122))
    assert store.events.stream_version(AGENT) == 121


@pytest.mark.spec(97)
def test_a_batch_of_a_hundred_is_stored_whole_or_not_at_all(store: RedisStore) -> None:
    """Contiguous, with ids and times filled in; one bad event in it and none is there."""
    fence = run(store)
    stored = store.append(AGENT, fence, ticks(*range(100)), op="batch", expected=Version(1))
    assert [event.version for event in stored] == list(range(2, 102))
    assert len({event.id for event in stored}) == 100
    assert all(event.id and event.time.utcoffset() is not None for event in stored)
    assert store.events.read(AGENT)[1:] == stored
    with pytest.raises(UnserialisableError):
        store.append(AGENT, fence, [*ticks(1, 2), NewEvent("bad", {"x": {1}})], op="bad", expected=Version(101))
    act(store, Stop(force=True))
    with pytest.raises(Exception, match="is over"):
        store.append(AGENT, fence, ticks(*range(100)), op="late", expected=Version(101))
    outside = store.events.append("other", ticks(*range(100)))
    assert [event.version for event in outside] == list(range(1, 101))
    assert store.events.stream_version(AGENT) == 102  # agent.stopped and no event of the refused batches


def test_limits_are_those_of_the_namespace(backend: Backend) -> None:
    """Agent, type, size and limit are in the error; one byte less is stored."""
    store = run_namespace(backend.open(RuntimeConfig(max_event_bytes=100)))
    fence = run(store)
    fits = NewEvent("fits", {"t": "x" * (100 - len('{"t":""}'))})
    store.append(AGENT, fence, [fits], op="fits", expected=Version(1))
    with pytest.raises(EventTooLargeError) as refused:
        store.append(AGENT, fence, [NewEvent("fits", {"t": "x" * 93})], op="large", expected=Version(2))
    assert (refused.value.agent_id, refused.value.size, refused.value.limit) == (AGENT, 101, 100)
    with pytest.raises(EventTooLargeError):
        store.append(AGENT, fence, [NewEvent("x", {}, {"t": "x" * 100})], op="meta", expected=Version(2))
    assert store.events.stream_version(AGENT) == 2


def test_an_empty_append_is_the_callers_mistake(store: RedisStore) -> None:
    """An incarnation that appends nothing does not know what it does."""
    with pytest.raises(ValueError, match="at least one event"):
        store.append(AGENT, run(store), [], op="none", expected=Version(1))


def test_pointers_to_all_events_are_in_the_feed(store: RedisStore, raw: redis.Redis) -> None:
    """In order: agent, version, type; of agents' events and of the runtime's."""
    fence = run(store)
    append(store, fence, 1, expected=1)
    append(store, fence, 2, 3, expected=2)
    store.events.append(AGENT, ticks(4))
    keys = Keys(store.namespace, store.config.shards)
    entries: Any = raw.xrange(keys.feed(keys.shard_of(AGENT)))
    assert [fields[b"e"].decode() for _, fields in entries] == [
        f"{AGENT}|1|agent.started",
        *(f"{AGENT}|{version}|counter.ticked" for version in range(2, 6)),
    ]


def test_a_stopped_namespace_does_not_cut_off_its_agents(store: RedisStore) -> None:
    """Until its incarnation ends, an agent writes: the fence alone counts."""
    fence = run(store)
    store.set_runtime(RuntimeState.STOPPED, only_from=[RuntimeState.RUNNING], reason="", actor="")
    assert append(store, fence, 1, expected=1) == [2]


async def test_the_awaitable_store_does_the_same(backend: Backend, store: RedisStore) -> None:
    """Append (fast path, moved stream, batch, repeat), snapshot and fence, on an event loop."""
    fence = run(store)
    loop_store = store.open_async()
    (event,) = await loop_store.append(AGENT, fence, ticks(1), op="a", expected=Version(1))
    assert isinstance(event, Event)
    assert event == store.events.read(AGENT)[-1]
    store.events.append(AGENT, ticks(9))
    stored = await loop_store.append(AGENT, fence, ticks(2), op="b", expected=Version(2))
    assert await loop_store.append(AGENT, fence, ticks(2), op="b", expected=Version(2)) == stored
    assert [event.version for event in stored] == [4]
    await loop_store.append(AGENT, fence, ticks(3, 4), op="c", expected=Version(4))
    await loop_store.save_snapshot(AGENT, fence, {"n": 4}, version=Version(6), schema=1)
    assert store.snapshots.load(AGENT) == {"n": 4}
    with pytest.raises(VersionConflictError):
        await loop_store.append(AGENT, fence, ticks(5), op="d", expected=Version(7))
    with pytest.raises(Exception, match="is over"):
        await loop_store.append(AGENT, "1|x", ticks(5), op="e", expected=Version(6))
    await loop_store.aclose()
    await loop_store.aclose()
    with pytest.raises(ConnectionError, match="closed"):
        await loop_store.append(AGENT, fence, ticks(5), op="f", expected=Version(6))
