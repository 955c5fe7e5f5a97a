"""Each script: one operation, a header about its keys and arguments, and a typed call that agrees with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lupa import lua51

from ares_celery.clock import to_datetime
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model.agent import AgentRecord, AgentSpec, Owner, RuntimeState
from ares_celery.model.audit import AuditNote
from ares_celery.model.budget import Spent
from ares_celery.model.command import Start
from ares_celery.model.event import NewEvent
from ares_celery.model.execution import Complete, Execution, ExecutionState, decide_execution
from ares_celery.model.fault import Fault, FaultKind, Injection
from ares_celery.model.fork import ForkMark
from ares_celery.model.group import Group, Strategy
from ares_celery.model.limits import ClosedLimit, FleetLimit
from ares_celery.model.message import DeadReason
from ares_celery.model.plan import Plan
from ares_celery.model.settlement import Settlement
from ares_celery.model.step import StepIntent, StepRecord
from ares_celery.model.summary import Summary
from ares_celery.model.waits import InterruptState
from ares_celery.store.base import AgentRead, ClockStand, InboxMessage, Lease, Reply, RuntimeRead
from ares_celery.store.forks import ForkCopy
from ares_celery.store.groups import GroupRead, NextStep
from ares_celery.store.interrupts import Decided, Question
from ares_celery.store.redis import (
    agent_calls,
    arena_calls,
    audit_calls,
    budget_calls,
    chaos_calls,
    checkpoint_calls,
    chunk_calls,
    event_calls,
    family_calls,
    fault_calls,
    feed_calls,
    fork_calls,
    group_calls,
    interrupt_calls,
    introspection_calls,
    letter_calls,
    limit_calls,
    mailbox_calls,
    namespace_calls,
    settings_calls,
    settling_calls,
    state_calls,
    step_calls,
    summary_calls,
)
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.finishing import finish
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.namespace_calls import StoredRuntime
from ares_celery.store.redis.scripts import SCRIPT_NAMES, Scripts
from ares_celery.store.redis.stored_events import EncodedEvent, encode_events
from ares_celery.store.redis.stored_executions import ExecutionChange
from ares_celery.store.redis.stored_snapshots import EncodedState

FOLDER = Path(__file__).parents[4] / "ares_celery/store/redis/lua"
KEYS = Keys("ares", 16)
AGENT = AgentId("counter-1")
SUMMARY = Summary("s1", AGENT, "", 2, Version(1), Version(2), to_datetime(1), to_datetime(2))
#: What fakeredis or Redis 6.2 do not have, what is slow, and what bends numbers or users' JSON.
FORBIDDEN = re.compile(
    r"\b(cjson|cmsgpack|bit|struct|tostring|sha1hex|replicate_commands|setresp|os|math\.random)\b"
    r"|'(KEYS|SCAN|HSCAN|SSCAN|ZSCAN|FLUSHDB|EVAL)'"
)


def execution_calls(events: list[EncodedEvent]) -> Iterator[Call[Any]]:
    """Those about executions."""
    execution = Execution(AGENT, "e1", state=ExecutionState.RUNNING, fence="1|t", revision=3)
    plan = decide_execution(execution, Complete(), agent_id=AGENT, execution_id="e1", fence="1|t", now=Instant(1))
    change = ExecutionChange({"state": "completed"}, ("fence",), b"null")
    move = checkpoint_calls.Move(plan, change, events, "1|t", "op")
    yield checkpoint_calls.read_execution(KEYS, agent_id=AGENT, execution_id="e1")
    yield checkpoint_calls.move_execution(KEYS, move=move, retention=timedelta(1))
    yield checkpoint_calls.requeue_execution(KEYS, move=move)
    yield checkpoint_calls.delete_execution(KEYS, execution=execution, fence="1|t")
    yield step_calls.open_execution(KEYS, agent_id=AGENT, execution_id="e1")
    holder = step_calls.Holder(AGENT, "1|t", "e1")
    event = step_calls.Told("step.completed", b"{}")
    step = step_calls.EncodedStep(StepRecord("s1", "charge", "never", value=1), b"{}", event)
    yield step_calls.record_step(KEYS, holder=holder, step=step, closes_intent=True)
    begun = step_calls.EncodedIntent(StepIntent("e1", "s1", "charge"), b"{}", event)
    yield step_calls.record_intent(KEYS, holder=holder, intent=begun)
    yield settling_calls.settle_intent(
        KEYS,
        agent_id=AGENT,
        stored=b"1|{}",
        settlement=Settlement("e1", "s1", "done"),
        record=b"{}",
        event=events[0],
        note=AuditNote(operation="reconcile"),
        retention=timedelta(1),
    )


def calls_of_interrupts() -> Iterator[Call[Any]]:
    """Those about what agents ask people."""
    question = Question("deploy", "main", "approval:deploy", {"to": "prod"}, timedelta(1))
    yield interrupt_calls.open_interrupt(KEYS, agent_id=AGENT, fence="1|t", question=question, replaces="", limit=1000)
    yield interrupt_calls.look_interrupt(KEYS, agent_id=AGENT, fence="1|t", name="deploy", interrupt_id="i")
    decided = Decided(InterruptState.RESOLVED, Instant(0), "yes")
    yield interrupt_calls.decide_interrupt(
        KEYS, agent_id=AGENT, name="deploy", interrupt_id="i", decided=decided, op="op", limit=1000
    )


def calls_of_states() -> Iterator[Call[Any]]:
    """Those of what agents keep."""
    state = EncodedState(b"{}", Version(1), Epoch(1), 1)
    yield state_calls.save_snapshot(KEYS, agent_id=AGENT, fence="1|t", state=state, blob=b"", kept=3)
    yield state_calls.note_state(KEYS, agent_id=AGENT, fence="1|t", origin="", schema=1, saved="1|1")
    yield state_calls.note_degraded(KEYS, agent_id=AGENT, fence="1|t", text="x")
    yield state_calls.note_limited(KEYS, agent_id=AGENT, fence="1|t", name="x")
    yield state_calls.delete_snapshots(KEYS, agent_id=AGENT)
    yield state_calls.set_aside(KEYS, agent_id=AGENT, fence="1|t", blobs=[b"x"], copies=False)
    yield state_calls.open_session(KEYS, agent_id=AGENT, session_id="s")
    yield state_calls.add_message(KEYS, agent_id=AGENT, session_id="s", message_id="m", data=b"{}")
    yield state_calls.read_messages(KEYS, agent_id=AGENT, session_id="s")


def calls() -> Iterator[Call[Any]]:
    """One call of each script, as its builder makes it."""
    record = AgentRecord(AgentSpec(id=AGENT, type="counter"), epoch=Epoch(1795975978273137), revision=3)
    read = AgentRead(record, Instant(1), RuntimeState.RUNNING, 1, Instant(0))
    events = encode_events(AGENT, [NewEvent("a", {}), NewEvent("b", {})], epoch=1, limit=1000)
    append = event_calls.Append(AGENT, "1|t", events[:1], "op", Version(4))
    message = InboxMessage("1-0", "m1", None, wants_reply=True, time=Instant(1))
    runtime = StoredRuntime(RuntimeRead(RuntimeState.RUNNING, 1, Instant(1), Instant(1)), {"state": "running"})
    yield agent_calls.read_agent(KEYS, agent_id=AGENT, op="op")
    yield agent_calls.commit(
        KEYS, agent_id=AGENT, plan=Plan(Start(), None, record), read=read, op="op", guard=None, events=events
    )
    yield agent_calls.claim(
        KEYS,
        agent_id=AGENT,
        epoch=Epoch(1),
        token="t",  # noqa: S106 - a claimer's token, nothing secret
        owner=Owner("i", "w", "t"),
        lease_ttl=timedelta(1),
        start_timeout=timedelta(1),
        restore_timeout=timedelta(1),
        tried_elsewhere=timedelta(1),
        page=1,
        schemas={"counter": 1},
    )
    yield agent_calls.renew(
        KEYS, shard=1, leases=[Lease(AGENT, "1|t", 0), Lease(AGENT, "1|t", 0)], lease_ttl=timedelta(1)
    )
    yield agent_calls.due(KEYS, shard=1, limit=1)
    yield agent_calls.delete_agent(KEYS, agent_id=AGENT, read=read, op="op", executions=["e1", "e2"])
    yield from execution_calls(events)
    yield from calls_of_interrupts()
    yield introspection_calls.put_dag(KEYS, key="k", data=b"1", note=AuditNote(operation="o"))
    yield introspection_calls.number_snapshot(KEYS)
    yield event_calls.append_one(KEYS, append=append)
    yield event_calls.append_batch(KEYS, append=append)
    yield event_calls.append_outside(KEYS, stream_id=AGENT, events=events, expected=None)
    yield from calls_of_states()
    yield feed_calls.read_feed(KEYS, shard=1)
    yield summary_calls.save_summary(KEYS, stream_id=AGENT, summary=SUMMARY, after=0, kept=50)
    yield summary_calls.prune_summaries(KEYS, stream_id=AGENT, ttl=timedelta(1))
    yield summary_calls.trim_events(KEYS, stream_id=AGENT, version=5)
    yield from calls_of_messages(message)
    yield namespace_calls.count(KEYS, by={"plugin_failures": 2}, op="op")
    yield namespace_calls.open_namespace(KEYS, schema=1, config="{}")
    yield namespace_calls.read_runtime(KEYS)
    yield namespace_calls.set_runtime(
        KEYS, state=RuntimeState.RUNNING, only_from=[RuntimeState.NEW], reason="", actor=""
    )
    yield namespace_calls.copy_runtime(KEYS, shard=1, stored=runtime)
    yield namespace_calls.settle_runtime(KEYS, generation=1)
    yield namespace_calls.read_clock(KEYS, shard=1)
    in_home = next(AgentId(f"a-{number}") for number in range(100) if KEYS.shard_of(f"a-{number}") == 0)
    yield namespace_calls.rebase(
        KEYS, shard=0, stand=ClockStand(1, 600_000_000, Instant(1)), lease_ttl=timedelta(1), agent_ids=[in_home]
    )
    yield audit_calls.note_down(KEYS, shard=1, note=AuditNote(operation="kill", agent_id=AGENT))
    yield settings_calls.read_settings(KEYS, op="op")
    yield settings_calls.write_settings(
        KEYS, generation="0", data=b"{}", op="op", note=AuditNote(operation="config.set")
    )
    yield namespace_calls.elect(KEYS, identity="i", ttl_ms=1)
    yield namespace_calls.report_sweep(KEYS, identity="i")
    yield namespace_calls.sweep_age(KEYS)
    yield namespace_calls.report_host(KEYS, identity="i", worker="w")
    yield namespace_calls.read_hosts(KEYS)


def calls_of_forks() -> Iterator[Call[Any]]:
    """Those that copy a history."""
    page = fork_calls.ForkPage(ForkMark(Version(9)), Version(1), entries=[fork_calls.Entry(1, (b"d", b"{}"), None)])
    yield fork_calls.fork_page(KEYS, copy=ForkCopy(AGENT, AgentId("counter-2"), Epoch(1)), page=page)


def calls_of_messages(message: InboxMessage) -> Iterator[Call[Any]]:
    """Those about messages, their answers and what became of them."""
    (event,) = encode_events(AGENT, [NewEvent("message.dead_lettered", {})], epoch=1, limit=1000)
    end = finish(AGENT, "msg:m1", fence="1|t", error={"code": "x"}, retention=timedelta(1))
    burial = letter_calls.Burial(message, DeadReason.POISON, "it died", Reply("m1", error={"code": "x"}), event, end)
    yield mailbox_calls.send(KEYS, agent_id=AGENT, message=mailbox_calls.Outgoing("m1", 1), limit=10, most=10)
    yield mailbox_calls.reply(
        KEYS, agent_id=AGENT, fence="1|t", message=message, answer=Reply("m1"), limit=100, finish=end
    )
    yield mailbox_calls.look(KEYS, agent_id=AGENT, message_id="m1")
    yield mailbox_calls.take(KEYS, agent_id=AGENT, fence="1|t", after="", limit=1, begin=1)
    yield mailbox_calls.give_back(KEYS, agent_id=AGENT, fence="1|t", entries=["1-0"])
    yield chunk_calls.write_chunks(KEYS, agent_id=AGENT, fence="1|t", message=message, first=1, pieces=[b"1"])
    yield chunk_calls.read_chunks(KEYS, agent_id=AGENT, message_id="m1", after=0)
    yield chunk_calls.cancel(KEYS, agent_id=AGENT, message_id="m1")
    yield letter_calls.bury(KEYS, agent_id=AGENT, fence="1|t", burial=burial, limit=100)


def calls_of_budgets() -> Iterator[Call[Any]]:
    """Those about what agents spend."""
    yield budget_calls.charge(KEYS, agent_id=AGENT, fence="1|t", spent=Spent(tokens=1), op="op")
    yield budget_calls.share_spending(
        KEYS, root=AGENT, agent_id=AgentId("child"), created_at=Instant(1), total=Spent(tokens=1)
    )


def calls_of_limits() -> Iterator[Call[Any]]:
    """Those about limits that agents share."""
    limit = FleetLimit("anthropic", interval=100_000, concurrency=50)
    yield limit_calls.enter_limit(KEYS, limit=limit, member="m", ask="place", lease=timedelta(1))
    yield limit_calls.close_limit(KEYS, name="anthropic", delay=timedelta(seconds=7), op="op")
    yield limit_calls.look_closings(KEYS, shard=1, healed=[Fault("op", AGENT, FaultKind.LLM)])
    yield limit_calls.open_limit(
        KEYS, closed=ClosedLimit("anthropic", datetime.fromtimestamp(60, UTC), "counter-1", "op")
    )
    yield limit_calls.leave_limit(KEYS, name="anthropic", member="m")
    yield limit_calls.keep_limit(KEYS, name="anthropic", members=["m", "n"], lease=timedelta(1))


def calls_of_groups() -> Iterator[Call[Any]]:
    """Those about supervision groups."""
    group = GroupRead(Group("g", Strategy.ONE_FOR_ALL, 3, timedelta(1)), "7", Instant(1), 1)
    yield group_calls.read_group(KEYS, name="g")
    yield group_calls.commit_group(
        KEYS,
        name="g",
        after=group.group,
        read=group,
        op="op",
        next_step=NextStep.KEEP,
        counters={"group_restarts": 1},
        note=None,
    )


def calls_of_arena() -> Iterator[Call[Any]]:
    """Those about survival runs."""
    yield arena_calls.hold_arena(KEYS, owner="run", info=b"{}", note=AuditNote(operation="survival.start"))
    yield arena_calls.stop_arena(KEYS, why="enough", note=AuditNote(operation="survival.stop"))
    yield arena_calls.release_arena(KEYS, owner="run")


def calls_of_families() -> Iterator[Call[Any]]:
    """Those about agents that spawn others."""
    (event,) = encode_events(AGENT, [NewEvent("child.spawned", {})], epoch=0, limit=1000)
    child = AgentId("child-1")
    yield family_calls.adopt(KEYS, agent_id=AGENT, fence="1|t", child_id=child, key="k", event=event)
    yield family_calls.forget_child(KEYS, agent_id=AGENT, child_id=child, number=1)


def calls_of_faults() -> Iterator[Call[Any]]:
    """Those about faults on purpose."""
    asked = fault_calls.Asked("op", "why", "eve")
    slow = Injection.of(AGENT, FaultKind.SLOW, delay=1)
    there = Fault("f1", AGENT, FaultKind.SLOW)
    ending = fault_calls.Ending.of(there)
    yield fault_calls.inject_fault(KEYS, injection=slow, allowed=True, asked=asked, present=[there])
    yield fault_calls.read_faults(KEYS, agent_id=AGENT)
    yield fault_calls.end_faults(KEYS, agent_id=AGENT, endings=[ending], asked=asked)
    yield fault_calls.use_fault(KEYS, agent_id=AGENT, fault_id="f1", op="op", last=fault_calls.Last(ending))
    read = chaos_calls.ChaosRead(Instant(1), Instant(2), 3)
    yield chaos_calls.read_chaos(KEYS, shard=1)
    yield chaos_calls.set_chaos(KEYS, duration=timedelta(1), asked=asked)
    yield chaos_calls.copy_chaos(KEYS, shard=1, read=read)
    yield chaos_calls.settle_chaos(KEYS, generation=3)


CALLS = {
    call.script: call
    for call in (
        *calls_of_faults(),
        *calls(),
        *calls_of_budgets(),
        *calls_of_forks(),
        *calls_of_groups(),
        *calls_of_families(),
        *calls_of_arena(),
        *calls_of_limits(),
    )
}


def header_of(name: str) -> list[str]:
    """The comment that a script begins with."""
    lines = (FOLDER / f"{name}.lua").read_text().splitlines()
    end = next(number for number, line in enumerate(lines) if not line.startswith("--"))
    return lines[:end]


def documented(name: str, table: str) -> tuple[int, bool]:
    """How many keys or arguments the header lists, and whether more of the last may follow."""
    entries = [re.match(rf"-- {table}\[(\d+)(\+?)\] ", line) for line in header_of(name)]
    found = [(int(entry[1]), entry[2] == "+") for entry in entries if entry]
    assert [number for number, _ in found] == list(range(1, len(found) + 1)), f"{name}: {table} not numbered in order"
    return len(found), bool(found) and found[-1][1]


def test_every_script_has_its_call_and_every_call_its_script() -> None:
    """None is left over."""
    assert sorted(CALLS) == list(SCRIPT_NAMES) == sorted(path.stem for path in FOLDER.glob("*.lua"))


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_a_script_compiles(name: str) -> None:
    """In the Lua of Redis."""
    make_runtime: Any = lua51.LuaRuntime
    assert make_runtime().compile(Scripts(flags=False).text(name)) is not None


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_a_script_begins_with_what_it_does(name: str) -> None:
    """A sentence, then keys, arguments and the reply."""
    header = header_of(name)
    assert re.match(r"-- [A-Z].*[.;:]$", header[0])
    assert any(line.startswith("-- Reply: ") for line in header)


@pytest.mark.parametrize("name", SCRIPT_NAMES)
@pytest.mark.parametrize("table", ["KEYS", "ARGV"])
def test_the_header_agrees_with_the_call(name: str, table: str) -> None:
    """As many keys and arguments as the builder gives; the body uses none beyond."""
    count, more = documented(name, table)
    given = len(CALLS[name].keys if table == "KEYS" else CALLS[name].args)
    assert given >= count if more else given == count
    body = (FOLDER / f"{name}.lua").read_text()
    used = [int(number) for number in re.findall(rf"{table}\[(\d+)\]", body)]
    assert max(used, default=0) <= count


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_all_keys_of_a_call_share_a_slot(name: str) -> None:
    """What stands in braces is the same for each."""
    assert len({key[key.index("{") : key.index("}")] for key in CALLS[name].keys}) == 1


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_a_script_uses_what_every_server_has(name: str) -> None:
    """No library that fakeredis lacks, no scan, no JSON, no number turned into text carelessly, no other clock."""
    code = "\n".join(line.partition("--")[0] for line in (FOLDER / f"{name}.lua").read_text().splitlines())
    assert FORBIDDEN.findall(code) == []
    assert not code.startswith("#!"), "the client adds the line of flags where the server knows it"


def test_only_growing_scripts_are_refused_at_maxmemory() -> None:
    """On servers that know flags."""
    flagged, plain = Scripts(flags=True), Scripts(flags=False)
    growing = {name for name in SCRIPT_NAMES if "allow-oom" not in flagged.text(name).partition("\n")[0]}
    assert growing == {
        "add_message",
        "adopt",
        "append_one",
        "append_batch",
        "append_outside",
        "fork_page",
        "inject_fault",
        "move_execution",
        "open_interrupt",
        "open_namespace",
        "open_session",
        "put_dag",
        "record_intent",
        "record_step",
        "reply",
        "save_snapshot",
        "save_summary",
        "send",
        "write_chunks",
    }
    assert all(flagged.text(name).endswith(plain.text(name)) for name in SCRIPT_NAMES)
    assert flagged.sha("commit") != plain.sha("commit")


def test_scripts_that_write_nothing_say_so() -> None:
    """So a server that takes no writes answers them. A command that could write would make it refuse the script."""
    reading = {
        "GET",
        "HGET",
        "HGETALL",
        "HLEN",
        "HMGET",
        "LINDEX",
        "LLEN",
        "TIME",
        "TYPE",
        "XLEN",
        "XRANGE",
        "XREVRANGE",
    }
    reading |= {"ZRANGE", "ZRANGEBYSCORE", "ZSCORE", "ZCARD", "EXISTS", "HEXISTS", "HSTRLEN", "TTL", "PTTL"}
    flagged, plain = Scripts(flags=True), Scripts(flags=False)
    said = {name for name in SCRIPT_NAMES if "no-writes" in flagged.text(name).partition("\n")[0]}
    found = {
        name for name in SCRIPT_NAMES if set(re.findall(r"redis\.p?call\('([A-Z]+)'", plain.text(name))) <= reading
    }
    assert said == found
