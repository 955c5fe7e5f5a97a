"""Executions: checkpoints behind the fence, whatever dies meanwhile."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from typing_extensions import override

from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentNotFoundError,
    CheckpointSchemaVersionError,
    EventTooLargeError,
    ExecutionLimitError,
    ExecutionNotFoundError,
    ExecutionStateError,
    FencedError,
    InvalidExecutionIdError,
    InvalidSettingError,
    StoreUnavailableError,
    UnreadableCheckpointError,
    UnserialisableError,
)
from ares_celery.ids import AgentId
from ares_celery.model.checkpoint import CheckpointEnvelope
from ares_celery.model.command import Complete as CompleteAgent
from ares_celery.model.command import Die, MarkRunning
from ares_celery.model.execution import (
    Acquire,
    Complete,
    Create,
    Delete,
    Execution,
    ExecutionCommand,
    ExecutionState,
    Expire,
    Fail,
    Release,
    RetryPolicy,
    Save,
    Start,
    Suspend,
    decide_execution,
)
from ares_celery.store.base import CommitConflict, Lease
from ares_celery.store.redis import checkpoint_calls
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.scripts import SCRIPT_NAMES
from ares_celery.store.redis.store import RedisStore
from ares_celery.store.redis.stored_executions import change_of
from tests.contract.store.acting import AGENT, act, append, record_of, run, run_namespace, start, take
from tests.contract.store.backends import Backend, LosingDriver
from tests.key_leaks import keys_of_agent, leaked_keys
from tests.wait import wait_until

pytestmark = pytest.mark.contract

S = ExecutionState
ENVELOPE = CheckpointEnvelope(payload={"file": "a.txt"}, strategy_id="greedy", session_id="s-1", tenant_id="acme")


def do(store: RedisStore, fence: str, *commands: ExecutionCommand, name: str = "e1", op: str = "") -> Execution:
    """Applies commands of an incarnation to one of the agent's executions."""
    done = store.checkpoints.apply(AGENT, name, *commands, fence=fence, op=op or uuid4().hex)
    assert done is not None
    return done


def begin(store: RedisStore, fence: str, name: str = "e1", *, retry: RetryPolicy | None = None) -> Execution:
    """A running execution."""
    return do(store, fence, Create(ENVELOPE, retry or RetryPolicy()), Acquire(), Start(), name=name)


def found(store: RedisStore, name: str = "e1") -> Execution:
    """An execution that exists."""
    execution = store.checkpoints.load(AGENT, name)
    assert execution is not None
    return execution


def next_life(store: RedisStore) -> str:
    """The incarnation dies with its process, and the next one runs; gives its fence."""
    record = record_of(store)
    act(store, Die("process lost", epoch=record.epoch, proof=True))
    fence = take(store, record_of(store).epoch, claimer="t2").record.fence
    act(store, MarkRunning(fence=fence))
    return fence


def key_of(store: RedisStore, name: str = "e1") -> str:
    """The hash of an execution."""
    return Keys(store.namespace, store.config.shards).checkpoint(AGENT, name)


def hash_of(store: RedisStore, raw: redis.Redis, name: str = "e1") -> Mapping[bytes, bytes]:
    """All that is stored of an execution."""
    client: Any = raw
    stored: dict[bytes, bytes] = client.hgetall(key_of(store, name))
    return stored


def events(store: RedisStore, kind: str) -> list[Mapping[str, Any]]:
    """The payloads of the agent's events of a type."""
    return [event.payload for event in store.events.read(AGENT) if event.type == kind]


def test_an_execution_goes_through_its_life(store: RedisStore) -> None:
    """What a move gives back is what a read finds; each move is one revision."""
    fence = run(store)
    moves: list[tuple[ExecutionCommand, S]] = [
        (Create(ENVELOPE, RetryPolicy(3, timedelta(seconds=2), timedelta(seconds=9))), S.READY),
        (Acquire(), S.LEASED),
        (Start(), S.RUNNING),
        (Save({"row": 1}), S.RUNNING),
        (Suspend(), S.SUSPENDED),
        (Acquire(), S.LEASED),
        (Start(), S.RUNNING),
        (Complete({"row": 2}), S.COMPLETED),
    ]
    for revision, (command, state) in enumerate(moves, 1):
        done = do(store, fence, command)
        assert (done.state, done.revision) == (state, revision)
        assert replace(found(store), now=done.now) == done
    last = found(store)
    assert last.envelope == ENVELOPE.with_step({"row": 2})
    assert last.retry == RetryPolicy(3, timedelta(seconds=2), timedelta(seconds=9))
    assert 0 < last.created_at < last.changed_at <= last.now
    assert store.checkpoints.load(AGENT, "e2") is None
    assert events(store, "execution.completed") == [{"agent_id": AGENT, "execution": "e1"}]


@pytest.mark.spec(113)
def test_what_is_stored_is_stamped(store: RedisStore, raw: redis.Redis) -> None:
    """Also when what was there before was older, or had no version at all."""
    fence = run(store)
    begin(store, fence)
    assert json.loads(hash_of(store, raw)[b"envelope"])["schema_version"] == 5
    raw.hset(key_of(store), "envelope", '{"row": 7}')
    assert found(store).envelope == CheckpointEnvelope(schema_version=0, step_checkpoint={"row": 7})
    do(store, fence, Save(report={"input_tokens": 3}))
    assert json.loads(hash_of(store, raw)[b"envelope"]) == {
        "schema_version": 5,
        "step_checkpoint": {"row": 7},
        "input_tokens": 3,
    }


@pytest.mark.spec(115)
def test_what_a_newer_version_stored_is_refused_and_stays(store: RedisStore, raw: redis.Redis) -> None:
    """It can be looked at, given back and waited for; not a byte of it changes."""
    newer = '{"schema_version": 6, "payload": {"n": 1}, "of_tomorrow": true}'
    fence = run(store)
    begin(store, fence)
    raw.hset(key_of(store), "envelope", newer)
    with pytest.raises(CheckpointSchemaVersionError, match="schema 6") as refused:
        _ = found(store).envelope
    assert (refused.value.found, refused.value.known, refused.value.execution) == (6, 5, "e1")
    for command in (Save(1), Complete(), Fail("why", retryable=False)):
        before = hash_of(store, raw)
        with pytest.raises(CheckpointSchemaVersionError):
            do(store, fence, command)
        assert hash_of(store, raw) == before
    again = next_life(store)
    assert [one.id for one in store.checkpoints.recover(AGENT, fence=again, op="r")] == ["e1"]
    with pytest.raises(CheckpointSchemaVersionError):
        do(store, again, Acquire())
    assert hash_of(store, raw)[b"envelope"] == newer.encode()
    assert [one.state for one in store.checkpoints.list_executions(AGENT)] == [S.READY]


@pytest.mark.spec(117)
def test_the_tokens_of_three_steps_are_15_in_the_store(store: RedisStore) -> None:
    """10, absent and 5; told once at the end."""
    fence = run(store)
    begin(store, fence)
    do(store, fence, Save({"row": 1}, {"input_tokens": 10}))
    do(store, fence, Save({"row": 2}, {}))
    do(store, fence, Save({"row": 3}, {"input_tokens": 5}))
    assert found(store).envelope.input_tokens == 15
    do(store, fence, Complete())
    assert found(store).envelope.input_tokens == 15
    assert events(store, "execution.completed") == [{"agent_id": AGENT, "execution": "e1", "input_tokens": 15}]


@pytest.mark.spec(118)
def test_only_a_failure_for_good_leaves_its_cause(store: RedisStore, raw: redis.Redis) -> None:
    """A try again and a cancellation leave the stored bytes as they are."""
    fence = run(store)
    begin(store, fence, retry=RetryPolicy(2, timedelta(0)))
    before = hash_of(store, raw)[b"envelope"]
    do(store, fence, Fail("first"))
    assert hash_of(store, raw)[b"envelope"] == before
    do(store, fence, Acquire(), Start(), Release())
    assert hash_of(store, raw)[b"envelope"] == before
    do(store, fence, Acquire(), Start(), Fail("second"))
    assert found(store).envelope == ENVELOPE.with_failure("second")
    assert [(told["cause"], told["retryable"]) for told in events(store, "execution.failed")] == [
        ("first", True),
        ("second", False),
    ]


@pytest.mark.spec(120)
@pytest.mark.parametrize("taken", [False, True], ids=["not yet taken over", "taken over"])
def test_an_old_owner_changes_nothing_any_more(store: RedisStore, raw: redis.Redis, taken: bool) -> None:  # noqa: FBT001
    """Renew, yield, save, complete, fail, release, delete: each is refused by the fence, and nothing has changed."""
    old = run(store)
    begin(store, old)
    new = next_life(store)
    if taken:
        store.checkpoints.recover(AGENT, fence=new, op="r")
        do(store, new, Acquire(), Start())
    before, version = hash_of(store, raw), store.events.stream_version(AGENT)
    (change,) = store.renew([Lease(AGENT, old, 0)]).changes
    assert change.fenced
    commands: tuple[ExecutionCommand, ...] = (
        Suspend({"row": 9}),
        Save({"row": 9}),
        Complete(),
        Fail("late"),
        Fail("late", retryable=False),
        Release(),
        Delete(),
        Expire(),
        Create(),
    )
    for command in commands:
        with pytest.raises(FencedError) as refused:
            do(store, old, command)
        assert refused.value.agent_id == AGENT
    with pytest.raises(FencedError):
        store.checkpoints.recover(AGENT, fence=old, op="late")
    with pytest.raises(InvalidSettingError, match="fence=''"):
        do(store, "", Complete())
    assert hash_of(store, raw) == before
    assert store.events.stream_version(AGENT) == version


@pytest.mark.spec(120)
def test_the_scripts_themselves_refuse_an_old_owner(store: RedisStore, raw: redis.Redis) -> None:
    """It may be fenced between its read and its write: move, requeue and delete compare again."""
    old = run(store)
    running = begin(store, old)
    ready = do(store, old, Create(), name="e2")
    next_life(store)
    keys = Keys(store.namespace, store.config.shards)
    before = hash_of(store, raw)
    for command in (Complete(), Release()):
        plan = decide_execution(running, command, agent_id=AGENT, execution_id="e1", fence=old, now=running.now)
        move = checkpoint_calls.Move(plan, change_of(plan, limit=1000), (), old, "late")
        with pytest.raises(FencedError):
            store._bound.client.run(checkpoint_calls.requeue_execution(keys, move=move))
        with pytest.raises(FencedError):
            store._bound.client.run(checkpoint_calls.move_execution(keys, move=move, retention=timedelta(1)))
    with pytest.raises(FencedError):
        store._bound.client.run(checkpoint_calls.delete_execution(keys, execution=ready, fence=old))
    assert hash_of(store, raw) == before
    assert found(store, "e2").revision == 1


def test_a_write_that_was_decided_on_an_older_read_is_refused(store: RedisStore) -> None:
    """By each script; the store reads and decides again."""
    fence = run(store)
    running = begin(store, fence)
    moved = do(store, fence, Save({"row": 1}))
    keys = Keys(store.namespace, store.config.shards)
    plan = decide_execution(running, Release(), agent_id=AGENT, execution_id="e1", fence=fence, now=running.now)
    move = checkpoint_calls.Move(plan, change_of(plan, limit=1000), (), fence, "stale")
    made = decide_execution(None, Create(), agent_id=AGENT, execution_id="e1", fence=fence, now=running.now)
    twice = checkpoint_calls.Move(made, change_of(made, limit=1000), (), fence, "stale")
    with pytest.raises(CommitConflict):
        store._bound.client.run(checkpoint_calls.requeue_execution(keys, move=move))
    for stale in (move, twice):
        with pytest.raises(CommitConflict):
            store._bound.client.run(checkpoint_calls.move_execution(keys, move=stale, retention=timedelta(1)))
    with pytest.raises(CommitConflict):
        store._bound.client.run(checkpoint_calls.delete_execution(keys, execution=running, fence=fence))
    assert replace(found(store), now=moved.now) == moved


@pytest.mark.spec(121)
def test_a_retry_waits_by_the_clock_of_redis(store: RedisStore) -> None:
    """+b, +2b, then failed for good; the wait holds for whoever takes it next."""
    base = 300_000
    fence = run(store)
    begin(store, fence, retry=RetryPolicy(3, timedelta(microseconds=base)))
    for attempts, factor in ((1, 1), (2, 2)):
        before = store.server_time()
        waiting = do(store, fence, Fail(f"attempt {attempts}"))
        assert (waiting.state, waiting.attempts) == (S.READY, attempts)
        assert before + factor * base <= waiting.next_attempt_at <= waiting.changed_at + factor * base
        with pytest.raises(ExecutionStateError, match="its next attempt is due in"):
            do(store, fence, Acquire())
        wait_until(lambda: store.server_time() >= found(store).next_attempt_at, "the wait to be over")
        assert do(store, fence, Acquire(), Start()).next_attempt_at == 0
    failed = do(store, fence, Fail("attempt 3"))
    assert (failed.state, failed.attempts, failed.envelope.last_error) == (S.FAILED, 3, "attempt 3")
    assert [told.get("retry_in") for told in events(store, "execution.failed")] == [0.3, 0.6, None]
    begin(store, fence, "once", retry=RetryPolicy(0))
    assert do(store, fence, Fail("only"), name="once").state is S.FAILED


@pytest.mark.spec(122)
def test_the_next_incarnation_finds_what_the_lost_one_held(store: RedisStore) -> None:
    """Ready, with its checkpoint, one event for each; the claim tells that there is something."""
    old = run(store)
    for name in ("leased", "running", "suspended"):
        do(store, old, Create(ENVELOPE), Acquire(), name=name)
    do(store, old, Start(), Save({"row": 3}), name="running")
    do(store, old, Start(), Suspend({"row": 4}), name="suspended")
    epoch = record_of(store).epoch
    new = next_life(store)
    assert record_of(store).executions == 3
    given_back = store.checkpoints.recover(AGENT, fence=new, op="r")
    assert sorted(one.id for one in given_back) == ["leased", "running", "suspended"]
    assert {(one.state, one.epoch, one.attempts) for one in given_back} == {(S.READY, 0, 0)}
    assert found(store, "running").envelope == ENVELOPE.with_step({"row": 3})
    assert found(store, "suspended").envelope == ENVELOPE.with_step({"row": 4})
    told = {one["execution"]: (one["epoch"], one["state"]) for one in events(store, "execution.expired")}
    assert told == {name: (epoch, name) for name in ("leased", "running", "suspended")}
    assert do(store, new, Acquire(), Start(), name="running").envelope.step_checkpoint == {"row": 3}


@pytest.mark.spec(123)
def test_after_a_crash_everything_stands_where_it_may(store: RedisStore, raw: redis.Redis) -> None:
    """Unfinished ones ready and nobody's, finished ones as they were, forgotten ones gone; once is enough."""
    policy = RetryPolicy(3, timedelta(hours=1), timedelta(hours=1))
    old = run(store)
    for name in ("completed", "failed", "waiting", "running", "forgotten"):
        begin(store, old, name, retry=policy)
    do(store, old, Complete({"row": 1}), name="completed")
    do(store, old, Fail("no use", retryable=False), name="failed")
    waiting = do(store, old, Fail("later"), name="waiting")
    do(store, old, Save({"row": 3}), name="running")
    do(store, old, Release(), name="forgotten")
    assert store.checkpoints.apply(AGENT, "forgotten", Delete(), fence=old, op="d") is None
    seen = max(one.epoch for one in store.checkpoints.list_executions(AGENT))
    new = next_life(store)
    assert record_of(store).epoch > seen
    finished = {name: hash_of(store, raw, name) for name in ("completed", "failed", "waiting")}
    assert [one.id for one in store.checkpoints.recover(AGENT, fence=new, op="r1")] == ["running"]
    listed = {one.id: (one.state, one.fence) for one in store.checkpoints.list_executions(AGENT)}
    assert listed == {
        "completed": (S.COMPLETED, ""),
        "failed": (S.FAILED, ""),
        "waiting": (S.READY, ""),
        "running": (S.READY, ""),
    }
    assert {name: hash_of(store, raw, name) for name in finished} == finished
    kept = found(store, "waiting")
    assert (kept.attempts, kept.next_attempt_at, kept.retry) == (1, waiting.next_attempt_at, policy)
    assert found(store, "running").envelope.step_checkpoint == {"row": 3}
    after = {name: hash_of(store, raw, name) for name in listed}
    version = store.events.stream_version(AGENT)
    assert store.checkpoints.recover(AGENT, fence=new, op="r2") == ()
    assert {name: hash_of(store, raw, name) for name in listed} == after
    assert store.events.stream_version(AGENT) == version
    assert store.checkpoints.load(AGENT, "forgotten") is None


@pytest.mark.spec(124)
def test_what_cannot_be_read_is_skipped_and_the_rest_is_restored(
    store: RedisStore, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """No hash, an unknown state, a field gone, listed but absent: each named in the log and left as it is."""
    old = run(store)
    for name in ("good-1", "no-hash", "unknown-state", "no-state", "orphan", "bad-envelope", "good-2"):
        begin(store, old, name)
    raw.delete(key_of(store, "no-hash"))
    raw.set(key_of(store, "no-hash"), "rubbish")
    raw.hset(key_of(store, "unknown-state"), "state", "of_tomorrow")
    raw.hdel(key_of(store, "no-state"), "state")
    raw.delete(key_of(store, "orphan"))
    raw.hset(key_of(store, "bad-envelope"), "envelope", "{")
    damaged = {name: hash_of(store, raw, name) for name in ("unknown-state", "no-state")}
    new = next_life(store)
    with caplog.at_level(logging.ERROR):
        given_back = store.checkpoints.recover(AGENT, fence=new, op="r")
    assert sorted(one.id for one in given_back) == ["bad-envelope", "good-1", "good-2"]
    for name in ("no-hash", "unknown-state", "no-state", "orphan"):
        assert f"'{name}'" in caplog.text
    assert {name: hash_of(store, raw, name) for name in damaged} == damaged
    assert hash_of(store, raw, "bad-envelope")[b"envelope"] == b"{"
    assert raw.get(key_of(store, "no-hash")) == b"rubbish"
    with pytest.raises(UnreadableCheckpointError, match="'no-hash' of agent 'counter-1'"):
        store.checkpoints.load(AGENT, "no-hash")
    failed = do(store, new, Acquire(), Start(), Fail("undecodable", retryable=False), name="bad-envelope")
    assert failed.envelope == CheckpointEnvelope(last_error="undecodable")
    assert hash_of(store, raw, "bad-envelope")[b"envelope_aside"] == b"{"


@pytest.mark.spec(124)
def test_a_store_that_does_not_answer_is_an_error_and_no_empty_list(backend: Backend) -> None:
    """Whoever recovers must not take an outage for nothing to do."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(driver=driver))
    fence = run(store)
    begin(store, fence)
    for read in (
        lambda: store.checkpoints.recover(AGENT, fence=fence, op="r"),
        lambda: store.checkpoints.list_executions(AGENT),
        lambda: store.checkpoints.load(AGENT, "e1"),
    ):
        driver.lose_next = True
        with pytest.raises(StoreUnavailableError):
            read()


@pytest.mark.spec(125)
def test_a_cancelled_step_or_a_shutdown_costs_no_attempt(store: RedisStore) -> None:
    """Released: ready at once for the next incarnation, attempts, checkpoint and policy as before, and no event."""
    policy = RetryPolicy(2, timedelta(hours=1))
    fence = run(store)
    begin(store, fence, retry=policy)
    do(store, fence, Save({"row": 3}))
    version = store.events.stream_version(AGENT)
    released = do(store, fence, Release())
    assert (released.state, released.epoch, released.attempts, released.next_attempt_at) == (S.READY, 0, 0, 0)
    assert released.envelope == ENVELOPE.with_step({"row": 3})
    assert store.events.stream_version(AGENT) == version
    new = next_life(store)
    assert store.checkpoints.recover(AGENT, fence=new, op="r") == ()
    again = do(store, new, Acquire(), Start(), Fail("the first failure"))
    assert (again.state, again.attempts) == (S.READY, 1)


@pytest.mark.parametrize(
    "command", [Save({"row": 1}, {"input_tokens": 4}), Fail("why"), Release(), Complete(), Suspend()], ids=repr
)
def test_a_write_whose_answer_is_lost_happens_once(backend: Backend, command: ExecutionCommand) -> None:
    """The repeat with the same op id gets the first outcome: nothing is counted or told twice."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(driver=driver))
    fence = run(store)
    begin(store, fence, retry=RetryPolicy(5, timedelta(0)))

    class AfterTheRead(LosingDriver):
        """Loses the second answer: that of the write."""

        @override
        def execute_command(self, *args: Any) -> Any:
            self.lose_next = self.sent == 1
            return super().execute_command(*args)

    for script in SCRIPT_NAMES:
        store._bound.client._load(script)
    losing = AfterTheRead(backend.client())
    other = backend.open(driver=LosingDriver(backend.client()))
    other._bound.client._driver = losing
    with pytest.raises(StoreUnavailableError):
        other.checkpoints.apply(AGENT, "e1", command, fence=fence, op="once")
    done = store.checkpoints.apply(AGENT, "e1", command, fence=fence, op="once")
    assert done is not None
    assert done.revision == 2
    assert done.envelope.input_tokens == (4 if isinstance(command, Save) else 0)
    assert done.attempts == (1 if isinstance(command, Fail) else 0)
    told = [event for event in store.events.read(AGENT) if event.type.startswith("execution.")]
    assert len(told) == (1 if isinstance(command, Fail | Complete) else 0)
    do(store, fence, Create(), Acquire(), name="e2", op="twice")
    assert do(store, fence, Create(), Acquire(), name="e2", op="twice").revision == 1


def test_events_of_executions_are_the_runtimes_own(store: RedisStore) -> None:
    """They stand in the agent's stream in order, and the incarnation goes on appending above them."""
    fence = run(store)
    begin(store, fence)
    do(store, fence, Complete())
    event = store.events.read(AGENT)[-1]
    assert (event.version, event.metadata) == (2, {"module": "runtime"})
    assert append(store, fence, 1, expected=1) == [3]
    assert record_of(store).version == 3
    do(store, fence, Create(), Acquire(), Start(), Fail("x" * 100_000 + "\ud800"), name="e2")
    assert len(events(store, "execution.failed")[0]["cause"]) < 5_000


def test_a_finished_execution_ends_by_itself_and_an_unfinished_one_with_its_agent(
    backend: Backend, raw: redis.Redis
) -> None:
    """Its time begins when it is finished; delete_agent takes the rest, and no key leaks."""
    store = run_namespace(backend.open(RuntimeConfig(checkpoint_retention=timedelta(hours=2))))
    fence = run(store)
    for name in ("open", "done", "failed"):
        begin(store, fence, name)
    assert raw.ttl(key_of(store, "done")) == -1
    do(store, fence, Complete(), name="done")
    do(store, fence, Fail("x"), name="failed")
    ttls: list[Any] = [raw.ttl(key_of(store, name)) for name in ("done", "failed", "open")]
    assert 7_190 < ttls[0] <= 7_200
    assert 7_190 < ttls[1] <= 7_200
    assert ttls[2] == -1
    assert record_of(store).executions == 1
    assert leaked_keys(raw, store.namespace) == []
    act(store, CompleteAgent(fence=fence))
    store.delete(AGENT, store.read(AGENT), op="delete")
    left = [key for key in keys_of_agent(raw, store.namespace, AGENT) if ":op:" not in key]
    assert left == []


def test_an_agent_made_anew_has_none_of_the_old_ones_executions(
    store: RedisStore, raw: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even those that ended unlisted and whose keys still stand: the result of another life is no result."""
    monkeypatch.setattr(checkpoint_calls, "MOST_FINISHED", 1)
    fence = run(store)
    for name in ("e1", "e2"):
        begin(store, fence, name)
        raw.hset(key_of(store, name), "step:1", "of the old one")
        do(store, fence, Complete(), name=name)
    assert [one.id for one in store.checkpoints.list_executions(AGENT)] == ["e2"]
    assert found(store, "e1").state is S.COMPLETED
    act(store, CompleteAgent(fence=fence))
    store.delete(AGENT, store.read(AGENT), op="delete")
    assert raw.exists(key_of(store, "e1")) == 1
    assert store.checkpoints.load(AGENT, "e1") is None
    fence = run(store)
    assert store.checkpoints.load(AGENT, "e1") is None
    with pytest.raises(ExecutionNotFoundError):
        do(store, fence, Acquire())
    begin(store, fence)
    assert b"step:1" not in hash_of(store, raw)
    assert raw.ttl(key_of(store)) == -1


def test_an_agent_has_a_bounded_number_of_unfinished_executions(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more is refused with the number; finishing or forgetting one makes room; others are not hindered."""
    monkeypatch.setattr(checkpoint_calls, "MOST_UNFINISHED", 2)
    fence = run(store)
    begin(store, fence, "e1")
    begin(store, fence, "e2")
    with pytest.raises(ExecutionLimitError, match="2 unfinished executions") as refused:
        begin(store, fence, "e3")
    assert (refused.value.agent_id, refused.value.execution) == (AGENT, "e3")
    assert store.checkpoints.load(AGENT, "e3") is None
    do(store, fence, Save(1), name="e2")
    do(store, fence, Complete(), name="e1")
    begin(store, fence, "e3")
    do(store, fence, Release(), name="e3")
    store.checkpoints.apply(AGENT, "e3", Delete(), fence=fence, op="d1")
    store.checkpoints.apply(AGENT, "e3", Delete(), fence=fence, op="d2")
    begin(store, fence, "e4")
    assert record_of(store).executions == 2
    assert record_of(store, start(store, AgentId("other")).id).executions == 0


def test_only_the_last_finished_ones_stay_listed(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that works for years has a bounded list; unfinished ones are never pushed out."""
    monkeypatch.setattr(checkpoint_calls, "MOST_FINISHED", 3)
    fence = run(store)
    begin(store, fence, "open")
    for number in range(7):
        begin(store, fence, f"e{number}")
        do(store, fence, Complete(), name=f"e{number}")
    assert [one.id for one in store.checkpoints.list_executions(AGENT)] == ["e4", "e5", "e6", "open"]


def test_finished_ones_that_have_ended_leave_the_list(store: RedisStore, raw: redis.Redis) -> None:
    """Silently: that is what was meant to happen."""
    fence = run(store)
    begin(store, fence, "old")
    do(store, fence, Complete(), name="old")
    raw.delete(key_of(store, "old"))
    assert store.checkpoints.list_executions(AGENT) == ()
    index = Keys(store.namespace, store.config.shards).executions(AGENT)
    raw.zadd(index, {"old": store.server_time() - 1})
    begin(store, fence)
    do(store, fence, Complete())
    client: Any = raw
    assert client.zrange(index, 0, -1) == [b"e1"]


def test_the_results_of_steps_stay_with_their_execution(store: RedisStore, raw: redis.Redis) -> None:
    """Fields of their own: no move touches them, no look at the execution brings them along."""
    fence = run(store)
    begin(store, fence)
    raw.hset(key_of(store), "step:charge", "x" * 1_000)
    do(store, fence, Save({"row": 1}), Suspend(), Acquire(), Start(), Release())
    new = next_life(store)
    store.checkpoints.recover(AGENT, fence=new, op="r")
    assert hash_of(store, raw)[b"step:charge"] == b"x" * 1_000
    call = checkpoint_calls.read_execution(
        Keys(store.namespace, store.config.shards), agent_id=AGENT, execution_id="e1"
    )
    assert "x" * 1_000 not in repr(store._bound.client.run(call))


def test_a_checkpoint_that_cannot_be_stored_leaves_the_old_one(backend: Backend) -> None:
    """No JSON, or too large: refused before anything is sent, named with size and limit."""
    store = run_namespace(backend.open(RuntimeConfig(max_event_bytes=2_000)))
    fence = run(store)
    begin(store, fence)
    with pytest.raises(UnserialisableError, match="not plain JSON"):
        do(store, fence, Save({1, 2}))
    with pytest.raises(UnserialisableError, match="execution 'e1'"):
        do(store, fence, Save({"row": float("nan")}))
    with pytest.raises(EventTooLargeError, match="execution e1") as refused:
        do(store, fence, Save("x" * 2_000))
    assert refused.value.limit == 2_000
    assert found(store).envelope == ENVELOPE
    assert found(store).revision == 1


@pytest.mark.parametrize("fence", ["", "7", "7|", "|token", "seven|token", 7, None, b"7|token"], ids=repr)
def test_what_is_no_fence_at_all_is_named_and_is_no_end_of_an_incarnation(store: RedisStore, fence: Any) -> None:
    """Whoever passed it has to look at the call; nothing was written."""
    run(store)
    for write in (
        lambda: store.checkpoints.apply(AGENT, "e1", Create(), fence=fence, op="x"),
        lambda: store.checkpoints.recover(AGENT, fence=fence, op="x"),
    ):
        with pytest.raises(InvalidSettingError, match=r"fence=.* is no fence of an incarnation; show ctx\.fence"):
            write()
    assert store.checkpoints.load(AGENT, "e1") is None


def test_an_agent_that_does_not_exist_is_not_an_incarnation_that_is_over(store: RedisStore) -> None:
    """A registered one that nobody runs has no incarnation that could show this fence."""
    fence = run(store)
    with pytest.raises(AgentNotFoundError, match="nobody"):
        store.checkpoints.apply("nobody", "e1", Create(), fence=fence, op="x")
    act(store, CompleteAgent(fence=fence))
    with pytest.raises(FencedError, match="is over"):
        do(store, fence, Create())


@pytest.mark.parametrize("name", ["", "a\n", "x" * 401, 7, None], ids=repr)
def test_an_id_that_nobody_could_name_is_refused(store: RedisStore, name: Any) -> None:
    """Before anything is stored."""
    fence = run(store)
    with pytest.raises(InvalidExecutionIdError, match="1 to 400"):
        store.checkpoints.apply(AGENT, name, Create(), fence=fence, op="x")


def test_ids_may_hold_what_keys_may_not(store: RedisStore) -> None:
    """They are encoded in keys."""
    fence = run(store)
    for name in ("msg:42", "a b", "{x}:y", "ü|%", "x" * 400):
        begin(store, fence, name)
    assert sorted(one.id for one in store.checkpoints.list_executions(AGENT)) == sorted(
        ["msg:42", "a b", "{x}:y", "ü|%", "x" * 400]
    )


def test_recovery_of_many_is_a_few_round_trips(backend: Backend) -> None:
    """Whatever an incarnation held: the list, the reads, the writes."""
    driver = LosingDriver(backend.client())
    store = run_namespace(backend.open(driver=driver))
    fence = run(store)
    for number in range(50):
        begin(store, fence, f"e{number}")
    new = next_life(store)
    driver.sent = 0
    assert len(store.checkpoints.recover(AGENT, fence=new, op="r")) == 50
    assert driver.sent <= 3  # pipelines do not count here: scripts to be loaded, and the list
