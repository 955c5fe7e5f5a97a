"""What coroutines wait with: answers by hints, states in one trip, events on one connection, on both servers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    EventGapError,
    InvalidCursorError,
    MessageIdReusedError,
    StoreUnavailableError,
)
from ares_celery.ids import AgentId
from ares_celery.model.command import Complete
from ares_celery.model.event import BEGINNING, Event, EventFilter
from ares_celery.store.async_access import AsyncSubscription
from ares_celery.store.base import Reply
from ares_celery.store.redis import async_subscription, event_calls, hints
from ares_celery.store.redis.async_access import AsyncRedisAccess
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, run, run_namespace, start, ticks
from tests.contract.store.backends import Backend
from tests.wait import wait_until_async

pytestmark = pytest.mark.contract

#: Far longer than a test waits: whoever is answered in time was told by a hint, or by news of the agent.
NEVER = 60.0


@pytest.fixture
def store(backend: Backend) -> RedisStore:
    """An open namespace of two shards whose runtime runs."""
    return run_namespace(backend.open(RuntimeConfig(shards=2)))


@pytest.fixture(autouse=True)
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake server cannot be left in the middle of a wait."""
    monkeypatch.setattr(async_subscription, "BLOCK_MS", 100)


@pytest.fixture
async def access(store: RedisStore) -> AsyncIterator[AsyncRedisAccess]:
    """The loop's own way to it."""
    opened = store.open_access()
    yield opened
    await opened.aclose()


def answer(store: RedisStore, fence: str, *, with_value: object = None) -> list[str]:
    """Answers all messages of the agent; gives their ids."""
    waiting = store.inbox(AGENT)
    for message in waiting:
        store.reply(AGENT, fence, message, Reply(message.message_id, with_value or message.body))
    return [message.message_id for message in waiting]


async def heard(access: AsyncRedisAccess) -> None:
    """Hints are heard from here on."""
    await access.mailbox._waits.ready()
    await wait_until_async(access.mailbox._waits._listening.is_set, "the listening")


async def asked(access: AsyncRedisAccess, message_id: str, body: object = 1) -> asyncio.Task[Reply | None]:
    """A message is sent, and a task waits for its answer."""
    await access.mailbox.send(AGENT, body, message_id=message_id, wants_reply=True)
    task = asyncio.create_task(access.mailbox.wait_reply(AGENT, message_id, timeout=NEVER))
    await wait_until_async(lambda: (AGENT, message_id) in access.mailbox._waits._waits)
    return task


async def test_answers_come_by_hints_to_any_number_of_waits(
    store: RedisStore, access: AsyncRedisAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No wait looks by itself here, and each is answered: with its own answer."""
    monkeypatch.setattr(hints, "REPAIR", NEVER)
    fence = run(store)
    await heard(access)
    tasks = {f"m{n}": await asked(access, f"m{n}", n) for n in range(30)}
    assert answer(store, fence) == list(tasks)
    async with asyncio.timeout(10):
        replies = await asyncio.gather(*tasks.values())
    assert [reply.value for reply in replies if reply] == list(range(30))
    assert not access.mailbox._waits._waits
    assert not access.mailbox._waits._agents


async def test_lost_hints_cost_a_second_at_most(
    store: RedisStore, access: AsyncRedisAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that listens hears nothing; the look that is due anyway finds the answer."""
    monkeypatch.setattr(hints, "REPAIR", 0.05)
    monkeypatch.setattr(hints.HintedWaits, "_hear", _hear_nothing)
    monkeypatch.setattr(hints, "FIRST_WORD", 0.01)
    fence = run(store)
    task = await asked(access, "m1", 7)
    answer(store, fence)
    async with asyncio.timeout(10):
        assert await task == Reply("m1", 7)


def _hear_nothing(_waits: hints.HintedWaits, _message: object) -> None:
    """In place of what a hint does."""


async def test_a_broken_connection_is_made_anew_and_every_wait_looks(
    store: RedisStore, access: AsyncRedisAccess, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first listening dies with a hint on its way; nobody waits for a look that is due: the new one tells all."""
    monkeypatch.setattr(hints, "REPAIR", NEVER)
    monkeypatch.setattr(hints, "FIRST_PAUSE", 0.01)
    fence = run(store)
    await heard(access)
    task = await asked(access, "m1", 7)
    whole, broken = hints.HintedWaits._hear, list[object]()

    def break_once(self: hints.HintedWaits, message: dict[str, Any]) -> None:
        if message["type"] == "message" and not broken:
            broken.append(message)
            raise ConnectionResetError
        whole(self, message)

    monkeypatch.setattr(hints.HintedWaits, "_hear", break_once)
    with caplog.at_level(logging.WARNING, hints.__name__):
        answer(store, fence)
        async with asyncio.timeout(10):
            assert await task == Reply("m1", 7)
    assert len(broken) == 1
    assert "a look a second will do" in caplog.text


async def test_waits_learn_that_the_agent_came_to_rest_or_is_gone(
    store: RedisStore, access: AsyncRedisAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, by a hint; the message stays."""
    monkeypatch.setattr(hints, "REPAIR", NEVER)
    fence = run(store)
    await heard(access)
    tasks = [await asked(access, "m1"), await asked(access, "m2")]
    act(store, Complete(fence=fence))
    for task in tasks:
        with pytest.raises(AgentNotRunningError) as raised:
            async with asyncio.timeout(10):
                await task
        assert raised.value.state == "completed"
    assert [message.message_id for message in store.inbox(AGENT)] == ["m1", "m2"]
    with pytest.raises(AgentNotFoundError):
        await access.mailbox.wait_reply(AgentId("nobody"), "m1", timeout=NEVER)


async def test_one_message_id_is_one_message_and_its_answer_is_found_at_once(
    store: RedisStore, access: AsyncRedisAccess
) -> None:
    """A repeat puts nothing and gets the first answer; another body is refused."""
    fence = run(store)
    await access.mailbox.send(AGENT, {"a": 1, "b": 2}, message_id="m1", wants_reply=True)
    await access.mailbox.send(AGENT, {"b": 2, "a": 1}, message_id="m1", wants_reply=True)
    assert answer(store, fence, with_value="first") == ["m1"]
    await access.mailbox.send(AGENT, {"a": 1, "b": 2}, message_id="m1", wants_reply=True)
    assert await access.mailbox.wait_reply(AGENT, "m1", timeout=0) == Reply("m1", "first")
    with pytest.raises(MessageIdReusedError):
        await access.mailbox.send(AGENT, {"a": 2}, message_id="m1", wants_reply=True)
    assert await access.mailbox.wait_reply(AGENT, "m9", timeout=0.01) is None


async def test_one_call_that_is_refused_is_nobody_elses(
    store: RedisStore, access: AsyncRedisAccess, raw: redis.Redis
) -> None:
    """Sent in one round trip with what the server and the parser refuse, the others get their answers."""
    run(store)
    raw.set(store._bound.keys.inbox("broken"), "no stream")
    raw.hset(store._bound.keys.agent("broken"), "state", "running")
    sent = [
        access.mailbox.send(AgentId(name), 1, message_id="m1", wants_reply=False)
        for name in (AGENT, "absent", "broken", AGENT)
    ]
    first, absent, broken, second = await asyncio.gather(*sent, return_exceptions=True)
    assert (first, second) == (None, None)
    assert isinstance(absent, AgentNotFoundError)
    assert isinstance(broken, Exception)
    assert not isinstance(broken, AgentNotFoundError)
    assert len(store.inbox(AGENT)) == 1


async def test_a_cancelled_caller_breaks_no_connection(store: RedisStore, access: AsyncRedisAccess) -> None:
    """Its call is made; the calls that were sent with it are answered."""
    run(store)
    sent = [
        asyncio.ensure_future(access.mailbox.send(AGENT, n, message_id=f"m{n}", wants_reply=False)) for n in range(50)
    ]
    await asyncio.sleep(0)
    for one in sent[::2]:
        one.cancel()
    await asyncio.gather(*sent[1::2])
    assert await access.states([AGENT, AgentId("absent")]) == ["running", None]
    # Those that had not yet begun to send are not sent; whatever was sent is there once.
    there = [message.message_id for message in store.inbox(AGENT)]
    assert len(there) == len(set(there))
    assert {f"m{n}" for n in range(1, 50, 2)} <= set(there)


async def test_states_of_many_agents_and_reads_of_one(store: RedisStore, access: AsyncRedisAccess) -> None:
    """Absent ones are told apart."""
    run(store)
    start(store, AgentId("second"))
    many = [AGENT, AgentId("second"), AgentId("absent")] * 100
    assert await access.states(many) == ["running", "starting", None] * 100
    record = (await access.read(AGENT)).record
    assert record is not None
    assert record.spec.id == AGENT
    assert (await access.read(AgentId("absent"))).record is None


async def test_settings_that_change_reach_a_process_that_only_sends(
    store: RedisStore, access: AsyncRedisAccess, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of the inbox is that of now."""
    run(store)
    backend.open(RuntimeConfig(shards=2)).set_config({"max_inbox": 2}, reason="", actor="test")
    monkeypatch.setattr("ares_celery.store.redis.live_settings.FRESH_SECONDS", 0.0)
    await access.mailbox.send(AGENT, 1, message_id="m1", wants_reply=False)
    assert store.config.max_inbox == 2


async def test_a_closed_access_says_so_and_ends_waits(store: RedisStore) -> None:
    """Whoever reads or waits is woken, and later calls are refused."""
    opened = store.open_access()
    run(store)
    await heard(opened)
    task = await asked(opened, "m1")
    subscription = opened.subscribe(EventFilter(streams=frozenset({AGENT})), cursor=None)
    await subscription.begin()
    reading = asyncio.create_task(subscription.poll())
    await asyncio.sleep(0)
    await opened.aclose()
    await opened.aclose()
    assert await reading is None
    assert subscription.closed
    with pytest.raises(StoreUnavailableError, match="was closed"):
        await opened.states([AGENT])
    with pytest.raises(StoreUnavailableError, match="was closed"):
        async with asyncio.timeout(10):
            await task


# -- subscriptions ----------------------------------------------------------------------------------------------------


async def arrived(subscription: AsyncSubscription, count: int) -> list[Event]:
    """So many events, as long as they take; and nothing behind them."""
    found: list[Event] = []
    while len(found) < count:
        event = await subscription.poll(10)
        assert event is not None, f"{len(found)} of {count}"
        found.append(event)
    assert await subscription.poll(0.05) is None
    return found


def names(found: list[Event]) -> list[tuple[str, int]]:
    """Stream and version of each."""
    return [(event.stream_id, event.version) for event in found]


@pytest.mark.spec(102)
async def test_a_coroutine_sees_only_what_its_filter_lets_through(store: RedisStore, access: AsyncRedisAccess) -> None:
    """By stream, by type, by time, from now on; closing ends the iteration."""
    store.events.append("a", ticks(1))
    by_stream = access.subscribe(EventFilter(streams=frozenset({"a"})))
    by_type = access.subscribe(EventFilter(types=frozenset({"other.type"})))
    everything = access.subscribe()
    for one in (by_stream, by_type, everything):
        await one.begin()
    (late,) = store.events.append("b", ticks(1))
    by_time = access.subscribe(EventFilter(since=late.time), cursor=BEGINNING)
    store.events.append("a", ticks(2))
    assert names(await arrived(by_stream, 1)) == [("a", 2)]
    assert names(await arrived(by_type, 0)) == []
    assert sorted(names(await arrived(everything, 2))) == [("a", 2), ("b", 1)]
    assert sorted(names(await arrived(by_time, 2))) == [("a", 2), ("b", 1)]
    iterated = asyncio.create_task(_all(by_stream))
    await asyncio.sleep(0)
    await by_stream.close()
    async with asyncio.timeout(10):
        assert await iterated == []
    assert by_stream.closed
    for one in (by_type, everything, by_time):
        await one.close()


async def _all(subscription: AsyncSubscription) -> list[Event]:
    return [event async for event in subscription]


@pytest.mark.spec(103)
async def test_a_slow_coroutine_is_told_what_it_lost_and_resumes_from_its_cursor(
    store: RedisStore, access: AsyncRedisAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind the feed it reads the streams; what was trimmed there is counted and told; a cursor goes on in another."""
    monkeypatch.setattr(event_calls, "FEED_LENGTH", 200)
    wanted = EventFilter(streams=frozenset({"a"}))
    async with access.subscribe(wanted) as first:
        store.events.append("a", ticks(1))
        assert names(await arrived(first, 1)) == [("a", 1)]
        cursor = first.cursor
    for _ in range(10):
        store.events.append("a", ticks(*range(100)))
    store.events.trim_before("a", 21)
    async with access.subscribe(wanted, cursor=cursor) as second:
        with pytest.raises(EventGapError) as gap:
            await second.poll(5)
        assert (gap.value.first, gap.value.last, gap.value.count) == (2, 21, 20)
        found = await arrived(second, 980)
        assert [event.version for event in found] == list(range(22, 1_002))
        assert (second.lost, second.lagging) == (20, False)
        assert second.missed > 0


async def test_a_reader_that_is_cancelled_again_and_again_gets_every_event_once(
    store: RedisStore, access: AsyncRedisAccess
) -> None:
    """In the middle of whatever it was about to do."""
    found: list[Event] = []
    async with access.subscribe(EventFilter(streams=frozenset({"a"}))) as subscription:
        for number in range(40):
            reading = asyncio.create_task(subscription.poll(5))
            await asyncio.sleep(0)
            if number % 2:
                store.events.append("a", ticks(number))
            reading.cancel()
            done = (await asyncio.gather(reading, return_exceptions=True))[0]
            if isinstance(done, Event):
                found.append(done)
        found += await arrived(subscription, 20 - len(found))
    assert [event.version for event in found] == list(range(1, 21))


async def test_cursors_of_elsewhere_are_refused(access: AsyncRedisAccess) -> None:
    """At once, before anything is sent."""
    with pytest.raises(InvalidCursorError):
        access.subscribe(cursor="{}")


async def test_who_leaves_while_the_connections_are_closed_is_told_of_first(
    store: RedisStore, access: AsyncRedisAccess, caplog: pytest.LogCaptureFixture
) -> None:
    """A loop's end cancels the reader of a stream and what keeps the connections at once."""
    fence = run(store)
    await access.mailbox.send(AGENT, 1, message_id="m", wants_reply=True, stream=True)
    (message,) = store.take(AGENT, fence)
    access.leave(AGENT, "m")
    # What tells it has begun, and has no answer yet.
    await asyncio.sleep(0)
    await access.aclose()
    assert store.write_chunks(AGENT, fence, message, first=1, pieces=[]) is None
    assert "was not told" not in caplog.text
