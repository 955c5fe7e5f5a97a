"""Summaries and trimming: what is kept of long streams, and what may never be removed."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis

from ares_celery.agents.summariser import forget_summariser, registered_summariser, summariser
from ares_celery.clock import to_datetime
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    EventIntegrityError,
    EventStoreClosedError,
    InvalidSettingError,
    StoreUnavailableError,
    StreamNotFoundError,
    VersionConflictError,
)
from ares_celery.ids import Version
from ares_celery.model.command import Stop
from ares_celery.model.event import Event, NewEvent, ReadOptions
from ares_celery.model.summary import Outcome, Summary
from ares_celery.runtime.compaction import CompactionReport, Compactor
from ares_celery.runtime.recovery import Recovery, StateCode, recover_agent_state
from ares_celery.store.base import EventStore
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from ares_celery.store.redis.stored_summaries import encode_summary
from tests.contract.store.acting import AGENT, act, append, claim, run, run_namespace, ticks
from tests.contract.store.backends import Backend, LosingDriver
from tests.key_leaks import keys_of_agent
from tests.wait import wait_until

pytestmark = pytest.mark.contract

STREAM = "orders:1"
SMALL = {"shards": 2, "compaction_threshold": 10, "compaction_keep": 4}


@pytest.fixture
def store(backend: Backend) -> RedisStore:
    """An open namespace that compacts early."""
    return run_namespace(backend.open(RuntimeConfig.parse(SMALL)))


def ranges(events: EventStore, stream_id: str = STREAM) -> list[tuple[int, int]]:
    """What the summaries of a stream cover."""
    return [(summary.start_version, summary.end_version) for summary in events.summaries(stream_id)]


def made_up(end: int, *, start: int = 0, stream_id: str = STREAM, name: str = "") -> Summary:
    """A summary of one event."""
    first = Version(start or end)
    return Summary(name or f"s{end}", stream_id, "text", 1, first, Version(end), to_datetime(1), to_datetime(2))


def versions(events: tuple[Event, ...]) -> list[int]:
    """The versions, in the order of the answer."""
    return [event.version for event in events]


@pytest.mark.spec(106)
def test_more_events_than_the_threshold_give_a_summary(store: RedisStore) -> None:
    """Eleven with a threshold of ten, four of them kept out: the first seven, in every respect."""
    happened = [
        NewEvent("task.created", {"task_id": "t1", "request": "r" * 250, "user_id": "u1"}, {"session_id": "s1"}),
        NewEvent("tool.called", {"tool": "search"}),
        NewEvent("tool.call.started", {"tool_name": "search"}),
        NewEvent("tool.called", {"tool": "mail", "agent_id": "a1"}),
        NewEvent("task.failed", {"task_id": "t1", "error": "no route"}),
        NewEvent("task.created", {"task_id": "t2"}),
        NewEvent("task.completed", {"task_id": "t2"}),
    ]
    stored = store.events.append(STREAM, [*happened, *ticks(*range(3))])
    compactor = Compactor(store.events, store.config)
    assert compactor.compact(STREAM) is None
    store.events.append(STREAM, ticks(4))
    before = store.server_time()
    summary = compactor.compact(STREAM)
    assert summary is not None
    assert store.events.summaries(STREAM) == (summary,)
    assert (summary.stream_id, summary.event_count) == (STREAM, 7)
    assert (summary.start_version, summary.end_version) == (1, 7)
    assert (summary.start_time, summary.end_time) == (stored[0].time, stored[6].time)
    assert summary.counts == {
        "task.created": 2,
        "tool.called": 2,
        "tool.call.started": 1,
        "task.failed": 1,
        "task.completed": 1,
    }
    assert summary.tasks_created == ("t1", "t2")
    assert summary.tools_called == {"search": 2, "mail": 1}
    assert summary.errors == ("task.failed: no route",)
    assert summary.outcome is Outcome.PARTIAL
    assert summary.request == "r" * 200
    assert (summary.agent_id, summary.task_id, summary.session_id, summary.user_id) == ("a1", "t2", "s1", "u1")
    assert to_datetime(before) <= summary.created_at <= to_datetime(store.server_time())
    assert "7 events" in summary.text
    assert store.counters()["summaries"] == 1
    assert len(store.events.read(STREAM)) == 11


@pytest.mark.spec(107)
def test_summaries_follow_each_other_without_overlap(store: RedisStore) -> None:
    """Over many rounds, with nothing trimmed: each begins behind the one before, and none is made too early."""
    compactor = Compactor(store.events, store.config)
    for _ in range(30):
        store.events.append(STREAM, ticks(1, 2, 3))
        compactor.compact(STREAM)
    found = ranges(store.events)
    assert [first for first, _ in found] == [1, *(last + 1 for _, last in found[:-1])]
    assert [last - first + 1 for first, last in found] == [8, *([9, 9, 9] * 3)][: len(found)]
    assert found[-1][1] >= 90 - 4 - 9
    assert len(store.events.read(STREAM)) == 90


@pytest.mark.spec(107)
def test_of_ten_that_summarise_at_once_one_wins(store: RedisStore) -> None:
    """The store compares and stores in one step."""
    store.events.append(STREAM, ticks(*range(100)))
    compactor = Compactor(store.events, store.config)
    with ThreadPoolExecutor(10) as pool:
        made = [summary for summary in pool.map(compactor.compact, [STREAM] * 10) if summary]
    assert len(made) == 1
    assert ranges(store.events) == [(1, 96)]
    with pytest.raises(VersionConflictError) as conflict:
        store.events.save_summary(made_up(90), after=Version(0))
    assert (conflict.value.actual, conflict.value.expected) == (96, 0)
    assert ranges(store.events) == [(1, 96)]


@pytest.mark.spec(109)
@pytest.mark.parametrize("kept", [50, 7])
def test_the_oldest_summaries_beyond_the_limit_are_dropped(backend: Backend, kept: int) -> None:
    """Sixty, of which so many are kept."""
    store = backend.open(RuntimeConfig(shards=2, summaries_kept=kept))
    store.events.append(STREAM, ticks(*range(60)))
    for end in range(1, 61):
        store.events.save_summary(made_up(end), after=Version(end - 1))
    assert ranges(store.events) == [(end, end) for end in range(61 - kept, 61)]


@pytest.mark.spec(109)
def test_old_summaries_are_dropped_unless_they_are_kept_for_ever(backend: Backend, raw: redis.Redis) -> None:
    """By the time of their making; the newest stays, as it says where the next one begins."""
    store = backend.open(RuntimeConfig.parse({**SMALL, "summary_ttl": "30d"}))
    keys, day = Keys(store.namespace, 2), 86_400_000_000
    store.events.append(STREAM, ticks(*range(14)))

    def age(days: list[int]) -> None:
        raw.delete(keys.summaries(STREAM))
        now = store.server_time()
        for number, old in enumerate(days, 1):
            head = b"%d|%d|%d|" % (number, number, now - old * day)
            raw.rpush(keys.summaries(STREAM), head + encode_summary(made_up(number)))

    age([90, 31, 29, 1])
    Compactor(store.events, store.config).compact(STREAM)
    assert ranges(store.events) == [(3, 3), (4, 4)]
    age([90, 80, 70])
    assert store.events.prune_summaries(STREAM) == 2
    assert ranges(store.events) == [(3, 3)]
    for ttl in (0, -1):
        config = RuntimeConfig(summary_ttl=ttl)
        assert config.summary_ttl == timedelta(0)
    for_ever = backend.open(RuntimeConfig(summary_ttl=-5), namespace=f"{store.namespace}2")
    for_ever.events.append(STREAM, ticks(*range(60)))
    keys = Keys(for_ever.namespace, for_ever.config.shards)
    age([9_000, 8_000, 7_000])
    assert for_ever.events.prune_summaries(STREAM) == 0
    assert len(ranges(for_ever.events)) == 3


@pytest.mark.spec(108)
def test_trimming_removes_what_it_says_and_nothing_else(store: RedisStore) -> None:
    """The number, the rest of the stream, its version, and other streams."""
    events = store.events
    events.append(STREAM, ticks(*range(10)))
    others = events.append("other", ticks(*range(10)))
    assert events.trim_before(STREAM, 0) == 0
    assert events.trim_before(STREAM, 4) == 4
    assert versions(events.read(STREAM)) == [5, 6, 7, 8, 9, 10]
    assert events.trim_before(STREAM, 4) == 0
    assert events.trim_before("nobody", 4) == 0
    assert events.stream_version(STREAM) == 10
    assert events.read("other") == others
    assert store.counters()["events_trimmed"] == 4
    assert versions(events.append(STREAM, ticks(1))) == [11]


@pytest.mark.spec(108)
def test_a_stream_that_was_all_trimmed_reads_as_its_summaries(store: RedisStore) -> None:
    """As events of type event.summary, under all options of a read; recovery asks to be spared them."""
    events = store.events
    compactor = Compactor(events, replace_config(store, compaction_keep=0))
    made: list[Summary] = []
    for _ in range(3):
        events.append(STREAM, ticks(*range(11)))
        summary = compactor.compact(STREAM)
        assert summary is not None
        made.append(summary)
    assert events.trim_before(STREAM, 32) == 32
    assert versions(events.read(STREAM)) == [33]
    assert events.trim_before(STREAM, 10_000) == 1
    found = events.read(STREAM)
    assert [event.type for event in found] == ["event.summary"] * 3
    assert versions(found) == [11, 22, 33]
    assert [event.payload["text"] for event in found] == [summary.text for summary in made]
    assert [event.payload["counts"] for event in found] == [{"counter.ticked": 11}] * 3
    assert [event.time for event in found] == [summary.end_time for summary in made]
    assert events.read(STREAM, ReadOptions(from_version=12, to_version=22)) == found[1:2]
    assert events.read(STREAM, ReadOptions(limit=2, direction="descending")) == found[:0:-1]
    assert events.read(STREAM, ReadOptions(since=made[2].end_time)) == found[2:]
    assert events.read(STREAM, ReadOptions(summaries=False)) == ()
    assert events.read_all() == ()
    assert events.stream_version(STREAM) == 33
    events.append(STREAM, ticks(1))
    assert versions(events.read(STREAM)) == [34]


def replace_config(store: RedisStore, **changes: Any) -> RuntimeConfig:
    """The settings of a store, changed for one compactor."""
    return store.config.model_copy(update=changes)


def snapshot(store: RedisStore, fence: str, version: int) -> None:
    """A snapshot at a version."""
    store.save_snapshot(AGENT, fence, {"n": version}, version=Version(version), schema=1)


@pytest.mark.spec(111)
def test_an_agents_events_are_kept_from_its_oldest_snapshot_on(store: RedisStore, raw: redis.Redis) -> None:
    """None without a snapshot, and of several the oldest kept one decides, damaged or not."""
    fence = run(store)
    append(store, fence, *range(99), expected=1)
    assert store.events.trim_before(AGENT, 50) == 0
    for version in (20, 40, 60):
        snapshot(store, fence, version)
    assert store.events.trim_before(AGENT, 50) == 20
    assert versions(store.events.read(AGENT)) == list(range(21, 101))
    snapshot(store, fence, 80)
    key = Keys(store.namespace, 2).snapshots(AGENT)
    raw.lset(key, -1, "xx|damaged")
    assert store.events.trim_before(AGENT, 100) == 0
    raw.lset(key, -1, "90|damaged")
    assert store.events.trim_before(AGENT, 100) == 40, "the second oldest, at 60, holds it back"
    store.snapshots.delete(AGENT)
    assert store.events.trim_before(AGENT, 100) == 0
    assert store.events.stream_version(AGENT) == 100


class Counter:
    """Counts what it applied; snapshots."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def apply(self, event: Event) -> None:
        self.seen.append(event.version)

    def snapshot(self) -> dict[str, object]:
        return {"seen": self.seen}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.seen = list(state["seen"])


@pytest.mark.spec(111)
@pytest.mark.parametrize("is_covered", [True, False])
def test_recovery_needs_no_removed_event_or_fails_loudly(
    backend: Backend,
    is_covered: bool,  # noqa: FBT001 - a parameter of pytest's
) -> None:
    """With the snapshot that covers them the state is whole; without it the position is named, summaries or not."""
    store = run_namespace(backend.open(RuntimeConfig.parse({**SMALL, "trim_events": True, "snapshots_kept": 1})))
    store.events.append(AGENT, ticks(*range(100)))
    taken = claim(store)
    store.save_snapshot(AGENT, taken.record.fence, {"seen": list(range(1, 91))}, version=Version(90), schema=1)
    report = Compactor(store.events, store.config).compact_all()
    assert report == CompactionReport((AGENT,), 90, {})
    assert ranges(store.events, AGENT) == [(1, 96)]
    assert versions(store.events.read(AGENT)) == list(range(91, 101))
    agent = Counter()
    claimed = replace(taken, snapshot=None, events=())
    if is_covered:
        (kept,) = store.stored_snapshots(AGENT)
        claimed = replace(taken, snapshot=kept, events=store.events.read(AGENT))
        recover_agent_state(Recovery(store, claimed, StateCode("counter")), agent)
        assert agent.seen == list(range(1, 101))
    else:
        with pytest.raises(EventIntegrityError, match="damaged at version 1"):
            recover_agent_state(Recovery(store, claimed, StateCode("counter")), agent)


@pytest.mark.spec(111)
def test_a_summary_never_stands_in_for_an_event_of_recovery(store: RedisStore) -> None:
    """Even where it covers exactly the missing version: people may read it, recovery fails with the position."""
    store.events.append(AGENT, ticks(1))
    taken = claim(store)
    store.save_snapshot(AGENT, taken.record.fence, {"seen": [1]}, version=Version(1), schema=1)
    store.events.save_summary(made_up(1, stream_id=AGENT), after=Version(0))
    assert store.events.trim_before(AGENT, 1) == 1
    assert [event.type for event in store.events.read(AGENT)] == ["event.summary"]
    recovery = Recovery(store, replace(taken, snapshot=None, events=()), StateCode("counter"))
    with pytest.raises(EventIntegrityError, match="damaged at version 1"):
        recover_agent_state(recovery, Counter())


def test_trimming_is_off_unless_it_is_wanted(store: RedisStore) -> None:
    """A summary alone removes nothing; wanted, it removes what summaries cover and no more."""
    store.events.append(STREAM, ticks(*range(20)))
    Compactor(store.events, store.config).compact(STREAM)
    assert len(store.events.read(STREAM)) == 20
    Compactor(store.events, replace_config(store, trim_events=True)).compact(STREAM)
    assert versions(store.events.read(STREAM)) == [17, 18, 19, 20]


def test_compact_all_goes_on_past_errors(store: RedisStore, raw: redis.Redis) -> None:
    """One damaged stream among many: it is named, and the others have their summaries."""
    names = [f"s{number}" for number in range(8)]
    for name in [*names, "short"]:
        store.events.append(name, ticks(*range(5 if name == "short" else 20)))
    raw.xdel(Keys(store.namespace, 2).events("s3"), "2-0")
    key = Keys(store.namespace, 2).events("s5")
    raw.delete(key)
    raw.xadd(key, {"d": "{", "t": "1"}, id="1-0")
    report = Compactor(store.events, store.config).compact_all()
    assert report.compacted == tuple(name for name in names if name != "s5")
    assert list(report.failed) == ["s5"]
    assert "damaged at version 1" in report.failed["s5"]
    assert store.events.summaries("s3")[0].event_count == 15
    assert store.events.streams() == {**dict.fromkeys(names, 20), "short": 5}


def test_an_error_of_the_store_reaches_who_asked(backend: Backend) -> None:
    """compact() hides nothing; the summary whose answer was lost is there once, and the next call knows it."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(RuntimeConfig.parse(SMALL), driver=driver))
    store.events.append(STREAM, ticks(*range(20)))
    store.events.append("other", ticks(*range(20)))
    compactor = Compactor(store.events, store.config)
    compactor.compact("other")  # the server knows the script afterwards: the lost answer is that of the summary

    def lossy(summary: Summary, events: Iterable[Event]) -> str:
        driver.lose_next = True
        return f"{summary.event_count} events"

    with pytest.raises(StoreUnavailableError):
        Compactor(store.events, store.config, summariser=lossy).compact(STREAM)
    assert ranges(store.events) == [(1, 16)]
    assert compactor.compact(STREAM) is None
    (stored,) = store.events.summaries(STREAM)
    assert store.events.save_summary(stored, after=Version(0)) == stored
    assert ranges(store.events) == [(1, 16)]


def test_a_stream_that_does_not_reach_so_far_is_not_summarised(store: RedisStore) -> None:
    """It was deleted, or the store came back older."""
    store.events.append(STREAM, ticks(1))
    with pytest.raises(StreamNotFoundError):
        store.events.save_summary(made_up(2, start=1), after=Version(0))
    assert store.events.summaries(STREAM) == ()
    with pytest.raises(StreamNotFoundError):
        store.events.summaries("")


def test_a_damaged_summary_hides_no_other(
    store: RedisStore, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out with a word in the log, and the next one begins behind it."""
    store.events.append(STREAM, ticks(*range(40)))
    for end in (1, 2, 3):
        store.events.save_summary(made_up(end), after=Version(end - 1))
    key = Keys(store.namespace, 2).summaries(STREAM)
    raw.lset(key, 0, "x")
    raw.lset(key, -1, "3|3|1|{")
    assert ranges(store.events) == [(2, 2)]
    assert "2 of its summaries are damaged" in caplog.text
    Compactor(store.events, store.config).compact(STREAM)
    assert ranges(store.events) == [(2, 2), (4, 36)]


def test_a_summariser_of_ones_own_writes_the_text(store: RedisStore) -> None:
    """It sees the facts and all events; the facts stay as they are."""
    store.events.append(STREAM, ticks(*range(3_000)))

    def own(summary: Summary, events: Iterable[Event]) -> str:
        return f"{summary.outcome}: {sum(event.payload['n'] for event in events)}"

    summary = Compactor(store.events, store.config, summariser=own).compact(STREAM)
    assert summary is not None
    assert summary.text == f"active: {sum(range(2_996))}"
    assert (summary.event_count, summary.metadata) == (2_996, {})


def test_the_registered_summariser_is_asked_where_none_is_given(store: RedisStore) -> None:
    """As the workers do it; one that is given comes first."""
    store.events.append(STREAM, ticks(*range(20)))
    store.events.append("other", ticks(*range(20)))

    @summariser
    def registered(summary: Summary, events: Iterable[Event]) -> str:
        return "registered"

    try:
        compactor = Compactor(store.events, store.config)
        texts = [made.text for name in (STREAM, "other") if (made := compactor.compact(name))]
    finally:
        forget_summariser()
    assert registered_summariser() is None
    assert texts == ["registered", "registered"]


def raising(summary: Summary, events: Iterable[Event]) -> str:
    """Raises what no except Exception catches."""
    raise SystemExit("out of words")


def hanging(summary: Summary, events: Iterable[Event]) -> str:
    """Never comes back."""
    while True:
        threading.Event().wait(0.01)  # on purpose: a summariser that hangs


def rubbish(summary: Summary, events: Iterable[Event]) -> Any:
    """Returns what is no text."""
    return {"text": 1}


def endless(summary: Summary, events: Iterable[Event]) -> str:
    """Returns too much."""
    return "x" * 10_001


def half(summary: Summary, events: Iterable[Event]) -> str:
    """Returns what cannot be stored."""
    return "\ud800"


def test_summarisers_that_nothing_can_interrupt_hold_four_threads_at_most(store: RedisStore) -> None:
    """Each later compaction has the runtime's text at once; when one has returned, the next one is asked again."""
    over, asked = threading.Event(), list[str]()

    def blocked(summary: Summary, events: Iterable[Event]) -> str:
        asked.append(summary.stream_id)
        while not over.is_set():
            with contextlib.suppress(BaseException):
                over.wait(20)
        return "late"

    def problem(number: int) -> str:
        stream_id = f"stream-{number}"
        store.events.append(stream_id, ticks(*range(20)))
        summary = Compactor(store.events, store.config, summariser=blocked, limit=0.01).compact(stream_id)
        assert summary is not None
        return str(summary.metadata.get("summariser_error", ""))

    try:
        assert ["longer than" in problem(number) for number in range(4)] == [True] * 4
        assert problem(4) == "4 earlier calls have not returned"
        assert len(asked) == 4
    finally:
        over.set()
    numbers = itertools.count(5)
    wait_until(lambda: problem(next(numbers)) == "", "a summariser to be asked again")


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (raising, "SystemExit: out of words"),
        (hanging, "longer than 0.1 s"),
        (rubbish, "not a text"),
        (endless, "10001 characters"),
        (half, "surrogate"),
    ],
)
def test_a_summariser_that_fails_costs_its_words_only(
    store: RedisStore, function: Any, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The runtime's own text is used; what was wrong is logged, counted, and in the summary."""
    store.events.append(STREAM, ticks(*range(20)))
    summary = Compactor(store.events, store.config, summariser=function, limit=0.1).compact(STREAM)
    assert summary is not None
    assert summary.text.startswith("16 events")
    assert problem in summary.metadata["summariser_error"]
    assert problem in caplog.text
    assert store.counters()["summariser_failures"] == 1
    assert store.events.summaries(STREAM) == (summary,)


def test_what_can_never_be_a_summariser_is_refused(store: RedisStore) -> None:
    """Before anything is read."""

    async def later(summary: Summary, events: Iterable[Event]) -> str:
        return ""

    wrong: list[tuple[Any, str]] = [("text", "cannot be called"), (later, "async"), (versions, "two arguments")]
    for function, problem in wrong:
        with pytest.raises(InvalidSettingError, match=problem):
            Compactor(store.events, store.config, summariser=function)


def test_summaries_go_with_their_agent(store: RedisStore, raw: redis.Redis) -> None:
    """delete_agent removes them."""
    fence = run(store)
    append(store, fence, *range(40), expected=1)
    assert Compactor(store.events, store.config).compact(AGENT) is not None
    act(store, Stop(force=True))
    store.delete(AGENT, store.read(AGENT), op="delete")
    assert {key.split(":")[2] for key in keys_of_agent(raw, store.namespace, AGENT)} == {"op"}


@pytest.mark.spec(104)
def test_a_closed_event_store_refuses_this_too(store: RedisStore) -> None:
    """Summaries and trimming."""
    events = store.events
    events.close()
    for operation in (
        lambda: events.summaries(STREAM),
        lambda: events.summarised_version(STREAM),
        lambda: events.save_summary(made_up(1), after=Version(0)),
        lambda: events.prune_summaries(STREAM),
        lambda: events.trim_before(STREAM, 1),
        events.streams,
    ):
        with pytest.raises(EventStoreClosedError):
            operation()
