"""A plan is applied whole or not at all, once for each operation id."""

from __future__ import annotations

from dataclasses import replace

import pytest
import redis
from typing_extensions import override

from ares_celery.errors import OperationIdReusedError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import AgentSpec, AgentState, Desired, Owner, Request, RestartType, RuntimeState
from ares_celery.model.command import Complete, Deadline, DeadlineDue, Delete, MarkRunning, Register, Start, Stop
from ares_celery.model.event import NewEvent
from ares_celery.model.plan import Nudge, Plan
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.ports import Launcher
from ares_celery.store.base import AgentRead, CommitConflict, DueDeadline
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, OWNER, act, claim, plan_for, record_of, run, start
from tests.contract.store.backends import Backend, LosingDriver

pytestmark = pytest.mark.contract


class Silent(Launcher):
    """No broker."""

    @override
    def launch(self, nudge: Nudge) -> None:
        """Forgets it."""

    @override
    def waiting(self, queue: str | None) -> int | None:
        """Nothing waits."""
        return 0


def test_a_new_agent_is_read_back_as_it_was_decided(store: RedisStore) -> None:
    """Record, state index, counters and deadline belong together; times are those of Redis."""
    spec = AgentSpec(id=AGENT, type="counter", config={"step": 2, "ä": [1.5, None]}, restart=RestartType.PERMANENT)
    read = store.read(AGENT)
    plan = plan_for(store, read, Start(spec=spec, reason="why", actor="me@here"))
    committed = store.commit(plan, read, op="op-1")
    after = store.read(AGENT)
    assert after.record is not None
    assert plan.after is not None
    assert after.record == replace(plan.after, revision=1, created_at=committed.now, changed_at=committed.now)
    assert (committed.epoch, committed.revision, committed.version) == (plan.after.epoch, 1, 0)
    assert store.list_ids() == [AGENT]
    assert store.count_by_state() == {AgentState.STARTING: 1}
    deadlines = [shard.next_at for shard in store.due() if shard.next_at]
    assert deadlines == [plan.deadlines[Deadline.NUDGE]]


def test_every_field_of_a_record_survives_the_way_through_redis(store: RedisStore) -> None:
    """Also texts that an exception may hold: unprintable, half a surrogate pair, far too long."""
    record = start(store)
    full = replace(
        record,
        desired=Desired.PAUSED,
        state=AgentState.STOPPING,
        fence="1795975978273137|tok|en",
        incarnation=3,
        owner=Owner("h:b:1:2:3", "w@h", "t|1"),
        request=Request.PAUSE,
        request_reason="because\n",
        signal=4,
        reason="grün \x00 '",
        actor="me@here",
        cause="crash",
        restarts=1,
        charged=2,
        manual_restarts=3,
        failures=4,
        attempt=5,
        charged_at=(1795975978273137, 1795975978273138),
        lost_together=(1795975978273136, 1795975978273137),
        deaths={"crash": 2, "llm": 1},
        failover=True,
        start_reason="failover",
        claimable_after=Instant(1795975978273139),
        nudges=6,
        task_id="task",
        retries=7,
        claimed_at=Instant(1795975978273140),
        running_since=Instant(1795975978273141),
        died_at=Instant(1795975978273142),
        result='{"a": 1}',
        last_error="\udcff" + "x" * 9_000,
    )
    read = store.read(AGENT)
    store.commit(Plan(Stop(), record, full), read, op="op-2")
    after = record_of(store)
    expected_error = "\\udcff" + "x" * 3_998 + "…"
    assert replace(after, last_error="", changed_at=Instant(0), revision=0) == replace(
        full, last_error="", changed_at=Instant(0), revision=0
    )
    assert after.last_error == expected_error
    emptied = replace(record, state=AgentState.STOPPED)
    store.commit(Plan(Stop(), after, emptied), store.read(AGENT), op="op-3")
    assert replace(record_of(store), revision=0, changed_at=Instant(0)) == replace(
        emptied, revision=0, changed_at=Instant(0)
    )


def test_a_repeat_of_an_operation_returns_the_first_outcome(store: RedisStore) -> None:
    """Nothing is written twice, whatever happened in between; a read shows the outcome too."""
    read = store.read(AGENT)
    plan = plan_for(store, read, Start(spec=AgentSpec(id=AGENT, type="counter")))
    first = store.commit(plan, read, op="same")
    act(store, Stop())
    again = store.commit(plan, read, op="same")
    assert again == replace(first, repeated=True)
    assert record_of(store).state is AgentState.STOPPED
    assert store.read(AGENT, op="same").outcome == again
    assert store.read(AGENT, op="another").outcome is None


def test_a_commit_whose_answer_is_lost_is_not_done_twice(backend: Backend) -> None:
    """The same op id after a timeout: counters and events are there once."""
    driver = LosingDriver(backend.client())
    store = backend.open(driver=driver)
    store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.NEW], reason="", actor="")
    fence = run(store)
    read = store.read(AGENT)
    plan = plan_for(store, read, Complete(fence=fence))
    store.commit(plan_for(store, read, MarkRunning(fence=fence)), read, op="warm-up")
    read = store.read(AGENT)
    plan = plan_for(store, read, Complete(fence=fence))
    driver.lose_next = True
    with pytest.raises(ConnectionError):
        store.commit(plan, read, op="done")
    assert store.commit(plan, read, op="done").repeated
    assert store.counters() == {"completed": 1}
    assert [event.type for event in store.events.read(AGENT)].count("agent.completed") == 1


def test_a_plan_on_an_old_read_is_refused_as_a_whole(store: RedisStore) -> None:
    """Somebody else was faster: no field, event, counter or deadline of the loser is there."""
    fence = run(store)
    read = store.read(AGENT)
    slow = plan_for(store, read, Complete(fence=fence))
    act(store, Stop(reason="faster"))
    before = record_of(store)
    with pytest.raises(CommitConflict):
        store.commit(slow, read, op="slow")
    assert record_of(store) == before
    assert store.counters() == {}
    assert [event.type for event in store.events.read(AGENT)] == ["agent.started"]


def test_two_births_at_once_make_one_agent(store: RedisStore) -> None:
    """Both read that it does not exist; the second commit is a conflict."""
    read = store.read(AGENT)
    plan = plan_for(store, read, Register(spec=AgentSpec(id=AGENT, type="counter")))
    store.commit(plan, read, op="first")
    with pytest.raises(CommitConflict):
        store.commit(plan, read, op="second")


def test_a_changed_runtime_makes_a_plan_old(store: RedisStore) -> None:
    """What was decided while the namespace ran is not applied after it was stopped."""
    read = store.read(AGENT)
    plan = plan_for(store, read, Start(spec=AgentSpec(id=AGENT, type="counter")))
    store.set_runtime(RuntimeState.STOPPED, only_from=[RuntimeState.RUNNING], reason="", actor="")
    with pytest.raises(CommitConflict):
        store.commit(plan, read, op="late")
    assert store.read(AGENT).record is None


def test_an_agent_made_anew_is_another_agent(store: RedisStore) -> None:
    """Its revision may be the same as its namesake's: the epoch tells them apart."""
    start(store)
    act(store, Stop())
    old = store.read(AGENT)
    stale = plan_for(store, old, Start())
    act(store, Delete())
    start(store)
    act(store, Stop())
    assert stale.before is not None
    assert record_of(store).revision == stale.before.revision
    with pytest.raises(CommitConflict):
        store.commit(stale, old, op="stale")


def nudge_of(store: RedisStore, raw: redis.Redis) -> DueDeadline:
    """The deadline of the agent's nudge, as it stands."""
    keys = Keys(store.namespace, store.config.shards)
    score = raw.zscore(keys.deadlines(keys.shard_of(AGENT)), f"nudge|{AGENT}")
    assert score is not None
    return DueDeadline(Deadline.NUDGE, AGENT, "", Instant(int(score)))


def test_a_deadline_guards_its_commit(store: RedisStore, raw: redis.Redis) -> None:
    """Two sweepers answer the same deadline: the second finds that it stands no more."""
    start(store)
    guard = nudge_of(store, raw)
    read = store.read(AGENT)
    plan = plan_for(store, read, DeadlineDue(kind=Deadline.NUDGE, score=guard.score))
    store.commit(plan, read, op="first", guard=guard)
    second = store.read(AGENT)
    plan = plan_for(store, second, DeadlineDue(kind=Deadline.NUDGE, score=guard.score))
    with pytest.raises(CommitConflict):
        store.commit(plan, second, op="second", guard=guard)
    assert record_of(store).nudges == 1


def test_an_answered_deadline_is_gone_unless_it_was_set_anew(store: RedisStore, raw: redis.Redis) -> None:
    """A plan that says nothing about the deadline that caused it has answered it all the same."""
    start(store)
    guard = nudge_of(store, raw)
    read = store.read(AGENT)
    store.commit(Plan(DeadlineDue(), read.record, read.record, ignored="agrees"), read, op="o", guard=guard)
    assert [shard.next_at for shard in store.due() if shard.next_at] == []


def test_a_deadline_of_nobody_is_cleared(store: RedisStore, raw: redis.Redis) -> None:
    """The agent was deleted, a deadline of it was left: answered, gone, and no agent comes of it."""
    keys = Keys(store.namespace, store.config.shards)
    raw.zadd(keys.deadlines(keys.shard_of(AGENT)), {f"stop|{AGENT}": 5})
    (guard,) = [deadline for shard in store.due() for deadline in shard.due]
    assert guard == DueDeadline(Deadline.STOP, AGENT, "", Instant(5))
    read = store.read(AGENT)
    store.commit(plan_for(store, read, DeadlineDue(kind=Deadline.STOP, score=guard.score)), read, op="o", guard=guard)
    assert [shard.due for shard in store.due() if shard.due] == []
    assert store.read(AGENT).record is None


def test_deadlines_alone_do_not_make_other_plans_old(store: RedisStore) -> None:
    """Whoever only moves a deadline leaves the revision as it is."""
    start(store)
    read = store.read(AGENT)
    store.commit(Plan(Stop(), read.record, read.record, deadlines={Deadline.STOP: Instant(7)}), read, op="timer")
    assert store.read(AGENT).record == read.record
    store.commit(plan_for(store, read, Stop()), read, op="stop")


def test_lifecycle_events_are_stored_with_the_record(store: RedisStore) -> None:
    """In order, with the runtime's mark, at the time of the commit."""
    fence = claim(store).record.fence
    committed = act(store, MarkRunning(fence=fence))
    (event,) = store.events.read(AGENT)
    assert (event.version, event.type, event.metadata, event.epoch) == (1, "agent.started", {"module": "runtime"}, 0)
    assert event.payload == {"agent_id": AGENT, "type": "counter", "reason": "start", "incarnation": 1}
    assert committed.version == record_of(store).version == 1


def test_no_message_of_an_exception_stops_a_verdict(store: RedisStore) -> None:
    """Half a surrogate pair and megabytes of text are stored in a form that can be."""
    start(store)
    read = store.read(AGENT)
    said = NewEvent("agent.stopped", {"reason": "\udc80" + "y" * (2 << 20), "charged": True}, {"module": "runtime"})
    assert read.record is not None
    store.commit(Plan(Stop(), read.record, replace(read.record, reason="gone"), (said,)), read, op="verdict")
    (event,) = store.events.read(AGENT)
    assert event.payload["reason"].startswith("\\udc80yyy")
    assert event.payload["charged"] is True


def test_the_host_of_an_agent_is_known_until_it_is_free(store: RedisStore) -> None:
    """The index follows the record's owner, and knows one process from another whose name begins alike."""
    other = AgentId("counter-2")
    fence = run(store)
    run(store, other, owner=replace(OWNER, identity=f"{OWNER.identity}1"))
    assert store.hosted_by(OWNER.identity) == [AGENT]
    assert store.hosted_by(f"{OWNER.identity}1") == [other]
    act(store, Complete(fence=fence))
    assert store.hosted_by(OWNER.identity) == []


def test_lists_and_counts_follow_the_states(store: RedisStore) -> None:
    """An agent is in one state; a state without agents is absent."""
    ids = [AgentId(f"agent-{number}") for number in range(40)]
    for agent_id in ids:
        start(store, agent_id)
    for agent_id in ids[:10]:
        act(store, Stop(), agent_id)
    assert store.count_by_state() == {AgentState.STARTING: 30, AgentState.STOPPED: 10}
    assert store.list_ids([AgentState.STOPPED]) == sorted(ids[:10])
    assert store.list_ids([AgentState.PARKED]) == []
    assert store.list_ids() == sorted(ids)
    reads = store.read_many([*ids, AgentId("nobody")])
    assert [read.record.id if read.record else None for read in reads] == [*ids, None]


def test_an_operation_id_is_for_one_kind_of_operation(store: RedisStore) -> None:
    """Another one under the same id is refused in words, and does nothing; the same one again is not."""
    committer = Committer(store, lambda: store.config, Silent())
    committer.apply(AGENT, Start(spec=AgentSpec(id=AGENT, type="counter")), op="x1")
    before = record_of(store)
    assert committer.apply(AGENT, Start(if_exists="restart"), op="x1").ignored == "done before"
    for command in (Stop(), Stop(force=True), Delete()):
        with pytest.raises(OperationIdReusedError, match="op 'x1' was used for start of agent 'counter-1' already"):
            committer.apply(AGENT, command, op="x1")
    assert record_of(store) == before
    committer.apply(AGENT, Stop(force=True), op="x2")
    committer.apply(AGENT, Delete(), op="x3")
    assert committer.apply(AGENT, Delete(), op="x3").ignored == "done before"
    with pytest.raises(OperationIdReusedError, match="was used for delete"):
        committer.apply(AGENT, Start(spec=AgentSpec(id=AGENT, type="counter")), op="x3")


def test_two_operations_of_one_id_at_once_do_not_both_succeed(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that has read before the other wrote learns from the script that the id is used."""
    start(store)
    reads = store.read

    def late(agent_id: AgentId, *, op: str = "") -> AgentRead:
        read = reads(agent_id, op=op)
        store.commit(plan_for(store, read, Start(if_exists="restart")), read, op=op)
        return read

    monkeypatch.setattr(store, "read", late)
    with pytest.raises(OperationIdReusedError, match="was used for start"):
        Committer(store, lambda: store.config, Silent()).apply(AGENT, Stop(), op="x1")
    monkeypatch.undo()
    assert record_of(store).desired is Desired.RUNNING


def test_an_outcome_of_an_older_version_counts_as_the_same_operation(store: RedisStore, raw: redis.Redis) -> None:
    """It does not say what it was for."""
    start(store)
    raw.set(Keys(store.namespace, store.config.shards).op(AGENT, "old"), "1795975978273137|1|0|1795975978273137")
    committer = Committer(store, lambda: store.config, Silent())
    assert committer.apply(AGENT, Stop(), op="old").ignored == "done before"
