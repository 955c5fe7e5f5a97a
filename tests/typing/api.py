"""What users write, for the type checkers: run by nobody, read by mypy and pyright."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from ares_celery import (
    BEGINNING,
    Agent,
    AgentContext,
    AgentFailedError,
    AgentHandle,
    AgentInfo,
    AgentParkedError,
    AgentSpec,
    AgentState,
    Approval,
    AresError,
    AsyncAgentHandle,
    AsyncManager,
    AsyncSubscription,
    AuditEntry,
    CheckpointEnvelope,
    ChildHandle,
    Chunk,
    ConversationMessage,
    DeadLetter,
    DeadReason,
    Event,
    EventFilter,
    Execution,
    ExecutionScope,
    Manager,
    MCPHandle,
    MemoryManager,
    ProcessTimeoutError,
    ReadOptions,
    Runtime,
    RuntimeConfig,
    RuntimeSnapshot,
    SnapshotStore,
    StatefulAgent,
    StepCaller,
    StoredPlace,
    Subscription,
    Summary,
    SyncAgentContext,
    SyncChildHandle,
    SyncMCPHandle,
    SyncStepCaller,
    Violation,
    agent,
    connect,
    decode_checkpoint,
    encode_checkpoint,
    find_violations,
    integrity_digest,
    mcp_server,
    override_mcp,
    override_resource,
    override_tool,
    secrets_hook,
    step,
    summariser,
    tool,
    upcaster,
    worker_resource,
    worker_snapshot_store,
)
from ares_celery.testing import AgentHarness, AresRuntime, SentMessage, wait_until


@agent("typed")
class Typed:
    def __init__(self, agent_id: str, limit: int = 3) -> None:
        self.agent_id, self.limit = agent_id, limit

    async def start(self, ctx: AgentContext) -> None:
        event: Event = await ctx.emit("began", {"limit": self.limit}, metadata={"trace": "t-1"})
        told: Event | None = await ctx.emit("told", {"limit": self.limit}, step="tell")
        assert told is None or told.version > event.version
        ctx.logger.info("version %s", event.version)
        while not ctx.stop_requested:
            await ctx.sleep(1)
        await ctx.complete({"version": event.version})

    def snapshot(self) -> dict[str, object]:
        return {"limit": self.limit}

    def restore_state(self, state: dict[str, object]) -> None:
        self.limit = int(str(state["limit"]))


class Model:
    async def complete(self, prompt: str) -> str:
        return prompt


@worker_resource("model")
async def model() -> AsyncIterator[Model]:
    """Belongs to the loop."""
    yield Model()


@worker_resource("words")
def words() -> Iterator[dict[str, int]]:
    """Belongs to threads."""
    yield {}


@tool("refund", replay="keyed", timeout=timedelta(seconds=20))
async def refund(order: str, *, idempotency_key: str = "") -> int:
    """Takes its key."""
    return len(order + idempotency_key)


@tool("look", replay="safe", timeout="500ms")
def look(order: str) -> float:
    """Reads."""
    return float(len(order))


@mcp_server("github")
async def github() -> AsyncIterator[object]:
    """Connects."""
    yield object()


@agent("typed-sharer")
class TypedSharer:
    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: object) -> object:
        shared: Model = await ctx.resource(model)
        counted: dict[str, int] = await ctx.resource(words)
        by_name: Any = await ctx.resource("model")
        cents: int = await ctx.tool(refund)("o-1", idempotency_key="k")
        weight: float = await ctx.tool(look).with_options(timeout=1)("o-1")
        anything: Any = await ctx.tool("refund")(order="o-1")
        server: MCPHandle = ctx.mcp("github")
        found: Any = await server.call_tool("search", {"q": "x"})
        names: list[Any] = await server.tools()
        return [await shared.complete("hi"), counted, by_name, cents, weight, anything, found, names]


@agent("typed-plain-sharer")
class TypedPlainSharer:
    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: SyncAgentContext, message: object) -> object:
        counted: dict[str, int] = ctx.resource(words)
        weight: float = ctx.tool(look)("o-1")
        server: SyncMCPHandle = ctx.mcp("github")
        return [counted, weight, server.call_tool("search"), server.tools()]


@step
async def fetch(page: int, *, deep: bool = False) -> list[str]:
    """A step that awaits, without parentheses."""
    return [str(page)] * (2 if deep else 1)


@step(replay="keyed", retries=3, timeout="20s", formerly=["bill"])
async def charge(order: str, *, idempotency_key: str = "") -> int:
    """A step that takes its key."""
    return len(order + idempotency_key)


@step(replay="never", timeout=timedelta(seconds=5))
def mail(to: str, text: str) -> bool:
    """A plain step."""
    return bool(to and text)


@step
def count(words: list[str]) -> int:
    """A plain step, without parentheses."""
    return len(words)


def unmarked(first: int, second: int = 2) -> int:
    """Any function may be a step."""
    return first + second


@secrets_hook
def without_secrets(value: object, place: StoredPlace) -> object:
    """What is stored instead."""
    return place.step if value is None else value


@agent("typed-stepper")
class TypedStepper:
    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: AgentContext) -> object:
        pages: list[str] = await ctx.step("fetch", fetch, 1, deep=True)
        cents: int = await ctx.step("charge", charge, "o-1")
        told: bool = await ctx.step("mail", mail, "eve", text="hi")
        number: int = await ctx.step("count", count, pages)
        summed: int = await ctx.step("sum", unmarked, 1, second=3)
        method: str = await ctx.step("method", self.own, ctx)
        stepping: StepCaller = ctx.step.with_options(replay="keyed", retries=2, timeout=None, formerly=["bill"])
        again: int = await stepping.with_options(timeout=timedelta(seconds=1))("charge-2", charge, "o-2")
        async with ctx.execution("round:1") as scope:
            entered: ExecutionScope = scope
            assert entered.is_finished or entered.recorded >= 0 or entered.id
        child: ChildHandle = await ctx.spawn(AgentSpec(id="c", type="typed"), report=True)
        result: Any = await child.result(timeout="5m")
        of_child: AgentInfo = await child.info()
        word: Approval = await ctx.wait_for_approval("deploy", {"to": child.id}, timeout="7d", release_slot=True)
        decision: str | bool = word.decision
        when: datetime = word.time
        await ctx.sleep_until(when + timedelta(days=1), release_slot=True)
        spent: Mapping[str, float] = await ctx.charge(tokens=600, usd=0.012, steps=1)
        # What is not right is found before it is run.
        await ctx.step("fetch-2", fetch, "one")  # type: ignore[call-overload]
        await ctx.step("mail-2", mail, "eve")  # type: ignore[call-overload]
        wrong: str = await ctx.step("count-2", count, pages)  # type: ignore[call-overload]
        ctx.step.with_options(replay="sometimes")  # type: ignore[arg-type]
        await ctx.charge(dollars=1)  # type: ignore[call-arg]
        return [cents, told, number, summed, method, again, result, of_child, bool(word), decision, spent, wrong]

    async def own(self, ctx: AgentContext) -> str:
        return self.agent_id + ctx.agent_id


@agent("typed-plain-stepper")
class TypedPlainStepper:
    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> object:
        pages: list[str] = ctx.step("fetch", fetch, 1, deep=True)
        told: bool = ctx.step("mail", mail, "eve", text="hi")
        summed: int = ctx.step("sum", unmarked, 1, second=3)
        stepping: SyncStepCaller = ctx.step.with_options(replay="safe", retries=2, timeout="1s")
        number: int = stepping("count", count, pages)
        with ctx.execution("round:1") as scope:
            entered: ExecutionScope = scope
        child: SyncChildHandle = ctx.spawn(AgentSpec(id="c", type="typed"))
        result: Any = child.result(timeout=60)
        of_child: AgentInfo = child.info()
        word: Approval = ctx.wait_for_approval("deploy", timeout=timedelta(days=7))
        ctx.sleep_until(word.time)
        spent: Mapping[str, float] = ctx.charge(tokens=600, usd=0.012)
        ctx.step("mail-2", mail, "eve", 5)  # type: ignore[call-overload]
        return [told, summed, number, entered, result, of_child, word.approved, spent]


def replaced(fake: Model) -> None:
    """As in a test."""
    with override_resource(model, fake), override_tool("look", look), override_mcp("github", object()):
        pass


@agent("typed-plain")
class TypedPlain:
    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: SyncAgentContext) -> None:
        ctx.emit_many([("one", {}), ("two", {"n": 2})])
        ctx.sleep(0.5)


@agent("typed-function")
def make(agent_id: str, **config: object) -> Agent:
    """A factory may be a function."""
    return Typed(agent_id, limit=int(str(config.get("limit", 1))))


stateful: StatefulAgent = Typed("a")


@upcaster("typed", from_version=1)
def with_a_limit(state: dict[str, Any]) -> dict[str, Any]:
    """From one schema to the next."""
    return {"limit": 1, **state}


class OwnSnapshots:
    """A user's own store."""

    def save(self, agent_id: str, state: Mapping[str, Any]) -> None: ...

    def load(self, agent_id: str) -> Mapping[str, Any] | None: ...

    def delete(self, agent_id: str) -> None: ...


@worker_snapshot_store
def own_snapshots() -> SnapshotStore:
    """The hook of a worker."""
    return OwnSnapshots()


@summariser
def in_short(summary: Summary, events: Iterable[Event]) -> str:
    """A summariser of a user's own."""
    return f"{summary.outcome}: {sum(1 for _ in events)}"


def some_instant() -> datetime:
    """An aware instant."""
    raise NotImplementedError


def use() -> None:
    """The Manager's methods with their types."""
    config = RuntimeConfig(lease_ttl=timedelta(seconds=8), heartbeat_interval="2s")
    with Manager(config, redis_url="redis://127.0.0.1:6379/0", namespace="shop") as manager:
        handle: AgentHandle = manager.start_agent(
            AgentSpec(id="a", type="typed"), if_exists="restart", wait="running", timeout=5, reason="why", actor="me"
        )
        info: AgentInfo = handle.info()
        state: AgentState = info.state
        found: AgentInfo | None = manager.get_agent_info("a")
        for one in manager.list_agents(states=["running", AgentState.PARKED]):
            assert one.charged >= 0
        try:
            manager.process("a", {"ask": state}, timeout=timedelta(seconds=5), message_id="m1")
        except (ProcessTimeoutError, AgentFailedError, AgentParkedError) as error:
            code: str = error.code
            assert code, found
        except AresError:
            raise
        events = manager.events.read("a", ReadOptions(from_version=1, limit=10, direction="descending"))
        first: Event = events[0]
        manager.stop_agent("a", force=True, reason=first.type)
        with manager.events.subscribe(EventFilter(streams=["a"]), cursor=BEGINNING) as subscription:
            following: Subscription = subscription
            newest: Event | None = following.poll(timeout=timedelta(seconds=1))
            cursor: str = following.cursor
        summary: Summary | None = manager.compact("a", summariser=in_short)
        assert newest or cursor or summary
        info = manager.update_agent("a", config={"limit": 4}, apply="restart", merge=True, reason="why", actor="me")
        config = manager.set_config({"lease_ttl": timedelta(seconds=20), "chaos": "true"}, reason="why")
        entries: list[AuditEntry] = manager.audit("a", since=some_instant(), limit=10)
        assert entries[0].changed, config.lease_ttl
        labels: dict[str, int] = manager.stats().background_tasks
        assert labels
    with Manager.local(config, redis_url="redis://127.0.0.1:6379/0") as local:
        local.start()
        local.register_agent(Typed("b"), Typed).wait("running", timeout=5)
        local.restore_agent("b", lambda: Typed("b"))
        local.stop()
        execution: Execution | None = manager.checkpoints.load("a", "import")
        envelope: CheckpointEnvelope = execution.envelope if execution else decode_checkpoint({"rows": 7})
        encoded: dict[str, Any] = encode_checkpoint(envelope)
        manager.register_agent_dag("evolution", encoded, reason="why")
        assert manager.get_agent_dag("evolution") == encoded
        shown: RuntimeSnapshot = manager.introspect()
        assert shown.activity[0].time <= shown.time
        memory: MemoryManager = manager.with_snapshot_store(OwnSnapshots()).memory
        memory.add_message("a", memory.open_session("a"), ConversationMessage("user", "hello", turn_id="t"))
        violations: list[Violation] = find_violations(events, stream_version=events[-1].version)
        assert integrity_digest(events), violations
    connect(namespace="shop").notify_agent_dead("a", "no answer", epoch=info.epoch)
    any_runtime: Runtime = connect(namespace="shop")
    any_runtime.stop_agent("a")


def talk(manager: Manager) -> None:
    """Streams and what is given up on."""
    with manager.process_stream("a", {"ask": 1}, timeout=5, message_id="m2", detached=True) as chunks:
        for chunk in chunks:
            seq: int = chunk.seq
            assert seq or chunk.final or chunk.data
    pieces: tuple[Chunk, ...] = manager.read_chunks("a", "m2", after_seq=1, timeout=timedelta(seconds=1))
    letters: list[DeadLetter] = manager.dead_letters("a", limit=5)
    assert pieces or letters[0].reason is DeadReason.POISON


async def from_a_loop() -> None:
    """The same names, awaited."""
    async with AsyncManager.connect(namespace="shop", redis_url="redis://h/0") as manager:
        handle: AsyncAgentHandle = await manager.start_agent(AgentSpec(id="a", type="typed"), wait="running", timeout=5)
        info: AgentInfo = await handle.info()
        lives: int = await handle.incarnation
        answer: object = await manager.process("a", {"ask": 1}, timeout=timedelta(seconds=5), message_id="m1")
        stream = await manager.process_stream("a", "words", detached=True)
        async for chunk in stream:
            piece: Chunk = chunk
            assert piece.seq
        async with manager.events.subscribe(EventFilter(streams={"a"})) as followed:
            subscription: AsyncSubscription = followed
            async for event in followed:
                found: Event = event
                assert found.version, subscription.cursor
        config: RuntimeConfig = await manager.config
        events: tuple[Event, ...] = await manager.events.read("a", ReadOptions(limit=5))
        assert lives == info.incarnation
        assert answer or events
        assert config.shards


def try_out(ares_runtime: AresRuntime) -> None:
    """The testing kit."""
    with AgentHarness("counter", "a", {"step": 2}, settings={"shards": 2}, tools={"pay": print}) as harness:
        event: Event = harness.run_until("counter.ticked", count=3, timeout="1h")
        total: int = harness.run_until(lambda: len(harness.events))
        harness.crash(before="counter.ticked")
        harness.restart(Typed)
        answer: object = harness.ask({"ask": "total"}, timeout=timedelta(seconds=5))
        words = [chunk.data for chunk in harness.stream("hello")]
        sent: list[SentMessage] = harness.sent
        info: AgentInfo = harness.info
        assert event.version < total
        assert (answer or words or sent) is not None
        assert info.state
    manager: Manager = ares_runtime.manager
    found: AgentInfo = ares_runtime.until("a", AgentState.RUNNING, incarnation=2)
    pid: int = ares_runtime.kill_worker(replace=False)
    assert wait_until(lambda: manager.get_agent(found.id))
    assert pid
