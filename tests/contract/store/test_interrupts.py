"""Questions of agents to people: asked once, decided once, whoever dies or decides at the same moment."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis

from ares_celery.errors import (
    AgentNotFoundError,
    EventTooLargeError,
    FencedError,
    InterruptLimitError,
    InterruptNotFoundError,
    InterruptOpenError,
    InterruptResolvedError,
    OperationIdReusedError,
    UnserialisableError,
)
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import AgentState
from ares_celery.model.command import Deadline, Delete, Release, Stop, Wait
from ares_celery.model.event import ReadOptions
from ares_celery.model.waits import InterruptState, Waiting, WaitKind
from ares_celery.store.base import CommitConflict
from ares_celery.store.interrupts import InterruptLook, Question, Ruling
from ares_celery.store.redis import interrupt_calls
from ares_celery.store.redis.keys import deadline_member
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, plan_for, record_of, run, take
from tests.key_leaks import keys_of_agent, leaked_keys
from tests.wait import wait_until

pytestmark = pytest.mark.contract

QUESTION = Question("deploy", "main", "approval:deploy", {"to": "prod"})


def ask(store: RedisStore, fence: str, question: Question = QUESTION) -> InterruptLook:
    """Asks as an incarnation."""
    return store.open_interrupt(AGENT, fence, question)


def decide(store: RedisStore, decision: str = "yes", name: str = "deploy", **more: Any) -> Ruling:
    """Decides as a person."""
    given: dict[str, Any] = {
        "answer": None,
        "interrupt_id": None,
        "actor": "eve",
        "reason": "looked",
        "op": uuid4().hex,
        **more,
    }
    return store.decide_interrupt(AGENT, name, decision=decision, **given)


def look(store: RedisStore, fence: str, found: InterruptLook, name: str = "deploy") -> InterruptLook:
    """Looks as the incarnation."""
    seen = store.look_interrupt(AGENT, fence, name, found.id)
    assert seen is not None
    return seen


def told(store: RedisStore) -> list[tuple[str, Any]]:
    """What the stream says of questions."""
    events = store.events.read(AGENT, ReadOptions())
    return [
        (event.type, event.payload.get("decision", event.payload.get("state")))
        for event in events
        if event.type.startswith("interrupt.")
    ]


def test_a_question_is_asked_once_for_its_step(store: RedisStore) -> None:
    """The same step finds it again in each life; the event is written once, in the same step as the question."""
    fence = run(store)
    first, again = ask(store, fence), ask(store, fence)
    assert first.id == again.id
    assert first.event is not None
    assert again.event is None
    assert (first.event.type, first.event.payload["interrupt_id"]) == ("interrupt.created", first.id)
    assert told(store) == [("interrupt.created", None)]
    act(store, Release(fence=fence))
    later = take(store, record_of(store).epoch, claimer="t2").record.fence
    assert ask(store, later).id == first.id
    (shown,) = store.interrupts(AGENT)
    assert (shown.id, shown.name, shown.execution, shown.state) == (first.id, "deploy", "main", "open")
    assert shown.payload == {"to": "prod"}


def test_the_first_decision_stands_and_the_second_hears_of_it(store: RedisStore) -> None:
    """Who, what and when; and nothing more is written."""
    fence = run(store)
    found = ask(store, fence)
    ruling = decide(store, "Approved", answer={"window": "now"})
    assert (ruling.interrupt.state, ruling.interrupt.decision, ruling.due) == ("resolved", "Approved", 0)
    seen = look(store, fence, found).decided
    assert seen is not None
    assert (seen.decision, seen.answer, seen.actor, seen.reason) == ("Approved", {"window": "now"}, "eve", "looked")
    before = record_of(store)
    with pytest.raises(InterruptResolvedError) as caught:
        decide(store, "no", actor="bob")
    assert (caught.value.decision, caught.value.actor, caught.value.state) == ("Approved", "eve", "resolved")
    assert caught.value.decided_at
    assert record_of(store) == before
    assert told(store) == [("interrupt.created", None), ("interrupt.resolved", "Approved")]
    assert [entry.operation for entry in store.audit(agent_id=AGENT, since=Instant(0), limit=10)][-1] == "approve"
    assert ask(store, fence).decided == seen


def test_of_decisions_at_the_same_moment_one_wins(store: RedisStore) -> None:
    """The others are told so."""
    fence = run(store)
    found = ask(store, fence)

    def one(number: int) -> str:
        try:
            return str(decide(store, f"word-{number}").interrupt.decision)
        except InterruptResolvedError as error:
            return f"too late: {error.decision}"

    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(one, range(8)))
    winner = look(store, fence, found).decided
    assert winner is not None
    assert sorted(said) == sorted([winner.decision, *[f"too late: {winner.decision}"] * 7])
    assert len(told(store)) == 2


def test_a_repeated_decision_is_the_first_outcome(store: RedisStore) -> None:
    """By its operation id; an id that was used for something else is refused."""
    fence = run(store)
    ask(store, fence)
    first, again = decide(store, op="o1"), decide(store, op="o1")
    assert (first.repeated, again.repeated) == (False, True)
    assert first.interrupt == again.interrupt
    act(store, Stop(actor="eve"), op="o2")
    with pytest.raises(OperationIdReusedError):
        decide(store, op="o2")


def test_what_is_not_asked_is_not_decided(store: RedisStore) -> None:
    """The error lists what is; a question that was replaced is not meant."""
    with pytest.raises(AgentNotFoundError):
        decide(store)
    fence = run(store)
    ask(store, fence)
    with pytest.raises(InterruptNotFoundError) as caught:
        decide(store, name="delpoy")
    assert caught.value.open == ["deploy"]
    with pytest.raises(InterruptNotFoundError, match="under another id"):
        decide(store, interrupt_id="0" * 32)
    assert store.interrupts(AgentId("nobody")) == []


def test_another_step_may_not_take_an_open_name_and_replaces_a_decided_one(store: RedisStore) -> None:
    """One question of a name is open; once it is decided, a new one has an id of its own and no decision yet."""
    fence = run(store)
    store.open_steps(AGENT, "main", fence=fence, op="o1")
    first = ask(store, fence)
    other = Question("deploy", "order-1", "approval:deploy")
    with pytest.raises(InterruptOpenError, match="'main'") as caught:
        ask(store, fence, other)
    assert "another name" in str(caught.value)
    inner = Question("deploy", "main", "inner/approval:deploy")
    with pytest.raises(InterruptOpenError):
        ask(store, fence, inner)
    decide(store)
    second = ask(store, fence, other)
    assert second.id != first.id
    assert second.decided is None
    assert store.look_interrupt(AGENT, fence, "deploy", first.id) is None


def test_a_question_whose_execution_is_over_is_given_up_for_a_new_one(store: RedisStore) -> None:
    """Nobody waits for its answer any more; the stream says so."""
    fence = run(store)
    store.open_steps(AGENT, "order-1", fence=fence, op="o1")
    ask(store, fence, Question("deploy", "order-1", "approval:deploy"))
    store.close_steps(AGENT, "order-1", fence=fence, op="o2", completed=True)
    second = ask(store, fence)
    assert second.decided is None
    kinds = [("interrupt.created", None), ("interrupt.resolved", "abandoned"), ("interrupt.created", None)]
    assert told(store) == kinds


def test_an_execution_that_is_begun_anew_asks_anew(store: RedisStore) -> None:
    """What was decided for the earlier one is not the answer."""
    fence = run(store)
    store.open_steps(AGENT, "main", fence=fence, op="o1")
    ask(store, fence)
    decide(store)
    store.close_steps(AGENT, "main", fence=fence, op="o2", completed=True)
    store.open_steps(AGENT, "main", fence=fence, op="o3", anew=True)
    assert ask(store, fence).decided is None


def test_what_nobody_decides_in_time_ends(store: RedisStore) -> None:
    """The waiter ends it, once; later decisions are told so, also before it has noticed."""
    fence = run(store)
    short = Question("deploy", "main", "approval:deploy", None, timedelta(milliseconds=30))
    found = ask(store, fence, short)
    assert found.expires_at - found.asked_at == 30_000
    wait_until(lambda: store.server_time() > found.expires_at, "the end")
    assert [one.state for one in store.interrupts(AGENT)] == [InterruptState.TIMEOUT]
    with pytest.raises(InterruptResolvedError, match="in time") as caught:
        decide(store)
    assert caught.value.state == "timeout"
    assert [event for event, _ in told(store)] == ["interrupt.created"]
    for _ in range(2):
        seen = look(store, fence, found).decided
        assert seen is not None
        assert seen.state is InterruptState.TIMEOUT
    assert told(store) == [("interrupt.created", None), ("interrupt.resolved", "timeout")]
    with pytest.raises(InterruptResolvedError, match="in time"):
        decide(store)


def test_a_decision_before_the_unloading_wins_inside_the_commit(store: RedisStore) -> None:
    """The waiter looked, somebody decided, and then the slot is given back: the next incarnation begins at once."""
    fence = run(store)
    seen = ask(store, fence)
    wait = Wait(fence=fence, waiting=Waiting(WaitKind.APPROVAL, "deploy", decisions=seen.decisions))
    read = store.read(AGENT)
    decide(store)
    with pytest.raises(CommitConflict):
        store.commit(plan_for(store, read, wait), read, op="o1")
    act(store, wait)
    assert record_of(store).state is AgentState.STARTING
    assert record_of(store).start_reason == "approval"


def test_a_decision_after_the_unloading_arms_the_deadline_that_brings_it_on(
    store: RedisStore, raw: redis.Redis
) -> None:
    """Elsewhere nothing is armed."""
    fence = run(store)
    seen = ask(store, fence)
    act(store, Wait(fence=fence, waiting=Waiting(WaitKind.APPROVAL, "deploy", decisions=seen.decisions)))
    assert record_of(store).state is AgentState.WAITING
    keys = store._bound.keys
    member, place = deadline_member(Deadline.APPROVAL, AGENT), keys.deadlines(keys.shard_of(AGENT))
    assert raw.zscore(place, member) is None
    ruling = decide(store)
    assert raw.zscore(place, member) == ruling.due > 0


def test_who_is_fenced_asks_nothing_and_sees_nothing(store: RedisStore) -> None:
    """The incarnation is over."""
    fence = run(store)
    found = ask(store, fence)
    act(store, Release(fence=fence))
    before = store.interrupts(AGENT)
    with pytest.raises(FencedError):
        ask(store, fence, Question("more", "main", "approval:more"))
    with pytest.raises(FencedError):
        store.look_interrupt(AGENT, fence, "deploy", found.id)
    assert store.interrupts(AGENT) == before


def test_what_cannot_be_kept_is_refused(store: RedisStore) -> None:
    """Nothing is asked or decided then."""
    fence = run(store)
    big = "x" * (store.config.max_event_bytes + 1)
    with pytest.raises(UnserialisableError):
        ask(store, fence, Question("deploy", "main", "s", {"set": {1}}))
    with pytest.raises(EventTooLargeError):
        ask(store, fence, Question("deploy", "main", "s", big))
    assert store.interrupts(AGENT) == []
    ask(store, fence)
    with pytest.raises(UnserialisableError):
        decide(store, answer={1})
    with pytest.raises(EventTooLargeError):
        decide(store, answer=big)
    assert [one.state for one in store.interrupts(AGENT)] == ["open"]


def test_questions_are_bounded(store: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many open ones, and so many decided ones that are kept; a payload is not kept behind its decision."""
    monkeypatch.setattr(interrupt_calls, "MOST_OPEN", 4)
    monkeypatch.setattr(interrupt_calls, "MOST_DECIDED", 4)
    fence = run(store)
    for number in range(40):
        ask(store, fence, Question(f"q{number}", "main", f"approval:q{number}", "p" * 100))
        decide(store, name=f"q{number}")
    kept = store.interrupts(AGENT)
    assert len(kept) <= 8
    assert "q39" in {one.name for one in kept}
    assert {one.payload for one in kept} == {None}
    for number in range(4):
        ask(store, fence, Question(f"open{number}", "main", f"approval:open{number}"))
    with pytest.raises(InterruptLimitError, match="'one more' was not asked"):
        ask(store, fence, Question("one more", "main", "approval:one more"))
    assert raw.hlen(store._bound.keys.interrupts(AGENT)) <= 20


@pytest.mark.parametrize("name", ["a|b", "x y", "ü", "d|a", 'q"', "%7C/"])
def test_any_name_comes_back_as_it_was(store: RedisStore, name: str) -> None:
    """Marks that fields are made of, too; in executions and steps as well."""
    fence = run(store)
    ask(store, fence, Question(name, f"e/{name}", f"s/{name}", {"p": "a|b\n|c"}))
    (shown,) = store.interrupts(AGENT)
    assert (shown.name, shown.execution, shown.payload) == (name, f"e/{name}", {"p": "a|b\n|c"})
    assert decide(store, name=name, answer="x|y").interrupt.answer == "x|y"


def test_an_agent_takes_its_questions_with_it(store: RedisStore, raw: redis.Redis) -> None:
    """None stays behind one that was deleted."""
    fence = run(store)
    ask(store, fence)
    act(store, Stop(force=True, actor="eve"))
    assert leaked_keys(raw, store.namespace) == []
    wait_until(lambda: store.server_time() > record_of(store).claimable_after, "the lease's end", timeout=15)
    act(store, Delete(actor="eve"))
    assert [key for key in keys_of_agent(raw, store.namespace, AGENT) if "interrupts" in key] == []


def test_the_same_on_an_event_loop(store: RedisStore) -> None:
    """Awaited calls do what the others do."""
    fence = run(store)

    async def scene() -> None:
        loop_store = store.open_async()
        try:
            found = await loop_store.open_interrupt(AGENT, fence, QUESTION)
            assert (await loop_store.open_interrupt(AGENT, fence, QUESTION)).id == found.id
            assert (await loop_store.look_interrupt(AGENT, fence, "deploy", found.id) or found).decided is None
            decide(store)
            seen = await loop_store.look_interrupt(AGENT, fence, "deploy", found.id)
            assert seen is not None
            assert seen.decided is not None
            assert abs(await loop_store.server_time() - store.server_time()) < 5_000_000
        finally:
            await loop_store.aclose()

    asyncio.run(scene())
