"""Subscriptions: in order, complete, resumable, whatever the subscriber's speed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, cast

import pytest
import redis

from ares_celery.clock import to_datetime
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    EventGapError,
    EventIntegrityError,
    EventStoreClosedError,
    InvalidCursorError,
    InvalidSettingError,
)
from ares_celery.model.command import Stop
from ares_celery.model.event import BEGINNING, Event, EventFilter, NewEvent
from ares_celery.store.base import EventStore, Subscription
from ares_celery.store.redis import event_calls
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, run, run_namespace, ticks
from tests.contract.store.backends import Backend, LosingDriver
from tests.wait import wait_until

pytestmark = pytest.mark.contract

#: Longer than a page of pointers, and as few as a feed can keep when it is trimmed by whole nodes.
SHORT_FEED = 200
Seen = tuple[str, int]


@pytest.fixture
def store(backend: Backend) -> RedisStore:
    """An open namespace of two shards whose runtime runs."""
    return run_namespace(backend.open(RuntimeConfig(shards=2)))


@pytest.fixture
def events(store: RedisStore) -> EventStore:
    """The port under test."""
    return store.events


@pytest.fixture
def short_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A feed that forgets soon."""
    monkeypatch.setattr(event_calls, "FEED_LENGTH", SHORT_FEED)


def arrived(subscription: Subscription, most: int = 1_000_000) -> list[Event]:
    """What is there now."""
    found: list[Event] = []
    while len(found) < most and (event := subscription.poll(0.05)) is not None:
        found.append(event)
    return found


def names(found: list[Event]) -> list[Seen]:
    """Stream and version of each."""
    return [(event.stream_id, event.version) for event in found]


def fill(events: EventStore, stream_id: str, count: int) -> None:
    """Appends so many events."""
    while count > 0:
        events.append(stream_id, ticks(*range(min(count, 100))))
        count -= 100


def in_order(found: list[Event], stream_id: str) -> list[int]:
    """The versions of one stream, as they came."""
    return [event.version for event in found if event.stream_id == stream_id]


def test_events_come_as_they_were_stored_and_in_order(events: EventStore) -> None:
    """From the moment of subscribing on; those of before do not count."""
    events.append("a", ticks(1))
    with events.subscribe() as subscription:
        stored = [*events.append("a", ticks(2, 3)), *events.append("a", ticks(4)), *events.append("a|b|c", ticks(1))]
        found = arrived(subscription)
        assert sorted(found, key=lambda event: (event.stream_id, event.version)) == stored
        assert in_order(found, "a") == [2, 3, 4]
        assert subscription.poll(0) is None
        (later,) = events.append("a", ticks(5))
        assert next(subscription) == later
        assert (subscription.missed, subscription.lost, subscription.lagging) == (0, 0, False)


@pytest.mark.spec(102)
def test_a_filter_lets_only_matches_through(events: EventStore, store: RedisStore) -> None:
    """By stream, by type, by time, and by all of them."""
    fill(events, "a", 3)
    between = to_datetime(store.server_time())
    subscribed = {
        "stream": events.subscribe(EventFilter(streams=["a"]), cursor=BEGINNING),
        "type": events.subscribe(EventFilter(types={"b.done"}), cursor=BEGINNING),
        "time": events.subscribe(EventFilter(since=between), cursor=BEGINNING),
        "late": events.subscribe(EventFilter(since=between + timedelta(days=1))),
        "all": events.subscribe(EventFilter(["a"], ["b.done"], between), cursor=BEGINNING),
    }
    done = NewEvent("b.done", {})
    events.append("a", [done, *ticks(5)])
    events.append("b", [done, *ticks(1), done])
    seen = {name: sorted(names(arrived(subscription))) for name, subscription in subscribed.items()}
    assert seen == {
        "stream": [("a", version) for version in range(1, 6)],
        "type": [("a", 4), ("b", 1), ("b", 3)],
        "time": [("a", 4), ("a", 5), ("b", 1), ("b", 2), ("b", 3)],
        "late": [],
        "all": [("a", 4)],
    }


@pytest.mark.spec(102, 104)
@pytest.mark.parametrize("ending", ["the subscription", "the events", "the store"])
def test_closing_ends_an_iteration_that_waits(store: RedisStore, ending: str) -> None:
    """Itself, the event store or the whole store; from another thread; and it stays ended."""
    subscription = store.events.subscribe()
    ended: list[list[Event]] = []
    thread = threading.Thread(target=lambda: ended.append(list(subscription)), daemon=True)
    thread.start()
    (event,) = store.events.append("a", ticks(1))
    closers: dict[str, Callable[[], None]] = {
        "the subscription": subscription.close,
        "the events": store.events.close,
        "the store": store.close,
    }
    wait_until(lambda: '"a":1' in subscription.cursor, "the event to arrive")
    closers[ending]()
    thread.join(timeout=5)
    assert not thread.is_alive()
    assert ended == [[event]]
    assert subscription.closed
    assert subscription.poll(0) is None
    assert list(subscription) == []
    subscription.close()


@pytest.mark.spec(104)
def test_a_closed_event_store_takes_no_subscriber(events: EventStore) -> None:
    """As every other operation of it."""
    events.close()
    with pytest.raises(EventStoreClosedError):
        events.subscribe()


@pytest.mark.spec(103)
@pytest.mark.usefixtures("short_feed")
def test_a_slow_subscriber_gets_everything_late_and_knows_it(store: RedisStore, raw: redis.Redis) -> None:
    """What had left the feed is counted exactly and read from the streams: all of it, in order, once."""
    events, keys = store.events, Keys(store.namespace, 2)
    before = next(f"b{n}" for n in range(9) if keys.shard_of(f"b{n}") == keys.shard_of("new"))
    fill(events, before, 5)
    fill(events, "known", 5)
    subscription = events.subscribe()
    fill(events, "known", 5)
    assert len(arrived(subscription)) == 5
    fill(events, before, 1)
    for _ in range(4):
        fill(events, "known", 150)
        fill(events, "new", 150)
    found = arrived(subscription, 1)
    lagging = subscription.lagging
    found += arrived(subscription)
    assert in_order(found, "known") == list(range(11, 611))
    assert in_order(found, "new") == list(range(1, 601))
    assert in_order(found, before) == [6]
    assert len(found) == 1201
    appended = [sum(keys.shard_of(event.stream_id) == shard for event in found) for shard in (0, 1)]
    forgotten = [max(0, appended[shard] - raw.xlen(keys.feed(shard))) for shard in (0, 1)]
    assert subscription.missed == sum(forgotten) > 100
    assert (lagging, subscription.lagging, subscription.lost) == (True, False, 0)


@pytest.mark.spec(103)
@pytest.mark.usefixtures("short_feed")
@pytest.mark.parametrize("taken", [0, 1, 7, 150, 601, 1000])
def test_a_cursor_goes_on_without_gap_or_repeat(backend: Backend, events: EventStore, taken: int) -> None:
    """Wherever it was taken, while catching up as well, and read by whatever process."""
    subscription = events.subscribe()
    for _ in range(4):
        fill(events, "a", 150)
        fill(events, "b", 150)
    found = arrived(subscription, taken)
    cursor = subscription.cursor
    fill(events, "a", 250)
    again = backend.open(RuntimeConfig(shards=2)).events.subscribe(cursor=cursor)
    found += arrived(again)
    assert in_order(found, "a") == list(range(1, 851))
    assert in_order(found, "b") == list(range(1, 601))
    assert len(found) == 1450


@pytest.mark.usefixtures("short_feed")
def test_the_beginning_is_all_that_is_kept(events: EventStore) -> None:
    """History first, then what comes; history does not count as missed."""
    fill(events, "a", 700)
    fill(events, "b", 3)
    events.trim_before("b", 1)
    subscription = events.subscribe(cursor=BEGINNING)
    found = arrived(subscription)
    assert in_order(found, "a") == list(range(1, 701))
    assert in_order(found, "b") == [2, 3]
    events.append("b", ticks(1))
    assert names(arrived(subscription)) == [("b", 4)]
    assert (subscription.missed, subscription.lost) == (0, 0)


@pytest.mark.spec(103)
@pytest.mark.parametrize("is_late", [False, True])
def test_what_was_trimmed_is_told_with_its_number(
    events: EventStore,
    is_late: bool,  # noqa: FBT001 - a parameter of pytest's
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the feed and from the streams: one error, then the events after it."""
    if is_late:
        monkeypatch.setattr(event_calls, "FEED_LENGTH", SHORT_FEED)
    fill(events, "a", 2)
    subscription = events.subscribe()
    fill(events, "a", 1)
    assert names(arrived(subscription)) == [("a", 3)]
    fill(events, "a", 2_000 if is_late else 60)
    events.trim_before("a", 33)
    with pytest.raises(EventGapError) as gap:
        subscription.poll(1)
    fields = {name: gap.value.fields[name] for name in ("stream_id", "first", "last", "count")}
    assert fields == {"stream_id": "a", "first": 4, "last": 33, "count": 30}
    assert in_order(arrived(subscription), "a") == list(range(34, 2_004 if is_late else 64))
    assert subscription.lost == 30


def test_an_event_whose_pointer_is_damaged_comes_all_the_same(store: RedisStore, raw: redis.Redis) -> None:
    """Once, and so do those before and after it; a damaged pointer of nothing is passed."""
    client: Any = raw
    keys = Keys(store.namespace, store.config.shards)
    feed = keys.feed(keys.shard_of("a"))
    with store.events.subscribe(EventFilter(streams=["a"])) as chosen, store.events.subscribe() as everything:
        fill(store.events, "a", 1)
        assert (names(arrived(chosen)), names(arrived(everything))) == ([("a", 1)], [("a", 1)])
        fill(store.events, "a", 2)
        (newest, _) = client.xrevrange(feed, count=1)[0]
        client.xdel(feed, newest)
        client.xadd(feed, {"e": b"\xff half a poin"})
        client.xadd(feed, {"x": b""})
        fill(store.events, "a", 1)
        for subscription in (chosen, everything):
            assert names(arrived(subscription)) == [("a", 2), ("a", 3), ("a", 4)]
            assert (subscription.missed, subscription.lost) == (1, 0)
            with store.events.subscribe(cursor=subscription.cursor) as later:
                assert names(arrived(later)) == []


def test_a_damaged_event_is_told_and_passed(store: RedisStore, raw: redis.Redis) -> None:
    """The events around it are not hidden by it."""
    subscription = store.events.subscribe()
    fill(store.events, "a", 3)
    keys = Keys(store.namespace, 2)
    raw.delete(keys.events("a"))
    for version, data in enumerate(
        (b'{"id":"1","type":"x","payload":{}}', b"{", b'{"id":"3","type":"x","payload":{}}')
    ):
        raw.xadd(keys.events("a"), {"d": data, "t": "1"}, id=f"{version + 1}-0")
    assert names(arrived(subscription, 1)) == [("a", 1)]
    with pytest.raises(EventIntegrityError, match="damaged at version 2"):
        subscription.poll(1)
    assert names(arrived(subscription)) == [("a", 3)]


@pytest.mark.usefixtures("short_feed")
@pytest.mark.parametrize("is_late", [False, True])
def test_an_agent_that_was_deleted_and_made_again_is_followed_anew(
    store: RedisStore,
    is_late: bool,  # noqa: FBT001 - a parameter of pytest's
) -> None:
    """Its versions count from 1 again; what was deleted unread is gone with the agent, without an error."""
    run(store)
    subscription = store.events.subscribe(EventFilter(streams=[AGENT]))
    fill(store.events, AGENT, 10)
    assert in_order(arrived(subscription), AGENT) == list(range(2, 12))
    act(store, Stop(force=True))
    fill(store.events, AGENT, 150)
    store.delete(AGENT, store.read(AGENT), op="delete")
    if is_late:
        keys = Keys(store.namespace, 2)
        neighbour = next(f"o{n}" for n in range(9) if keys.shard_of(f"o{n}") == keys.shard_of(AGENT))
        fill(store.events, neighbour, 1_000)
    run(store)
    fill(store.events, AGENT, 5)
    assert in_order(arrived(subscription), AGENT) == list(range(1, 7))
    assert subscription.lost == 0


def test_a_store_that_came_back_older_is_followed_on(store: RedisStore, raw: redis.Redis) -> None:
    """Versions that were given already are given away again: what is new under them is news."""
    events, keys = store.events, Keys(store.namespace, 2)
    subscription = events.subscribe()
    fill(events, "a", 5)
    assert in_order(arrived(subscription), "a") == [1, 2, 3, 4, 5]
    raw.delete(keys.events("a"), keys.feed(keys.shard_of("a")))
    raw.hset(keys.streams(keys.shard_of("a")), "a", 2)
    for version in (1, 2):
        raw.xadd(keys.events("a"), {"d": b'{"id":"1","type":"x","payload":{}}', "t": "1"}, id=f"{version}-0")
    fill(events, "a", 2)
    assert in_order(arrived(subscription), "a") == [3, 4]


def test_an_outage_ends_no_subscription(backend: Backend) -> None:
    """It asks again, and no event that came meanwhile is left out."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(RuntimeConfig(shards=1), driver=driver))
    writer = backend.open(RuntimeConfig(shards=1)).events
    subscription = store.events.subscribe()
    fill(writer, "a", 2)
    assert names(arrived(subscription, 1)) == [("a", 1)]
    driver.lose_next = True
    fill(writer, "a", 3)
    found = [subscription.poll(5) for _ in range(4)]
    assert [event and event.version for event in found] == [2, 3, 4, 5]
    assert not driver.lose_next, "no answer was lost"


def test_ten_writers_and_a_reader_that_stumbles(backend: Backend) -> None:
    """While others write: each event once, in the order of its stream, over cursors and pauses."""
    store = run_namespace(backend.open(RuntimeConfig(shards=2)))
    cursor = store.events.subscribe().cursor
    threads = [threading.Thread(target=fill, args=(store.events, f"w{n}", 300), daemon=True) for n in range(10)]
    for thread in threads:
        thread.start()
    found: list[Event] = []
    wanted = 3_000

    def chunks() -> Iterator[list[Event]]:
        nonlocal cursor
        while len(found) < wanted:
            with store.events.subscribe(cursor=cursor) as subscription:
                yield arrived(subscription, 170)
                cursor = subscription.cursor

    for some in chunks():
        found += some
    for thread in threads:
        thread.join()
    for n in range(10):
        assert in_order(found, f"w{n}") == list(range(1, 301))


@pytest.mark.parametrize(
    ("cursor", "problem"),
    [
        ("", "is none"),
        ("x", "is none"),
        ("[]", "is none"),
        ("[" * 100_000, "is none"),
        ("{}", "schema None"),
        ('{"schema":1,"namespace":"other"}', "of namespace 'other'"),
        ('{"schema":1,"namespace":"NS"}', "damaged"),
        ('{"schema":1,"namespace":"NS","baseline":0,"positions":{"0":"x"},"versions":{},"ahead":{}}', "damaged"),
        ('{"schema":2,"namespace":"NS"}', "schema 2"),
    ],
)
def test_a_text_that_is_no_cursor_is_refused(store: RedisStore, cursor: str, problem: str) -> None:
    """With what is wrong about it."""
    with pytest.raises(InvalidCursorError, match=problem):
        store.events.subscribe(cursor=cursor.replace("NS", store.namespace))


def test_a_filter_that_cannot_work_is_refused() -> None:
    """A text for a list, nothing at all, a time that means another moment on each machine."""
    wrong: list[tuple[str, Any]] = [
        ("streams", "counter-1"),
        ("types", "agent.started"),
        ("streams", []),
        ("since", to_datetime(0).replace(tzinfo=None)),
    ]
    for field, value in wrong:
        with pytest.raises(InvalidSettingError, match=field):
            EventFilter(**{field: value})


def test_what_nobody_closed_ends_with_its_reader(store: RedisStore) -> None:
    """Subscriptions that were dropped are not kept alive by the store."""
    store.events.subscribe().poll(0)
    gc.collect()
    assert len(cast("Any", store.events)._subscriptions) == 0
