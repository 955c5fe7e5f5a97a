"""The event store as its readers and outside writers see it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, cast

import pytest

from ares_celery.clock import to_datetime
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    EventStoreClosedError,
    EventTooLargeError,
    InvalidSettingError,
    StreamNotFoundError,
    UnserialisableError,
    VersionConflictError,
)
from ares_celery.ids import AgentId, Version
from ares_celery.model.agent import AgentSpec
from ares_celery.model.command import Register
from ares_celery.model.event import ANY, EMPTY, Event, ExpectedVersion, NewEvent, ReadOptions
from ares_celery.store.base import EventStore
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, record_of, run, run_namespace, ticks
from tests.contract.store.backends import Backend, LosingDriver

pytestmark = pytest.mark.contract

STREAM = "orders:1"


@pytest.fixture
def events(store: RedisStore) -> EventStore:
    """The port under test."""
    return store.events


def versions(events: tuple[Event, ...]) -> list[int]:
    """The versions, in the order of the answer."""
    return [event.version for event in events]


@pytest.mark.spec(94)
def test_an_append_demands_the_expected_version(events: EventStore) -> None:
    """At version 3, expected 2 is a conflict and stores nothing; expected 3 goes on with 4."""
    events.append(STREAM, ticks(1, 2, 3))
    with pytest.raises(VersionConflictError) as conflict:
        events.append(STREAM, ticks(4), ExpectedVersion(2))
    assert (conflict.value.expected, conflict.value.actual) == (2, 3)
    assert events.stream_version(STREAM) == 3
    assert versions(events.read(STREAM)) == [1, 2, 3]
    assert versions(events.append(STREAM, ticks(4, 5), ExpectedVersion(3))) == [4, 5]


@pytest.mark.spec(95)
def test_any_and_empty_are_two_expectations(events: EventStore) -> None:
    """Any appends to whatever is there, empty to nothing only; zero and negatives mean any."""
    assert versions(events.append(STREAM, ticks(1), EMPTY)) == [1]
    with pytest.raises(VersionConflictError) as conflict:
        events.append(STREAM, ticks(2), EMPTY)
    assert (conflict.value.expected, conflict.value.actual) == (0, 1)
    for number, expected in enumerate((ANY, ExpectedVersion(0), ExpectedVersion(-1), ExpectedVersion(-7)), start=2):
        assert versions(events.append(STREAM, ticks(2), expected)) == [number]
    assert EMPTY != ANY


@pytest.mark.spec(96)
def test_of_twenty_writers_with_one_expectation_one_wins(events: EventStore) -> None:
    """With any, all twenty win and leave no gap."""
    events.append(STREAM, ticks(0))

    def expecting(number: int) -> bool:
        try:
            events.append(STREAM, ticks(number), ExpectedVersion(1))
        except VersionConflictError:
            return False
        return True

    def anyhow(number: int) -> tuple[Event, ...]:
        return events.append(STREAM, ticks(number))

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(expecting, range(20))) == 1
        stored = list(pool.map(anyhow, range(20)))
    assert sorted(version for some in stored for version in versions(some)) == list(range(3, 23))
    assert versions(events.read(STREAM)) == list(range(1, 23))


@pytest.mark.spec(98)
def test_what_is_no_append_is_refused_before_anything_is_stored(events: EventStore) -> None:
    """An empty stream id is an error, an empty list has no effect, an absent element refuses the whole list."""
    with pytest.raises(StreamNotFoundError):
        events.append("", ticks(1))
    assert events.append(STREAM, []) == ()
    absent = cast("NewEvent", None)
    with pytest.raises(UnserialisableError, match="event number 1"):
        events.append(STREAM, [*ticks(1), absent])
    assert events.read(STREAM) == ()
    assert events.stream_version(STREAM) == 0


@pytest.mark.spec(99)
def test_every_option_of_a_read_is_honoured(events: EventStore) -> None:
    """Bounds are inclusive, limit 0 is all, in both directions; also beyond one page."""
    stored = [event for _ in range(25) for event in events.append(STREAM, ticks(*range(100)))]
    assert versions(events.read(STREAM)) == list(range(1, 2501))
    assert versions(events.read(STREAM, ReadOptions())) == list(range(1, 2501))
    assert versions(events.read(STREAM, ReadOptions(from_version=2499))) == [2499, 2500]
    assert versions(events.read(STREAM, ReadOptions(to_version=2))) == [1, 2]
    assert versions(events.read(STREAM, ReadOptions(from_version=999, to_version=2001))) == list(range(999, 2002))
    assert versions(events.read(STREAM, ReadOptions(limit=3))) == [1, 2, 3]
    assert versions(events.read(STREAM, ReadOptions(from_version=5, limit=1200))) == list(range(5, 1205))
    down = ReadOptions(direction="descending")
    assert versions(events.read(STREAM, down)) == list(range(2500, 0, -1))
    bounded = ReadOptions(from_version=10, to_version=20, limit=3, direction="descending")
    assert versions(events.read(STREAM, bounded)) == [20, 19, 18]
    assert events.read(STREAM, ReadOptions(from_version=2501)) == ()
    moment = stored[1500].time
    since = events.read(STREAM, ReadOptions(since=moment))
    assert since == tuple(event for event in stored if event.time >= moment)
    assert events.read(STREAM, ReadOptions(since=moment, limit=2)) == since[:2]
    assert events.read(STREAM, ReadOptions(since=stored[-1].time + timedelta(seconds=1))) == ()


@pytest.mark.spec(100)
def test_an_unknown_stream_is_empty(events: EventStore) -> None:
    """No error: nothing to read, version 0."""
    assert events.read("nobody") == ()
    assert events.stream_version("nobody") == 0


@pytest.mark.spec(101)
def test_all_streams_are_read_in_the_order_of_time_and_version(events: EventStore) -> None:
    """Two streams and more, page by page, the same each time; limit and direction count over all of them."""
    names = [f"stream-{number}" for number in range(5)]
    for number in range(150):
        for name in names:
            events.append(name, ticks(number))
    everything = events.read_all()
    assert len(everything) == 750
    assert [(event.time, event.version) for event in everything] == sorted(
        (event.time, event.version) for event in everything
    )
    assert events.read_all() == everything
    assert events.read_all(ReadOptions(limit=7)) == everything[:7]
    assert events.read_all(ReadOptions(direction="descending", limit=7)) == everything[:-8:-1]
    assert events.read_all(ReadOptions(since=everything[400].time)) == everything[400:]
    batch = events.append("together", ticks(1, 2, 3))
    assert [event for event in events.read_all() if event.stream_id == "together"] == list(batch)


@pytest.mark.spec(104)
def test_a_closed_store_refuses_everything(events: EventStore) -> None:
    """Every operation, a second close included."""
    events.close()
    for operation in (
        lambda: events.append(STREAM, ticks(1)),
        lambda: events.append(STREAM, []),
        lambda: events.read(STREAM),
        events.read_all,
        lambda: events.stream_version(STREAM),
        events.close,
    ):
        with pytest.raises(EventStoreClosedError):
            operation()


@pytest.mark.spec(105)
def test_a_megabyte_makes_the_round_trip(events: EventStore) -> None:
    """Exactly as many bytes as the default limit allows."""
    text = "ä" * ((RuntimeConfig().max_event_bytes - len('{"text":""}')) // 2)
    events.append(STREAM, [NewEvent("large", {"text": text})])
    assert events.read(STREAM)[0].payload["text"].encode() == text.encode()


@pytest.mark.spec(105)
def test_a_byte_more_is_refused_before_anything_is_sent(backend: Backend) -> None:
    """From outside and by an incarnation, alone and in a batch; the batch's other events are not stored either."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(driver=driver))
    fence, limit = run(store), store.config.max_event_bytes
    large = NewEvent("large", {"text": "x" * (limit + 1 - len('{"text":""}'))})
    sent = driver.sent
    for batch in ([large], [*ticks(1), large]):
        with pytest.raises(EventTooLargeError):
            store.events.append(STREAM, batch)
        with pytest.raises(EventTooLargeError) as refused:
            store.append(AGENT, fence, batch, op="op", expected=Version(1))
        assert (refused.value.size, refused.value.limit) == (limit + 1, limit)
    assert driver.sent == sent
    assert store.events.stream_version(STREAM) == 0
    assert store.events.stream_version(AGENT) == 1


@pytest.mark.parametrize("stream_id", ["\ud800", 5, b"x", ["a"], ""], ids=repr)
def test_what_cannot_name_a_stream_is_refused_by_name(events: EventStore, stream_id: Any) -> None:
    """In every method, before anything is asked of the server."""
    for method in (events.read, events.stream_version, events.summaries, events.summarised_version):
        with pytest.raises(StreamNotFoundError):
            method(stream_id)
    with pytest.raises(StreamNotFoundError):
        events.append(stream_id, ticks(1))


def test_types_and_ids_without_end_are_refused(events: EventStore) -> None:
    """They are copied where a payload is not: the feed keeps ten thousand types a shard."""
    for long in (NewEvent("t" * 1_001, {}), NewEvent("t", {}, id="i" * 1_001)):
        with pytest.raises(UnserialisableError, match="more than 1000 characters"):
            events.append("s", [NewEvent("t", {}), long])
    assert events.stream_version("s") == 0
    events.append("s", [NewEvent("t" * 1_000, {}, id="i" * 1_000)])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("direction", "up"),
        ("direction", "Descending"),
        ("limit", 1.5),
        ("limit", 10**30),
        ("from_version", "7"),
        ("to_version", 10**30),
        ("since", "yesterday"),
    ],
)
def test_options_that_would_be_read_as_something_else_are_refused(field: str, value: Any) -> None:
    """With field and cure; a misspelt direction would read forwards without a word."""
    with pytest.raises(InvalidSettingError, match="give") as refused:
        ReadOptions(**{field: value})
    assert refused.value.fields["field"] == field


def test_a_time_without_zone_is_refused() -> None:
    """It would mean another moment on each machine."""
    with pytest.raises(InvalidSettingError, match="zone"):
        ReadOptions(since=to_datetime(0).replace(tzinfo=None))


def test_an_agent_that_takes_over_a_stream_goes_on_with_its_versions(store: RedisStore, backend: Backend) -> None:
    """Events may come before the agent is registered; its counter begins where they end."""
    agent_id = AgentId("late")
    store.events.append(agent_id, ticks(1, 2))
    act(store, Register(spec=AgentSpec(id=agent_id, type="counter")), agent_id)
    assert record_of(store, agent_id).version == 2
    assert versions(store.events.append(agent_id, ticks(3), ExpectedVersion(2))) == [3]
    assert store.events.stream_version(agent_id) == 3
    assert versions(store.events.read_all()) == [1, 2, 3]
    store.delete(agent_id, store.read(agent_id), op="delete")
    assert versions(store.events.append(agent_id, ticks(1), EMPTY)) == [1]
