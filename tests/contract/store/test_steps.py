"""Durable steps: recorded once behind the fence, read in one go, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Protocol, TypeVar, cast
from uuid import uuid4

import pytest
import redis

from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentNotFoundError,
    EventTooLargeError,
    ExecutionStateError,
    FencedError,
    InvalidStepIdError,
    StepLimitError,
    StepOutcomeUnknownError,
    StepResultTooLargeError,
    StepsUnsettledError,
    StoreUnavailableError,
    UnreadableCheckpointError,
    UnserialisableError,
    VersionConflictError,
)
from ares_celery.ids import AgentId, Version
from ares_celery.model.command import Die, MarkRunning
from ares_celery.model.event import NewEvent
from ares_celery.model.execution import Acquire, Create, Execution, ExecutionState, Fail, RetryPolicy, Save, Start
from ares_celery.model.message import DeadReason
from ares_celery.model.step import MOST_STEPS, StepIntent, StepRecord
from ares_celery.store.base import InboxMessage, Reply
from ares_celery.store.redis.incarnation_store import AsyncRedisIncarnationStore
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from ares_celery.store.steps import Begun, OpenExecution, Recorded
from tests.contract.store.acting import AGENT, act, append, claim, record_of, run, run_namespace, take
from tests.contract.store.backends import Backend, LosingDriver
from tests.key_leaks import keys_of_agent, leaked_keys

pytestmark = pytest.mark.contract

S = ExecutionState
T = TypeVar("T")


class Steps(Protocol):
    """The writes of an incarnation, as a test calls them."""

    def open(self, fence: str, name: str = "e1", *, anew: bool = False) -> OpenExecution:
        """Opens an execution."""
        ...

    def record(
        self, fence: str, record: StepRecord, name: str = "e1", *, closes_intent: bool = False, told: bool = True
    ) -> Recorded:
        """Records a step."""
        ...

    def begin(self, fence: str, intent: StepIntent, name: str = "e1") -> Begun:
        """Notes an intent."""
        ...

    def close(self, fence: str, name: str = "e1", *, completed: bool, op: str = "") -> Execution | None:
        """Closes an execution."""
        ...


class OfThreads:
    """Through the store for threads."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def open(self, fence: str, name: str = "e1", *, anew: bool = False) -> OpenExecution:
        return self._store.open_steps(AGENT, name, fence=fence, op=uuid4().hex, anew=anew)

    def record(
        self, fence: str, record: StepRecord, name: str = "e1", *, closes_intent: bool = False, told: bool = True
    ) -> Recorded:
        return self._store.record_step(
            AGENT, fence, name, record, op=uuid4().hex, closes_intent=closes_intent, told=told, took_ms=7
        )

    def begin(self, fence: str, intent: StepIntent, name: str = "e1") -> Begun:
        return self._store.record_intent(AGENT, fence, name, intent, op=uuid4().hex)

    def close(self, fence: str, name: str = "e1", *, completed: bool, op: str = "") -> Execution | None:
        return self._store.close_steps(AGENT, name, fence=fence, op=op or uuid4().hex, completed=completed)


class OfALoop:
    """Through the store for an event loop."""

    def __init__(self, store: AsyncRedisIncarnationStore, run_on_loop: Callable[[Awaitable[Any]], Any]) -> None:
        self.twin = store
        self.run: Callable[[Awaitable[Any]], Any] = run_on_loop

    def open(self, fence: str, name: str = "e1", *, anew: bool = False) -> OpenExecution:
        return cast(
            "OpenExecution", self.run(self.twin.open_steps(AGENT, name, fence=fence, op=uuid4().hex, anew=anew))
        )

    def record(
        self, fence: str, record: StepRecord, name: str = "e1", *, closes_intent: bool = False, told: bool = True
    ) -> Recorded:
        written = self.twin.record_step(
            AGENT, fence, name, record, op=uuid4().hex, closes_intent=closes_intent, told=told, took_ms=7
        )
        return cast("Recorded", self.run(written))

    def begin(self, fence: str, intent: StepIntent, name: str = "e1") -> Begun:
        return cast("Begun", self.run(self.twin.record_intent(AGENT, fence, name, intent, op=uuid4().hex)))

    def close(self, fence: str, name: str = "e1", *, completed: bool, op: str = "") -> Execution | None:
        closed = self.twin.close_steps(AGENT, name, fence=fence, op=op or uuid4().hex, completed=completed)
        return cast("Execution | None", self.run(closed))


@pytest.fixture(params=["threads", "loop"])
def steps(request: pytest.FixtureRequest, store: RedisStore) -> Iterator[Steps]:
    """Both ways to write, on both servers."""
    if request.param == "threads":
        yield OfThreads(store)
        return
    twin = store.open_async()
    loop = asyncio.new_event_loop()
    yield OfALoop(twin, loop.run_until_complete)
    loop.run_until_complete(twin.aclose())
    loop.close()


def step(step_id: str = "s1", value: Any = None, *, replay: str = "safe", **more: Any) -> StepRecord:
    """What a step came to."""
    return StepRecord(step_id, "fetch", replay, value, **more)


def intent(step_id: str = "pay", **more: Any) -> StepIntent:
    """A step that must not be repeated is begun."""
    return StepIntent("e1", step_id, "charge", "never", {"args": [5], "kwargs": {}}, 1, **more)


def next_life(store: RedisStore) -> str:
    """The incarnation dies with its process, and the next one runs; gives its fence."""
    act(store, Die("process lost", epoch=record_of(store).epoch, proof=True))
    fence = take(store, record_of(store).epoch, claimer="t2").record.fence
    act(store, MarkRunning(fence=fence))
    return fence


def told(store: RedisStore, kind: str) -> list[Mapping[str, Any]]:
    """The payloads of the agent's events of a type."""
    return [event.payload for event in store.events.read(AGENT) if event.type == kind]


def keys_of(store: RedisStore) -> Keys:
    """Its keys."""
    return Keys(store.namespace, store.config.shards)


def test_a_step_is_recorded_once_and_read_again(store: RedisStore, steps: Steps) -> None:
    """Value, number, time, event and spent steps; the next incarnation reads what was recorded."""
    fence = run(store)
    opened = steps.open(fence)
    assert (opened.execution.state, opened.execution.fence, dict(opened.steps)) == (S.RUNNING, fence, {})
    first = steps.record(fence, step("s1", {"rows": [1, 2.5, None, "ä"]}))
    assert (first.is_own, first.steps_spent, first.version) == (True, 1, store.events.stream_version(AGENT))
    assert (first.record.value, first.record.number) == ({"rows": [1, 2.5, None, "ä"]}, 1)
    second = steps.record(fence, step("outer/inner|x", "y", replay="keyed", attempts=3))
    assert (second.steps_spent, second.version) == (2, (first.version or 0) + 1)
    assert told(store, "step.completed") == [
        {
            "agent_id": AGENT,
            "execution": "e1",
            "step": one.record.id,
            "function": "fetch",
            "replay": one.record.replay,
            "attempts": one.record.attempts,
            "took_ms": 7,
        }
        for one in (first, second)
    ]
    assert store.checkpoints.steps(AGENT, "e1") == (first.record, second.record)
    record = record_of(store)
    assert (record.spent_steps, record.last_progress) == (2, second.record.time)
    assert record.version == second.version
    assert append(store, fence, 1, expected=record.version) == [record.version + 1]
    new = next_life(store)
    store.checkpoints.recover(AGENT, fence=new, op="r")
    again = steps.open(new)
    assert (again.execution.state, again.execution.fence) == (S.RUNNING, new)
    assert dict(again.steps) == {one.record.id: one.record for one in (first, second)}
    assert "s2" not in again.steps
    assert record_of(store).spent_steps == 2


def test_the_first_record_of_a_step_stands(store: RedisStore, steps: Steps) -> None:
    """A repeat is the same again, another value is refused by what is there; neither counts nor tells."""
    fence = run(store)
    steps.open(fence)
    first = steps.record(fence, step("s1", 1))
    version = store.events.stream_version(AGENT)
    repeated = steps.record(fence, step("s1", 1))
    assert (repeated.record, repeated.version, repeated.steps_spent, repeated.is_own) == (first.record, None, 1, True)
    other = steps.record(fence, step("s1", 2))
    assert (other.record, other.version, other.steps_spent, other.is_own) == (first.record, None, 1, False)
    assert store.events.stream_version(AGENT) == version
    assert store.checkpoints.steps(AGENT, "e1") == (first.record,)


def test_an_event_of_the_agent_is_stored_with_the_record_or_not_at_all(store: RedisStore) -> None:
    """It takes the place of the runtime's own, also where those are off; a repeat stores nothing."""
    store.set_config({"step_events": False})
    fence = run(store)
    store.open_steps(AGENT, "e1", fence=fence, op="o")
    event = NewEvent("refunded", {"amount": 5}, {"by": "ann"}, "event-1")
    first = store.record_step(AGENT, fence, "e1", step("tell"), op="r", event=event)
    assert first.event is not None
    assert (first.event.id, first.event.version, first.event.payload) == ("event-1", first.version, {"amount": 5})
    assert store.events.read(AGENT)[-1] == first.event
    again = store.record_step(AGENT, fence, "e1", step("tell"), op="r", event=event)
    assert (again.event, again.version, again.is_own) == (None, None, True)
    version = store.events.stream_version(AGENT)
    large = NewEvent("refunded", {"amount": "x" * (1 << 20)})
    with pytest.raises(EventTooLargeError):
        store.record_step(AGENT, fence, "e1", step("s2"), op="r2", event=large)
    next_life(store)
    with pytest.raises(FencedError):
        store.record_step(AGENT, fence, "e1", step("s2"), op="r2", event=event)
    assert [record.id for record in store.checkpoints.steps(AGENT, "e1")] == ["tell"]
    assert [one.type for one in store.events.read(AGENT) if one.version >= version].count("refunded") == 1


def test_an_answer_that_was_lost_is_asked_for_again(backend: Backend) -> None:
    """The write took effect; the same again finds it and changes nothing."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(driver=driver))
    fence = run(store)
    store.open_steps(AGENT, "e1", fence=fence, op="o")
    driver.lose_next = True
    with pytest.raises(StoreUnavailableError):
        store.record_step(AGENT, fence, "e1", step("s1", 1), op="r")
    again = store.record_step(AGENT, fence, "e1", step("s1", 1), op="r")
    assert (again.record.value, again.steps_spent, again.is_own) == (1, 1, True)
    driver.lose_next = True
    with pytest.raises(StoreUnavailableError):
        store.record_intent(AGENT, fence, "e1", intent(), op="i")
    assert store.record_intent(AGENT, fence, "e1", intent(), op="i").record is None
    driver.lose_next = True
    with pytest.raises(StoreUnavailableError):
        store.close_steps(AGENT, "e1", fence=fence, op="c", completed=True)
    closed = store.close_steps(AGENT, "e1", fence=fence, op="c", completed=True)
    assert closed is not None
    assert closed.state is S.COMPLETED
    assert (len(told(store, "step.completed")), len(told(store, "step.started"))) == (1, 1)
    assert (len(told(store, "execution.completed")), record_of(store).intents) == (1, 1)


def test_a_call_is_one_round_trip_and_an_opening_two(backend: Backend) -> None:
    """And an execution that this incarnation has open already costs one."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(driver=driver))
    fence = run(store)

    def sent(call: Callable[[], object]) -> int:
        call()
        before = driver.sent
        call()
        return driver.sent - before

    names = iter(("a", "b"))
    assert sent(lambda: store.open_steps(AGENT, next(names), fence=fence, op=uuid4().hex)) == 2
    assert sent(lambda: store.open_steps(AGENT, "a", fence=fence, op=uuid4().hex)) == 1
    assert sent(lambda: store.record_step(AGENT, fence, "a", step(uuid4().hex), op="r")) == 1
    assert sent(lambda: store.record_intent(AGENT, fence, "a", intent(uuid4().hex), op="i")) == 1


def test_a_fenced_incarnation_records_nothing(store: RedisStore, steps: Steps) -> None:
    """Whatever it tries; also what no incarnation ever was."""
    old = run(store)
    steps.open(old)
    new = next_life(store)
    version = store.events.stream_version(AGENT)
    for write in (
        lambda: steps.open(old),
        lambda: steps.record(old, step()),
        lambda: steps.begin(old, intent()),
        lambda: steps.close(old, completed=True),
        lambda: steps.record("", step()),
        lambda: steps.open("7"),
    ):
        with pytest.raises(FencedError):
            write()
    assert (store.checkpoints.steps(AGENT, "e1"), store.checkpoints.intents(AGENT)) == ((), ())
    assert (store.events.stream_version(AGENT), record_of(store).intents) == (version, 0)
    assert steps.open(new).execution.fence == new, "also when nobody has given it back"


def test_a_store_that_came_back_older_is_noticed(store: RedisStore, raw: redis.Redis, steps: Steps) -> None:
    """It holds less than the writer has seen acknowledged: nothing is written, and the writer learns it."""
    fence = run(store)
    steps.open(fence)
    seen = append(store, fence, 1, 2, expected=store.events.stream_version(AGENT))[-1]
    raw.hset(keys_of(store).agent(AGENT), mapping={"version": str(seen - 1)})
    twin: Any = steps.twin if isinstance(steps, OfALoop) else store
    wait: Callable[[Any], Any] = steps.run if isinstance(steps, OfALoop) else lambda answer: answer
    writes: list[tuple[Any, Any]] = [(twin.record_step, step()), (twin.record_intent, intent())]
    for write, what in writes:
        for expected in (Version(seen), Version(seen + 1)):
            with pytest.raises(VersionConflictError) as conflict:
                wait(write(AGENT, fence, "e1", what, op=uuid4().hex, expected=expected))
            assert (conflict.value.rolled_back, conflict.value.actual) == (True, seen - 1)
    assert (store.checkpoints.steps(AGENT, "e1"), store.checkpoints.intents(AGENT)) == ((), ())
    raw.hset(keys_of(store).agent(AGENT), mapping={"version": str(seen)})
    written = wait(twin.record_step(AGENT, fence, "e1", step(), op="r", expected=Version(seen)))
    assert written.version == seen + 1


def test_steps_are_of_a_running_execution_that_was_opened(store: RedisStore, steps: Steps) -> None:
    """Not of one that is not there, was closed, given back, or is held by another incarnation."""
    fence = run(store)
    with pytest.raises(ExecutionStateError, match="'e1' of agent 'counter-1' is not there: step 's1' is refused"):
        steps.record(fence, step())
    steps.open(fence)
    steps.close(fence, completed=False)
    with pytest.raises(ExecutionStateError, match="is ready"):
        steps.record(fence, step())
    steps.open(fence)
    new = next_life(store)
    with pytest.raises(ExecutionStateError, match="is running"):
        steps.begin(new, intent())
    with pytest.raises(ExecutionStateError, match="is running"):
        steps.record(new, step())
    store.checkpoints.apply(AGENT, "leased", Create(), Acquire(), fence=new, op="l")
    for write in (lambda: steps.record(new, step(), "leased"), lambda: steps.begin(new, intent(), "leased")):
        with pytest.raises(ExecutionStateError, match="is leased"):
            write()
    assert steps.open(new, "leased").execution.state is S.RUNNING
    steps.open(new)
    steps.record(new, step("s1", 1))
    done = steps.close(new, completed=True)
    assert done is not None
    assert done.state is S.COMPLETED
    with pytest.raises(ExecutionStateError, match="is completed"):
        steps.record(new, step("s2"))
    opened = steps.open(new)
    assert (opened.execution.state, opened.steps["s1"].value) == (S.COMPLETED, 1)
    closed = steps.close(new, completed=True)
    assert closed is not None
    assert replace(closed, now=opened.execution.now) == opened.execution
    with pytest.raises(AgentNotFoundError):
        store.open_steps(AgentId("nobody"), "e1", fence="7|t", op="o")


def test_closing_gives_back_or_completes(store: RedisStore, steps: Steps) -> None:
    """One event for the completion, none for a release; a repeat changes nothing."""
    fence = run(store)
    assert steps.close(fence, completed=True) is None
    steps.open(fence)
    released = steps.close(fence, completed=False)
    assert released is not None
    assert (released.state, released.fence, released.attempts) == (S.READY, "", 0)
    assert steps.close(fence, completed=False) is not None
    with pytest.raises(ExecutionStateError):
        steps.close(fence, completed=True)
    steps.open(fence)
    done = steps.close(fence, completed=True, op="c")
    again = steps.close(fence, completed=True, op="c")
    assert done is not None
    assert again is not None
    assert replace(again, now=done.now) == done
    assert told(store, "execution.completed") == [{"agent_id": AGENT, "execution": "e1"}]
    assert record_of(store).executions == 0


def test_a_finished_execution_is_begun_anew_only_where_asked(store: RedisStore, steps: Steps) -> None:
    """Then it has no steps any more; an unfinished one is never forgotten."""
    fence = run(store)
    steps.open(fence, "main")
    steps.record(fence, step("s1", 1), "main")
    assert dict(steps.open(fence, "main", anew=True).steps) == store_of(store, "main")
    steps.close(fence, "main", completed=True)
    assert steps.open(fence, "main").execution.finished
    again = steps.open(fence, "main", anew=True)
    assert (again.execution.state, dict(again.steps)) == (S.RUNNING, {})
    assert steps.record(fence, step("s1", 2), "main").record.number == 1
    assert record_of(store).spent_steps == 2


def store_of(store: RedisStore, name: str) -> dict[str, StepRecord]:
    """What is recorded, by id."""
    return {record.id: record for record in store.checkpoints.steps(AGENT, name)}


def test_an_execution_that_waits_for_its_next_attempt_is_not_opened(store: RedisStore, steps: Steps) -> None:
    """The rules of executions hold."""
    fence = run(store)
    policy = RetryPolicy(3, timedelta(hours=1), timedelta(hours=1))
    store.checkpoints.apply(AGENT, "e1", Create(retry=policy), Acquire(), Start(), fence=fence, op="c")
    steps.record(fence, step("s1", 1))
    store.checkpoints.apply(AGENT, "e1", Fail("away"), fence=fence, op="f")
    with pytest.raises(ExecutionStateError, match="its next attempt is due in"):
        steps.open(fence)
    assert store_of(store, "e1")["s1"].value == 1


def test_an_intent_is_noted_before_and_closed_by_the_outcome(store: RedisStore, steps: Steps) -> None:
    """Counted in the record, told by an event, read by everybody."""
    fence = run(store)
    steps.open(fence)
    begun = steps.begin(fence, intent())
    assert (begun.record, begun.steps_spent, begun.version) == (None, 0, store.events.stream_version(AGENT))
    assert told(store, "step.started") == [
        {"agent_id": AGENT, "execution": "e1", "step": "pay", "function": "charge", "replay": "never"}
    ]
    (found,) = store.checkpoints.intents(AGENT)
    assert (found.execution, found.step, found.function, found.incarnation) == ("e1", "pay", "charge", 1)
    assert found.arguments == {"args": [5], "kwargs": {}}
    assert found.time > 0
    assert record_of(store).intents == 1
    repeated = steps.begin(fence, intent())
    assert (repeated.record, repeated.version, record_of(store).intents) == (None, None, 1)
    error = {"type": "Declined", "message": "no money", "traceback": "…"}
    done = steps.record(fence, step("pay", replay="never", error=error), closes_intent=True)
    assert (done.record.error, done.steps_spent) == (error, 1)
    assert (store.checkpoints.intents(AGENT), record_of(store).intents) == ((), 0)
    (failed,) = told(store, "step.failed")
    assert (failed["problem"], failed["will_retry"], failed["attempts"]) == ("Declined: no money", False, 1)
    assert steps.begin(fence, intent()).record == done.record
    assert (store.checkpoints.intents(AGENT), record_of(store).intents) == ((), 0)


def test_an_open_intent_survives_and_refuses_the_next_beginning(store: RedisStore, steps: Steps) -> None:
    """The claim brings the number along; another life or other arguments are no repeat."""
    old = run(store)
    steps.open(old)
    steps.begin(old, intent())
    act(store, Die("process lost", epoch=record_of(store).epoch, proof=True))
    claimed = take(store, record_of(store).epoch, claimer="t2").record
    assert claimed.intents == 1
    with pytest.raises(StepsUnsettledError):
        act(store, MarkRunning(fence=claimed.fence))
    steps.open(claimed.fence)
    with pytest.raises(StepOutcomeUnknownError, match="then reconcile the agent"):
        steps.begin(claimed.fence, StepIntent("e1", "pay", "charge", "never", {"args": [5], "kwargs": {}}, 2))
    assert [one.incarnation for one in store.checkpoints.intents(AGENT)] == [1]
    assert record_of(store).intents == 1


def test_names_of_all_kinds_stay_apart(store: RedisStore, steps: Steps) -> None:
    """Bars, slashes, colons, percent signs and letters beyond ASCII."""
    fence = run(store)
    names = ["a|b", "a", "b|", "ü/ä", "a%7Cb", "step:x", "x y"]
    for name in ("e|1", "e"):
        steps.open(fence, name)
        for one in names:
            steps.begin(fence, StepIntent(name, one, "f"), name)
    assert {(one.execution, one.step) for one in store.checkpoints.intents(AGENT)} == {
        (name, one) for name in ("e|1", "e") for one in names
    }
    for name in ("e|1", "e"):
        for one in names:
            steps.record(fence, step(one, f"{name}/{one}", replay="never"), name, closes_intent=True)
        assert [record.id for record in store.checkpoints.steps(AGENT, name)] == names
        assert {key: record.value for key, record in steps.open(fence, name).steps.items()} == {
            one: f"{name}/{one}" for one in names
        }
    assert record_of(store).intents == 0


@pytest.mark.parametrize("bad", ["", "a\nb", "x" * 401, None, 5])
def test_a_step_id_is_checked(store: RedisStore, steps: Steps, bad: Any) -> None:
    """Nothing is recorded under another name."""
    fence = run(store)
    steps.open(fence)
    with pytest.raises(InvalidStepIdError):
        steps.record(fence, step(bad))
    with pytest.raises(InvalidStepIdError):
        steps.begin(fence, intent(bad))
    assert store.checkpoints.steps(AGENT, "e1") == ()


def test_what_is_no_json_or_too_large_is_refused_whole(backend: Backend) -> None:
    """The error names step, place and cure."""
    store = run_namespace(backend.open(RuntimeConfig(max_event_bytes=1_000)))
    fence = run(store)
    store.open_steps(AGENT, "e1", fence=fence, op="o")
    for value, where in ((object(), "result of step 's1'"), ({"a": {1, 2}}, "value at 'a'"), (float("nan"), "nan")):
        with pytest.raises(UnserialisableError, match=where):
            store.record_step(AGENT, fence, "e1", step("s1", value), op="r")
    with pytest.raises(UnserialisableError, match="arguments of step 'pay'"):
        store.record_intent(AGENT, fence, "e1", StepIntent("e1", "pay", "f", arguments=(1,)), op="i")
    with pytest.raises(StepResultTooLargeError, match="return a reference") as refused:
        store.record_step(AGENT, fence, "e1", step("s1", "x" * 1_000), op="r")
    assert (refused.value.step, refused.value.limit, refused.value.size > 1_000) == ("s1", 1_000, True)
    with pytest.raises(StepResultTooLargeError, match="what is noted of the arguments"):
        store.record_intent(AGENT, fence, "e1", StepIntent("e1", "pay", "f", arguments="x" * 1_000), op="i")
    assert (store.checkpoints.steps(AGENT, "e1"), record_of(store).intents) == ((), 0)
    assert record_of(store).spent_steps == 0


def test_events_tell_steps_as_the_setting_says(backend: Backend) -> None:
    """Failures and steps that are never repeated are always told."""
    store = run_namespace(backend.open(RuntimeConfig(step_events=False)))
    fence = run(store)
    store.open_steps(AGENT, "e1", fence=fence, op="o")
    version = store.events.stream_version(AGENT)
    quiet = store.record_step(AGENT, fence, "e1", step("s1", 1), op="1")
    assert (quiet.version, quiet.steps_spent, store.events.stream_version(AGENT)) == (None, 1, version)
    assert append(store, fence, 1, expected=version) == [version + 1]
    never = store.record_step(AGENT, fence, "e1", step("s2", 1, replay="never"), op="2", told=False)
    failed = store.record_step(AGENT, fence, "e1", step("s3", error={"type": "E", "message": "m"}), op="3")
    assert (never.version, failed.version) == (version + 2, version + 3)
    assert [event.id for event in store.events.read(AGENT)][-2:] == ["2", "3"]


def test_an_execution_has_a_limit_of_steps(store: RedisStore, raw: redis.Redis, steps: Steps) -> None:
    """The cure is said; a step that was begun under the limit still gets its outcome."""
    fence = run(store)
    steps.open(fence)
    steps.begin(fence, intent())
    raw.hset(keys_of(store).checkpoint(AGENT, "e1"), "steps", str(MOST_STEPS - 1))
    assert steps.record(fence, step("last", 1)).record.number == MOST_STEPS
    with pytest.raises(StepLimitError, match="use an execution for each round"):
        steps.record(fence, step("more", 1))
    with pytest.raises(StepLimitError):
        steps.begin(fence, intent("other"))
    assert steps.record(fence, step("pay", 1, replay="never"), closes_intent=True).is_own
    assert sorted(store_of(store, "e1")) == ["last", "pay"]
    assert record_of(store).intents == 0


def test_records_of_other_versions_are_read(store: RedisStore, raw: redis.Redis, steps: Steps) -> None:
    """Fields that are unknown are left out, absent ones have their defaults; damage is one step's alone."""
    fence = run(store)
    steps.open(fence)
    key = keys_of(store).checkpoint(AGENT, "e1")
    raw.hset(key, "step:new", '4|1790000000000000|{"function":"f","value":[1],"colour":"red"}')
    raw.hset(key, "step:bare", '{"function":"f","replay":"safe"}')
    raw.hset(key, "step:bad", "7|rubbish")
    opened = steps.open(fence).steps
    assert opened["new"] == StepRecord("new", "f", "", [1], number=4, time=opened["new"].time)
    assert opened["bare"] == StepRecord("bare", "f", "safe")
    assert "bad" in opened
    with pytest.raises(UnreadableCheckpointError, match="'e1' of agent 'counter-1' cannot be read: step 'bad'"):
        _ = opened["bad"]
    with pytest.raises(UnreadableCheckpointError, match="step 'bad'"):
        steps.record(fence, step("bad", 1))
    assert raw.hget(key, "step:bad") == b"7|rubbish"


def test_what_is_no_execution_is_left_as_it_is(store: RedisStore, raw: redis.Redis, steps: Steps) -> None:
    """A key of another kind is an error; what a deleted agent of the same id left behind is nobody's."""
    fence = run(store)
    raw.set(keys_of(store).checkpoint(AGENT, "e1"), "rubbish")
    with pytest.raises(UnreadableCheckpointError, match="'e1' of agent 'counter-1' cannot be read"):
        steps.open(fence)
    assert raw.get(keys_of(store).checkpoint(AGENT, "e1")) == b"rubbish"
    left: dict[Any, Any] = {"born": "1", "state": "running", "fence": "1|t", "revision": "1", "step:s1": "{}"}
    raw.hset(keys_of(store).checkpoint(AGENT, "e2"), mapping=left)
    assert store.checkpoints.steps(AGENT, "e2") == ()
    assert dict(steps.open(fence, "e2").steps) == {}
    assert not raw.hexists(keys_of(store).checkpoint(AGENT, "e2"), "step:s1")


def test_an_intent_that_cannot_be_read_hides_no_other(
    store: RedisStore, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named in the log and left as it is."""
    fence = run(store)
    store.open_steps(AGENT, "e1", fence=fence, op="o")
    store.record_intent(AGENT, fence, "e1", intent(), op="i")
    raw.hset(keys_of(store).intents(AGENT), "e1|x", "rubbish")
    assert [one.step for one in store.checkpoints.intents(AGENT)] == ["pay"]
    assert "an intent of agent counter-1 cannot be read" in caplog.text
    assert raw.hget(keys_of(store).intents(AGENT), "e1|x") == b"rubbish"


def test_steps_end_with_their_execution_and_their_agent(store: RedisStore, raw: redis.Redis, steps: Steps) -> None:
    """A finished execution by its TTL, all else by delete_agent; an heir of the id finds nothing."""
    fence = run(store)
    for name in ("done", "open"):
        steps.open(fence, name)
        steps.record(fence, step("s1", 1), name)
    steps.begin(fence, StepIntent("open", "pay", "f"), "open")
    steps.close(fence, "done", completed=True)
    assert 0 < raw.ttl(keys_of(store).checkpoint(AGENT, "done")) <= 24 * 3600
    assert leaked_keys(raw, store.namespace) == []
    store.delete(AGENT, store.read(AGENT), op="d")
    left = [key for key in keys_of_agent(raw, store.namespace, AGENT) if raw.ttl(key) == -1]
    assert left == []
    heir = claim(store).record
    assert (heir.intents, heir.spent_steps, store.checkpoints.intents(AGENT)) == (0, 0, ())
    assert dict(steps.open(heir.fence, "open").steps) == {}


def test_ten_thousand_steps_are_read_in_one_go(store: RedisStore, raw: redis.Redis) -> None:
    """All of them, each as it was recorded."""
    fence = run(store)
    store.open_steps(AGENT, "e1", fence=fence, op="o")
    values = {n: f"{n}-{'x' * 50}" for n in range(MOST_STEPS)}
    stored = {f"step:fetch:{n}": f'{n}|1790000000000000|{{"value":"{value}"}}' for n, value in values.items()}
    pipeline = raw.pipeline(transaction=False)
    pipeline.hset(keys_of(store).checkpoint(AGENT, "e1"), mapping=cast("dict[Any, Any]", stored))
    pipeline.execute()
    opened = store.open_steps(AGENT, "e1", fence=fence, op="o2").steps
    assert len(opened) == MOST_STEPS
    assert all(opened[f"fetch:{n}"].value == values[n] for n in range(0, MOST_STEPS, 97))


def ask(store: RedisStore, message_id: str) -> InboxMessage:
    """A message that waits for its answer."""
    store.send(AGENT, None, message_id=message_id, wants_reply=True)
    (message,) = [one for one in store.inbox(AGENT) if one.message_id == message_id]
    return message


def end(steps: Steps, store: RedisStore, fence: str, message: InboxMessage, answer: Reply) -> Any:
    """Answers a message, in the way under test, and ends its execution."""
    finishes = f"msg:{message.message_id}"
    if isinstance(steps, OfALoop):
        return steps.run(steps.twin.reply(AGENT, fence, message, answer, finishes=finishes))
    return store.reply(AGENT, fence, message, answer, finishes=finishes)


def test_an_answer_completes_the_execution_of_its_message(store: RedisStore, raw: redis.Redis, steps: Steps) -> None:
    """In one write: answered, completed, told, kept for the retention; a repeat changes nothing."""
    fence = run(store)
    message = ask(store, "m1")
    steps.open(fence, "msg:m1")
    steps.record(fence, step("s1", 1), "msg:m1")
    assert record_of(store).executions == 1
    version = end(steps, store, fence, message, Reply("m1", 5))
    assert version == store.events.stream_version(AGENT)
    done = store.checkpoints.load(AGENT, "msg:m1")
    assert done is not None
    assert (done.state, done.fence, done.attempts, done.envelope.last_error) == (S.COMPLETED, "", 0, "")
    assert done.changed_at > done.created_at
    assert told(store, "execution.completed") == [{"agent_id": AGENT, "execution": "msg:m1"}]
    assert (record_of(store).executions, store.inbox(AGENT)) == (0, ())
    assert 0 < raw.ttl(keys_of(store).checkpoint(AGENT, "msg:m1")) <= 24 * 3600
    assert store_of(store, "msg:m1")["s1"].value == 1
    assert [one.id for one in store.checkpoints.list_executions(AGENT)] == ["msg:m1"]
    assert end(steps, store, fence, message, Reply("m1", 6)) is None
    again = store.checkpoints.load(AGENT, "msg:m1")
    assert again is not None
    assert replace(again, now=done.now) == done
    assert len(told(store, "execution.completed")) == 1
    assert steps.open(fence, "msg:m1").execution.finished


def test_an_answer_that_is_an_error_fails_the_execution(store: RedisStore, steps: Steps) -> None:
    """For good, and the checkpoint says why."""
    fence = run(store)
    message = ask(store, "m1")
    steps.open(fence, "msg:m1")
    error = {"code": "agent_failed", "agent_id": AGENT, "type": "ValueError", "error": "no", "traceback": ""}
    end(steps, store, fence, message, Reply("m1", error=error))
    failed = store.checkpoints.load(AGENT, "msg:m1")
    assert failed is not None
    assert (failed.state, failed.fence, failed.attempts) == (S.FAILED, "", 1)
    assert failed.envelope.last_error == "agent 'counter-1' failed: ValueError: no"
    (event,) = told(store, "execution.failed")
    assert event == {
        "agent_id": AGENT,
        "execution": "msg:m1",
        "cause": "agent 'counter-1' failed: ValueError: no",
        "retryable": False,
        "attempts": 1,
    }


def test_a_checkpoint_that_its_agent_has_written_outlives_the_failure(store: RedisStore) -> None:
    """The cause is told by the event; what the agent kept is worth more."""
    fence = run(store)
    message = ask(store, "m1")
    store.open_steps(AGENT, "msg:m1", fence=fence, op="o")
    store.checkpoints.apply(AGENT, "msg:m1", Save({"row": 3}), fence=fence, op="s")
    store.reply(AGENT, fence, message, Reply("m1", error={"code": "agent_failed"}), finishes="msg:m1")
    failed = store.checkpoints.load(AGENT, "msg:m1")
    assert failed is not None
    assert (failed.state, failed.envelope.step_checkpoint, failed.envelope.last_error) == (S.FAILED, {"row": 3}, "")


def test_a_burial_fails_the_execution(store: RedisStore, steps: Steps) -> None:
    """With the letter and its event, in one write."""
    fence = run(store)
    message = ask(store, "m1")
    steps.open(fence, "msg:m1")
    error = {"code": "message_poisoned", "agent_id": AGENT, "deaths": 3, "message_id": "m1"}
    letter = (AGENT, fence, message, DeadReason.POISON, Reply("m1", error=error))
    if isinstance(steps, OfALoop):
        assert steps.run(steps.twin.bury(*letter, finishes="msg:m1"))
    else:
        assert store.bury(*letter, finishes="msg:m1")
    failed = store.checkpoints.load(AGENT, "msg:m1")
    assert failed is not None
    assert failed.state is S.FAILED
    assert "died 3 times" in failed.envelope.last_error
    assert [event.type for event in store.events.read(AGENT)][-2:] == ["message.dead_lettered", "execution.failed"]
    assert record_of(store).executions == 0
    assert append(store, fence, 1, expected=record_of(store).version) == [record_of(store).version]


def test_an_answer_ends_only_what_its_incarnation_holds(store: RedisStore, steps: Steps) -> None:
    """Nothing, where there is no execution, it was given back, or is over already."""
    fence = run(store)
    first, second, third = (ask(store, name) for name in ("m1", "m2", "m3"))
    version = store.events.stream_version(AGENT)
    assert end(steps, store, fence, first, Reply("m1", 1)) is None
    assert store.checkpoints.load(AGENT, "msg:m1") is None
    assert store.events.stream_version(AGENT) == version
    steps.open(fence, "msg:m2")
    steps.close(fence, "msg:m2", completed=False)
    assert end(steps, store, fence, second, Reply("m2", 1)) is None
    given_back = store.checkpoints.load(AGENT, "msg:m2")
    assert given_back is not None
    assert given_back.state is S.READY
    steps.open(fence, "msg:m3")
    with pytest.raises(FencedError):
        end(steps, store, "7|other", third, Reply("m3", 1))
    held = store.checkpoints.load(AGENT, "msg:m3")
    assert held is not None
    assert held.state is S.RUNNING
    assert [one.message_id for one in store.inbox(AGENT)] == ["m3"]
    new = next_life(store)
    assert end(steps, store, new, third, Reply("m3", 1)) is None
    of_another = store.checkpoints.load(AGENT, "msg:m3")
    assert of_another is not None
    assert (of_another.state, of_another.fence) == (S.RUNNING, fence)


@pytest.mark.parametrize("left", ["given back", "held by a dead one"])
@pytest.mark.parametrize("ends", ["reply", "bury"])
def test_an_answer_leaves_no_execution_that_an_earlier_incarnation_has_begun(
    store: RedisStore, steps: Steps, left: str, ends: str
) -> None:
    """It is refused and nothing stored, until that one was opened; without such a one it passes, also as a repeat."""
    fence = run(store)
    first, second = ask(store, "m1"), ask(store, "m2")
    steps.open(fence, "msg:m1")
    if left == "given back":
        steps.close(fence, "msg:m1", completed=False)
    else:
        fence = next_life(store)
    writer: Any = steps.twin if isinstance(steps, OfALoop) else store

    def answer(message: InboxMessage, **said: str) -> Any:
        reply = Reply(message.message_id, error={"code": "agent_failed", "agent_id": AGENT})
        if ends == "reply":
            made = writer.reply(AGENT, fence, message, reply, **said)
        else:
            made = writer.bury(AGENT, fence, message, DeadReason.FAILED, reply, **said)
        return steps.run(made) if isinstance(steps, OfALoop) else made

    before = store.events.stream_version(AGENT)
    with pytest.raises(ExecutionStateError, match=r"msg:m1.* is unfinished: the answer to its message is refused"):
        answer(first, unless="msg:m1")
    assert store.events.stream_version(AGENT) == before
    assert [one.message_id for one in store.inbox(AGENT)] == ["m1", "m2"]
    steps.open(fence, "msg:m1")
    answer(first, finishes="msg:m1")
    ended = store.checkpoints.load(AGENT, "msg:m1")
    assert ended is not None
    assert ended.state is S.FAILED
    assert record_of(store).executions == 0
    answer(first, unless="msg:m1")
    answer(second, unless="msg:m2")
    assert store.checkpoints.load(AGENT, "msg:m2") is None
    assert store.inbox(AGENT) == ()


def test_finished_executions_of_messages_stay_listed_up_to_a_number(store: RedisStore, raw: redis.Redis) -> None:
    """As those that ended by a move."""
    fence = run(store)
    listed = keys_of(store).executions(AGENT)
    much_later = 4_000_000_000_000_000
    raw.zadd(listed, {f"old-{n:04}": much_later - 1_000 + n for n in range(1_000)})
    message = ask(store, "m1")
    store.open_steps(AGENT, "msg:m1", fence=fence, op="o")
    raw.zadd(listed, {"gone": 1})
    store.reply(AGENT, fence, message, Reply("m1", 1), finishes="msg:m1")
    assert raw.zcard(listed) == 1_000
    assert raw.zscore(listed, "gone") is None
