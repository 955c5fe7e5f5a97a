"""One hosting process against a real Redis: what agents may do, and what becomes of it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ares_celery import AgentContext, AgentFailedError, AgentSpec, Event, EventType, NewEvent, SyncAgentContext
from ares_celery.errors import (
    FencedSignal,
    InvalidConfigError,
    OperationNotSupportedError,
    UnserialisableError,
)
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import assert_stays, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A running runtime in this process."""
    with Runtime(redis_server.url, namespace) as made:
        made.manager.start()
        yield made


class Counter:
    """contract.md's sample agent, with one message more."""

    def __init__(self, agent_id: str, step: int = 1) -> None:
        self.agent_id, self.step, self.total = agent_id, step, 0

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.emit("counter.ticked", {"by": self.step})
            await ctx.sleep(0.01)

    def apply(self, event: Event) -> None:
        if event.type == "counter.ticked":
            self.total += event.payload["by"]

    async def process(self, ctx: AgentContext, message: object) -> object:
        return {"total": self.total}

    def snapshot(self) -> dict[str, object]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, object]) -> None:
        self.total = int(str(state["total"]))


def fold(runtime: Runtime, agent_id: str) -> int:
    """The truth: the sum over the stored events."""
    return sum(event.payload["by"] for event in runtime.events(agent_id, "counter.ticked"))


def test_a_restarted_agent_goes_on_where_its_events_end(runtime: Runtime) -> None:
    """State after a restart equals the fold of the acknowledged events."""
    runtime.register("counter", Counter)
    runtime.manager.start_agent(AgentSpec(id="c", type="counter", config={"step": 2}), wait="running")
    wait_until(lambda: fold(runtime, "c") > 20)

    runtime.manager.restart_agent("c")
    runtime.until("c", "running", incarnation=2)
    runtime.manager.stop_agent("c")

    states = [snapshot.state for snapshot in runtime.store.stored_snapshots("c")]  # type: ignore[arg-type, union-attr]
    assert states[0] == {"total": fold(runtime, "c")}


@pytest.mark.spec(28)
def test_a_restart_is_told_with_type_and_reason(runtime: Runtime) -> None:
    """agent.stopped(reason restart) comes before agent.started, which has the true type and the reason of its own."""
    runtime.register("counter", Counter)
    runtime.manager.start_agent(AgentSpec(id="c", type="counter"), wait="running")

    runtime.manager.restart_agent("c")
    runtime.until("c", "running", incarnation=2)

    told = [event for event in runtime.events("c") if event.type.startswith("agent.")]
    assert [(event.type, event.payload["reason"]) for event in told] == [
        ("agent.started", "start"),
        ("agent.stopped", "restart"),
        ("agent.started", "restart"),
    ]
    assert told[-1].payload["type"] == "counter"


class Ends:
    """Ends as its config says."""

    def __init__(self, agent_id: str, how: str) -> None:
        self.how = how

    async def start(self, ctx: AgentContext) -> None:
        match self.how:
            case "return":
                return
            case "exit":
                sys.exit(3)
            case "interrupt":
                raise KeyboardInterrupt
            case "memory":
                raise MemoryError("all of it")
            case _:
                raise RuntimeError("on purpose")


def test_a_permanent_agent_that_returns_comes_back(runtime: Runtime) -> None:
    """Restart type permanent: a return is a death, charged, until the cap."""
    runtime.register("ends", Ends)
    runtime.manager.start_agent(
        AgentSpec(id="e", type="ends", config={"how": "return"}, restart="permanent", max_restarts=2)
    )

    info = runtime.until("e", "parked")
    assert (info.cause, info.charged, info.incarnation) == ("cap", 2, 3)
    assert "the agent is permanent" in info.last_error


@pytest.mark.parametrize("how", ["exit", "interrupt", "memory", "error"])
@pytest.mark.spec(20)
def test_whatever_an_agent_raises_ends_the_agent_alone(runtime: Runtime, how: str) -> None:
    """SystemExit, KeyboardInterrupt, MemoryError, exceptions are contained; the neighbour on the same loop goes on."""
    runtime.register("ends", Ends)
    runtime.register("counter", Counter)
    runtime.manager.start_agent(AgentSpec(id="n", type="counter"), wait="running")
    runtime.manager.start_agent(AgentSpec(id="e", type="ends", config={"how": how}, max_restarts=1))

    info = runtime.until("e", "parked")

    names = {"exit": "SystemExit", "interrupt": "KeyboardInterrupt", "memory": "MemoryError", "error": "RuntimeError"}
    assert info.reason.startswith(names[how])
    before = fold(runtime, "n")
    wait_until(lambda: fold(runtime, "n") > before)
    assert runtime.manager.get_agent_info("n").incarnation == 1  # type: ignore[union-attr]


class Eater:
    """Catches every Exception and never looks whether it should stop."""

    def __init__(self, agent_id: str) -> None:
        self.signals: list[str] = []

    async def start(self, ctx: AgentContext) -> None:
        while True:
            try:
                await ctx.sleep(0.01)
            except Exception:  # noqa: BLE001 - the point of this agent
                self.signals.append("eaten")


def test_an_agent_that_eats_exceptions_stops_all_the_same(runtime: Runtime) -> None:
    """The stop signal is no Exception: a `while True` with `except Exception` ends when it is asked to."""
    runtime.register("eater", Eater)
    runtime.manager.start_agent(AgentSpec(id="e", type="eater"), wait="running")

    runtime.manager.stop_agent("e")

    assert runtime.manager.get_agent_info("e").state == "stopped"  # type: ignore[union-attr]
    assert runtime.types("e")[-1] == "agent.stopped"


class Busy:
    """A plain agent that computes without ever calling its context."""

    def __init__(self, agent_id: str) -> None:
        self.rounds = 0

    def start(self, ctx: SyncAgentContext) -> None:
        while True:
            self.rounds += 1


def test_a_plain_agent_that_only_computes_is_interrupted(runtime: Runtime) -> None:
    """Python code that never yields gets the stop signal at a bytecode, before its deadline fences it."""
    runtime.register("busy", Busy)
    runtime.manager.start_agent(AgentSpec(id="b", type="busy"), wait="running")

    runtime.manager.stop_agent("b")

    assert runtime.manager.get_agent_info("b").state == "stopped"  # type: ignore[union-attr]
    assert runtime.launcher.join(5)


class Failing:
    """Fails to apply one kind of event."""

    def __init__(self, agent_id: str) -> None:
        self.survived = False

    async def start(self, ctx: AgentContext) -> None:
        try:
            await ctx.emit("poison", {})
        except Exception:  # noqa: BLE001 - an agent may well do this
            self.survived = True
        await ctx.sleep(60)

    def apply(self, event: Event) -> None:
        raise ValueError("cannot apply")


def test_an_event_that_cannot_be_applied_ends_the_agent(runtime: Runtime) -> None:
    """Stored but not applied: state is no longer the fold, so not even `except Exception` may go on with it."""
    runtime.register("failing", Failing)
    runtime.manager.start_agent(AgentSpec(id="f", type="failing", restore_attempts=2))

    info = runtime.until("f", "parked")

    assert info.cause == "attempts"
    assert "cannot apply" in info.last_error


@pytest.mark.parametrize("how", ["return"])
def test_an_exception_in_process_reaches_the_caller(runtime: Runtime, how: str) -> None:
    """Type, message and traceback text arrive; the agent is not dead."""

    class Raiser:
        def __init__(self, agent_id: str) -> None: ...

        async def process(self, ctx: AgentContext, message: object) -> object:
            raise LookupError("nothing there")

    runtime.register("raiser", Raiser)
    runtime.manager.start_agent(AgentSpec(id="r", type="raiser"), wait="running")

    with pytest.raises(AgentFailedError) as caught:
        runtime.manager.process("r", "x")

    assert caught.value.fields["type"] == "LookupError"
    assert "nothing there" in caught.value.fields["error"]
    assert "in process" in caught.value.fields["traceback"]
    assert runtime.manager.get_agent_info("r").incarnation == 1  # type: ignore[union-attr]


def test_an_agent_without_process_says_so(runtime: Runtime) -> None:
    """A message for it is answered with an error instead of waiting for ever."""
    runtime.register("eater", Eater)
    runtime.manager.start_agent(AgentSpec(id="e", type="eater"), wait="running")

    with pytest.raises(OperationNotSupportedError, match="neither process"):
        runtime.manager.process("e", "x", timeout=5)


class Plain:
    """A plain agent with messages."""

    def __init__(self, agent_id: str) -> None:
        self.thread = 0
        self.total = 0

    def start(self, ctx: SyncAgentContext) -> None:
        self.thread = threading.get_ident()
        while not ctx.stop_requested:
            ctx.emit("ticked", {})
            ctx.sleep(0.02)

    def apply(self, event: Event) -> None:
        self.total += event.type == "ticked"

    def process(self, ctx: SyncAgentContext, message: object) -> object:
        return {"same_thread": self.thread == threading.get_ident(), "total": self.total, "message": message}


def test_a_plain_agent_answers_in_its_own_thread(runtime: Runtime) -> None:
    """Start's code and process never run in parallel: messages are handed over at context calls."""
    runtime.register("plain", Plain)
    runtime.manager.start_agent(AgentSpec(id="p", type="plain"), wait="running")

    answer = runtime.manager.process("p", {"hello": "you"})

    assert answer["same_thread"] is True
    assert answer["message"] == {"hello": "you"}


@pytest.mark.spec(63)
def test_an_agent_that_says_it_is_not_alive_dies(runtime: Runtime) -> None:
    """is_alive false at a health check: a death whose reason names the heartbeat, and a resurrection."""
    ill: list[bool] = []

    class Ill:
        def __init__(self, agent_id: str) -> None:
            self.beats = 0

        async def start(self, ctx: AgentContext) -> None:
            while not ctx.stop_requested:
                await ctx.sleep(60)

        def heartbeat(self) -> None:
            self.beats += 1

        def is_alive(self) -> bool:
            return not (ill and self.beats > 0)

    runtime.register("ill", Ill)
    runtime.manager.start_agent(AgentSpec(id="i", type="ill"), wait="running")
    ill.append(True)

    runtime.until("i", "running", incarnation=2)
    ill.clear()

    (stopped,) = runtime.events("i", "agent.stopped")
    assert stopped.payload["reason"] == "health check: heartbeat failed"
    assert stopped.payload["auto_restore"] is True


@pytest.mark.spec(64)
def test_an_agent_without_heartbeats_is_judged_by_its_status(runtime: Runtime) -> None:
    """Status offline: a death whose reason names the status."""

    class Statused:
        made = 0

        def __init__(self, agent_id: str) -> None:
            Statused.made += 1
            self.status = "offline" if Statused.made == 1 else "ready"

        async def start(self, ctx: AgentContext) -> None:
            while not ctx.stop_requested:
                await ctx.sleep(60)

    runtime.register("statused", Statused)
    runtime.manager.start_agent(AgentSpec(id="s", type="statused"))

    runtime.until("s", "running", incarnation=2)

    (stopped,) = runtime.events("s", "agent.stopped")
    assert stopped.payload["reason"] == "health check: status=offline"


def test_a_fenced_incarnation_cannot_write_and_ends(runtime: Runtime) -> None:
    """Stopped by force: its next emit raises a signal that `except Exception` cannot eat."""
    seen: list[str] = []

    class Writer:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            try:
                while True:
                    try:
                        await ctx.emit("written", {})
                    except Exception:  # noqa: BLE001 - the point of this agent
                        seen.append("eaten")
            except FencedSignal:
                seen.append("fenced")
                raise

    runtime.register("writer", Writer)
    runtime.manager.start_agent(AgentSpec(id="w", type="writer"), wait="running")
    wait_until(lambda: len(runtime.events("w", "written")) > 3)

    runtime.manager.stop_agent("w", force=True)
    version = runtime.store.events.stream_version("w")

    assert runtime.launcher.join(5)
    assert seen in ([], ["fenced"])  # cancelled, or told at its next write
    assert runtime.store.events.stream_version("w") == version


def test_a_config_that_does_not_fit_is_refused_before_anything_is_stored(runtime: Runtime) -> None:
    """The error names agent, type and parameter."""
    runtime.register("counter", Counter)

    with pytest.raises(InvalidConfigError, match="steps"):
        runtime.manager.start_agent(AgentSpec(id="c", type="counter", config={"steps": 2}))

    assert runtime.manager.get_agent_info("c") is None


def test_a_damaged_snapshot_is_passed_over_for_an_older_one(runtime: Runtime, redis_server: RedisServer) -> None:
    """Bytes of the newest snapshot are flipped: recovery notices, uses the one before and replays more."""
    runtime.register("counter", Counter)
    runtime.manager.start_agent(AgentSpec(id="c", type="counter"), wait="running")
    wait_until(lambda: len(runtime.store.stored_snapshots("c")) >= 2)  # type: ignore[arg-type]
    runtime.manager.stop_agent("c")
    total = fold(runtime, "c")
    client: Any = redis_server.client()
    (key,) = client.keys(f"*{runtime.store.namespace}*:snapshots:c")
    damaged = bytearray(client.execute_command("LINDEX", key, 0))
    damaged[-3] ^= 0x01
    client.execute_command("LSET", key, 0, bytes(damaged))

    runtime.manager.start_agent("c", wait="running")

    assert runtime.manager.process("c", "total")["total"] >= total
    runtime.manager.stop_agent("c")
    newest = runtime.store.stored_snapshots("c")[0]  # type: ignore[arg-type]
    assert newest.state == {"total": fold(runtime, "c")}  # type: ignore[union-attr]


def test_a_gap_in_the_events_parks_the_agent_with_the_position(runtime: Runtime, redis_server: RedisServer) -> None:
    """A missing event is never papered over: parked, cause integrity, the position named."""

    class Folds:
        def __init__(self, agent_id: str) -> None:
            self.count = 0

        async def start(self, ctx: AgentContext) -> None:
            for _ in range(5):
                await ctx.emit("e", {})
            while not ctx.stop_requested:
                await ctx.sleep(60)

        def apply(self, event: Event) -> None:
            self.count += 1

    runtime.register("folds", Folds)
    runtime.manager.start_agent(AgentSpec(id="f", type="folds"), wait="running")
    wait_until(lambda: len(runtime.events("f", "e")) == 5)
    runtime.manager.stop_agent("f")
    client = redis_server.client()
    (key,) = client.keys(f"*{runtime.store.namespace}*:events:f")
    client.xdel(key, "4-0")

    runtime.manager.start_agent("f")

    info = runtime.until("f", "parked")
    assert info.cause == "integrity"
    assert "version 4" in info.reason


def test_messages_of_a_dead_incarnation_are_answered_by_the_next(runtime: Runtime) -> None:
    """An unread inbox outlives the process: at-least-once until the reply is stored."""

    class Dies:
        def __init__(self, agent_id: str) -> None:
            self.asked = asyncio.Event()

        async def start(self, ctx: AgentContext) -> None:
            if ctx.incarnation == 1:
                await self.asked.wait()
                raise RuntimeError("in the middle of an answer")
            while not ctx.stop_requested:
                await ctx.sleep(60)

        async def process(self, ctx: AgentContext, message: object) -> object:
            if ctx.incarnation == 1:
                self.asked.set()
                await asyncio.Event().wait()
            return {"incarnation": ctx.incarnation}

    runtime.register("dies", Dies)
    runtime.manager.start_agent(AgentSpec(id="d", type="dies"), wait="running")

    assert runtime.manager.process("d", "x", timeout=8) == {"incarnation": 2}


def roll_back(client: Any, namespace: str) -> None:
    """As a crash would: the last events of agent c and their count are as they were before."""
    (stream,) = client.keys(f"*{namespace}*:events:c")
    (record,) = client.keys(f"*{namespace}*:agent:c")
    client.execute_command(
        "EVAL",
        "local v = redis.call('HGET', KEYS[2], 'version') "
        "for n = v - 2, v + 100 do redis.call('XDEL', KEYS[1], string.format('%.0f-0', n)) end "
        "redis.call('XSETID', KEYS[1], string.format('%.0f-0', v - 3)) "
        "return redis.call('HSET', KEYS[2], 'version', string.format('%.0f', v - 3))",
        2,
        stream,
        record,
    )


class Stepping:
    """Async: makes steps, and appends nothing."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> None:
        n = 0
        while not ctx.stop_requested:
            await ctx.step(f"s{ctx.incarnation}:{n}", str, n)
            n += 1
            await ctx.sleep(0.02)


class PlainStepping:
    """Plain: makes steps that must not be repeated, and appends nothing."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> None:
        never, n = ctx.step.with_options(replay="never"), 0
        while not ctx.stop_requested:
            never(f"s{ctx.incarnation}:{n}", str, n)
            n += 1
            ctx.sleep(0.02)


@pytest.mark.parametrize("factory", [Stepping, PlainStepping])
def test_an_agent_that_only_makes_steps_notices_it_too(
    make_redis_server: Callable[..., RedisServer], namespace: str, factory: type[Any]
) -> None:
    """A step is acknowledged as an event is; one that was lost with others is not simply followed by the next."""
    server = make_redis_server(appendonly=False)
    with Runtime(server.url, namespace, snapshot_interval="1h") as runtime:
        runtime.manager.start()
        runtime.register("stepping", factory)
        runtime.manager.start_agent(AgentSpec(id="c", type="stepping"), wait="running")
        wait_until(lambda: len(runtime.events("c")) > 8)
        roll_back(server.client(), namespace)

        info = runtime.until("c", "running", incarnation=2)

        assert (info.charged, info.restarts, info.intents) == (0, 0, 0)
        assert "store.rolled_back" in runtime.types("c")


def test_a_store_that_comes_back_older_restarts_the_agent_uncharged(
    make_redis_server: Callable[..., RedisServer], namespace: str
) -> None:
    """Acknowledged events are gone from Redis: said by an event, and the agent begins again from what Redis holds."""
    server = make_redis_server(appendonly=False)
    with Runtime(server.url, namespace, snapshot_interval="1h") as runtime:
        runtime.manager.start()
        runtime.register("counter", Counter)
        runtime.manager.start_agent(AgentSpec(id="c", type="counter"), wait="running")
        wait_until(lambda: fold(runtime, "c") > 5)
        roll_back(server.client(), namespace)

        info = runtime.until("c", "running", incarnation=2)

        assert (info.charged, info.restarts) == (0, 0)
        assert "store.rolled_back" in runtime.types("c")
        before = fold(runtime, "c")
        wait_until(lambda: fold(runtime, "c") > before)
        versions = [event.version for event in runtime.events("c")]
        assert versions == list(range(1, len(versions) + 1))


def test_a_damaged_event_parks_the_agent_with_its_position_and_keeps_the_bytes(
    runtime: Runtime, redis_server: RedisServer
) -> None:
    """Bytes that are no event any more: parked, cause integrity, found already by the claim."""
    runtime.register("counter", Counter)
    runtime.manager.start_agent(AgentSpec(id="c", type="counter"), wait="running")
    wait_until(lambda: fold(runtime, "c") > 5)
    runtime.manager.stop_agent("c")
    client: Any = redis_server.client()
    (events,) = client.keys(f"*{runtime.store.namespace}*:events:c")
    (snapshots,) = client.keys(f"*{runtime.store.namespace}*:snapshots:c")
    client.delete(snapshots)
    rest = client.xrange(events, "4-0")
    client.execute_command("XTRIM", events, "MAXLEN", 0)
    client.execute_command("XSETID", events, "2-0")
    client.xadd(events, {"d": b"{damaged", "t": rest[0][1][b"t"]}, id="3-0")
    for entry, fields in rest:
        client.xadd(events, fields, id=entry)

    runtime.manager.start_agent("c")

    info = runtime.until("c", "parked")
    assert info.cause == "integrity"
    assert "version 3" in info.reason
    assert client.xrange(events, "3-0", "3-0")[0][1][b"d"] == b"{damaged"


class Hangs:
    """Blocks once, in the way of its class, then goes on for ever."""

    def __init__(self, agent_id: str) -> None: ...


@pytest.mark.parametrize("colour", ["async", "plain"])
def test_only_a_hang_timeout_ends_an_agent_that_hangs(redis_server: RedisServer, namespace: str, colour: str) -> None:
    """Its lease is renewed while it hangs; with a limit it dies of cause hung, and its next incarnation runs."""
    hold, made = threading.Event(), [0]

    class HangsAsync(Hangs):
        async def start(self, ctx: AgentContext) -> None:
            made[0] += 1
            if made[0] == 1:
                hold.wait(6)
            while not ctx.stop_requested:
                await ctx.sleep(60)

    class HangsPlain(Hangs):
        def start(self, ctx: SyncAgentContext) -> None:
            made[0] += 1
            if made[0] == 1:
                hold.wait(6)
            while not ctx.stop_requested:
                ctx.sleep(60)

    with Runtime(redis_server.url, namespace, agent_stop_timeout="500ms", lease_ttl="600ms") as runtime:
        runtime.manager.start()
        runtime.register("hangs", HangsAsync if colour == "async" else HangsPlain)
        runtime.manager.start_agent(AgentSpec(id="h", type="hangs", hang_timeout=1), wait="running")
        assert_stays(
            lambda: runtime.manager.get_agent_info("h").state == "running",  # type: ignore[union-attr]
            "no verdict before its limit",
            seconds=0.8,
        )
        wait_until(lambda: made[0] > 0, "its code to begin")
        runtime.until("h", "resurrecting", timeout=5)
        hold.set()
        info = runtime.until("h", "running", incarnation=2)
        assert (info.charged, info.cause) == (1, "hung")
        assert runtime.events("h", "agent.stopped")[0].payload["reason"].startswith("hung: ")


def test_the_runtimes_own_events_cannot_be_appended_from_outside(runtime: Runtime) -> None:
    """By type or by the runtime's mark; nothing of such a batch is stored, what is the caller's own is."""
    events = runtime.manager.events
    fine = NewEvent("order.placed", {})
    for kind in EventType:
        with pytest.raises(UnserialisableError, match=f"type '{kind.value}' is the runtime's own word"):
            events.append("orders", [fine, NewEvent(kind.value, {})])
    with pytest.raises(UnserialisableError, match="'module' of metadata is the runtime's own"):
        events.append("orders", [fine, NewEvent("order.paid", {}, {"module": "runtime"})])
    assert (events.stream_version("orders"), events.streams()) == (0, {})
    (stored,) = events.append("orders", [fine])
    assert events.read("orders") == events.read_all() == (stored,)
