"""A limit of the fleet lets through as many as it says, in the order in which they came, and nobody while closed."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest
import redis

from ares_celery.config import RuntimeConfig
from ares_celery.errors import StoreUnavailableError
from ares_celery.model.limits import Admission, FleetLimit
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.backends import Backend, LosingDriver
from tests.key_leaks import leaked_keys
from tests.wait import wait_until

pytestmark = pytest.mark.contract

TWO = FleetLimit("model", concurrency=2)
SLOW = FleetLimit("model", interval=3_600_000_000)


def is_in(store: RedisStore, member: str, limit: FleetLimit = TWO) -> bool:
    """A place was free for it."""
    return store.enter_limit(limit, member, "place").admitted


def test_no_more_than_its_places_are_held_at_once(store: RedisStore) -> None:
    """Who leaves makes room for the first that waits, and not for whoever comes just then."""
    assert [is_in(store, member) for member in "abcd"] == [True, True, False, False]
    waits = store.enter_limit(TWO, "d", "place")
    assert (waits.why, waits.wait) == ("places", 0.25)
    store.leave_limit("model", "a")
    assert [is_in(store, member) for member in ("new", "d", "c", "d")] == [False, False, True, False]
    store.leave_limit("model", "b")
    assert [is_in(store, member) for member in ("new", "d")] == [False, True]
    assert [is_in(store, member) for member in ("c", "d")] == [True, True], "who holds a place is told so again"


def test_who_is_far_from_its_turn_asks_less_often(store: RedisStore) -> None:
    """A quarter of a second for each round of places before it, two seconds at most."""
    waits = [store.enter_limit(TWO, f"m{number:02}", "place").wait for number in range(22)]
    assert waits[:6] == [0, 0, 0.25, 0.25, 0.5, 0.5]
    assert waits[-1] == max(waits) == 2.0


def test_a_place_of_one_that_died_becomes_free(backend: Backend) -> None:
    """And so does a turn in the queue; a place that is kept stays."""
    store = backend.open(RuntimeConfig.parse({"lease_ttl": "600ms", "heartbeat_interval": "100ms"}))
    assert [is_in(store, member) for member in "abcd"] == [True, True, False, False]

    def keeps_and_looks() -> bool:
        assert store.keep_limit("model", ["b", "nobody"]) == 1
        return is_in(store, "d")

    wait_until(keeps_and_looks, "the place of a, and the turn of c, to run out")
    assert not is_in(store, "e")
    assert store.keep_limit("model", ["a"]) == 0, "its place was given away"
    assert not is_in(store, "e")


def test_one_that_dies_while_it_waits_leaves_no_room_behind(backend: Backend) -> None:
    """Those before it in the queue are no nearer for it."""
    store = backend.open(RuntimeConfig.parse({"lease_ttl": "600ms", "heartbeat_interval": "100ms"}))
    assert [is_in(store, member) for member in "abcd"] == [True, True, False, False]
    keys = Keys(store.namespace, store.config.shards)
    raw = backend.client()

    def d_is_gone() -> bool:
        assert store.keep_limit("model", ["a", "b"]) == 2
        assert not is_in(store, "c")
        return raw.zscore(keys.limit_queue("model")[0], "d") is None

    wait_until(d_is_gone, "the turn of d to run out")
    assert not is_in(store, "c")
    raw.close()


def test_one_that_leaves_the_queue_leaves_no_room_behind(store: RedisStore) -> None:
    """Likewise."""
    assert [is_in(store, member) for member in "abcd"] == [True, True, False, False]
    store.leave_limit("model", "d")
    assert not is_in(store, "c")


def test_a_call_that_had_to_wait_holds_no_place_afterwards(store: RedisStore) -> None:
    """It was in the queue, and is nowhere then."""
    quick = FleetLimit("model", interval=200_000, concurrency=1)
    assert is_in(store, "a", quick)
    assert store.enter_limit(quick, "a/1", "call").why == "rate"
    wait_until(lambda: store.enter_limit(quick, "a/1", "call").admitted, "its turn")
    store.leave_limit("model", "a")
    wait_until(lambda: is_in(store, "b", quick), "the only place", timeout=3)


def test_a_limit_without_places_holds_nobody_up(store: RedisStore) -> None:
    """Nor one without a rate."""
    assert all(is_in(store, str(number), FleetLimit("model")) for number in range(30))


def test_calls_are_spaced_by_the_rate_and_keep_their_turns(store: RedisStore) -> None:
    """The first goes at once, each next one an interval later; who asks again keeps its turn."""
    answers = [store.enter_limit(SLOW, str(number), "place") for number in range(3)]
    assert answers[0] == Admission(admitted=True)
    assert [(answer.admitted, answer.why, answer.wait) for answer in answers[1:]] == [(False, "rate", 60.0)] * 2
    even = FleetLimit("even", interval=10_000_000)
    waits = [store.enter_limit(even, str(number), "place").wait for number in range(4)]
    assert waits == pytest.approx([0, 10, 20, 30], abs=3)
    again = store.enter_limit(even, "3", "place").wait
    assert again <= waits[3], "it does not go to the end of the queue"
    quick = FleetLimit("quick", interval=200_000)
    assert [is_in(store, str(number), quick) for number in range(2)] == [True, False]
    wait_until(lambda: is_in(store, "1", quick), "its turn")


def test_one_more_call_needs_a_turn_and_no_place(store: RedisStore) -> None:
    """Of one that holds the only place; a look needs neither."""
    one = FleetLimit("model", interval=3_600_000_000, concurrency=1)
    assert is_in(store, "a", one)
    assert store.enter_limit(one, "a:1", "call").why == "rate"
    assert store.enter_limit(one, "a:look", "look").admitted
    free = FleetLimit("free", concurrency=1)
    assert is_in(store, "a", free)
    assert store.enter_limit(free, "a:1", "call").admitted
    assert not is_in(store, "b", free)
    store.leave_limit("free", "a")
    assert is_in(store, "b", free), "a call leaves nothing behind"


@pytest.mark.parametrize("ask", ["place", "call", "look"])
def test_while_it_is_closed_nobody_passes(store: RedisStore, ask: Any) -> None:
    """Whatever is asked for; behind it they come one by one, spread over seconds."""
    assert store.close_limit("model", timedelta(seconds=7), op="1") == timedelta(seconds=7)
    answers = [store.enter_limit(TWO, str(number), ask) for number in range(50)]
    assert {(answer.admitted, answer.why) for answer in answers} == {(False, "closed")}
    waits = sorted(answer.wait for answer in answers)
    assert waits[0] > 6
    assert waits[-1] - waits[0] > 2
    assert max(later - before for before, later in itertools.pairwise(waits)) < 0.6


def test_it_opens_by_itself(store: RedisStore, raw: redis.Redis) -> None:
    """At its instant, for those whose turn has come."""
    store.close_limit("model", timedelta(seconds=60), op="1")
    assert not is_in(store, "a")
    key = Keys(store.namespace, store.config.shards).limit("model")
    raw.hset(key, "closed", str(store.server_time()))
    assert is_in(store, "b"), "who comes later does not wait for those that are spread"
    assert not is_in(store, "a")


def test_the_longer_closing_counts_and_a_repeat_closes_for_no_longer(store: RedisStore) -> None:
    """A lost answer must not hold up the fleet for another minute."""
    first = store.close_limit("model", timedelta(seconds=60), op="a")
    assert store.close_limit("model", timedelta(seconds=5), op="b") > timedelta(seconds=50)
    before = store.close_limit("model", timedelta(seconds=90), op="c")
    assert first < before
    wait_until(lambda: store.close_limit("model", timedelta(seconds=90), op="c") < before, "time to pass")


def test_a_turn_that_falls_into_a_closing_moves_behind_it(store: RedisStore) -> None:
    """Those that waited for the rate wait for the limit as well; in their number, not all at once."""
    quick = FleetLimit("model", interval=200_000)
    assert [store.enter_limit(quick, str(number), "place").admitted for number in range(3)] == [True, False, False]
    store.close_limit("model", timedelta(seconds=30), op="1")
    waits = [store.enter_limit(quick, str(number), "place") for number in (1, 2)]
    assert all(answer.why == "closed" and answer.wait > 25 for answer in waits)


def test_a_repeated_call_takes_one_turn(backend: Backend) -> None:
    """Its answer was lost: the same caller again is through, and the next turn is no later for it."""
    driver = LosingDriver(backend.client())
    store = backend.open(driver=driver)
    hour = FleetLimit("hour", interval=1_000_000, concurrency=1)
    driver.lose_next = True
    with pytest.raises(StoreUnavailableError):
        store.enter_limit(hour, "a", "place")
    assert store.enter_limit(hour, "a", "place") == Admission(admitted=True)
    free = FleetLimit("free", interval=1_000_000)
    driver.lose_next = True
    with pytest.raises(StoreUnavailableError):
        store.enter_limit(free, "a:1", "call")
    assert store.enter_limit(free, "a:1", "call").admitted
    assert store.enter_limit(free, "a:2", "call").wait <= 1


def test_the_last_one_that_asks_says_what_the_limit_is(store: RedisStore) -> None:
    """It is told what it was before, once it differs."""
    assert store.enter_limit(TWO, "a", "place").before is None
    assert store.enter_limit(TWO, "b", "place").before is None
    three = FleetLimit("model", interval=5, concurrency=3)
    assert store.enter_limit(three, "c", "place") == Admission(admitted=True, before=TWO)
    assert store.enter_limit(three, "d", "place").before is None


def test_a_clock_that_goes_back_holds_nobody_up(store: RedisStore, raw: redis.Redis) -> None:
    """All that was planned in the old time moves along: places, turns, the end of a closing."""
    keys = Keys(store.namespace, store.config.shards)
    quick = FleetLimit("model", interval=300_000, concurrency=1)
    assert [is_in(store, member, quick) for member in "ab"] == [True, False]
    hour = 3_600_000_000
    for field in ("next", "seen"):
        raw.hincrby(keys.limit("model"), field, hour)
    for key in keys.limit_queue("model"):
        members: Any = raw.zrange(key, 0, -1)
        for member in members:
            raw.zincrby(key, hour, member)
    assert store.enter_limit(quick, "b", "place").wait <= 0.3
    store.leave_limit("model", "a")
    wait_until(lambda: is_in(store, "b", quick), "its turn, although the clock went back")


def test_nothing_of_a_limit_stays_for_ever(store: RedisStore, raw: redis.Redis) -> None:
    """Whatever was asked of it; and a wiped namespace has none of it."""
    for member in ("a", "b", "c"):
        store.enter_limit(TWO, member, "place")
    store.enter_limit(FleetLimit("model", interval=5), "a:1", "call")
    store.close_limit("model", timedelta(seconds=7), op="1")
    store.close_limit("fresh", timedelta(seconds=7), op="1")
    store.keep_limit("model", ["a"])
    keys = Keys(store.namespace, store.config.shards)
    used = [keys.limit("model"), *keys.limit_queue("model"), keys.limit_passed("model"), keys.limit("fresh")]
    left: Any = [raw.pttl(key) for key in used]
    assert min(left) > 3_590_000
    assert leaked_keys(raw, store.namespace) == []
    store.wipe()
    assert raw.exists(*used) == 0


def test_the_twin_for_an_event_loop_does_the_same(store: RedisStore) -> None:
    """In one queue with the others."""

    async def ask() -> None:
        twin = store.open_async()
        assert [(await twin.enter_limit(TWO, member, "place")).admitted for member in "abc"] == [True, True, False]
        assert not is_in(store, "d")
        await twin.leave_limit("model", "a")
        assert (await twin.enter_limit(TWO, "c", "place")).admitted
        assert await twin.close_limit("model", timedelta(seconds=7), op="1") == timedelta(seconds=7)
        await twin.aclose()

    asyncio.run(ask())
    assert store.enter_limit(TWO, "c:1", "call").why == "closed"
