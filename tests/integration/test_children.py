"""Agents that spawn others, in a whole runtime: births, stops that cascade, results, and deaths in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from typing_extensions import override

from ares_celery import (
    AgentAlreadyRegisteredError,
    AgentContext,
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    AgentSpec,
    InvalidConfigError,
    SyncAgentContext,
    UnknownAgentTypeError,
    WaitTimeoutError,
)
from ares_celery.errors import FencedError, UnreadableRecordError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentInfo, AgentState, Desired
from ares_celery.model.command import Command, Die, Park, Spawn, Stop
from ares_celery.model.event import NewEvent
from ares_celery.model.restart import DeathCause
from ares_celery.store.redis.keys import Keys
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = pytest.mark.integration

#: What agents of this file found out, in order.
SEEN: list[Any] = []


class Parent:
    """Spawns what its config lists, `{"id": …, "type": …, "config": …}`, and lives on."""

    def __init__(
        self, agent_id: str, children: list[dict[str, Any]] | None = None, *, report: bool | None = None
    ) -> None:
        self.children, self.report = children or [], report

    async def start(self, ctx: AgentContext) -> None:
        """Spawns in order."""
        for fields in self.children:
            child = await ctx.spawn(AgentSpec(**fields), report=self.report)
            SEEN.append(("spawned", child.id, ctx.incarnation))
        while not ctx.stop_requested:
            await ctx.sleep(60)


class PlainParent:
    """The same, plain."""

    def __init__(self, agent_id: str, children: list[dict[str, Any]] | None = None) -> None:
        self.children = children or []

    def start(self, ctx: SyncAgentContext) -> None:
        """Spawns in order."""
        for fields in self.children:
            child = ctx.spawn(AgentSpec(**fields))
            SEEN.append(("spawned", child.id, ctx.incarnation))
        while not ctx.stop_requested:
            ctx.sleep(60)


class Listener(Parent):
    """A parent that handles messages."""

    async def process(self, ctx: AgentContext, message: object) -> object:
        """Notes what it is told."""
        SEEN.append(message)
        return None


class Worker:
    """Gives its result at once, when it has one; else lives on."""

    def __init__(self, agent_id: str, result: object = None) -> None:
        self.result = result

    async def start(self, ctx: AgentContext) -> None:
        """Works."""
        if self.result is not None:
            await ctx.complete(self.result)
        while not ctx.stop_requested:
            await ctx.sleep(60)


class Asker:
    """Waits for the result of one child, and says what came."""

    def __init__(self, agent_id: str, child: dict[str, Any], timeout: float | None = None) -> None:
        self.child, self.timeout = child, timeout

    async def start(self, ctx: AgentContext) -> object:
        """Asks."""
        child = await ctx.spawn(AgentSpec(**self.child))
        try:
            return {"got": await child.result(self.timeout), "state": (await child.info()).state}
        except (AgentNotRunningError, AgentParkedError, AgentNotFoundError, WaitTimeoutError) as error:
            return {"error": error.code}


class PlainAsker:
    """The same, plain."""

    def __init__(self, agent_id: str, child: dict[str, Any], timeout: float | None = None) -> None:
        self.child, self.timeout = child, timeout

    def start(self, ctx: SyncAgentContext) -> object:
        """Asks."""
        child = ctx.spawn(AgentSpec(**self.child))
        try:
            return {"got": child.result(self.timeout), "state": child.info().state}
        except (AgentNotRunningError, AgentParkedError, AgentNotFoundError, WaitTimeoutError) as error:
            return {"error": error.code}


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A whole runtime with the agents of this file."""
    SEEN.clear()
    with Runtime(redis_server.url, namespace, hints=True, shards=4) as made:
        for name in ("Parent", "PlainParent", "Listener", "Chooser", "Worker", "Asker", "PlainAsker"):
            made.register(name.lower(), globals()[name])
        made.manager.start()
        yield made


def settle(runtime: Runtime, condition: Callable[[], object], what: str, timeout: float = 8) -> None:
    """Waits while the sweep goes on."""

    def is_so() -> object:
        runtime.sweep()
        return condition()

    wait_until(is_so, what, timeout=timeout)


def info(runtime: Runtime, agent_id: str) -> AgentInfo:
    """What is known of an agent that exists."""
    found = runtime.manager.get_agent_info(agent_id)
    assert found is not None, agent_id
    return found


def states(runtime: Runtime, *agent_ids: str) -> set[AgentState]:
    """Where they are."""
    return {info(runtime, agent_id).state for agent_id in agent_ids}


def worker(agent_id: str, **config: Any) -> dict[str, Any]:
    """The spec of a worker."""
    return {"id": agent_id, "type": "worker", "config": config}


def due(runtime: Runtime, kind: str) -> list[str]:
    """The deadlines of a kind that stand."""
    keys = Keys(runtime.store.namespace, runtime.config.shards)
    with redis.Redis.from_url(runtime.url) as client:
        found: list[Any] = [one for shard in range(keys.shards) for one in client.zrange(keys.deadlines(shard), 0, -1)]
    return [one.decode() for one in found if one.decode().startswith(f"{kind}|")]


def start(runtime: Runtime, kind: str, agent_id: str = "p", **config: Any) -> None:
    """Starts an agent."""
    runtime.manager.start_agent(AgentSpec(id=agent_id, type=kind, config=config))


@pytest.mark.parametrize("kind", ["parent", "plainparent"])
def test_an_agent_spawns_children_in_whatever_shard(runtime: Runtime, kind: str) -> None:
    """They run, name their parent, are listed in order, and the parent's stream tells of each."""
    ids = [f"c{number}" for number in range(5)]
    children = [worker(agent_id) for agent_id in ids]
    assert len({Keys("", runtime.config.shards).shard_of(child["id"]) for child in children}) > 1
    start(runtime, kind, children=children)
    settle(runtime, lambda: len(SEEN) == 5 and states(runtime, *ids) == {AgentState.RUNNING}, "5")
    listed = runtime.manager.children("p")
    assert [child.id for child in listed] == [f"c{number}" for number in range(5)]
    assert {child.parent for child in listed} == {"p"}
    told = runtime.events("p", "child.spawned")
    assert [(e.payload["child"], e.payload["type"]) for e in told] == [(f"c{n}", "worker") for n in range(5)]
    record = runtime.store.read(AgentId("c3")).record
    assert record is not None
    assert record.root == "p"
    assert runtime.events("c3", "agent.started")[0].payload["reason"] == "spawn"
    assert record.actor == "agent p"
    runtime.manager.stop_agent("p")
    settle(runtime, lambda: states(runtime, *ids) == {AgentState.STOPPED}, "stopped")


@pytest.mark.pain("P18")
def test_a_stop_reaches_children_and_grandchildren(runtime: Runtime) -> None:
    """One stop ends 3 children and 9 grandchildren within agent_stop_timeout; they stay stopped when it is started."""
    tree = [
        {"id": f"c{c}", "type": "parent", "config": {"children": [worker(f"g{c}{g}") for g in range(3)]}}
        for c in range(3)
    ]
    family = [f"c{c}" for c in range(3)] + [f"g{c}{g}" for c in range(3) for g in range(3)]
    start(runtime, "parent", children=tree)
    settle(runtime, lambda: len(SEEN) == 12 and states(runtime, *family) == {AgentState.RUNNING}, "the tree")
    record = runtime.store.read(AgentId("g11")).record
    assert record is not None
    assert (record.root, record.spec.parent) == ("p", "c1")
    runtime.manager.stop_agent("p", reason="enough", actor="ann@desk")
    limit = runtime.config.agent_stop_timeout.total_seconds()
    settle(runtime, lambda: states(runtime, "p", *family) == {AgentState.STOPPED}, "all stopped", timeout=limit)
    for agent_id in family:
        ended = info(runtime, agent_id)
        assert ended.desired is Desired.STOPPED
        assert ended.reason == f"its parent {ended.parent} was stopped"
        assert ended.actor == "ann@desk"
        assert len(runtime.events(agent_id, "agent.stopped")) == 1
    settle(runtime, lambda: not due(runtime, "children"), "the cascade's end")
    runtime.manager.start_agent("p")
    runtime.until("p", "running", incarnation=2)
    settle(runtime, lambda: len(SEEN) == 15, "the recorded spawns")
    assert states(runtime, *family) == {AgentState.STOPPED}
    assert len(runtime.events("p", "child.spawned")) == 3


class Late(Worker):
    """Spawns when it is asked to stop already."""

    async def stop(self, ctx: AgentContext) -> None:
        """Spawns."""
        child = await ctx.spawn(AgentSpec(**worker("late")))
        SEEN.append((await child.info()).state)


@pytest.mark.pain("P18")
def test_a_child_spawned_after_the_stop_is_born_stopped(runtime: Runtime) -> None:
    """It exists, is listed, says why, and never runs; whoever wants it starts it."""
    runtime.register("late", Late)
    start(runtime, "late")
    runtime.until("p", "running")
    runtime.manager.stop_agent("p")
    settle(runtime, lambda: not due(runtime, "children"), "the cascade's end")
    assert SEEN == [AgentState.STOPPED]
    born = info(runtime, "late")
    assert (born.state, born.desired, born.incarnation, born.reason) == ("stopped", "stopped", 0, "parent_stopped")
    assert [(e.type, e.payload["reason"]) for e in runtime.events("late")] == [("agent.stopped", "parent_stopped")]
    assert [child.id for child in runtime.manager.children("p")] == ["late"]
    runtime.manager.start_agent("late")
    runtime.until("late", "running")


def test_a_child_whose_birth_comes_after_its_parents_whole_stop_is_stopped(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parent was frozen between listing it and making it: nobody could see it, so it looks itself."""
    apply, done = runtime.committer.apply, list[str]()

    def slow(agent_id: AgentId, command: Command, **options: Any) -> Any:
        if isinstance(command, Spawn) and not done:
            done.append(agent_id)
            runtime.manager.stop_agent("p", force=True)
            settle(runtime, lambda: not due(runtime, "children"), "the cascade's end")
            assert runtime.manager.get_agent_info("c") is None
            assert runtime.manager.children("p") == []
        return apply(agent_id, command, **options)

    monkeypatch.setattr(runtime.committer, "apply", slow)
    start(runtime, "parent", children=[worker("c")])
    wait_until(lambda: runtime.manager.get_agent_info("c"), "the birth")
    settle(runtime, lambda: states(runtime, "c") == {AgentState.STOPPED}, "its end")
    assert info(runtime, "c").desired is Desired.STOPPED
    assert not due(runtime, "children")


@pytest.mark.parametrize("kind", ["parent", "plainparent"])
@pytest.mark.parametrize("place", ["listed", "made"])
def test_a_parent_that_dies_while_it_spawns_has_one_child_in_the_end(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, kind: str, place: str
) -> None:
    """Between the list and the child, or behind the child: the next life goes on there, and doubles nothing."""
    apply, adopt, deaths = runtime.committer.apply, runtime.store.adopt, list[str]()

    def die(what: str) -> None:
        if place == what and not deaths:
            deaths.append(what)
            raise SystemExit("killed")

    def listed(*args: Any, **options: Any) -> Any:
        answer = adopt(*args, **options)
        die("listed")
        return answer

    def made(agent_id: AgentId, command: Command, **options: Any) -> Any:
        answer = apply(agent_id, command, **options)
        if isinstance(command, Spawn):
            die("made")
        return answer

    monkeypatch.setattr(runtime.store, "adopt", listed)
    monkeypatch.setattr(runtime.committer, "apply", made)
    start(runtime, kind, children=[worker("c")])
    settle(runtime, lambda: SEEN, "the second life")
    assert SEEN == [("spawned", "c", 2)]
    assert deaths == [place]
    runtime.until("c", "running")
    assert [e.payload["incarnation"] for e in runtime.events("p", "child.spawned")] == [1]
    assert [e.payload["incarnation"] for e in runtime.events("c", "agent.started")] == [1]
    record = runtime.store.read(AgentId("c")).record
    parent = runtime.store.read(AgentId("p")).record
    assert record is not None
    assert record.birth is not None
    assert record.birth.number == 1
    assert parent is not None
    assert parent.children == 1


def test_a_fenced_parent_spawns_nothing(runtime: Runtime) -> None:
    """Its list is guarded as its stream is."""
    start(runtime, "worker")
    runtime.until("p", "running")
    record = runtime.store.read(AgentId("p")).record
    assert record is not None
    event = runtime.events("p")[0]
    with pytest.raises(FencedError):
        runtime.store.adopt(AgentId("p"), "1|old", AgentId("c"), key="k", event=NewEvent(event.type, {}))
    assert runtime.store.children(AgentId("p")) == []


def test_what_ends_the_parent_otherwise_leaves_the_children_alone(runtime: Runtime) -> None:
    """Restart, pause, a death and its completion: the child runs on, in its first life."""
    start(runtime, "parent", children=[worker("c")])
    settle(runtime, lambda: len(SEEN) == 1, "the child")
    runtime.until("c", "running")
    runtime.manager.restart_agent("p")
    runtime.until("p", "running", incarnation=2)
    record = runtime.store.read(AgentId("p")).record
    assert record is not None
    runtime.committer.apply(AgentId("p"), Die("crash", epoch=record.epoch, cause=DeathCause.CRASH, proof=True))
    runtime.until("p", "running", incarnation=3)
    runtime.manager.pause_agent("p")
    runtime.until("p", "paused")
    runtime.sweep()
    child = info(runtime, "c")
    assert (child.state, child.incarnation, child.desired) == (AgentState.RUNNING, 1, Desired.RUNNING)
    runtime.manager.resume_agent("p")
    runtime.until("p", "running", incarnation=4)
    assert {what[:2] for what in SEEN} == {("spawned", "c")}
    assert len(runtime.events("p", "child.spawned")) == 1
    runtime.manager.stop_agent("p")
    settle(runtime, lambda: states(runtime, "c") == {AgentState.STOPPED}, "the stop")


def test_a_cascade_looks_again_until_all_have_ended_and_leaves_younger_children_alone(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that could not be asked at first is asked again; one that the next life spawned meanwhile is none of its."""
    apply, refused = runtime.committer.apply, list[str]()

    def refusing(agent_id: AgentId, command: Command, **options: Any) -> Any:
        if isinstance(command, Stop) and agent_id == "c1" and len(refused) < 2:
            refused.append(agent_id)
            raise UnreadableRecordError(agent_id=agent_id, problem="for a while")
        return apply(agent_id, command, **options)

    start(runtime, "chooser", children=[worker("c1")])
    settle(runtime, lambda: SEEN == ["c1"], "the child")
    runtime.until("c1", "running")
    monkeypatch.setattr(runtime.committer, "apply", refusing)
    runtime.manager.stop_agent("p")
    runtime.sweep()
    assert len(refused) == 2
    assert due(runtime, "children") == ["children|p"]
    runtime.manager.update_agent("p", config={"children": [worker("c2")]})
    runtime.manager.start_agent("p")
    settle(runtime, lambda: SEEN == ["c1", "c2"], "the younger child")
    settle(runtime, lambda: states(runtime, "c1") == {AgentState.STOPPED}, "the second look")
    settle(runtime, lambda: not due(runtime, "children"), "the cascade's end")
    assert states(runtime, "c2", "p") == {AgentState.RUNNING}


def test_a_child_that_is_refused_after_it_was_listed_is_forgotten(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else has made an agent of this id in the meantime: that one is nobody's child."""
    adopt = runtime.store.adopt

    def taken(*args: Any, **options: Any) -> Any:
        answer = adopt(*args, **options)
        start(runtime, "worker", "c")
        return answer

    monkeypatch.setattr(runtime.store, "adopt", taken)
    runtime.register("mistaken", Mistaken)
    start(runtime, "mistaken", spec={"id": "c", "type": "worker"})
    assert runtime.until("p", "completed").result[0] == "agent_already_registered"
    assert runtime.store.children(AgentId("p")) == []


def test_a_stop_of_an_agent_at_rest_reaches_those_it_left_behind(runtime: Runtime) -> None:
    """Completed parents, at any level, do not keep a tree from being stopped."""
    child = {"id": "c", "type": "quick", "config": {"children": [worker("g")]}}
    runtime.register("quick", Quick)
    start(runtime, "quick", children=[child])
    settle(runtime, lambda: len(SEEN) == 2 and states(runtime, "p", "c") == {AgentState.COMPLETED}, "completion")
    runtime.until("g", "running")
    runtime.manager.stop_agent("p")
    settle(runtime, lambda: states(runtime, "g") == {AgentState.STOPPED}, "the grandchild's stop")
    assert states(runtime, "p", "c") == {AgentState.COMPLETED}
    settle(runtime, lambda: not due(runtime, "children"), "the cascade's end")


class Chooser(Parent):
    """Spawns, with ids that tell its lives apart, and lives on."""

    @override
    async def start(self, ctx: AgentContext) -> None:
        """Spawns in order."""
        for fields in self.children:
            child = await ctx.spawn(AgentSpec(**fields))
            SEEN.append(child.id)
        while not ctx.stop_requested:
            await ctx.sleep(60)


class Quick(Parent):
    """Spawns, and is done."""

    @override
    async def start(self, ctx: AgentContext) -> None:
        """Spawns in order."""
        for fields in self.children:
            child = await ctx.spawn(AgentSpec(**fields))
            SEEN.append(child.id)


@pytest.mark.parametrize("kind", ["asker", "plainasker"])
def test_an_agent_waits_for_the_result_of_a_child(runtime: Runtime, kind: str) -> None:
    """The JSON value that it completed with; what ends it otherwise is an error with its own name."""
    start(runtime, kind, "a", child=worker("c1", result={"n": [1, None]}))
    assert runtime.until("a", "completed").result == {"got": {"n": [1, None]}, "state": "completed"}
    start(runtime, kind, "b", child=worker("c2"))
    runtime.until("c2", "running")
    runtime.manager.stop_agent("c2")
    assert runtime.until("b", "completed").result == {"error": "agent_not_running"}
    start(runtime, kind, "d", child=worker("c3"), timeout=0.05)
    assert runtime.until("d", "completed").result == {"error": "wait_timeout"}
    start(runtime, kind, "e", child=worker("c4"))
    runtime.until("c4", "running")
    park(runtime, "c4")
    assert runtime.until("e", "completed").result == {"error": "agent_parked"}


def test_an_agent_that_is_started_anew_has_its_children_work_anew(runtime: Runtime) -> None:
    """The same call of a new run starts a child that is over once more; in one run it is called once."""
    start(runtime, "asker", "a", child=worker("c", result=7))
    assert runtime.until("a", "completed").result == {"got": 7, "state": "completed"}
    runtime.manager.start_agent("a")
    assert runtime.until("a", "completed", incarnation=2).result == {"got": 7, "state": "completed"}
    child = info(runtime, "c")
    assert (child.incarnation, child.state) == (2, AgentState.COMPLETED)
    assert [(e.payload["incarnation"], e.payload["child"]) for e in runtime.events("a", "child.spawned")] == [
        (1, "c"),
        (2, "c"),
    ]


def test_a_spawn_is_a_step_of_the_message_at_hand(runtime: Runtime) -> None:
    """Recorded in the message's execution: a handling that is repeated spawns nothing again."""
    runtime.register("dispatcher", Dispatcher)
    start(runtime, "dispatcher", "d")
    runtime.until("d", "running")
    assert runtime.manager.process("d", "c1", 5, "m1") == "c1"
    assert runtime.manager.process("d", "c2", 5, "m2") == "c2"
    steps = runtime.store.checkpoints.steps("d", "msg:m1")
    assert [(step.id, step.function, step.replay, step.value) for step in steps] == [
        ("spawn:c1", "spawn", "keyed", {"child": "c1"})
    ]


class Dispatcher:
    """Spawns a child for each message."""

    def __init__(self, agent_id: str) -> None: ...

    async def process(self, ctx: AgentContext, message: str) -> str:
        """Spawns it."""
        return (await ctx.spawn(AgentSpec(**worker(message)), report=False)).id


def test_a_wait_for_a_child_ends_when_the_agent_is_to_stop(runtime: Runtime) -> None:
    """In order, and not as a failure; the child is stopped with it."""
    start(runtime, "asker", "a", child=worker("c"))
    runtime.until("c", "running")
    runtime.manager.stop_agent("a")
    assert info(runtime, "a").state is AgentState.STOPPED
    assert [e.payload["reason"] for e in runtime.events("a", "agent.stopped")] == ["explicit_stop"]
    settle(runtime, lambda: states(runtime, "c") == {AgentState.STOPPED}, "the child's stop")


def park(runtime: Runtime, agent_id: str, cause: str = "integrity") -> None:
    """Parks an agent that runs."""
    record = runtime.store.read(AgentId(agent_id)).record
    assert record is not None
    runtime.committer.apply(AgentId(agent_id), Park("a gap at 4", fence=record.fence, cause=cause))


def test_a_parent_is_told_by_a_message_what_became_of_its_children(runtime: Runtime) -> None:
    """Completed, parked, stopped for good: one message each, and none for what goes on."""
    start(runtime, "listener", children=[worker("c1", result=42), worker("c2"), worker("c3"), worker("c4")])
    settle(runtime, lambda: len(SEEN) >= 5, "the first report")
    for agent_id in ("c2", "c3", "c4"):
        runtime.until(agent_id, "running")
    park(runtime, "c2")
    runtime.manager.stop_agent("c3", reason="not needed")
    runtime.manager.pause_agent("c4")
    runtime.until("c4", "paused")
    settle(runtime, lambda: len(SEEN) == 7 and not due(runtime, "report"), "all reports")
    for report in (
        {"child": "c1", "state": "completed", "result": 42},
        {"child": "c2", "state": "parked", "cause": "integrity", "reason": "a gap at 4"},
        {"child": "c3", "state": "stopped", "reason": "not needed"},
    ):
        assert SEEN.count(report) == 1


def test_a_report_comes_once_for_each_end_and_only_where_it_is_wanted(runtime: Runtime) -> None:
    """A child that is started again reports its next end, too; without a report, or without process, none is told."""
    start(runtime, "listener", children=[worker("c1", result=1)])
    settle(runtime, lambda: {"child": "c1", "state": "completed", "result": 1} in SEEN, "the report")
    runtime.manager.start_agent("c1")
    settle(runtime, lambda: SEEN.count({"child": "c1", "state": "completed", "result": 1}) == 2, "the second report")
    start(runtime, "listener", "q", children=[worker("c2", result=1)], report=False)
    start(runtime, "parent", "r", children=[worker("c3", result=1)])
    runtime.until("c2", "completed")
    runtime.until("c3", "completed")
    runtime.sweep()
    assert not due(runtime, "report")
    assert not any(isinstance(said, dict) and said["child"] != "c1" for said in SEEN)


def test_a_report_waits_for_room_in_the_parents_inbox(runtime: Runtime) -> None:
    """A full inbox loses nothing: it comes when there is room, without a hurry."""
    runtime.manager.set_config({"max_inbox": 1})
    start(runtime, "listener", children=[worker("c")])
    runtime.until("c", "running")
    runtime.manager.pause_agent("p")
    runtime.until("p", "paused")
    runtime.manager.send("p", "fill")
    runtime.manager.stop_agent("c", reason="done")
    runtime.sweep()
    assert due(runtime, "report") == ["report|c"]
    runtime.manager.resume_agent("p")
    settle(runtime, lambda: {"child": "c", "state": "stopped", "reason": "done"} in SEEN, "the report", timeout=5)
    assert SEEN.count({"child": "c", "state": "stopped", "reason": "done"}) == 1
    assert not due(runtime, "report")


def test_a_report_to_nobody_is_dropped_with_an_event(runtime: Runtime) -> None:
    """The parent has completed, or is gone: the child's stream says so, and nothing stays due."""
    runtime.register("quicklistener", QuickListener)
    start(runtime, "quicklistener", children=[worker("c1"), worker("c2")])
    runtime.until("p", "completed")
    for agent_id in ("c1", "c2"):
        runtime.until(agent_id, "running")
    runtime.manager.stop_agent("c1")
    settle(runtime, lambda: not due(runtime, "report"), "the first drop")
    runtime.manager.delete_agent("p")
    runtime.manager.stop_agent("c2")
    settle(runtime, lambda: not due(runtime, "report"), "the second drop")
    (first,) = runtime.events("c1", "child.report_dropped")
    assert first.payload == {
        "agent_id": "c1",
        "parent": "p",
        "state": "stopped",
        "reason": "agent 'p' is completed and meant to be stopped",
    }
    (second,) = runtime.events("c2", "child.report_dropped")
    assert second.payload["reason"] == "agent 'p' does not exist"


class QuickListener(Quick):
    """One that would handle messages, and is done before any comes."""

    @override
    async def start(self, ctx: AgentContext) -> None:
        """Spawns in order, and completes."""
        await super().start(ctx)
        await ctx.complete()

    async def process(self, ctx: AgentContext, message: object) -> object:
        """Answers nothing."""
        return None


class Mistaken:
    """Spawns one that cannot be, and says which error that gave."""

    def __init__(self, agent_id: str, spec: dict[str, Any]) -> None:
        self.spec = spec

    async def start(self, ctx: AgentContext) -> object:
        """Tries."""
        try:
            await ctx.spawn(AgentSpec(**self.spec))
        except (InvalidConfigError, UnknownAgentTypeError, AgentAlreadyRegisteredError) as error:
            return [error.code, str(error)]
        return None


@pytest.mark.parametrize(
    ("spec", "code", "told"),
    [
        ({"id": "c", "type": "worker", "parent": "other"}, "invalid_config", "leave parent='other' out"),
        ({"id": "c", "type": "worker", "config": {"rsult": 1}}, "invalid_config", "unknown: rsult"),
        ({"id": "taken", "type": "worker"}, "agent_already_registered", "choose another id"),
        ({"id": "p", "type": "worker"}, "agent_already_registered", "choose another id"),
    ],
)
def test_a_spawn_that_cannot_be_is_refused_and_leaves_nothing(
    runtime: Runtime, spec: dict[str, Any], code: str, told: str
) -> None:
    """With an error that names the cure; the parent lists no child."""
    runtime.register("mistaken", Mistaken)
    start(runtime, "worker", "taken")
    start(runtime, "mistaken", spec=spec)
    result = runtime.until("p", "completed").result
    assert result[0] == code
    assert told in result[1]
    assert runtime.store.children(AgentId("p")) == []
    assert not runtime.events("p", "child.spawned")


def test_an_agent_that_was_deleted_is_nobodys_child(runtime: Runtime) -> None:
    """Its parent's list forgets it; children of a deleted parent run on, and its own keys are gone."""
    start(runtime, "parent", children=[worker("c1"), worker("c2")])
    settle(runtime, lambda: len(SEEN) == 2, "the children")
    runtime.manager.stop_agent("c1")
    runtime.manager.delete_agent("c1")
    settle(runtime, lambda: runtime.store.children(AgentId("p")) == ["c2"], "the list")
    assert [child.id for child in runtime.manager.children("p")] == ["c2"]
    with pytest.raises(AgentNotFoundError):
        runtime.manager.children("c1")
    assert not due(runtime, "children|c1")


def test_a_hundred_children_are_spawned_and_stopped(runtime: Runtime) -> None:
    """In a few seconds, each once."""
    children = [worker(f"c{number}") for number in range(100)]
    start(runtime, "parent", children=children)
    settle(runtime, lambda: len(SEEN) == 100, "all spawned", timeout=20)
    settle(runtime, lambda: {child.state for child in runtime.manager.children("p")} == {"running"}, "run", timeout=20)
    assert len(runtime.events("p", "child.spawned")) == 100
    runtime.manager.stop_agent("p")
    settle(
        runtime,
        lambda: {child.state for child in runtime.manager.children("p")} == {"stopped"},
        "all stopped",
        timeout=20,
    )
    assert {child.incarnation for child in runtime.manager.children("p")} == {1}
