"""What agents spend is counted once, behind the fence, and shared by a tree in whatever order it is told."""

from __future__ import annotations

import asyncio
import random

import pytest
import redis

from ares_celery.errors import AgentParkedError, FencedError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import AgentSpec
from ares_celery.model.budget import NOTHING, Limits, Spending, Spent
from ares_celery.model.command import Die, MarkRunning, Park, Release, Start, Stop, Unpark, Update
from ares_celery.model.step import StepRecord
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, claim, record_of, run, take
from tests.key_leaks import keys_of_agent, leaked_keys

pytestmark = pytest.mark.contract

ROOT = AgentId("root")
BUDGET = {"tokens": 100.0, "usd": 0.3}
BORN = Instant(1_795_975_978_273_137)


def run_root(store: RedisStore, budget: dict[str, float] | None = None) -> str:
    """The agent at the top of a tree, running; gives its fence."""
    act(store, Start(spec=AgentSpec(id=ROOT, type="counter", budget=budget)), ROOT)
    fence = take(store, record_of(store, ROOT).epoch, ROOT).record.fence
    act(store, MarkRunning(fence=fence), ROOT)
    return fence


def stop(store: RedisStore, fence: str, agent_id: AgentId = AGENT) -> None:
    """It ends in order, and rests."""
    act(store, Stop(actor="ann"), agent_id)
    act(store, Release(fence=fence), agent_id)


def test_a_charge_adds_to_the_record_and_tells_how_the_agent_stands(store: RedisStore) -> None:
    """Tokens, millionths, steps, and the limits as they are by then."""
    fence = run_root(store, BUDGET)
    first = store.charge(ROOT, fence, Spent(60, 100_000, 1), op="a")
    second = store.charge(ROOT, fence, Spent(0, 200_000, 0), op="b")
    limits = Limits(tokens=100, usd=300_000)
    assert first == Spending(Spent(60, 100_000, 1), NOTHING, limits)
    assert second == Spending(Spent(60, 300_000, 1), NOTHING, limits) == record_of(store, ROOT).spending
    act(store, Update(actor="ann", budget={"usd": 1, "tokens": None}), ROOT)
    assert store.charge(ROOT, fence, NOTHING, op="").limits == Limits(usd=1_000_000)


def test_a_repeated_charge_counts_once(store: RedisStore) -> None:
    """Its answer was lost: the same id again adds nothing, the next one does."""
    fence = run(store)
    answers = [store.charge(AGENT, fence, Spent(tokens=5), op=op).own.tokens for op in ("a", "a", "b", "b", "b")]
    assert answers == [5, 5, 10, 10, 10]
    assert store.charge(AGENT, fence, NOTHING, op="").own == Spent(tokens=10)


def test_a_fenced_incarnation_charges_nothing(store: RedisStore) -> None:
    """Nor does one without a fence; what it had spent before stays."""
    late = run(store)
    store.charge(AGENT, late, Spent(tokens=5), op="a")
    act(store, Die(epoch=record_of(store).epoch, reason="lost", proof=True))
    for fence in (late, ""):
        with pytest.raises(FencedError):
            store.charge(AGENT, fence, Spent(tokens=5), op="b")
    assert record_of(store).spending.own == Spent(tokens=5)


def test_what_was_spent_survives_deaths_stops_and_a_new_start(store: RedisStore) -> None:
    """Also recorded steps; only deletion forgets it."""
    fence = run(store)
    store.charge(AGENT, fence, Spent(7, 8, 9), op="a")
    store.open_steps(AGENT, "e1", fence=fence, op="o")
    store.record_step(AGENT, fence, "e1", StepRecord("s", "f", "safe", 1), op="s")
    for number in range(3):
        stop(store, fence)
        fence = run(store)
        store.charge(AGENT, fence, Spent(tokens=1), op=f"n{number}")
    assert record_of(store).spending.own == Spent(10, 8, 10)
    stop(store, fence)
    store.delete(AGENT, store.read(AGENT), op="d")
    assert claim(store).record.spending.own == NOTHING


def test_members_are_added_up_whatever_is_lost_repeated_or_late(store: RedisStore) -> None:
    """Each tells its totals since it was made; the order is any, and a call may never have come."""
    run_root(store, BUDGET)
    tellings = [
        (AgentId(f"child-{child}"), Spent(total, total * 10, total * 100))
        for child in range(3)
        for total in range(1, 21)
    ]
    for seed in range(5):
        some = [one for one in tellings if one[1].tokens == 20] + random.Random(seed).sample(tellings, 40)
        random.Random(seed).shuffle(some)
        for child, total in some:
            store.share_spending(ROOT, child, BORN, total)
        assert record_of(store, ROOT).spending.children == Spent(60, 600, 6_000)


def test_the_answer_to_a_member_is_how_the_top_stands(store: RedisStore) -> None:
    """What it has spent itself, what its members have, and its limits."""
    fence = run_root(store, BUDGET)
    store.charge(ROOT, fence, Spent(tokens=30), op="a")
    store.share_spending(ROOT, AgentId("c1"), BORN, Spent(tokens=40))
    found = store.share_spending(ROOT, AgentId("c2"), BORN, Spent(usd=5))
    assert found == Spending(Spent(tokens=30), Spent(tokens=40, usd=5), Limits(tokens=100, usd=300_000))
    assert found == record_of(store, ROOT).spending == store.charge(ROOT, fence, NOTHING, op="")


def test_a_member_that_is_made_again_counts_anew(store: RedisStore) -> None:
    """Its totals begin at zero; what its namesake has spent stays spent."""
    run_root(store)
    store.share_spending(ROOT, AgentId("c"), BORN, Spent(tokens=40))
    store.share_spending(ROOT, AgentId("c"), Instant(BORN + 1), Spent(tokens=3))
    assert record_of(store, ROOT).spending.children == Spent(tokens=43)


def test_a_top_that_is_gone_gets_no_keys(store: RedisStore, raw: redis.Redis) -> None:
    """Its hash goes with it, and a late member makes no new one."""
    fence = run_root(store, BUDGET)
    store.share_spending(ROOT, AgentId("c"), BORN, Spent(tokens=40))
    assert raw.exists(Keys(store.namespace, store.config.shards).budget(ROOT)) == 1
    assert leaked_keys(raw, store.namespace) == []
    stop(store, fence, ROOT)
    store.delete(ROOT, store.read(ROOT), op="d")
    assert store.share_spending(ROOT, AgentId("c"), BORN, Spent(tokens=50)) is None
    assert [key for key in keys_of_agent(raw, store.namespace, ROOT) if raw.ttl(key) == -1] == []


def test_an_agent_without_budget_left_is_not_unparked(store: RedisStore) -> None:
    """Only more of it, or none at all, lets it go on; the refusal says so."""
    fence = run_root(store, BUDGET)
    store.charge(ROOT, fence, Spent(tokens=90), op="a")
    store.share_spending(ROOT, AgentId("c"), BORN, Spent(tokens=10))
    act(store, Park(fence=fence, cause="budget", reason="the tokens are used up"), ROOT)
    with pytest.raises(AgentParkedError, match="update root --budget") as caught:
        act(store, Unpark(actor="ann"), ROOT)
    assert caught.value.cause == "budget"
    act(store, Update(actor="ann", budget={"tokens": 101}), ROOT)
    act(store, Unpark(actor="ann"), ROOT)
    assert record_of(store, ROOT).spending.own.tokens == 90


def test_both_kinds_of_store_count_the_same(store: RedisStore) -> None:
    """Also from an event loop."""
    fence = run_root(store, BUDGET)

    async def spend() -> tuple[Spending, Spending | None]:
        loose = store.open_async()
        try:
            own = await loose.charge(ROOT, fence, Spent(tokens=1), op="a")
            return own, await loose.share_spending(ROOT, AgentId("c"), BORN, Spent(tokens=2))
        finally:
            await loose.aclose()

    own, above = asyncio.run(spend())
    assert own.own.tokens == 1
    assert above == record_of(store, ROOT).spending
    with pytest.raises(FencedError):
        asyncio.run(_charged_by(store, "1|nobody"))


async def _charged_by(store: RedisStore, fence: str) -> None:
    loose = store.open_async()
    try:
        await loose.charge(ROOT, fence, Spent(tokens=1), op="b")
    finally:
        await loose.aclose()


@pytest.mark.parametrize(
    ("stored", "kept"),
    [
        ('{"tokens":5,"pages":3,"usd":-1}', {"tokens": 5.0}),
        ('{"pages":3}', None),
        ('{"steps":2}', {"steps": 2.0}),
        ("7", None),
    ],
)
def test_budgets_of_older_versions_are_read_as_far_as_they_can_be(
    store: RedisStore, raw: redis.Redis, stored: str, kept: dict[str, float] | None
) -> None:
    """They took any, and held nobody to it; the limits follow with the next commit."""
    run(store)
    key = Keys(store.namespace, store.config.shards).agent(AGENT)
    raw.hset(key, "spec", f'{{"id":"{AGENT}","type":"counter","budget":{stored}}}')
    assert record_of(store).spec.budget == kept
    act(store, Stop(actor="ann"))
    limits = raw.hmget(key, "budget_tokens", "budget_usd", "budget_steps")
    wanted = [kept.get(name) if kept else None for name in ("tokens", "usd", "steps")]
    assert [None if limit is None else int(limit) for limit in limits] == wanted
