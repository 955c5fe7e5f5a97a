"""What comes back of an agent: statement by statement, on a whole runtime with a real Redis."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, cast

import pytest
from typing_extensions import override

from ares_celery import AgentContext, AgentSpec, ConversationMessage, Event, NewEvent, SyncAgentContext
from ares_celery.agents.registry import Registry
from ares_celery.celery_app.control_tasks import CONTROLS, call_control
from ares_celery.errors import AgentParkedError, InvalidSettingError, StoreUnavailableError
from ares_celery.model.snapshot import Snapshot
from ares_celery.runtime.wrapped_state import RESERVED
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import assert_stays, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A running runtime in this process; snapshots only at orderly ends."""
    with Runtime(redis_server.url, namespace, snapshot_interval="1h") as made:
        made.manager.start()
        yield made


class Diary:
    """Writes down what recovery gives it, for the test; one class a test, as they share the book."""

    book: list[tuple[int, Any, list[Event]]]

    def __init__(self, agent_id: str) -> None:
        self.restored: Any = None
        self.replayed: list[Event] = []
        self.total = 0

    async def start(self, ctx: AgentContext) -> None:
        self.book.append((ctx.incarnation, self.restored, list(self.replayed)))
        while not ctx.stop_requested:
            await ctx.sleep(60)

    async def process(self, ctx: AgentContext, message: Any) -> object:
        if message != "total":
            await ctx.emit("counted", {"by": message})
        return self.total

    def apply(self, event: Event) -> None:
        self.replayed.append(event)
        if event.type == "counted":
            self.total += event.payload["by"]

    def snapshot(self) -> dict[str, object]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        assert self.restored is None, "once, and before any event"
        assert not self.replayed
        self.restored = state
        self.total = int(state.get("total", 0))


def diary(runtime: Runtime) -> type[Diary]:
    """A class of the test's own, registered as ``diary``."""
    made = type("DiaryOfThisTest", (Diary,), {"book": []})
    runtime.register("diary", made)
    return made


def wrote(runtime: Runtime, *events: tuple[str, dict[str, Any]]) -> None:
    """What agent ``a`` is taken to have emitted before."""
    runtime.store.events.append("a", [NewEvent(kind, payload) for kind, payload in events])


def begin(runtime: Runtime, **fields: Any) -> None:
    """Starts agent ``a`` until its code runs."""
    runtime.manager.start_agent(AgentSpec(id="a", type="diary", **fields), wait="running")


def last(book: list[tuple[int, Any, list[Event]]], number: int = 1) -> tuple[Any, list[Any]]:
    """State and events that the incarnation of this number was given; of each event the payload's only value."""
    wait_until(lambda: len(book) >= number, f"incarnation {number} to begin")
    _, restored, replayed = book[number - 1]
    return restored, [next(iter(event.payload.values()), None) for event in replayed]


class Memory:
    """A memory manager of the user's own."""

    def __init__(self, latest: str | None = None, said: Sequence[ConversationMessage] = ()) -> None:
        self.latest, self.said = latest, said
        self.received: list[object] = []
        self.asked: list[str] = []
        self.failure: BaseException | None = None

    def set_event_store(self, events: object) -> None:
        self.received.append(events)

    def open_session(self, agent_id: str, session_id: str | None = None) -> str:
        raise NotImplementedError

    def add_message(
        self, agent_id: str, session_id: str, message: ConversationMessage, *, message_id: str = ""
    ) -> None:
        raise NotImplementedError

    def latest_session(self, agent_id: str) -> str | None:
        self.asked.append("latest_session")
        if self.failure is not None:
            raise self.failure
        return self.latest

    def messages(self, agent_id: str, session_id: str) -> Sequence[ConversationMessage]:
        self.asked.append(f"messages of {session_id}")
        if self.failure is not None:
            raise self.failure
        return self.said


class Bucket:
    """A snapshot store of the user's own."""

    def __init__(self) -> None:
        self.kept: dict[str, Mapping[str, Any]] = {}
        self.calls: list[str] = []
        self.failure: BaseException | None = None

    def _called(self, what: str) -> None:
        self.calls.append(what)
        if self.failure is not None:
            raise self.failure

    def save(self, agent_id: str, state: Mapping[str, Any]) -> None:
        self._called("save")
        self.kept[agent_id] = state

    def load(self, agent_id: str) -> Mapping[str, Any] | None:
        self._called("load")
        return self.kept.get(agent_id)

    def delete(self, agent_id: str) -> None:
        self.kept.pop(agent_id, None)


TWO = (ConversationMessage("user", "hello"), ConversationMessage("assistant", "hi"))


# -- snapshot and events ----------------------------------------------------------------------------------------------


@pytest.mark.spec(78)
@pytest.mark.spec(79)
def test_a_snapshot_is_used_with_the_events_after_it_and_the_conversation_is_not_looked_up(runtime: Runtime) -> None:
    """Taken at a version: what it covers is not applied again, and the count is exact."""
    memory = runtime.manager.state_sources.memory = Memory("s", TWO)
    book = diary(runtime).book
    wrote(runtime, ("session.created", {"session_id": "named"}), ("counted", {"by": 1}))
    begin(runtime)
    for number in (10, 100):
        runtime.manager.process("a", number)
    runtime.manager.stop_agent("a")
    (taken,) = runtime.store.stored_snapshots("a")  # type: ignore[arg-type]
    wrote(runtime, ("counted", {"by": 1000}), ("counted", {"by": 10000}))
    memory.asked.clear()

    runtime.manager.start_agent("a", wait="running")

    assert isinstance(taken, Snapshot)
    assert last(book, 2) == ({"total": 111}, [1000, 10000])
    assert all(event.version > taken.version for event in book[-1][2])
    assert runtime.manager.process("a", "total") == 11111
    assert memory.asked == []


@pytest.mark.spec(80)
def test_without_a_snapshot_the_last_session_of_the_events_is_restored_and_all_are_replayed(runtime: Runtime) -> None:
    """In ascending order of their versions; restore_state comes first."""
    book = diary(runtime).book
    wrote(
        runtime,
        ("session.created", {"session_id": "first"}),
        ("counted", {"by": 1}),
        ("session.created", {"session_id": "last"}),
        ("counted", {"by": 2}),
    )
    begin(runtime)
    assert last(book) == ({"session_id": "last"}, ["first", 1, "last", 2])
    versions = [event.version for event in book[-1][2]]
    assert versions == sorted(versions)


def test_the_session_is_found_in_a_history_of_many_pages(runtime: Runtime) -> None:
    """Also where it stands at the very beginning."""
    book = diary(runtime).book
    wrote(runtime, ("session.created", {"session_id": "old"}), *[("counted", {"by": 1})] * 2500)
    begin(runtime)
    restored, replayed = last(book)
    assert (restored, len(replayed)) == ({"session_id": "old"}, 2501)


@pytest.mark.spec(81)
def test_a_conversation_is_restored_with_its_session(runtime: Runtime) -> None:
    """Two messages of the memory manager: both keys, history of two, and the stored events are replayed."""
    runtime.manager.state_sources.memory = Memory("unused", TWO)
    book = diary(runtime).book
    wrote(runtime, ("session.created", {"session_id": "named"}), ("counted", {"by": 1}))
    begin(runtime)
    restored, replayed = last(book)
    assert restored["session_id"] == "named"
    assert [(one["role"], one["content"]) for one in restored["conversation_history"]] == [
        ("user", "hello"),
        ("assistant", "hi"),
    ]
    assert set(restored) == {"session_id", "conversation_history"}
    assert replayed == ["named", 1]


def test_the_namespaces_own_memory_manager_is_asked_where_there_is_no_other(runtime: Runtime) -> None:
    """What a service has stored through its manager comes back to the agent, with turn and tool calls."""
    book = diary(runtime).book
    runtime.manager.register_agent(AgentSpec(id="a", type="diary"))
    memory = runtime.manager.memory
    session = memory.open_session("a")
    memory.add_message("a", session, ConversationMessage("user", "look it up", turn_id="t1"))
    call = {"id": "c1", "name": "search"}
    memory.add_message("a", session, ConversationMessage("assistant", None, turn_id="t1", tool_calls=(call,)))
    memory.add_message("a", session, ConversationMessage("tool", {"found": 3}, turn_id="t1", tool_call_id="c1"))
    runtime.manager.start_agent("a", wait="running")
    restored, _ = last(book)
    assert restored["session_id"] == session
    first, second, third = restored["conversation_history"]
    assert (first["content"], first["turn_id"], bool(first["time"])) == ("look it up", "t1", True)
    assert (second["tool_calls"], third["tool_call_id"], third["content"]) == ([call], "c1", {"found": 3})


@pytest.mark.spec(82)
def test_without_a_session_in_the_events_the_latest_one_is_used(runtime: Runtime) -> None:
    """Of that agent; when it has no messages neither key is set, and restore_state is not called."""
    memory = runtime.manager.state_sources.memory = Memory("latest", TWO)
    book = diary(runtime).book
    wrote(runtime, ("counted", {"by": 1}))
    begin(runtime)
    restored, replayed = last(book)
    assert (restored["session_id"], len(restored["conversation_history"]), replayed) == ("latest", 2, [1])
    assert memory.asked == ["latest_session", "messages of latest"]

    memory.said = ()
    runtime.manager.start_agent(AgentSpec(id="b", type="diary"), wait="running")
    assert last(book, 2) == (None, [])


@pytest.mark.spec(83)
def test_a_memory_manager_that_fails_costs_the_conversation_alone(runtime: Runtime) -> None:
    """The session of the events is restored and the agent runs; an event and a counter name what failed."""
    memory = runtime.manager.state_sources.memory = Memory()
    memory.failure = SystemExit("no database")
    book = diary(runtime).book
    wrote(runtime, ("session.created", {"session_id": "named"}), ("counted", {"by": 1}))
    begin(runtime)
    assert last(book) == ({"session_id": "named"}, ["named", 1])
    (said,) = runtime.events("a", "recovery.degraded")
    assert said.payload["part"] == "memory"
    assert said.payload["name"].endswith(".Memory")
    assert "no database" in said.payload["problem"]
    assert runtime.manager.stats().counters["memory_failures"] == 1
    assert runtime.types("a")[-2:] == ["recovery.degraded", "agent.started"]


@pytest.mark.spec(83)
@pytest.mark.timeout(90)
def test_a_lookup_that_hangs_is_given_up_after_five_seconds_and_the_agent_runs(
    runtime: Runtime, request: pytest.FixtureRequest
) -> None:
    """The whole limit, as users have it; nobody else waits."""
    over = threading.Event()
    request.addfinalizer(over.set)

    class Hangs(Memory):
        @override
        def messages(self, agent_id: str, session_id: str) -> Sequence[ConversationMessage]:
            over.wait(60)
            return TWO

    runtime.manager.state_sources.memory = Hangs()
    book = diary(runtime).book
    wrote(runtime, ("session.created", {"session_id": "named"}))
    runtime.manager.start_agent(AgentSpec(id="a", type="diary"))
    runtime.register("other", Diary)
    Diary.book = []
    runtime.manager.start_agent(AgentSpec(id="b", type="other"), wait="running", timeout=3)
    assert book == []
    runtime.until("a", "running", timeout=12)
    assert last(book) == ({"session_id": "named"}, ["named"])
    assert "did not return within 5 s" in runtime.events("a", "recovery.degraded")[0].payload["problem"]


@pytest.mark.spec(19)
def test_a_memory_manager_has_the_event_store_when_the_runtime_has_started(
    redis_server: RedisServer, namespace: str
) -> None:
    """Once, from whoever starts it."""
    with Runtime(redis_server.url, namespace) as runtime:
        memory = runtime.manager.state_sources.memory = Memory()
        runtime.manager.start()
        assert memory.received == [runtime.store.events]
        diary(runtime)
        begin(runtime)
        assert memory.received == [runtime.store.events]


# -- the store fails --------------------------------------------------------------------------------------------------


@pytest.mark.spec(84)
def test_a_store_that_does_not_answer_is_waited_for_and_any_other_failure_costs_an_attempt(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never does an agent begin without the events it has."""
    book = diary(runtime).book
    wrote(runtime, *[("counted", {"by": 1})] * 1500)
    failures: Iterator[Exception | None] = iter(
        [StoreUnavailableError(url="x", problem="away"), StoreUnavailableError(url="x", problem="away"), OSError("odd")]
    )
    read: Any = runtime.store.events.read

    def failing(*args: Any) -> Any:
        if (failure := next(failures, None)) is not None:
            raise failure
        return read(*args)

    monkeypatch.setattr(runtime.store.events, "read", failing)
    runtime.manager.start_agent(AgentSpec(id="a", type="diary"))
    info = runtime.until("a", "running", incarnation=2)
    assert (info.restarts, "odd" in runtime.events("a", "agent.stopped")[0].payload["reason"]) == (1, True)
    assert len(book) == 1
    assert runtime.manager.process("a", "total") == 1500


@pytest.mark.spec(85)
@pytest.mark.spec(6)
def test_a_snapshot_store_that_raises_on_load_falls_back_to_the_events(runtime: Runtime) -> None:
    """The agent runs with the state that its events say; an event and a counter name the store."""
    bucket = Bucket()
    assert runtime.manager.with_snapshot_store(bucket) is runtime.manager
    book = diary(runtime).book
    begin(runtime)
    runtime.manager.process("a", 5)
    runtime.manager.stop_agent("a")
    assert bucket.kept["a"]["total"] == 5
    bucket.failure = OSError("no bucket")
    runtime.manager.start_agent("a", wait="running")
    assert last(book, 2) == (None, [5])
    (said,) = runtime.events("a", "recovery.degraded")
    assert (said.payload["part"], said.payload["problem"]) == ("snapshot_store", "OSError: no bucket")
    assert runtime.manager.stats().counters["snapshot_store_failures"] == 1
    assert runtime.manager.process("a", "total") == 5


@pytest.mark.spec(6)
def test_a_snapshot_store_of_the_users_own_is_used_on_recovery(runtime: Runtime) -> None:
    """with_snapshot_store gives the manager back; states are saved there, loaded from there, and read there."""
    bucket = Bucket()
    assert runtime.manager.with_snapshot_store(bucket) is runtime.manager
    book = diary(runtime).book
    begin(runtime)
    runtime.manager.process("a", 5)
    runtime.manager.restart_agent("a")
    runtime.until("a", "running", incarnation=2)
    assert last(book, 2) == ({"total": 5}, [])
    assert bucket.calls[:3] == ["load", "save", "load"]
    assert runtime.store.stored_snapshots("a") == []  # type: ignore[arg-type]
    assert set(bucket.kept["a"]) == {"total", RESERVED}
    kept = runtime.manager.snapshots.load("a")
    assert kept is not None
    assert kept["total"] == 5


def test_a_state_that_was_put_into_the_users_store_by_hand_is_where_the_agent_begins(runtime: Runtime) -> None:
    """It counts as the state at the newest event: nothing is applied on top of it."""
    bucket = Bucket()
    bucket.kept["a"] = {"total": 40}
    runtime.manager.with_snapshot_store(bucket)
    book = diary(runtime).book
    wrote(runtime, ("counted", {"by": 1}))
    begin(runtime)
    assert last(book) == ({"total": 40}, [])
    assert runtime.manager.process("a", 2) == 42


@pytest.mark.parametrize("colour", ["async", "plain"])
def test_a_users_store_that_does_not_save_costs_no_state(runtime: Runtime, colour: str) -> None:
    """The namespace keeps it instead, said by an event; the next incarnation has it."""

    class Plain:
        def __init__(self, agent_id: str) -> None:
            self.total = 0

        def process(self, ctx: SyncAgentContext, message: Any) -> object:
            self.total += 0 if message == "total" else message
            return self.total

        def snapshot(self) -> dict[str, object]:
            return {"total": self.total}

        def restore_state(self, state: dict[str, Any]) -> None:
            self.total = int(state["total"])

    class Async(Plain):
        @override
        async def process(self, ctx: Any, message: Any) -> object:
            self.total += 0 if message == "total" else message
            return self.total

    bucket = Bucket()
    runtime.manager.with_snapshot_store(bucket)
    runtime.register("plain", Plain if colour == "plain" else Async)
    runtime.manager.start_agent(AgentSpec(id="a", type="plain"), wait="running")
    runtime.manager.process("a", 5)
    bucket.failure = RuntimeError("full")
    runtime.manager.restart_agent("a")
    runtime.until("a", "running", incarnation=2)
    assert runtime.manager.process("a", "total") == 5
    (said,) = runtime.events("a", "snapshot.failed")
    assert said.payload["problem"].endswith("Bucket: RuntimeError: full")


def test_an_agent_whose_only_state_is_elsewhere_does_not_begin_without_it(runtime: Runtime) -> None:
    """The store does not give it: failed attempts, until it does."""

    class Remembers:
        def __init__(self, agent_id: str) -> None:
            self.total = 0

        async def process(self, ctx: AgentContext, message: Any) -> object:
            self.total += message
            return self.total

        def snapshot(self) -> dict[str, object]:
            return {"total": self.total}

        def restore_state(self, state: dict[str, Any]) -> None:
            self.total = int(state["total"])

    bucket = Bucket()
    runtime.manager.with_snapshot_store(bucket)
    runtime.register("remembers", Remembers)
    runtime.manager.start_agent(AgentSpec(id="a", type="remembers"), wait="running")
    assert runtime.manager.process("a", 5) == 5
    runtime.manager.stop_agent("a")
    bucket.failure = OSError("no bucket")
    runtime.manager.start_agent("a")
    runtime.until("a", "resurrecting")
    bucket.failure = None
    runtime.until("a", "running")
    assert runtime.manager.process("a", 1) == 6


# -- what is replayed -------------------------------------------------------------------------------------------------


@pytest.mark.spec(87)
@pytest.mark.parametrize("lifecycle", [False, True], ids=["default", "replay_lifecycle"])
def test_the_runtimes_own_events_are_replayed_only_on_request(runtime: Runtime, *, lifecycle: bool) -> None:
    """Two stored events and a restore: those two; with the switch also failover.triggered and what led to it."""
    replayed: list[list[str]] = []

    class Replays:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            if ctx.incarnation == 1:
                await ctx.emit("one", {})
                await ctx.emit("two", {})
            while not ctx.stop_requested:
                await ctx.sleep(60)

        def replay_events(self, events: Sequence[Event]) -> None:
            replayed.append([event.type for event in events])

    runtime.register("replays", Replays)
    runtime.manager.start_agent(AgentSpec(id="a", type="replays", replay_lifecycle=lifecycle), wait="running")
    wait_until(lambda: len(runtime.events("a", "two")) == 1)
    runtime.manager.restore_agent("a")
    runtime.until("a", "running", incarnation=2)
    own = ["one", "two"]
    assert replayed[-1] == (["agent.started", *own, "agent.stopped", "failover.triggered"] if lifecycle else own)


@pytest.mark.spec(88)
@pytest.mark.parametrize("overflow", ["newest", "full"])
def test_more_events_than_max_replay_events(redis_server: RedisServer, namespace: str, overflow: str) -> None:
    """On request the newest are kept, and a warning event says how many were not; by default all are replayed."""
    settings: dict[str, Any] = {"max_replay_events": 100, "snapshot_every_events": 50, "snapshot_interval": "1h"}
    with Runtime(redis_server.url, namespace, replay_overflow=overflow, **settings) as runtime:
        runtime.manager.start()
        book = diary(runtime).book
        wrote(runtime, *[("counted", {"by": number}) for number in range(1, 251)])
        begin(runtime)
        _, replayed = last(book)
        if overflow == "full":
            assert replayed == list(range(1, 251))
            assert runtime.events("a", "replay.truncated") == []
            return
        assert replayed == list(range(151, 251))
        (said,) = runtime.events("a", "replay.truncated")
        assert said.payload == {"agent_id": "a", "skipped": 150, "kept": 100, "from_version": 151}
        assert runtime.manager.stats().counters["replays_truncated"] == 1


def raw_client(runtime: Runtime) -> Any:
    """To look behind the store."""
    return runtime.store._bound.client._driver


def without_event(runtime: Runtime, version: int) -> None:
    """Somebody has deleted one event of agent ``a``."""
    assert raw_client(runtime).xdel(runtime.store._bound.keys.events("a"), f"{version}-0") == 1


@pytest.mark.spec(90)
@pytest.mark.parametrize("missing", [2, 4], ids=["gap", "end"])
def test_a_violation_under_policy_fail_parks_the_agent(runtime: Runtime, missing: int) -> None:
    """The default: the position is kept and shown, nothing of the agent's code runs, and only a person goes on."""
    book = diary(runtime).book
    wrote(runtime, *[("counted", {"by": number}) for number in range(1, 5)])
    without_event(runtime, missing)
    runtime.manager.start_agent(AgentSpec(id="a", type="diary"))
    info = runtime.until("a", "parked")
    assert (info.cause, f"version {missing}" in info.reason, book) == ("integrity", True, [])
    (parked,) = runtime.events("a", "agent.parked")
    assert f"version {missing}" in parked.payload["detail"]
    assert runtime.events("a", "integrity.violated") == []
    with pytest.raises(AgentParkedError, match=f"version {missing}"):
        runtime.manager.restart_agent("a")


@pytest.mark.spec(90)
@pytest.mark.parametrize("missing", [2, 4], ids=["gap", "end"])
def test_a_violation_under_policy_warn_goes_on_with_an_event(
    redis_server: RedisServer, namespace: str, missing: int
) -> None:
    """Which says what is missing; the rest is applied."""
    with Runtime(redis_server.url, namespace, integrity="warn") as runtime:
        runtime.manager.start()
        book = diary(runtime).book
        wrote(runtime, *[("counted", {"by": number}) for number in range(1, 5)])
        without_event(runtime, missing)
        begin(runtime)
        assert last(book)[1] == [number for number in range(1, 5) if number != missing]
        (said,) = runtime.events("a", "integrity.violated")
        kind = "gap" if missing == 2 else "truncated"
        assert said.payload["violations"] == [{"kind": kind, "from_version": missing, "to_version": missing}]
        assert runtime.manager.stats().counters["integrity_violations"] == 1


@pytest.mark.timeout(90)
def test_an_accepted_loss_lets_a_parked_agent_run_for_good_and_new_damage_parks_it_again(runtime: Runtime) -> None:
    """Neither restart nor unpark wave the gap through; with accept_loss the rest is applied, now and after a death."""
    fall: list[bool] = []

    class Falls(Diary):
        book: list[Any] = []  # noqa: RUF012 - of this test

        @override
        async def start(self, ctx: AgentContext) -> None:
            self.book.append((ctx.incarnation, self.restored, list(self.replayed)))
            while not ctx.stop_requested:
                await ctx.sleep(0.05)
                if fall:
                    fall.clear()
                    raise RuntimeError("without a last snapshot")

    manager, book = runtime.manager, Falls.book
    runtime.register("diary", Falls)
    wrote(runtime, *[("counted", {"by": number}) for number in range(1, 5)])
    without_event(runtime, 2)
    manager.start_agent(AgentSpec(id="a", type="diary"))
    parked = runtime.until("a", "parked")
    for refused in (manager.restart_agent, manager.unpark_agent):
        with pytest.raises(AgentParkedError, match=r"version 2.*unpark a --accept-loss"):
            refused("a")
    with pytest.raises(InvalidSettingError, match="accept_loss"):
        manager.unpark_agent("a", accept_loss="no")  # type: ignore[arg-type]
    before = runtime.store.events.stream_version("a")

    manager.unpark_agent("a", accept_loss=True, reason="no backup", actor="ann")

    info = runtime.until("a", "running", incarnation=parked.incarnation + 1)
    assert (info.accepted_version, info.cause) == (before, "")
    assert last(book, 1)[1] == [1, 3, 4]
    violations = [{"kind": "gap", "from_version": 2, "to_version": 2}]
    assert [said.payload["violations"] for said in runtime.events("a", "integrity.violated")] == [violations]
    entry = manager.audit("a")[-1]
    assert (entry.operation, entry.actor, entry.reason) == ("unpark", "ann", "no backup")
    assert entry.changed == ("accept_loss",)

    manager.process("a", 5)
    fall.append(True)
    runtime.until("a", "running", incarnation=parked.incarnation + 2)
    assert manager.process("a", "total") == 1 + 3 + 4 + 5
    assert [said.payload["violations"] for said in runtime.events("a", "integrity.violated")] == [violations] * 2

    manager.process("a", 6)
    new = runtime.events("a", "counted")[-1].version
    without_event(runtime, new)
    fall.append(True)
    again = runtime.until("a", "parked")
    assert (again.cause, f"version {new}" in again.reason, len(book)) == ("integrity", True, 2)


def damage_snapshots(runtime: Runtime) -> list[bytes]:
    """One bit of each kept snapshot of agent ``a`` falls over; what they are then."""
    client, key = raw_client(runtime), runtime.store._bound.keys.snapshots("a")
    damaged = [blob[:-3] + bytes([blob[-3] ^ 1]) + blob[-2:] for blob in client.lrange(key, 0, -1)]
    for place, blob in enumerate(damaged):
        client.lset(key, place, blob)
    return damaged


def test_an_agent_whose_snapshots_are_all_damaged_begins_from_nothing_once_that_is_accepted(runtime: Runtime) -> None:
    """The damaged bytes are kept aside and an event says so; snapshots that it takes then are not given up too."""

    class Keeps:
        """Its only state is its snapshots."""

        def __init__(self, agent_id: str) -> None:
            self.total = 0

        async def process(self, ctx: AgentContext, message: Any) -> object:
            self.total += message
            return self.total

        def snapshot(self) -> dict[str, object]:
            return {"total": self.total}

        def restore_state(self, state: dict[str, Any]) -> None:
            self.total = int(state["total"])

    manager = runtime.manager
    runtime.register("keeps", Keeps)
    manager.start_agent(AgentSpec(id="a", type="keeps"), wait="running")
    assert manager.process("a", 5) == 5
    manager.stop_agent("a")
    damaged = damage_snapshots(runtime)
    manager.start_agent("a")
    runtime.until("a", "parked")
    with pytest.raises(AgentParkedError, match=r"all 1 snapshots.*--accept-loss"):
        manager.unpark_agent("a")

    (unpark,) = (control for control in CONTROLS if control.method == "unpark_agent")
    with pytest.raises(InvalidSettingError, match="accept_loss"):
        call_control(unpark, cast("Any", runtime), "t1", ("a",), {"accept_loss": "false"})
    call_control(unpark, cast("Any", runtime), "t2", ("a",), {"accept_loss": True})

    entry = manager.audit("a")[-1]
    assert (entry.operation, entry.actor, entry.changed) == ("unpark", "task t2", ("accept_loss",))
    runtime.until("a", "running")
    assert manager.process("a", 1) == 1
    assert [one.raw for one in runtime.store.damaged_snapshots("a")] == damaged  # type: ignore[arg-type]
    (said,) = runtime.events("a", "integrity.violated")
    assert [one["kind"] for one in said.payload["violations"]] == ["state"]
    manager.restart_agent("a")
    runtime.until("a", "running", incarnation=4)
    assert manager.process("a", 1) == 2

    manager.stop_agent("a")
    damage_snapshots(runtime)
    manager.start_agent("a")
    assert runtime.until("a", "parked").cause == "integrity"


def forget_logged_frames() -> None:
    """The test runner keeps log records, and with a traceback whatever its frames hold."""
    for handler in logging.getLogger().handlers:
        if isinstance(records := getattr(handler, "records", None), list):
            records.clear()


# -- attempts that fail -----------------------------------------------------------------------------------------------


@pytest.mark.spec(59)
@pytest.mark.parametrize("place", ["factory", "restore_state", "upcaster"])
def test_whatever_raises_on_the_way_back_is_a_failed_attempt_and_nobody_else_notices(
    runtime: Runtime, place: str
) -> None:
    """The supervisor survives, the attempt is counted, not the death; the next one brings the agent back."""
    armed: list[bool] = []

    class Fragile(Diary):
        book: list[Any] = []  # noqa: RUF012 - of this test

        def __init__(self, agent_id: str) -> None:
            super().__init__(agent_id)
            self.fail("factory")

        @override
        def restore_state(self, state: dict[str, Any]) -> None:
            self.fail("restore_state")
            super().restore_state(state)

        @staticmethod
        def fail(here: str) -> None:
            if here == place and armed:
                armed.pop()
                raise SystemExit(f"{here} cannot")

    def upcast(state: dict[str, Any]) -> dict[str, Any]:
        Fragile.fail("upcaster")
        return state

    runtime.register("diary", Fragile)
    begin(runtime)
    runtime.manager.start_agent(AgentSpec(id="neighbour", type="diary"), wait="running")
    runtime.manager.process("a", 5)
    runtime.manager.stop_agent("a")
    runtime.registry.replace("diary", Fragile)
    runtime.registry.register("diary", Fragile, schema=2)
    runtime.registry.upcasters.add("diary", 1, upcast)
    armed += [True, True]
    runtime.manager.start_agent("a")

    info = runtime.until("a", "running", incarnation=4)

    assert (info.restarts, info.charged) == (1, 1), "one death, whatever the number of attempts"
    assert runtime.manager.stats().counters["failed_attempts"] == 1
    assert f"{place} cannot" in runtime.events("a", "agent.stopped")[-1].payload["reason"]
    assert runtime.manager.process("a", "total") == 5
    assert runtime.manager.get_agent_info("neighbour").incarnation == 1  # type: ignore[union-attr]


@pytest.mark.spec(47)
@pytest.mark.parametrize("place", ["factory", "restore_state", "apply"])
def test_an_attempt_beyond_restore_timeout_is_abandoned_and_leaves_no_half_built_instance(
    redis_server: RedisServer, namespace: str, place: str
) -> None:
    """The next attempt runs; what hung is gone once it returns, without having lived or written anything."""
    hold, hangs = threading.Event(), [False]
    instances: list[weakref.ref[Any]] = []
    lived: list[int] = []

    class Slow(Diary):
        book: list[Any] = []  # noqa: RUF012 - of this test

        def __init__(self, agent_id: str) -> None:
            super().__init__(agent_id)
            instances.append(weakref.ref(self))
            self.hang("factory")

        @override
        def restore_state(self, state: dict[str, Any]) -> None:
            self.hang("restore_state")
            super().restore_state(state)

        @override
        def apply(self, event: Event) -> None:
            self.hang("apply")
            super().apply(event)

        @override
        def snapshot(self) -> dict[str, object]:
            if hangs[0]:
                raise OSError("so that there is something to apply")
            return super().snapshot()

        @override
        async def start(self, ctx: AgentContext) -> None:
            lived.append(ctx.incarnation)
            await super().start(ctx)

        @staticmethod
        def hang(here: str) -> None:
            if here == place and hangs[0]:
                hangs[0] = False
                hold.wait(20)

    settings: dict[str, Any] = {"restore_timeout": "300ms", "lease_ttl": "400ms", "snapshot_interval": "1h"}
    with Runtime(redis_server.url, namespace, **settings) as runtime:
        runtime.manager.start()
        runtime.register("diary", Slow)
        begin(runtime)
        runtime.manager.process("a", 5)
        runtime.manager.restart_agent("a")
        runtime.until("a", "running", incarnation=2)
        runtime.manager.process("a", 6)
        hangs[0] = True
        epoch = runtime.manager.get_agent_info("a").epoch  # type: ignore[union-attr]
        runtime.manager.notify_agent_dead("a", "dead", epoch=epoch)

        runtime.until("a", "running", incarnation=4, judge=True)
        before = runtime.types("a")
        hold.set()

        def gone() -> bool:
            forget_logged_frames()
            gc.collect()
            return sum(instance() is not None for instance in instances) == 1

        wait_until(gone, "all instances but the one that lives to be gone")
        assert_stays(lambda: lived == [1, 2, 4], "only whole instances live", seconds=0.3)
        assert runtime.types("a") == before
        assert runtime.manager.process("a", "total") == 11, "from a state of 5 and an event of 6"


# -- mixed versions ---------------------------------------------------------------------------------------------------


class CounterV1:
    """The first release: its state is ``{"n": …}``."""

    loaded: list[dict[str, Any]]

    def __init__(self, agent_id: str) -> None:
        self.total = 0

    async def process(self, ctx: AgentContext, message: Any) -> object:
        if message:
            self.total += message
        return {"total": self.total, "release": 1}

    def snapshot(self) -> dict[str, object]:
        return {"n": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.loaded.append(state)
        self.total = state["n"]


class CounterV2:
    """The next release: ``{"total": …}``."""

    loaded: list[dict[str, Any]]

    def __init__(self, agent_id: str) -> None:
        self.total = 0

    async def process(self, ctx: AgentContext, message: Any) -> object:
        if message:
            self.total += message
        return {"total": self.total, "release": 2}

    def snapshot(self) -> dict[str, object]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, Any]) -> None:
        self.loaded.append(state)
        self.total = state["total"]


def total_from_n(state: dict[str, Any]) -> dict[str, Any]:
    """From the first release to the next."""
    return {"total": state["n"]}


class TwoReleases:
    """Workers of two releases, which get an agent's messages in turns."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.old, self.new = Registry(), Registry()
        self.old_class: Any = type("OldCounter", (CounterV1,), {"loaded": []})
        self.new_class: Any = type("NewCounter", (CounterV2,), {"loaded": []})
        self.old.register("counter", self.old_class)
        self.new.register("counter", self.new_class, schema=2)
        self.new.upcasters.add("counter", 1, total_from_n)
        self.hosts = [runtime.new_host(self.old), runtime.new_host(self.new)]
        self.turns = cycle(self.hosts)
        runtime.registry.register("counter", self.old_class)
        runtime.launcher._host = lambda: next(self.turns)

    def only(self, release: int) -> None:
        """Workers of the other release are gone."""
        self.turns = cycle([self.hosts[release - 1]])

    def both(self) -> None:
        """Workers of both."""
        self.turns = cycle(self.hosts)

    def close(self) -> None:
        """Ends the agents, then the workers."""
        self.runtime.manager.stop()
        for host in self.hosts:
            host.close()


@pytest.mark.pain("P22")
@pytest.mark.timeout(120)
def test_workers_of_two_releases_side_by_side(redis_server: RedisServer, namespace: str) -> None:
    """Twenty agents: no load error, newer state never reaches older code, and after a roll-back they wait, unharmed."""
    with Runtime(redis_server.url, namespace, snapshot_interval="1h") as runtime:
        runtime.manager.start()
        releases = TwoReleases(runtime)
        manager, ids = runtime.manager, [f"c{number}" for number in range(20)]
        releases.only(1)
        for agent_id in ids:
            manager.start_agent(AgentSpec(id=agent_id, type="counter"), wait="running")
            assert manager.process(agent_id, 1) == {"total": 1, "release": 1}
        releases.both()
        for expected in (2, 3):
            for agent_id in ids:
                manager.restart_agent(agent_id)
            for agent_id in ids:
                runtime.until(agent_id, "running", incarnation=expected, timeout=20)
                assert manager.process(agent_id, 1)["total"] == expected
        upgraded = [agent_id for agent_id in ids if manager.process(agent_id, 0)["release"] == 2]
        assert 0 < len(upgraded) < 20, "the releases share the agents"

        releases.only(1)  # roll-back
        for agent_id in ids:
            manager.restart_agent(agent_id)
        waits = set(upgraded)
        for agent_id in set(ids) - waits:
            runtime.until(agent_id, "running", incarnation=4, timeout=20)
        wait_until(lambda: all(manager.get_agent_info(one).waiting_on == "schema" for one in waits))  # type: ignore[union-attr]
        for _ in range(3):
            runtime.sweep()
        for info in manager.list_agents():
            assert (info.charged, info.restarts, info.cause) == (0, 0, ""), info
            assert info.state == ("starting" if info.id in waits else "running")

        releases.both()  # and forward again
        for agent_id in waits:
            runtime.until(agent_id, "running", incarnation=4, timeout=20)
            assert manager.process(agent_id, 1) == {"total": 4, "release": 2}
        assert all("n" in state for state in releases.old_class.loaded)
        assert all("total" in state for state in releases.new_class.loaded)
        assert manager.stats().counters.get("failed_attempts", 0) == 0
        releases.close()


def test_newer_state_that_a_claim_did_not_know_of_is_given_back_uncharged(runtime: Runtime) -> None:
    """A record without its schema, as of an earlier release: found on the way, noted, released, waited for."""
    releases = TwoReleases(runtime)
    releases.only(2)
    runtime.manager.start_agent(AgentSpec(id="a", type="counter"), wait="running")
    runtime.manager.process("a", 7)
    runtime.manager.stop_agent("a")
    client: Any = runtime.store._bound.client._driver
    client.execute_command("HDEL", runtime.store._bound.keys.agent("a"), "state_of", "state_schema")
    releases.only(1)
    runtime.manager.start_agent("a")
    wait_until(lambda: runtime.manager.get_agent_info("a").waiting_on == "schema")  # type: ignore[union-attr]
    info = runtime.manager.get_agent_info("a")
    assert info is not None
    assert (info.state, info.charged, info.restarts, info.cause) == ("starting", 0, 0, "")
    assert runtime.events("a", "agent.stopped")[-1].payload["reason"] == "newer_state"
    assert len(runtime.launcher.outcomes) >= 2
    releases.only(2)
    runtime.until("a", "running")
    assert runtime.manager.process("a", 1)["total"] == 8
    releases.close()


@pytest.mark.pain("P20")
def test_an_agent_whose_config_has_changed_goes_on_with_its_state_and_says_so(runtime: Runtime) -> None:
    """Also one whose factory has: the rule is to go on, never in silence; once, until its next snapshot."""
    runtime.register("diary", type("DiaryA", (Diary,), {"book": []}))

    class Configured(Diary):
        book: list[Any] = []  # noqa: RUF012 - of this test

        def __init__(self, agent_id: str, step: int = 1) -> None:
            super().__init__(agent_id)

    runtime.registry.replace("diary", Configured)
    begin(runtime, config={"step": 1})
    runtime.manager.process("a", 5)
    runtime.manager.stop_agent("a")
    runtime.manager.start_agent(AgentSpec(id="a", type="diary", config={"step": 2}), wait="running")
    assert runtime.manager.process("a", "total") == 5
    (said,) = runtime.events("a", "agent.config_changed")
    assert said.payload["changed"] == ["config"]
    assert runtime.types("a")[-2:] == ["agent.config_changed", "agent.started"]
    assert runtime.manager.stats().counters["config_changes"] == 1

    runtime.manager.process("a", 6)
    runtime.manager.restart_agent("a")
    runtime.until("a", "running", incarnation=3)
    assert len(runtime.events("a", "agent.config_changed")) == 1

    other = type("OtherFactory", (Configured,), {"book": []})
    runtime.registry.replace("diary", other)
    runtime.manager.restart_agent("a")
    runtime.until("a", "running", incarnation=4)
    assert runtime.events("a", "agent.config_changed")[-1].payload["changed"] == ["factory"]
    assert runtime.manager.process("a", "total") == 11


# -- others are not held up -------------------------------------------------------------------------------------------


def test_agents_that_cannot_come_back_do_not_hold_up_the_others(runtime: Runtime) -> None:
    """Of 250 that are all restarted at once one hangs, one raises and the history of one is damaged: 247 run again."""
    over, armed = threading.Event(), list[bool]()
    bad = {"a100": "hangs", "a101": "raises", "a102": "damaged"}

    class One(Diary):
        book: list[Any] = []  # noqa: RUF012 - of this test

        def __init__(self, agent_id: str) -> None:
            super().__init__(agent_id)
            match bad.get(agent_id) if armed else None:
                case "hangs":
                    over.wait(30)
                case "raises":
                    raise SystemExit("cannot")
                case _:
                    pass

    runtime.register("diary", One)
    ids = [f"a{number}" for number in range(250)]
    for agent_id in ids:
        runtime.manager.start_agent(AgentSpec(id=agent_id, type="diary"))
    for agent_id in ids:
        runtime.until(agent_id, "running", timeout=20)
    client, keys = raw_client(runtime), runtime.store._bound.keys
    client.execute_command("XADD", keys.events("a102"), "9-0", "d", b"{", "t", "1")
    client.execute_command("HSET", keys.agent("a102"), "version", 9)
    armed.append(True)
    try:
        for agent_id in ids:
            runtime.manager.restart_agent(agent_id)
        for agent_id in ids:
            if agent_id not in bad:
                runtime.until(agent_id, "running", incarnation=2, timeout=20)
        assert runtime.until("a102", "parked").cause == "integrity"
        for agent_id in ("a100", "a101"):
            info = runtime.manager.get_agent_info(agent_id)
            assert info is not None
            assert info.state != "running"
    finally:
        over.set()
