"""Faults on purpose: injected and ended once, whoever dies; only where they are allowed; always with an end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import islice
from typing import Any, cast
from uuid import uuid4

import pytest
import redis

from ares_celery.clock import instant_from, micros
from ares_celery.errors import (
    AgentForkingError,
    AgentNotFoundError,
    AgentNotRunningError,
    ChaosDisabledError,
    FaultLimitError,
    MemoryCorruptedError,
    OperationIdReusedError,
    StoreUnavailableError,
)
from ares_celery.ids import AgentId, Instant
from ares_celery.model.command import Deadline, Delete, Release, Stop
from ares_celery.model.event import ReadOptions
from ares_celery.model.fault import Draw, Fault, FaultKind, Injection
from ares_celery.model.snapshot import Snapshot
from ares_celery.store.base import ClockStand, DamagedSnapshot, DueDeadline, InboxMessage, Lease, Reply
from ares_celery.store.redis import chaos_calls, fault_calls
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import CHAOS, deadline_member
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, OWNER, act, append, claim, record_of, run, run_namespace, start
from tests.contract.store.backends import Backend, LosingDriver
from tests.key_leaks import keys_of_agent, leaked_keys
from tests.wait import wait_until

pytestmark = pytest.mark.contract

OTHER = AgentId("other-1")
#: One injection of each kind.
EACH: dict[FaultKind, dict[str, Any]] = {
    FaultKind.PARTITION: {},
    FaultKind.MEMORY: {},
    FaultKind.MCP: {"server": "github"},
    FaultKind.LLM: {"error_type": "rate_limit", "retry_after": 7},
    FaultKind.SLOW: {"delay": "1.5s"},
    FaultKind.TOOL_TIMEOUT: {"timeout": 0.2},
}


def injection(kind: FaultKind = FaultKind.MCP, agent_id: str = AGENT, **more: Any) -> Injection:
    """What somebody asks for."""
    return Injection.of(agent_id, kind, **{**EACH[kind], **more})


def inject(
    store: RedisStore,
    kind: FaultKind = FaultKind.MCP,
    agent_id: str = AGENT,
    *,
    allowed: bool = True,
    op: str = "",
    **more: Any,
) -> Fault:
    """Injects as somebody."""
    asked = injection(kind, agent_id, **more)
    return store.inject(asked, allowed=allowed, op=op or uuid4().hex, reason="a test", actor="eve")


def heal(store: RedisStore, fault: str | None = None, agent_id: AgentId = AGENT, op: str = "") -> tuple[Fault, ...]:
    """Heals as somebody."""
    return store.heal(agent_id, fault=fault, op=op or uuid4().hex, reason="enough", actor="bob")


def told(store: RedisStore, stream: str = AGENT) -> list[tuple[str, Any]]:
    """What a stream says of faults."""
    return [
        (event.type, event.payload.get("by", event.payload.get("kind")))
        for event in store.events.read(stream, ReadOptions())
        if event.type.startswith(("fault.", "chaos."))
    ]


def sweep(store: RedisStore) -> list[bool]:
    """Ends what is due, as the sweep does."""
    due = [one for shard in store.due() for one in shard.due if one.kind is Deadline.FAULT]
    return [store.settle_chaos() if one.agent_id == CHAOS else store.end_faults(one) for one in due]


def expire(store: RedisStore, raw: redis.Redis, fault: Fault) -> None:
    """Lets the time of a fault be over."""
    member = deadline_member(Deadline.FAULT, fault.agent_id, fault.id)
    key = store_keys(store).deadlines(store_keys(store).shard_of(fault.agent_id))
    assert raw.zadd(key, {member: store.server_time() - 1}, xx=True, ch=True) == 1


def deadlines_of(store: RedisStore, raw: redis.Redis) -> list[bytes]:
    """What is due for the agent's faults."""
    key = store_keys(store).deadlines(store_keys(store).shard_of(AGENT))
    members = cast("list[bytes]", raw.zrange(key, 0, -1))
    return [member for member in members if member.startswith(b"fault|")]


def store_keys(store: RedisStore) -> Any:
    """The keys of its namespace."""
    return store._bound.keys


def spends(store: RedisStore, fault: Fault, calls: int) -> list[bool]:
    """Which of the next calls a fault affects."""
    return [store.use_fault(AGENT, fault.id).hit for _ in range(calls)]


# -- what is injected -------------------------------------------------------------------------------------------------


def test_a_message_to_a_disturbed_agent_does_not_come_with_its_hint(store: RedisStore) -> None:
    """Its host looks, and learns of the faults first: the very next call meets one. Healed, it comes along again."""
    brought: list[str] = []
    hints: list[str] = []

    def mail(_fence: str, hint: InboxMessage | str) -> bool:
        brought.append(hint if isinstance(hint, str) else hint.message_id)
        return True

    wakeups = store.wakeups(OWNER.identity)
    wakeups.listen(hints.append, mail)
    try:
        wait_until(lambda: wakeups.is_listening, "the subscription")
        fence = run(store)
        inject(store)
        store.send(AGENT, 1, message_id="m1", wants_reply=False)
        wait_until(lambda: hints == [AGENT, AGENT], "the fault's hint and the message's")
        (change,) = store.renew([Lease(AGENT, fence, 0)]).changes
        assert change.faults == 1
        heal(store)
        (message,) = store.inbox(AGENT)
        store.reply(AGENT, fence, message, Reply(message.message_id))
        store.send(AGENT, 2, message_id="m2", wants_reply=False)
        wait_until(lambda: brought == ["m2"], "the message itself")
    finally:
        wakeups.close()


@pytest.mark.parametrize("kind", FaultKind)
def test_a_fault_is_active_as_it_was_asked_for(store: RedisStore, kind: FaultKind) -> None:
    """Record, event, audit entry, signal and deadline come with it; everybody reads it as it was asked for."""
    run(store)
    before = record_of(store)
    asked = injection(kind, count=3, probability=0.5, seed=7, duration="30s")
    fault = store.inject(asked, allowed=True, op="op-1", reason="to see", actor="eve")
    assert fault.until - fault.since == timedelta(seconds=30)
    expected = Fault(
        "op-1",
        AGENT,
        kind,
        since=fault.since,
        until=fault.until,
        count=3,
        probability=0.5,
        seed=7,
        delay=1.5 if kind is FaultKind.SLOW else 0.0,
        timeout=0.2 if kind is FaultKind.TOOL_TIMEOUT else 0.0,
        error_type="rate_limit" if kind is FaultKind.LLM else "",
        retry_after=7.0 if kind is FaultKind.LLM else None,
        server="github" if kind is FaultKind.MCP else "",
        epoch=before.epoch if kind in (FaultKind.PARTITION, FaultKind.MEMORY) else 0,
        reason="to see",
        actor="eve",
    )
    assert fault == expected
    assert store.faults(AGENT) == store.all_faults() == (expected,)
    after = record_of(store)
    assert (after.faults, after.signal, after.revision) == (1, before.signal + 1, before.revision)
    event = store.events.read(AGENT, ReadOptions(direction="descending", limit=1))[0]
    assert event.type == "fault.injected"
    assert {**event.payload, **EACH[kind]} == {
        "agent_id": AGENT,
        "fault": "op-1",
        "kind": kind.value,
        "duration": 30.0,
        "count": 3,
        "probability": 0.5,
        "seed": 7,
        "reason": "to see",
        "actor": "eve",
        **EACH[kind],
    }
    (entry,) = [entry for entry in store.audit(agent_id=AGENT) if entry.op == "op-1"]
    assert (entry.operation, entry.actor, entry.reason) == (fault_calls.OPERATIONS[kind], "eve", "to see")


def test_a_renewal_tells_how_many_faults_are_active(store: RedisStore) -> None:
    """So that the hosting process looks; one that was told already is not told again."""
    fence = run(store)
    signal = record_of(store).signal
    inject(store)
    inject(store, FaultKind.SLOW)
    (change,) = store.renew([Lease(AGENT, fence, signal)]).changes
    assert (change.faults, change.fenced, change.signal) == (2, False, signal + 2)
    assert store.renew([Lease(AGENT, fence, change.signal)]).changes == ()
    heal(store)
    (change,) = store.renew([Lease(AGENT, fence, change.signal)]).changes
    assert change.faults == 0


def test_an_injection_wakes_the_hosting_process(store: RedisStore, raw: redis.Redis) -> None:
    """As a pause does; the end of a fault too."""
    run(store)
    owner = record_of(store).owner
    assert owner is not None
    hints: Any = cast("Any", raw).pubsub(ignore_subscribe_messages=True)
    hints.subscribe(store.wake_channel(owner.identity))

    def heard() -> bool:
        message = hints.get_message(timeout=0.1)
        return message is not None and message["data"] == AGENT.encode()

    hints.get_message(timeout=1)
    inject(store, op="op-1")
    wait_until(heard, timeout=5)
    heal(store)
    wait_until(heard, timeout=5)
    hints.close()


def test_the_same_operation_id_is_the_same_fault(store: RedisStore) -> None:
    """Also when it has ended meanwhile; for another operation the id is refused."""
    run(store)
    fault = inject(store, FaultKind.LLM, op="op-1", seed=3)
    assert inject(store, FaultKind.LLM, op="op-1", seed=9) == fault
    healed = heal(store, op="op-2")
    assert healed == (fault,)
    assert heal(store, op="op-2") == (fault,)
    assert inject(store, FaultKind.LLM, op="op-1") == fault
    assert store.faults(AGENT) == ()
    with pytest.raises(OperationIdReusedError):
        inject(store, FaultKind.SLOW, op="op-1")
    with pytest.raises(OperationIdReusedError):
        heal(store, op="op-1")
    with pytest.raises(OperationIdReusedError):
        inject(store, op="op-2")
    assert told(store) == [("fault.injected", "llm"), ("fault.healed", "llm")]
    assert [entry.operation for entry in store.audit(agent_id=AGENT)][-2:] == ["inject_llm_failure", "heal"]


def test_a_lost_answer_injects_nothing_twice(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks again gets the fault that the first call has made."""
    driver: Any = LosingDriver(backend.client())
    store = run_namespace(backend.open(driver=driver))
    run(store)
    inject(store, agent_id=AGENT, op="op-0")  # the server knows the script from now on
    heal(store)

    def lost(keys: Any, real: Any = fault_calls.inject_fault, **given: Any) -> Any:
        driver.lose_next = True
        return real(keys, **given)

    monkeypatch.setattr(fault_calls, "inject_fault", lost)
    with pytest.raises(StoreUnavailableError):
        inject(store, op="op-1", seed=3)
    monkeypatch.undo()
    fault = inject(store, op="op-1", seed=4)
    assert store.faults(AGENT) == (fault,)
    assert fault.seed == 3
    assert told(store)[2:] == [("fault.injected", "mcp")]


# -- who may, and whom ------------------------------------------------------------------------------------------------


@pytest.mark.spec(138)
@pytest.mark.parametrize("kind", FaultKind)
def test_an_agent_that_does_not_exist_is_not_disturbed(store: RedisStore, kind: FaultKind) -> None:
    """Nothing of it is written, and nobody learns first whether faults are allowed."""
    for allowed in (True, False):
        with pytest.raises(AgentNotFoundError) as caught:
            inject(store, kind, "ghost", allowed=allowed)
        assert caught.value.fields["agent_id"] == "ghost"
    with pytest.raises(AgentNotFoundError):
        heal(store, agent_id=AgentId("ghost"))
    assert store.all_faults() == ()
    assert store.events.stream_version("ghost") == 0
    assert store.audit(agent_id=AgentId("ghost")) == []


@pytest.mark.parametrize("kind", FaultKind)
def test_nothing_is_injected_unless_it_is_allowed(store: RedisStore, kind: FaultKind) -> None:
    """By the settings, or for a time."""
    run(store)
    version = record_of(store).version
    with pytest.raises(ChaosDisabledError, match=kind.value if kind is FaultKind.TOOL_TIMEOUT else "refused"):
        inject(store, kind, allowed=False)
    assert store.faults(AGENT) == ()
    assert record_of(store).version == version
    store.allow_chaos(timedelta(minutes=5), op="c1", reason="", actor="")
    assert inject(store, kind, allowed=False).kind is kind


@pytest.mark.parametrize("kind", [FaultKind.PARTITION, FaultKind.MEMORY])
def test_what_is_done_to_an_incarnation_needs_one(store: RedisStore, kind: FaultKind) -> None:
    """The others wait for whatever incarnation comes."""
    start(store)
    with pytest.raises(AgentNotRunningError) as caught:
        inject(store, kind)
    assert caught.value.fields["state"] == "starting"
    assert inject(store, FaultKind.SLOW).epoch == 0


def test_an_agent_has_a_bounded_number_of_faults(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused; one that replaces another is not more."""
    monkeypatch.setattr(fault_calls, "MOST_FAULTS", 3)
    run(store)
    inject(store)
    inject(store, FaultKind.SLOW)
    inject(store, FaultKind.LLM)
    with pytest.raises(FaultLimitError) as caught:
        inject(store, FaultKind.LLM)
    assert caught.value.fields["limit"] == 3
    assert inject(store, FaultKind.SLOW, delay=3).delay == 3
    assert len(store.faults(AGENT)) == 3


def test_a_fork_whose_history_is_not_whole_is_left_alone(store: RedisStore, raw: redis.Redis) -> None:
    """The next versions of its stream are those of its source."""
    start(store)
    version = record_of(store).version
    key = store_keys(store).agent(AGENT)
    raw.hset(key, mapping={"forking": "5|0", "forked_from": "source|5|1"})
    with pytest.raises(AgentForkingError) as caught:
        inject(store)
    assert caught.value.fields["agent_id"] == AGENT
    raw.hdel(key, "forking")
    assert record_of(store).version == version
    assert store.faults(AGENT) == ()


# -- which, and in what order -----------------------------------------------------------------------------------------


def test_faults_are_listed_as_they_are_felt(store: RedisStore) -> None:
    """By precedence, then the oldest first; of all agents by agent."""
    run(store, OTHER)
    run(store)
    last = inject(store, agent_id=OTHER)
    made = {kind: inject(store, kind) for kind in reversed(FaultKind)}
    second = inject(store, FaultKind.PARTITION)
    expected = (made[FaultKind.PARTITION], second, *(made[kind] for kind in list(FaultKind)[1:]))
    assert store.faults(AGENT) == expected
    assert store.all_faults() == (*expected, last)
    assert store.disturbed() == [AGENT, OTHER]


@pytest.mark.parametrize("kind", [FaultKind.SLOW, FaultKind.TOOL_TIMEOUT])
def test_a_value_replaces_the_one_before(store: RedisStore, kind: FaultKind) -> None:
    """There is never more than one of the kind, and the one before says that it was replaced."""
    run(store)
    inject(store, FaultKind.LLM)
    first = inject(store, kind)
    second = inject(store, kind)
    assert [fault.id for fault in store.faults(AGENT) if fault.kind is kind] == [second.id]
    assert told(store)[1:] == [("fault.injected", kind), ("fault.ended", "replaced"), ("fault.injected", kind)]
    assert record_of(store).faults == 2
    assert store.use_fault(AGENT, first.id).over


def test_a_replacement_sees_what_came_in_between(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two injections of a kind at the same moment leave one fault: the script refuses to overlook the other one."""
    run(store)
    between = list[Fault]()

    def late(keys: Any, real: Any = fault_calls.inject_fault, **given: Any) -> Any:
        # What is there was read already.
        monkeypatch.undo()
        between.append(inject(store, FaultKind.SLOW, delay=2))
        return real(keys, **given)

    monkeypatch.setattr(fault_calls, "inject_fault", late)
    second = inject(store, FaultKind.SLOW, delay=3)
    assert len(between) == 1
    assert [fault.id for fault in store.faults(AGENT)] == [second.id]
    assert told(store) == [("fault.injected", "slow"), ("fault.ended", "replaced"), ("fault.injected", "slow")]


# -- how they end -----------------------------------------------------------------------------------------------------


@pytest.mark.spec(139)
def test_a_healed_fault_is_over(store: RedisStore) -> None:
    """By id, by kind, or all; what is listed is what is left; a heal of nothing has no effect."""
    run(store)
    made = {kind: inject(store, kind) for kind in FaultKind}
    assert heal(store, made[FaultKind.LLM].id) == (made[FaultKind.LLM],)
    assert heal(store, "slow") == (made[FaultKind.SLOW],)
    left = tuple(made[kind] for kind in FaultKind if kind not in (FaultKind.LLM, FaultKind.SLOW))
    assert store.faults(AGENT) == store.all_faults() == left
    assert record_of(store).faults == 4
    assert not store.use_fault(AGENT, made[FaultKind.LLM].id).hit
    assert heal(store) == left
    assert store.faults(AGENT) == store.all_faults() == ()
    assert record_of(store).faults == 0
    version, entries = record_of(store).version, len(store.audit(agent_id=AGENT))
    assert heal(store) == ()
    assert (record_of(store).version, len(store.audit(agent_id=AGENT))) == (version, entries)
    healed = [kind for event, kind in told(store) if event == "fault.healed"]
    assert healed == ["llm", "slow", "partition", "memory", "mcp", "tool_timeout"]


@pytest.mark.spec(139)
@pytest.mark.parametrize("kind", FaultKind)
def test_a_fault_ends_with_its_duration(store: RedisStore, raw: redis.Redis, kind: FaultKind) -> None:
    """Nobody has to end it: from that moment it affects nothing and is not listed; the sweep tells of it, once."""
    run(store)
    fault, other = inject(store, kind, count=5), inject(store)
    assert sweep(store) == []
    assert store.use_fault(AGENT, fault.id).hit
    expire(store, raw, fault)
    assert store.faults(AGENT) == store.all_faults() == (other,)
    assert store.use_fault(AGENT, fault.id) == store.use_fault(AGENT, fault.id)
    assert store.use_fault(AGENT, fault.id).over
    assert sweep(store) == [True]
    assert sweep(store) == []
    assert told(store)[2:] == [("fault.ended", "time")]
    assert record_of(store).faults == 1


def test_a_sweep_that_comes_late_or_early_ends_nothing_else(store: RedisStore) -> None:
    """The deadline that it has read may have moved, or its fault may be over."""
    run(store)
    fault = inject(store)
    early = DueDeadline(Deadline.FAULT, AGENT, fault.id, Instant(1))
    assert not store.end_faults(early)
    assert store.faults(AGENT) == (fault,)
    heal(store)
    assert not store.end_faults(early)
    assert told(store) == [("fault.injected", "mcp"), ("fault.healed", "mcp")]


def test_a_fault_of_a_newer_version_ends_as_well(store: RedisStore, raw: redis.Redis) -> None:
    """An older worker cannot show it, and ends it by time under its own name."""
    run(store)
    fault = inject(store)
    keys = store_keys(store)
    stored = cast("bytes", raw.hget(keys.faults(AGENT), fault.id))
    raw.hset(keys.faults(AGENT), fault.id, stored.replace(b"mcp|", b"gravity|"))
    assert store.faults(AGENT) == ()
    expire(store, raw, fault)
    sweep(store)
    assert told(store)[-1] == ("fault.ended", "time")
    assert record_of(store).faults == 0
    assert not raw.exists(keys.faults(AGENT))


def test_a_fault_that_redis_forgot_leaves_no_deadline(store: RedisStore, raw: redis.Redis) -> None:
    """Its keys have an end of their own, in case nobody sweeps for a day."""
    run(store)
    inject(store, duration="1h")
    keys = store_keys(store)
    assert 3600 + 86_000 < raw.ttl(keys.faults(AGENT)) <= 3600 + 86_401
    inject(store, duration="1s")
    assert raw.ttl(keys.faults(AGENT)) > 3600 + 86_000
    raw.delete(keys.faults(AGENT))
    for member in deadlines_of(store, raw):
        raw.zadd(keys.deadlines(keys.shard_of(AGENT)), {member: 1})
    assert sweep(store) == [False, False]
    assert record_of(store).faults == 0
    assert store.disturbed() == []
    assert deadlines_of(store, raw) == []


def test_a_deleted_agent_leaves_nothing_of_its_faults(store: RedisStore, raw: redis.Redis) -> None:
    """Neither key nor deadline nor listing; the next agent of the id begins undisturbed."""
    fence = run(store)
    faults = [inject(store, kind, count=2) for kind in FaultKind]
    store.use_fault(AGENT, faults[0].id, op="call-1")
    act(store, Stop())
    act(store, Release(fence=fence))
    act(store, Delete())
    keys = store_keys(store)
    left = [key for key in keys_of_agent(raw, store.namespace, AGENT) if raw.ttl(key) < 0]
    assert left == []
    assert not raw.exists(keys.faults(AGENT))
    assert store.disturbed() == []
    assert deadlines_of(store, raw) == []
    run(store)
    assert (store.faults(AGENT), record_of(store).faults) == ((), 0)
    assert leaked_keys(raw, store.namespace) == []


def test_a_clock_step_moves_the_end_along(store: RedisStore) -> None:
    """What has thirty seconds left has them afterwards, however the server's clock jumped."""
    run(store)
    fault = inject(store, duration="30s")
    stand = store.clock()
    store.rebase(ClockStand(stand.generation + 1, micros(timedelta(hours=1)), stand.now))
    (moved,) = store.faults(AGENT)
    assert moved.until - fault.until == timedelta(hours=1)


# -- which calls they affect ------------------------------------------------------------------------------------------


def test_a_seed_decides_which_calls_are_affected(store: RedisStore) -> None:
    """The script draws what the model draws; the same seed affects the same calls, another one others."""
    run(store)
    one, same, other = (inject(store, probability=0.3, seed=seed) for seed in (7, 7, 8))
    expected = list(islice(Draw.hits(7, 0.3), 60))
    assert spends(store, one, 60) == spends(store, same, 60) == expected
    assert spends(store, other, 60) == list(islice(Draw.hits(8, 0.3), 60)) != expected
    assert store.faults(AGENT)[0].used == sum(expected)


def test_a_fault_ends_with_its_count(store: RedisStore) -> None:
    """It affects as many calls as it may, tells of its end, and affects none from then on."""
    run(store)
    fault = inject(store, FaultKind.LLM, count=2)
    other = inject(store)
    uses = [store.use_fault(AGENT, fault.id) for _ in range(4)]
    assert [(use.hit, use.used, use.over) for use in uses] == [
        (True, 1, False),
        (True, 2, True),
        (False, 0, True),
        (False, 0, True),
    ]
    assert store.faults(AGENT) == (other,)
    assert told(store)[-1] == ("fault.ended", "count")
    assert record_of(store).faults == 1
    assert not sweep(store)


def test_a_call_that_asks_again_is_counted_once(store: RedisStore) -> None:
    """Its answer may have been lost, also that of the last call."""
    run(store)
    fault = inject(store, count=2, probability=0.5, seed=1)
    first = store.use_fault(AGENT, fault.id, op="call-1")
    assert store.use_fault(AGENT, fault.id, op="call-1") == first
    answers = [store.use_fault(AGENT, fault.id, op=f"more-{number}") for number in range(40)]
    again = [store.use_fault(AGENT, fault.id, op=f"more-{number}") for number in range(40)]
    assert again == answers
    assert first.hit + sum(use.hit for use in answers) == 2
    assert [event for event, _ in told(store)].count("fault.ended") == 1


def test_agents_on_a_loop_ask_the_same(store: RedisStore) -> None:
    """The awaitable twin counts with the same numbers."""
    run(store)
    fault = inject(store, probability=0.4, seed=5, count=9)

    async def ask() -> list[bool]:
        twin = store.open_async()
        try:
            assert [one.id for one in await twin.faults(AGENT)] == [fault.id]
            return [(await twin.use_fault(AGENT, fault.id)).hit for _ in range(10)]
        finally:
            await twin.aclose()

    hits = [*asyncio.run(ask()), *spends(store, fault, 10)]
    assert hits == list(islice(Draw.hits(5, 0.4), 20))


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_corrupt_memory_damages_the_newest_snapshot_alone(store: RedisStore, seed: int) -> None:
    """Its bytes are really damaged, so that its checksum finds it; the older ones are whole."""
    fence = run(store)
    version = record_of(store).version
    for number in (1, 2):
        store.save_snapshot(AGENT, fence, {"n": number}, version=version, schema=1, origin=f"o{number}")
        version = act_tick(store, fence, version)
    inject(store, FaultKind.MEMORY, seed=seed)
    newest, older = store.stored_snapshots(AGENT)
    assert isinstance(newest, DamagedSnapshot)
    assert newest.problem == "its checksum does not fit"
    assert isinstance(older, Snapshot)
    assert older.state == {"n": 1}


def act_tick(store: RedisStore, fence: str, version: int) -> Any:
    """One more event; gives its version."""
    return append(store, fence, 1, expected=version)[-1]


def test_the_seed_decides_how_a_snapshot_is_damaged(store: RedisStore) -> None:
    """The same seed the same damage: some flip a byte of the state, some cut its end off."""
    fence, found = run(store), list[tuple[int, int]]()
    for seed in (1, 1, 2, 3, 4, 5, 6):
        store.save_snapshot(AGENT, fence, {"text": "x" * 50}, version=record_of(store).version, schema=1)
        whole = raw_snapshot(store)
        inject(store, FaultKind.MEMORY, seed=seed)
        damaged = raw_snapshot(store)
        heal(store)
        first = next((at for at in range(len(damaged)) if damaged[at] != whole[at]), len(damaged))
        assert first >= whole.index(b"{")
        assert damaged[first + 1 :] in (b"", whole[first + 1 :])
        found.append((len(whole) - len(damaged), first - whole.index(b"{")))
    assert found[0] == found[1]
    assert len(set(found)) == 6
    assert {cut > 0 for cut, _ in found} == {True, False}


def raw_snapshot(store: RedisStore) -> bytes:
    """The newest one's bytes."""
    keys = store_keys(store)
    blob: bytes = store._bound.client.run(Call(lambda reply: reply, args=("LINDEX", keys.snapshots(AGENT), 0)))
    return blob


def test_corrupt_memory_without_a_snapshot_is_on_the_instance_alone(store: RedisStore) -> None:
    """There is nothing to damage, which is no error."""
    claim(store)
    fault = inject(store, FaultKind.MEMORY)
    assert store.faults(AGENT) == (fault,)
    assert store.stored_snapshots(AGENT) == []


def test_a_corrupt_memory_is_over_with_its_incarnation(store: RedisStore, raw: redis.Redis) -> None:
    """The next one is whole; whoever is cut off may live on somewhere, and is listed for as long as that lasts."""
    run(store)
    cut, corrupt = inject(store, FaultKind.PARTITION), inject(store, FaultKind.MEMORY)
    assert store.faults(AGENT) == (cut, corrupt)
    act(store, Stop(force=True))
    assert store.faults(AGENT) == store.all_faults() == (cut,)
    expire(store, raw, corrupt)
    assert sweep(store) == [True]
    assert told(store)[-1] == ("fault.ended", "time")
    assert record_of(store).faults == 1


def test_no_snapshot_of_a_corrupt_memory_is_stored(store: RedisStore, raw: redis.Redis) -> None:
    """It would cover the damage, and hold what is not to be trusted; until the fault is over."""
    fence = run(store)
    version = record_of(store).version
    save(store, fence, version, 1)
    fault = inject(store, FaultKind.MEMORY)
    damaged = raw_snapshot(store)
    for newer in (version, act_tick(store, fence, version)):
        with pytest.raises(MemoryCorruptedError) as refused:
            save(store, fence, newer, 2)
        assert (refused.value.fields["agent_id"], refused.value.fields["fault"]) == (AGENT, fault.id)
    assert [raw_snapshot(store), len(store.stored_snapshots(AGENT))] == [damaged, 1]
    assert [one.id for one in heal(store, fault.id)] == [fault.id]
    save(store, fence, record_of(store).version, 3)
    corrupt = inject(store, FaultKind.MEMORY)
    expire(store, raw, corrupt)
    save(store, fence, record_of(store).version, 4)
    inject(store, FaultKind.PARTITION)
    inject(store, FaultKind.MCP)
    save(store, fence, record_of(store).version, 5)
    newest = store.stored_snapshots(AGENT)[0]
    assert isinstance(newest, Snapshot)
    assert newest.state == {"n": 5}


def save(store: RedisStore, fence: str, version: Any, number: int) -> None:
    """As an incarnation does."""
    store.save_snapshot(AGENT, fence, {"n": number}, version=version, schema=1)


def test_no_state_of_a_corrupt_memory_goes_to_a_store_of_the_users_own(store: RedisStore, raw: redis.Redis) -> None:
    """It is refused before that store is asked; what is safe there already, taken before the fault, is noted."""
    fence = run(store)
    store.note_state(AGENT, fence, origin="o", schema=1)
    fault = inject(store, FaultKind.MEMORY)
    with pytest.raises(MemoryCorruptedError) as refused:
        store.note_state(AGENT, fence, origin="o", schema=2)
    assert (refused.value.fields["agent_id"], refused.value.fields["fault"]) == (AGENT, fault.id)
    assert record_of(store).state_schema == 1
    store.note_state(AGENT, fence, origin="o", schema=2, saved="3|7")
    assert (record_of(store).state_schema, record_of(store).state_saved) == (2, "3|7")
    expire(store, raw, fault)
    store.note_state(AGENT, fence, origin="o", schema=3)
    assert record_of(store).state_schema == 3


# -- when they are allowed --------------------------------------------------------------------------------------------


def allow(store: RedisStore, duration: timedelta, op: str = "") -> Any:
    """Allows faults for a time."""
    return store.allow_chaos(duration, op=op or uuid4().hex, reason="game day", actor="eve")


def forbid(store: RedisStore) -> Any:
    """Ends that time."""
    return store.forbid_chaos(op=uuid4().hex, reason="over", actor="bob")


def test_faults_are_allowed_for_a_time_in_every_shard(store: RedisStore) -> None:
    """With an event, an audit entry and an end; a repeat is told once."""
    assert store.chaos_state().until is None
    state = allow(store, timedelta(hours=1), op="c1")
    now = store.server_time()
    assert 3_595_000_000 < instant_from(state.until) - now <= 3_600_000_000
    assert (state.reason, state.actor) == ("game day", "eve")
    assert allow(store, timedelta(hours=1), op="c1") == state == store.chaos_state()
    assert told(store, CHAOS) == [("chaos.enabled", None)]
    for number in range(12):
        agent_id = AgentId(f"a-{number}")
        run(store, agent_id)
        assert inject(store, agent_id=agent_id, allowed=False).agent_id == agent_id
    forbid(store)
    assert store.chaos_state().until is None
    for number in range(12):
        with pytest.raises(ChaosDisabledError):
            inject(store, agent_id=f"a-{number}", allowed=False)
    assert told(store, CHAOS) == [("chaos.enabled", None), ("chaos.disabled", "request")]
    assert len(store.all_faults()) == 12
    forbid(store)
    assert len(told(store, CHAOS)) == 2
    noted = [(entry.operation, entry.actor) for entry in store.audit() if entry.operation.startswith("chaos")]
    assert noted == [("chaos.enable", "eve"), ("chaos.disable", "bob")]


def test_who_allows_faults_for_a_moment_ends_nobody_elses_hour(store: RedisStore, raw: redis.Redis) -> None:
    """The later end stays, in every shard; a longer time is a later end; who wants less forbids them first."""
    run(store)
    keys = store_keys(store)
    hour = allow(store, timedelta(hours=1)).until
    assert allow(store, timedelta(seconds=5)).until == hour
    copies = [(raw.hget(keys.chaos(shard), "until"), raw.ttl(keys.chaos(shard))) for shard in range(keys.shards)]
    assert {until for until, _ in copies} == {str(instant_from(hour)).encode()}
    assert min(left for _, left in copies) > 3600 + 86_000, "its key is kept behind the later end"
    assert inject(store, allowed=False, duration="30m").until > hour - timedelta(hours=1) + timedelta(minutes=29)
    assert allow(store, timedelta(hours=2)).until > hour
    forbid(store)
    assert allow(store, timedelta(seconds=5)).until < hour - timedelta(minutes=50)


def test_a_fault_that_is_allowed_for_a_time_ends_with_that_time(store: RedisStore) -> None:
    """After the hour nobody is disturbed, without anybody doing anything; what the settings allow goes on."""
    run(store)
    until = allow(store, timedelta(seconds=20)).until
    capped = inject(store, allowed=False, duration="10m")
    free = inject(store, allowed=True, duration="10m")
    assert capped.until == until
    assert free.until > until
    event = next(e for e in store.events.read(AGENT, ReadOptions()) if e.payload.get("fault") == capped.id)
    assert 0 < event.payload["duration"] <= 20


def test_the_end_of_that_time_is_told_by_the_sweep(store: RedisStore, raw: redis.Redis) -> None:
    """Faults are refused from that very moment, whether somebody swept or not."""
    run(store)
    allow(store, timedelta(milliseconds=60))
    keys = store_keys(store)

    def is_over() -> bool:
        return store.chaos_state().until is None

    wait_until(is_over, timeout=5)
    with pytest.raises(ChaosDisabledError):
        inject(store, allowed=False)
    assert sweep(store) == [True]
    assert told(store, CHAOS) == [("chaos.enabled", None), ("chaos.disabled", "time")]
    assert sweep(store) == []
    assert raw.zscore(keys.deadlines(keys.shard_of(CHAOS)), deadline_member(Deadline.FAULT, CHAOS)) is None
    assert leaked_keys(raw, store.namespace) == []


def test_a_sweep_ends_what_somebody_began_to_allow(store: RedisStore, raw: redis.Redis) -> None:
    """Whoever died between the shards is finished for; an older copy never overwrites a newer one."""
    run(store)
    keys = store_keys(store)
    allow(store, timedelta(hours=1))
    read = {shard: raw.hgetall(keys.chaos(shard)) for shard in range(keys.shards)}
    assert len({(one[b"until"], one[b"generation"]) for one in read.values()}) == 1
    for shard in range(keys.shards):
        assert 3600 < raw.ttl(keys.chaos(shard)) <= 3600 + 86_401
        if shard != keys.shard_of(CHAOS):
            raw.delete(keys.chaos(shard))
    raw.zadd(keys.deadlines(keys.shard_of(CHAOS)), {deadline_member(Deadline.FAULT, CHAOS): 1})
    assert sweep(store) == [False]
    assert inject(store, allowed=False).agent_id == AGENT
    assert {raw.hget(keys.chaos(shard), "until") for shard in range(keys.shards)} == {read[0][b"until"]}
    member, deadlines = deadline_member(Deadline.FAULT, CHAOS), keys.deadlines(keys.shard_of(CHAOS))
    until, generation = raw.zscore(deadlines, member), int(read[0][b"generation"])
    assert until == int(read[0][b"until"])
    # Somebody who copied what has changed since does not put the deadline off.
    raw.zadd(deadlines, {member: 1})
    assert store._bound.client.run(chaos_calls.settle_chaos(keys, generation=generation - 1)) == 0
    assert raw.zscore(deadlines, member) == 1
    assert store._bound.client.run(chaos_calls.settle_chaos(keys, generation=generation)) == 1
    assert raw.zscore(deadlines, member) == until
    shard = next(shard for shard in range(keys.shards) if shard != keys.shard_of(CHAOS))
    raw.hset(keys.chaos(shard), mapping={"generation": 2**53 - 1, "until": 0})
    store.settle_chaos()
    assert raw.hget(keys.chaos(shard), "until") == b"0"
