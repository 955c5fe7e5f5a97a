"""Places in limits: whose they are, who keeps them, and what becomes of them when a block ends in any way."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import pytest

from ares_celery.errors import StopSignal, StoreUnavailableError
from ares_celery.ids import AgentId
from ares_celery.model.fault import Fault
from ares_celery.model.limits import Admission, FleetLimit, LimitAsk
from ares_celery.runtime.limits import AsyncLimit, HeldPlaces, SyncLimit, SyncPlace, held_place
from ares_celery.runtime.openings import ON_THREADS
from tests.wait import wait_until_async

T = TypeVar("T")
WANTED = FleetLimit("model", concurrency=2)
IN = Admission(admitted=True)


class Store:
    """Says what it is told to, and notes what it is asked."""

    def __init__(self) -> None:
        self.answers: list[Admission] = []
        self.asked: list[tuple[str, str]] = []
        self.left: list[str] = []
        self.kept: list[tuple[str, list[str]]] = []
        self.keeps = 0
        self.closed: list[tuple[str, timedelta, str]] = []
        self.is_away = False

    def enter_limit(self, limit: FleetLimit, member: str, ask: LimitAsk) -> Admission:
        self.asked.append((member, ask))
        return self.answers.pop(0) if self.answers else IN

    def close_limit(self, name: str, delay: timedelta, *, op: str, by: Fault | None = None) -> timedelta:
        self.closed.append((name, delay, op))
        return delay

    def note_limited(self, agent_id: AgentId, fence: str, name: str) -> None:
        raise NotImplementedError

    def leave_limit(self, name: str, member: str) -> None:
        if self.is_away:
            raise StoreUnavailableError(url="redis://x", problem="away")
        self.left.append(member)

    def keep_limit(self, name: str, members: Sequence[str]) -> int:
        if self.is_away:
            raise StoreUnavailableError(url="redis://x", problem="away")
        self.kept.append((name, list(members)))
        return len(members) - self.keeps


class AsyncStore:
    """The same, awaitable."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def enter_limit(self, limit: FleetLimit, member: str, ask: LimitAsk) -> Admission:
        await asyncio.sleep(0)
        return self.store.enter_limit(limit, member, ask)

    async def close_limit(self, name: str, delay: timedelta, *, op: str, by: Fault | None = None) -> timedelta:
        return self.store.close_limit(name, delay, op=op, by=by)

    async def note_limited(self, agent_id: AgentId, fence: str, name: str) -> None:
        raise NotImplementedError

    async def leave_limit(self, name: str, member: str) -> None:
        self.store.leave_limit(name, member)


class Waits:
    """The context of a plain agent."""

    def __init__(self) -> None:
        self.fenced = self.is_cut_off = False
        self.ops = 0
        self.waited: list[float] = []
        self.shown: list[tuple[str, bool]] = []
        self.stops = False

    def show(self, name: str, *, waits: bool) -> None:
        self.shown.append((name, waits))

    def persist(self, call: Callable[[], T], /) -> T:
        return call()

    def wait(self, seconds: float, /) -> Any:
        self.waited.append(seconds)
        if self.stops:
            raise StopSignal

    def next_op(self) -> str:
        self.ops += 1
        return f"t:{self.ops}"


class AsyncWaits:
    """The context of an async one."""

    def __init__(self) -> None:
        self.fenced = self.is_cut_off = False
        self.next_op = Waits().next_op
        self.shown: list[tuple[str, bool]] = []

    async def show(self, name: str, *, waits: bool) -> None:
        self.shown.append((name, waits))

    async def persist(self, call: Callable[[], Awaitable[T]], /) -> T:
        return await call()

    async def wait(self, seconds: float, /) -> None:
        """Not at all."""


class World:
    """A limit of a plain agent, and all around it."""

    def __init__(self) -> None:
        self.store, self.waits, self.places = Store(), Waits(), HeldPlaces()
        self.limit = SyncLimit(WANTED, self.store, self.waits, self.places)

    def other(self, name: str) -> SyncLimit:
        """Another limit of the same agent."""
        return SyncLimit(FleetLimit(name), self.store, self.waits, self.places)

    def keep(self) -> list[tuple[str, list[str]]]:
        """What is kept now."""
        self.store.kept.clear()
        self.places.keep(self.store)
        return self.store.kept


def test_a_place_is_asked_for_until_it_is_given_and_given_back() -> None:
    """Under one name, a little behind the time that was said."""
    world = World()
    world.store.answers = [Admission(admitted=False, wait=2.0), Admission(admitted=False, wait=0.5)]
    with world.limit:
        assert world.store.asked == [("t:1", "place")] * 3
        assert world.waits.waited == [2.001, 0.501]
        assert world.keep() == [("model", ["t:1"])]
        assert world.store.left == []
    assert world.store.left == ["t:1"]
    assert world.keep() == []
    assert held_place() is None


def test_a_wait_that_is_cut_off_leaves_the_queue() -> None:
    """Nobody behind it waits for one that is gone."""
    world = World()
    world.store.answers = [Admission(admitted=False, wait=2.0)]
    world.waits.stops = True
    with pytest.raises(StopSignal), world.limit:
        pytest.fail("it has no place")
    assert (world.store.left, world.keep(), held_place()) == (["t:1"], [], None)


def test_a_block_that_raises_gives_its_place_back_although_the_store_is_away(caplog: pytest.LogCaptureFixture) -> None:
    """Its error is what the agent gets; the place ends by itself, as nobody keeps it."""
    world = World()
    world.store.is_away = True
    with pytest.raises(KeyError), world.limit:
        raise KeyError
    world.store.is_away = False
    assert world.keep() == []
    assert "could not be given back" in caplog.text


def test_people_see_what_is_waited_for_from_a_second_on() -> None:
    """Once, however often it asks again; and once more when it goes on, or is to end."""
    world = World()
    world.store.answers = [Admission(admitted=False, wait=0.4)] * 2
    with world.limit:
        pass
    assert world.waits.shown == []
    world.store.answers = [Admission(admitted=False, wait=0.4)] * 9
    with world.limit:
        assert world.waits.shown == [("model", True), ("model", False)]
    world.waits.stops = True
    world.store.answers = [Admission(admitted=False, wait=1)]
    with pytest.raises(StopSignal), world.limit:
        pass
    assert world.waits.shown == [("model", True), ("model", False)] * 2


def test_the_first_call_came_with_the_place_and_looks_only() -> None:
    """Each further one takes a turn, under a name of its own."""
    world = World()
    with world.limit:
        place = held_place()
        assert isinstance(place, SyncPlace)
        for _ in range(3):
            place.turn()
        place.close(7.0, None)
        place.wait(0.0)
        place.wait(3.0)
    assert world.store.asked[1:] == [("t:1/1", "look"), ("t:1/2", "call"), ("t:1/3", "call")]
    assert world.store.closed == [("model", timedelta(seconds=7), "t:2")]
    assert world.waits.waited == [3.0]


def test_calls_inside_of_two_limits_are_those_of_the_inner_one() -> None:
    """Behind its block, of the outer one."""
    world = World()
    with world.limit:
        outer = held_place()
        with world.other("inner"):
            inner = held_place()
            assert inner is not None
            assert inner.limit.name == "inner"
        assert held_place() is outer
        assert world.keep() == [("model", ["t:1"])]


def test_one_limit_may_be_entered_again_and_again() -> None:
    """Inside of itself, too; each time it is another place."""
    world = World()
    with world.limit, world.limit:
        assert world.keep() == [("model", ["t:1", "t:2"])]
    with world.limit:
        assert world.keep() == [("model", ["t:3"])]
    assert sorted(world.store.left) == ["t:1", "t:2", "t:3"]


def test_what_a_block_leaves_running_has_no_place_any_more() -> None:
    """A thread that was begun inside of it sees the place as long as the block holds it."""
    world = World()
    with world.limit:
        assert ON_THREADS.submit(held_place).result(5) is held_place()
        left_over = contextvars.copy_context()
    assert left_over.run(held_place) is None


def test_places_of_one_that_is_over_or_cut_off_are_not_kept() -> None:
    """Whatever of its code still runs."""
    world = World()
    with world.limit:
        assert world.keep() == [("model", ["t:1"])]
        world.waits.is_cut_off = True
        assert world.keep() == []
        world.waits.is_cut_off = False
        assert world.keep() == [("model", ["t:1"])]
        world.waits.fenced = True
        assert world.keep() == []
    assert world.store.left == ["t:1"]


def test_places_are_kept_when_the_store_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """What was given away meanwhile is said."""
    world = World()
    with world.limit, world.other("b"):
        world.store.is_away = True
        assert world.keep() == []
        assert caplog.text.count("could not be kept") == 2
        world.store.is_away = False
        world.store.keeps = 1
        assert world.keep() == [("model", ["t:1"]), ("b", ["t:2"])]
        assert "limit 'b': 1 places of this process were given away meanwhile" in caplog.text


def test_agents_that_do_not_agree_on_a_limit_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """With both of what they say."""
    world = World()
    before = FleetLimit("model", interval=100_000, concurrency=50)
    world.store.answers = [Admission(admitted=True, before=before)] * 2
    with caplog.at_level(logging.WARNING), world.limit, world.limit:
        pass
    (line,) = [record.getMessage() for record in caplog.records if "the last one that asks counts" in record.message]
    assert "'model' is now calls at any rate, 2 at once; it was a call every 100 ms, 50 at once" in line


def test_tasks_of_one_agent_hold_places_of_their_own() -> None:
    """Of the same limit object: each block ends its own place, in whatever order."""
    store, waits, places = Store(), AsyncWaits(), HeldPlaces()
    limit = AsyncLimit(WANTED, AsyncStore(store), waits, places)
    seen: dict[str, str] = {}

    async def block(name: str, ends: asyncio.Event) -> None:
        async with limit:
            place = held_place()
            assert place is not None
            seen[name] = place.member
            await ends.wait()
        assert store.left[-1] == seen[name]

    async def both() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        tasks = [asyncio.create_task(block("a", first)), asyncio.create_task(block("b", second))]
        await wait_until_async(lambda: len(seen) == 2, interval=0)
        first.set()
        await tasks[0]
        places.keep(store)
        assert store.kept == [("model", [seen["b"]])]
        second.set()
        await tasks[1]
        assert held_place() is None

    asyncio.run(both())


def test_a_task_that_is_cancelled_gives_back_what_it_had_and_what_it_waited_for() -> None:
    """In its block, or in the queue."""
    store, waits, places = Store(), AsyncWaits(), HeldPlaces()
    limit = AsyncLimit(WANTED, AsyncStore(store), waits, places)

    async def block(reached: asyncio.Event) -> None:
        async with limit:
            reached.set()
            await asyncio.sleep(60)  # on purpose: it is cancelled meanwhile

    async def run() -> None:
        reached = asyncio.Event()
        holds = asyncio.create_task(block(reached))
        await reached.wait()
        store.answers = [Admission(admitted=False, wait=0)] * 1_000_000
        queues = asyncio.create_task(block(asyncio.Event()))
        await wait_until_async(lambda: len(store.asked) > 3, interval=0)
        for task in (holds, queues):
            task.cancel()
        await asyncio.wait([holds, queues])
        assert (holds.cancelled(), queues.cancelled()) == (True, True)

    asyncio.run(run())
    assert sorted(store.left) == ["t:1", "t:2"]
    places.keep(store)
    assert store.kept == []
