"""Settling a step whose outcome nobody knows: once, by one person, whoever dies meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from typing_extensions import override

from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotParkedError,
    AresError,
    OperationIdReusedError,
    StepIntentNotFoundError,
    StepResultTooLargeError,
    StepSettledError,
    StoreUnavailableError,
    UnreadableCheckpointError,
    UnserialisableError,
)
from ares_celery.ids import AgentId
from ares_celery.model.command import Deadline, Delete, MarkRunning, Park, Reconcile
from ares_celery.model.settlement import Done, Settlement
from ares_celery.model.step import StepIntent, StepRecord
from ares_celery.store.base import DueDeadline
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.settling_calls import MOST_SETTLEMENTS
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, record_of, run, run_namespace, take
from tests.contract.store.backends import Backend, LosingDriver
from tests.key_leaks import keys_of_agent, leaked_keys

pytestmark = pytest.mark.contract


class LosingScripts(LosingDriver):
    """Loses the answer to the next script, and not to a look before it."""

    loses_scripts = False

    @override
    def execute_command(self, *args: Any) -> Any:
        if self.loses_scripts and args[0] == "EVALSHA":
            self.loses_scripts, self.lose_next = False, True
        return super().execute_command(*args)


class Overtaken(LosingDriver):
    """Lets something happen between the look at a step and the script that settles it."""

    meanwhile: Callable[[], object] | None = None

    @override
    def execute_command(self, *args: Any) -> Any:
        if self.meanwhile is not None and args[0] == "EVALSHA":
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().execute_command(*args)


def begin(store: RedisStore, fence: str, *steps: str, execution: str = "e1") -> None:
    """Steps that must not be repeated are begun."""
    store.open_steps(AGENT, execution, fence=fence, op=uuid4().hex)
    for step in steps:
        intent = StepIntent(execution, step, "charge", "never", {"args": [5], "kwargs": {}}, 1)
        store.record_intent(AGENT, fence, execution, intent, op=uuid4().hex)


def park(store: RedisStore, *steps: str) -> str:
    """An agent that is parked in the middle of steps; gives the fence that it had."""
    fence = run(store)
    begin(store, fence, *(steps or ("pay",)))
    act(store, Park("pay?", fence=fence, cause="reconcile"))
    # The look that follows every parking: nothing is settled yet.
    for deadline in of_kind(store, Deadline.RECONCILE):
        act(store, Reconcile(), guard=deadline)
    return fence


def say(
    store: RedisStore,
    step: str = "pay",
    done: Done | None = None,
    *,
    op: str = "",
    actor: str = "ann",
    name: str = "e1",
) -> Settlement:
    """Ann says what became of a step."""
    return store.settle_intent(AGENT, name, step, done=done, actor=actor, reason="looked it up", op=op or uuid4().hex)


def of_kind(store: RedisStore, kind: Deadline) -> list[DueDeadline]:
    """The deadlines of a kind that have passed."""
    return [deadline for shard in store.due() for deadline in shard.due if deadline.kind is kind]


def everything(store: RedisStore, raw: redis.Redis) -> dict[str, Any]:
    """All that is stored of the agent, to be compared."""
    client: Any = raw
    dumped = {key: client.dump(key) for key in keys_of_agent(raw, store.namespace, AGENT)}
    return {**dumped, "audit": len(store.audit())}


def test_a_step_that_happened_gets_its_record_once_with_event_audit_entry_and_deadline(store: RedisStore) -> None:
    """All in one step: the next life returns what the person said, as if the step had."""
    park(store)
    before = record_of(store)

    settled = say(store, done=Done({"paid": [True, None, 1.5]}), op="op-1")

    record = record_of(store)
    assert (record.intents, record.spent_steps, record.version) == (0, before.spent_steps + 1, before.version + 1)
    assert store.checkpoints.intents(AGENT) == ()
    (recorded,) = store.checkpoints.steps(AGENT, "e1")
    assert (recorded.id, recorded.function, recorded.replay, recorded.value, recorded.actor, recorded.error) == (
        *("pay", "charge", "never", {"paid": [True, None, 1.5]}, "ann"),
        None,
    )
    assert (recorded.number, recorded.time, recorded.attempts) == (1, settled.time, 1)
    event = store.events.read(AGENT)[-1]
    assert (event.type, event.version, event.epoch) == ("step.reconciled", record.version, 0)
    assert event.payload == {
        "agent_id": AGENT,
        "execution": "e1",
        "step": "pay",
        "function": "charge",
        "replay": "never",
        "outcome": "done",
        "actor": "ann",
        "reason": "looked it up",
    }
    entry = store.audit(agent_id=AGENT)[-1]
    assert (entry.operation, entry.actor, entry.reason, entry.op) == ("reconcile", "ann", "looked it up", "op-1")
    assert (entry.state, entry.changed) == ("parked", ("done", "e1", "pay"))
    assert [deadline.agent_id for deadline in of_kind(store, Deadline.RECONCILE)] == [AGENT]
    assert settled == store.settlements(AGENT)[0]
    assert settled == Settlement("e1", "pay", "done", "ann", "looked it up", "charge", "op-1", settled.time)


def test_a_step_that_did_not_happen_is_forgotten_so_that_it_runs_again(store: RedisStore) -> None:
    """Nothing is recorded; the next incarnation may begin it anew."""
    park(store)
    assert say(store).outcome == "retry"
    assert (record_of(store).intents, store.checkpoints.steps(AGENT, "e1")) == (0, ())
    assert store.events.read(AGENT)[-1].payload["outcome"] == "retry"
    act(store, Reconcile())
    fence = take(store, record_of(store).epoch, claimer="t2").record.fence
    act(store, MarkRunning(fence=fence))
    begin(store, fence, "pay")
    assert record_of(store).intents == 1


def test_the_next_life_finds_what_the_person_said_and_numbers_on_behind_it(store: RedisStore) -> None:
    """The record is one like any other."""
    park(store)
    say(store, done=Done(None))
    act(store, Reconcile())
    fence = take(store, record_of(store).epoch, claimer="t2").record.fence
    act(store, MarkRunning(fence=fence))
    opened = store.open_steps(AGENT, "e1", fence=fence, op="o")
    assert (opened.steps["pay"].value, opened.steps["pay"].actor) == (None, "ann")
    begun = store.record_intent(AGENT, fence, "e1", StepIntent("e1", "pay", "charge"), op="o2")
    assert begun.record is not None
    written = store.record_step(AGENT, fence, "e1", StepRecord("next", "f", "safe", 1), op="o3")
    assert written.record.number == 2


def test_only_with_the_last_one_the_agent_goes_on(store: RedisStore) -> None:
    """Until then nothing is due."""
    park(store, "one", "two")
    say(store, "one")
    assert (record_of(store).intents, of_kind(store, Deadline.RECONCILE)) == (1, [])
    say(store, "two")
    assert len(of_kind(store, Deadline.RECONCILE)) == 1


def test_whoever_comes_second_is_told_who_was_first_and_what_was_said(store: RedisStore, raw: redis.Redis) -> None:
    """While it is parked still, and when it runs long since; nothing is changed."""
    park(store, "pay", "other")
    first = say(store, done=Done(1))
    before = everything(store, raw)
    for _ in range(2):
        with pytest.raises(StepSettledError) as told:
            say(store, actor="bob")
        error = told.value
        assert (error.step, error.execution, error.outcome, error.actor) == ("pay", "e1", "done", "ann")
        assert error.reason == "looked it up"
        assert str(error.time)[:4] in str(error)
        assert everything(store, raw) == before
        if record_of(store).intents:
            say(store, "other")
            act(store, Reconcile())
            before = everything(store, raw)
    assert store.settlements(AGENT)[-1] == first


def test_of_two_at_once_one_wins(store: RedisStore) -> None:
    """The script compares and writes; the other one is told."""
    park(store)

    def one(number: int) -> Settlement | AresError:
        try:
            return say(store, done=Done(number), actor=f"p{number}")
        except StepSettledError as error:
            return error

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, range(4)))
    (won,) = [result for result in results if isinstance(result, Settlement)]
    assert [r.actor for r in results if isinstance(r, StepSettledError)] == [won.actor] * 3
    (recorded,) = store.checkpoints.steps(AGENT, "e1")
    assert f"p{recorded.value}" == won.actor
    assert (len(store.settlements(AGENT)), record_of(store).intents) == (1, 0)


@pytest.mark.parametrize("said", [Done(1), None], ids=["done", "retry"])
def test_who_has_looked_before_somebody_else_settled_it_is_told(backend: Backend, said: Done | None) -> None:
    """The script compares what it finds with what was read: nothing is settled, or counted, twice."""
    driver, other = Overtaken(backend.client()), backend.open()
    store = run_namespace(backend.open(driver=driver))
    park(store, "pay", "other")
    driver.meanwhile = lambda: say(other, actor="bob")
    with pytest.raises(StepSettledError) as told:
        say(store, done=said)
    assert (told.value.actor, told.value.outcome) == ("bob", "retry")
    assert (record_of(store).intents, len(store.settlements(AGENT))) == (1, 1)
    assert (store.checkpoints.steps(AGENT, "e1"), of_kind(store, Deadline.RECONCILE)) == ((), [])


def test_a_word_on_a_step_that_was_begun_anew_meanwhile_is_said_of_what_is_there(backend: Backend) -> None:
    """Another life may have begun it again between the look and the write: it is looked at again, then settled."""
    driver, other = Overtaken(backend.client()), backend.open()
    store = run_namespace(backend.open(driver=driver))
    park(store)
    (first,) = store.checkpoints.intents(AGENT)

    def begin_anew() -> None:
        say(other, actor="bob")
        act(other, Reconcile())
        fence = take(other, record_of(other).epoch, claimer="t2").record.fence
        act(other, MarkRunning(fence=fence))
        begin(other, fence, "pay")
        assert other.checkpoints.intents(AGENT)[0].time > first.time
        act(other, Park("pay?", fence=fence, cause="reconcile"))

    driver.meanwhile = begin_anew
    assert say(store, done=Done(1)).outcome == "done"
    assert [one.actor for one in store.settlements(AGENT)] == ["ann", "bob"]
    assert record_of(store).intents == 0


def test_a_repeat_with_the_same_op_gets_the_first_outcome(store: RedisStore, raw: redis.Redis) -> None:
    """A message that comes twice acts once; with other words it is refused."""
    park(store)
    first = say(store, done=Done(1), op="task-1")
    before = everything(store, raw)
    assert say(store, done=Done(1), op="task-1") == first
    with pytest.raises(OperationIdReusedError):
        say(store, op="task-1")
    assert everything(store, raw) == before


def test_a_late_repeat_settles_no_step_that_was_begun_meanwhile(store: RedisStore) -> None:
    """What was let run again is in the air again; the old word is not about that."""
    park(store)
    first = say(store, op="task-1")
    act(store, Reconcile())
    fence = take(store, record_of(store).epoch, claimer="t2").record.fence
    act(store, MarkRunning(fence=fence))
    begin(store, fence, "pay")
    act(store, Park("pay?", fence=fence, cause="reconcile"))
    assert say(store, op="task-1") == first
    assert record_of(store).intents == 1
    assert say(store, done=Done(2)).outcome == "done"


def test_a_lost_reply_is_asked_for_again(backend: Backend) -> None:
    """The step is settled; the same op finds that out."""
    driver = LosingScripts(backend.client())
    store = run_namespace(backend.open(driver=driver))
    park(store)
    driver.loses_scripts = True
    with pytest.raises(StoreUnavailableError):
        say(store, done=Done(1), op="op-1")
    assert say(store, done=Done(1), op="op-1").outcome == "done"
    assert (len(store.checkpoints.steps(AGENT, "e1")), len(store.settlements(AGENT))) == (1, 1)


def test_nobody_is_asked_about_an_agent_that_is_not_parked(store: RedisStore, raw: redis.Redis) -> None:
    """Its own incarnation may still say it; nothing is changed."""
    with pytest.raises(AgentNotFoundError):
        say(store)
    fence = run(store)
    begin(store, fence, "pay")
    before = everything(store, raw)
    for step in ("pay", "unknown"):
        with pytest.raises(AgentNotParkedError, match="is running, not parked") as refused:
            say(store, step)
        assert "unpark" not in str(refused.value)
    assert everything(store, raw) == before


def test_an_unknown_step_is_refused_with_those_that_are_open(store: RedisStore, raw: redis.Redis) -> None:
    """By step and by execution."""
    park(store, "pay")
    before = everything(store, raw)
    for step, execution in (("typo", "e1"), ("pay", "e2")):
        with pytest.raises(StepIntentNotFoundError, match=r"open are step 'pay' of execution 'e1' \(charge\)") as found:
            say(store, step, name=execution)
        assert found.value.open == [{"execution": "e1", "step": "pay"}]
    assert everything(store, raw) == before


@pytest.mark.parametrize(
    ("value", "error"),
    [({1}, UnserialisableError), ("x" * 2000, StepResultTooLargeError), (float("nan"), UnserialisableError)],
)
def test_a_result_that_cannot_be_recorded_settles_nothing(
    backend: Backend, value: object, error: type[AresError]
) -> None:
    """The agent stays parked, with the step to be settled."""
    config = RuntimeConfig(shards=2, max_event_bytes=1000)
    store = run_namespace(backend.open(config))
    park(store)
    before = everything(store, backend.client())
    with pytest.raises(error):
        say(store, done=Done(value))
    assert everything(store, backend.client()) == before


def test_what_cannot_be_read_can_only_run_again(store: RedisStore, raw: redis.Redis) -> None:
    """Nobody knows what it called; it does not keep the agent parked for ever."""
    park(store)
    raw.hset(Keys(store.namespace, store.config.shards).intents(AGENT), "e1|pay", b"12|{not json")
    with pytest.raises(UnreadableCheckpointError, match="--retry"):
        say(store, done=Done(1))
    assert say(store).outcome == "retry"
    assert record_of(store).intents == 0


def test_the_word_on_a_step_of_an_execution_that_is_gone_leaves_nothing_behind(
    store: RedisStore, raw: redis.Redis
) -> None:
    """It has no use for a record; the agent goes on."""
    fence = run(store)
    begin(store, fence, "pay")
    act(store, Park("pay?", fence=fence, cause="reconcile"))
    key = Keys(store.namespace, store.config.shards).checkpoint(AGENT, "e1")
    raw.delete(key)
    say(store, done=Done(1))
    assert not raw.exists(key)
    assert record_of(store).intents == 0


def test_ids_and_texts_of_any_kind_are_settled(store: RedisStore) -> None:
    """Bars, percents, other alphabets; half surrogates and novels in a reason."""
    fence = run(store)
    begin(store, fence, "outer/in|ner%7C:ü", execution="msg:a|b %")
    act(store, Park("pay?", fence=fence, cause="reconcile"))
    told = store.settle_intent(
        AGENT, "msg:a|b %", "outer/in|ner%7C:ü", done=Done("ü"), actor="ann\ud800", reason="y" * 9_000, op="o"
    )
    assert (told.actor, len(told.reason)) == ("ann\\ud800", 1_000)
    (recorded,) = store.checkpoints.steps(AGENT, "msg:a|b %")
    assert (recorded.id, recorded.value) == ("outer/in|ner%7C:ü", "ü")


def test_what_was_settled_is_kept_bounded_and_ends_with_the_agent(backend: Backend) -> None:
    """The newest hundred, for as long as finished executions; nothing outlives the agent."""
    config = RuntimeConfig(shards=2, checkpoint_retention=timedelta(hours=3))
    store, raw = run_namespace(backend.open(config)), backend.client()
    park(store, *(f"s{number}" for number in range(MOST_SETTLEMENTS + 5)))
    for number in range(MOST_SETTLEMENTS + 5):
        say(store, f"s{number}")
    settled = store.settlements(AGENT)
    assert [settled[0].step, settled[-1].step, len(settled)] == ["s104", "s5", 100]
    assert 10_790 < raw.ttl(Keys(store.namespace, 2).settled(AGENT)) <= 10_800
    assert leaked_keys(raw, store.namespace) == []
    act(store, Delete())
    # What remembers the outcome of an operation ends by itself.
    assert [key for key in keys_of_agent(raw, store.namespace, AGENT) if ":op:" not in key] == []
    assert store.settlements(AgentId(AGENT)) == ()


def test_the_settlement_of_a_newer_version_is_read(store: RedisStore, raw: redis.Redis) -> None:
    """Its new fields are left out."""
    newer = {"execution": "e1", "step": "s", "outcome": "done", "actor": "ann", "colour": "red"}
    raw.lpush(Keys(store.namespace, store.config.shards).settled(AGENT), b"17|" + json.dumps(newer).encode())
    (settled,) = store.settlements(AGENT)
    assert (settled.step, settled.actor, settled.time) == ("s", "ann", 17)
