"""Supervision groups against a real Redis and a real host: order, intensity, wishes, and sweepers that die half-way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from ares_celery import AgentContext, AgentSpec
from ares_celery.celery_app.control_tasks import CONTROLS, as_json, call_control
from ares_celery.errors import (
    GroupNotFoundError,
    InvalidSettingError,
    OperationNotSupportedError,
    UnreadableGroupError,
)
from ares_celery.ids import AgentId
from ares_celery.supervision.sweep import Sweeper
from tests.hosting import Runtime
from tests.key_leaks import leaked_keys
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

STRATEGIES = {
    "one_for_one": ["stop b", "start b"],
    "one_for_all": ["stop b", "stop d", "stop c", "stop a", "start a", "start b", "start c", "start d"],
    "rest_for_one": ["stop b", "stop d", "stop c", "start b", "start c", "start d"],
}


class Worker:
    """Waits, and dies when it is told to; its state is what it was told."""

    def __init__(self, agent_id: str) -> None:
        self.heard = 0
        self.done = False

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested and not self.done:
            await ctx.sleep(0.05)
        if self.done:
            ctx.complete("done")

    async def process(self, ctx: AgentContext, message: object) -> object:
        self.done = message == "end"
        await ctx.emit("heard", {})
        return self.heard

    def apply(self, event: Any) -> None:
        self.heard += 1


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A running one that knows workers; its members' own backoff is short."""
    with Runtime(redis_server.url, namespace, restore_backoff="10ms", restore_backoff_max="20ms") as made:
        made.register("worker", Worker)
        made.manager.start()
        yield made


def begin(runtime: Runtime, *agent_ids: str, **fields: Any) -> None:
    """Starts members one after the other; the group knows them."""
    for agent_id in agent_ids:
        spec = AgentSpec(id=agent_id, type="worker", group="g", **fields)
        runtime.manager.start_agent(spec, wait="running")
    wait_until(lambda: swept(runtime) and members(runtime)[-len(agent_ids) :] == list(agent_ids), "the group to know")


def swept(runtime: Runtime) -> bool:
    """One sweep, as part of a condition that is waited for."""
    runtime.sweep()
    return True


def members(runtime: Runtime) -> list[str]:
    """Whom the group knows, in its order."""
    group = runtime.manager.get_group("g")
    return list(group.members) if group else []


def kill(runtime: Runtime, agent_id: str) -> None:
    """Ends the incarnation now alive, with proof: as its own host would report a crash."""
    from ares_celery.model.command import Die

    record = runtime.store.read(AgentId(agent_id)).record
    assert record is not None
    runtime.committer.apply(AgentId(agent_id), Die("boom", epoch=record.epoch, proof=True))


def story(runtime: Runtime, *agent_ids: str, after: int) -> list[str]:
    """What the streams tell of stops and starts after so many events of each, in the order of Redis' time."""
    found = [
        (event.time, ("stop " if event.type == "agent.stopped" else "start ") + agent_id)
        for agent_id in agent_ids
        for event in runtime.events(agent_id)[after:]
        if event.type in ("agent.stopped", "agent.started", "failover.completed")
    ]
    return [told for _, told in sorted(found)]


def until_settled(runtime: Runtime, *agent_ids: str, incarnation: int = 0) -> None:
    """Sweeps until all run (again) and no restart is under way."""
    for agent_id in agent_ids:
        runtime.until(agent_id, "running", incarnation=incarnation)
    wait_until(lambda: swept(runtime) and runtime.manager.get_group("g").phase == "idle", "the restart to end")  # type: ignore[union-attr]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_death_takes_along_whom_the_strategy_says_in_order(runtime: Runtime, strategy: Any) -> None:
    """Stops in reverse start order, starts in start order; only the dead is charged; states are kept."""
    runtime.manager.define_group("g", strategy)
    begin(runtime, "a", "b", "c", "d")
    assert runtime.manager.process("c", "x") == 1

    kill(runtime, "b")
    wait_until(lambda: swept(runtime) and runtime.manager.get_agent_info("b").incarnation == 2, "b to be back")  # type: ignore[union-attr]
    until_settled(runtime, "a", "b", "c", "d")

    taken_along = {word.split()[1] for word in STRATEGIES[strategy]}
    assert story(runtime, "a", "b", "c", "d", after=1)[: len(STRATEGIES[strategy])] == STRATEGIES[strategy]
    infos = {info.id: info for info in runtime.manager.list_agents()}
    assert {one for one, info in infos.items() if info.incarnation == 2} == taken_along
    assert {one: (info.charged, info.restarts, info.group) for one, info in infos.items()} == {
        one: (int(one == "b"), int(one == "b"), "g") for one in "abcd"
    }
    assert runtime.manager.process("c", "x") == 2
    group = runtime.manager.get_group("g")
    assert group is not None
    assert (group.restarts, group.recent, group.reason) == (1, 1, "b: boom")
    assert runtime.manager.stats().counters["group_restarts"] == 1
    reasons = {one: [e.payload["reason"] for e in runtime.events(one, "agent.started")] for one in "abcd"}
    assert reasons == {one: ["start", "group"] if one in taken_along - {"b"} else ["start"] for one in "abcd"}


def test_a_group_that_restarts_too_often_is_stopped_and_parked(runtime: Runtime) -> None:
    """Event, state and counter for every member; a person revives them, and the budget is full again."""
    runtime.manager.define_group("g", "one_for_all", max_restarts=1, period="1m")
    begin(runtime, "a", "b")
    kill(runtime, "a")
    until_settled(runtime, "a", "b", incarnation=2)

    kill(runtime, "b")
    for agent_id in "ab":
        info = runtime.until(agent_id, "parked")
        assert (info.cause, info.reason) == ("group_cap", "b: boom")
        (exhausted,) = runtime.events(agent_id, "agent.exhausted")
        assert (exhausted.payload["reason"], exhausted.payload["detail"]) == ("group_cap", "b: boom")
    wait_until(lambda: swept(runtime) and runtime.manager.get_group("g").phase == "idle", "the end")  # type: ignore[union-attr]
    counters = runtime.manager.stats().counters
    assert (counters["groups_exhausted"], counters["parked"]) == (1, 2)

    for agent_id in "ab":
        runtime.manager.unpark_agent(agent_id)
    until_settled(runtime, "a", "b", incarnation=3)
    assert runtime.manager.get_group("g").recent == 0  # type: ignore[union-attr]


def test_wishes_and_completions_are_respected_in_a_restart(runtime: Runtime) -> None:
    """Stopped, paused and completed members are not started by it; a message to one that waits is kept."""
    runtime.manager.define_group("g", "one_for_all")
    begin(runtime, "a", "b", "c", "d", "e")
    runtime.manager.stop_agent("b")
    runtime.manager.pause_agent("c")
    runtime.manager.process("d", "end")
    runtime.until("c", "paused")
    runtime.until("d", "completed")
    assert runtime.manager.get_group("g").restarts == 0  # type: ignore[union-attr]

    kill(runtime, "a")
    assert runtime.manager.get_agent_info("a").waiting_on == "group"  # type: ignore[union-attr]
    runtime.manager.send("a", "hello")
    until_settled(runtime, "a", "e", incarnation=2)

    states = {info.id: info.state.value for info in runtime.manager.list_agents()}
    assert states == {"a": "running", "b": "stopped", "c": "paused", "d": "completed", "e": "running"}
    wait_until(lambda: len(runtime.events("a", "heard")) == 1, "the message to be heard")


class SweeperDiesError(BaseException):
    """Not an error that anybody handles: the process is gone."""


def dying(runtime: Runtime, after: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """A sweeper whose process ends after so many writes, before it hears of the last one; says whether it has ended."""
    left = [after]

    def counted(write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            done = write(*args, **kwargs)
            left[0] -= 1
            if left[0] == 0:
                raise SweeperDiesError
            return done

        return call

    sweeper = Sweeper(runtime.store, runtime.committer, runtime.config)
    keeper = sweeper._groups
    monkeypatch.setattr(keeper, "_commit", counted(keeper._commit))
    monkeypatch.setattr(keeper, "_ask", counted(keeper._ask))

    def sweep() -> bool:
        if left[0] > 0:
            try:
                sweeper.sweep_once(judge_leases=False)
            except SweeperDiesError:
                return True
        return left[0] <= 0

    return sweep


@pytest.mark.parametrize("after", [1, 2, 3, 5, 8])
def test_any_sweeper_finishes_a_restart_that_another_has_begun(
    runtime: Runtime, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Abandoned after the first, second … write of the restart: the same order, each once, one restart counted."""
    runtime.manager.define_group("g", "one_for_all")
    begin(runtime, "a", "b", "c")
    sweep = dying(runtime, after, monkeypatch)

    kill(runtime, "b")
    wait_until(sweep, "the sweeper to die")
    until_settled(runtime, "a", "b", "c", incarnation=2)

    assert story(runtime, "a", "b", "c", after=1) == ["stop b", "stop c", "stop a", "start a", "start b", "start c"]
    assert runtime.manager.get_group("g").restarts == 1  # type: ignore[union-attr]


def test_a_group_is_defined_anew_and_deleted_with_care(runtime: Runtime, redis_server: RedisServer) -> None:
    """Members and order stay with a new definition; a group with members is not deleted; the audit stream tells."""
    defined = runtime.manager.define_group("g", "one_for_all", max_restarts=2, period=30, reason="why", actor="me")
    assert (defined.strategy, defined.max_restarts, defined.period.total_seconds()) == ("one_for_all", 2, 30)
    begin(runtime, "a", "b")
    again = runtime.manager.define_group("g", "rest_for_one", max_restarts=2, period=30)
    assert (again.strategy, again.members) == ("rest_for_one", ("a", "b"))
    assert [group.name for group in runtime.manager.list_groups()] == ["g"]
    with pytest.raises(OperationNotSupportedError, match=r"belong to it: a, b; .* move each: start_agent\(") as caught:
        runtime.manager.delete_group("g")
    assert caught.value.fields["members"] == ["a", "b"]

    kill(runtime, "a")
    until_settled(runtime, "a", "b", incarnation=2)
    for agent_id in "ab":
        runtime.manager.stop_agent(agent_id)
        runtime.manager.delete_agent(agent_id)
    wait_until(lambda: swept(runtime) and members(runtime) == [], "the group to forget them")
    runtime.manager.delete_group("g", actor="me")

    assert (runtime.manager.get_group("g"), runtime.manager.list_groups()) == (None, [])
    with pytest.raises(GroupNotFoundError):
        runtime.manager.delete_group("g")
    told = [(entry.operation, entry.actor) for entry in runtime.manager.audit() if entry.operation.startswith("group")]
    assert [operation for operation, _ in told] == ["group.define", "group.define", "group.delete"]
    assert [told[0][1], told[2][1]] == ["me", "me"]
    client = redis_server.client()
    assert leaked_keys(client, runtime.store.namespace) == []


def test_services_define_and_read_groups_by_task(runtime: Runtime) -> None:
    """JSON in, JSON out; a message that comes twice defines once."""
    controls = {control.method: control for control in CONTROLS}

    def call(name: str, task_id: str, /, **kwargs: Any) -> Any:
        return as_json(call_control(controls[name], cast("Any", runtime), task_id, (), kwargs))

    given = {"name": "g", "strategy": "one_for_all", "max_restarts": 2, "period": "30s"}
    defined = [call("define_group", "t1", **given) for _ in range(2)]
    assert defined[0] == defined[1] == call("get_group", "t2", name="g")
    assert (defined[0]["strategy"], defined[0]["period"], defined[0]["members"]) == ("one_for_all", "PT30S", [])
    assert [group["name"] for group in call("list_groups", "t3")] == ["g"]
    call("delete_group", "t4", name="g")
    assert call("list_groups", "t5") == []
    told = [(entry.operation, entry.actor) for entry in runtime.manager.audit() if entry.operation.startswith("group")]
    assert told == [("group.define", "task t1"), ("group.delete", "task t4")]


def test_a_group_forgets_whom_another_one_took_over(runtime: Runtime, redis_server: RedisServer) -> None:
    """A new spec moves an agent: the old group restarts without it, and may be deleted; the new one knows it."""
    runtime.manager.define_group("g", "one_for_all")
    runtime.manager.define_group("h", "one_for_all")
    begin(runtime, "a", "b", "c")
    runtime.manager.start_agent(AgentSpec(id="b", type="worker", group="h"), if_exists="update")
    runtime.manager.start_agent(AgentSpec(id="c", type="worker"), if_exists="update")

    def known() -> dict[str, tuple[str, ...]]:
        runtime.sweep()
        return {group.name: group.members for group in runtime.manager.list_groups()}

    wait_until(lambda: known() == {"g": ("a",), "h": ("b",)}, "both groups to know")
    kill(runtime, "a")
    until_settled(runtime, "a", incarnation=2)
    assert {info.id: info.incarnation for info in runtime.manager.list_agents()} == {"a": 2, "b": 1, "c": 1}

    runtime.manager.stop_agent("a")
    runtime.manager.delete_agent("a")
    wait_until(lambda: known() == {"g": (), "h": ("b",)}, "the group to be empty")
    runtime.manager.delete_group("g")
    assert leaked_keys(redis_server.client(), runtime.store.namespace) == []


@pytest.mark.parametrize("stored", ['{"name": "g", "strat', '{"name": "g", "strategy": "all_but_one"}', "[]"])
def test_a_group_that_cannot_be_read_is_named_with_the_cure(
    runtime: Runtime, redis_server: RedisServer, stored: str
) -> None:
    """It is never taken for one that is not there: a member that died waits, until somebody deletes the group."""
    runtime.manager.define_group("g", "one_for_all")
    runtime.manager.define_group("h", "one_for_all")
    begin(runtime, "a", "b")
    redis_server.client().hset(runtime.store._bound.keys.group("g"), "group", stored)

    for ask in (runtime.manager.get_group, runtime.manager.define_group):
        with pytest.raises(UnreadableGroupError, match=r"group 'g' cannot be read: .* call delete_group\('g'\)"):
            ask("g")
    assert [group.name for group in runtime.manager.list_groups()] == ["h"]
    kill(runtime, "a")
    runtime.sweep()
    assert runtime.manager.get_agent_info("a").waiting_on == "group"  # type: ignore[union-attr]

    runtime.manager.delete_group("g")
    runtime.until("a", "running", incarnation=2)
    assert runtime.manager.define_group("g", "one_for_all").members == ()


def test_a_group_that_nobody_defined_is_refused_with_the_cure(runtime: Runtime) -> None:
    """A slip of the pen would supervise nobody together; nothing is made of it."""
    for ask in (runtime.manager.start_agent, runtime.manager.register_agent):
        with pytest.raises(GroupNotFoundError, match="call define_group\\('gg'"):
            ask(AgentSpec(id="a", type="worker", group="gg"))
    assert runtime.manager.list_agents() == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "no spaces"),
        ("name", ""),
        ("name", 7),
        ("strategy", "all_for_one"),
        ("max_restarts", -1),
        ("max_restarts", True),
        ("max_restarts", 1.5),
        ("period", 0),
        ("period", "soon"),
        ("period", None),
    ],
)
def test_a_bad_definition_names_the_field_and_defines_nothing(runtime: Runtime, field: str, value: object) -> None:
    """From afar, any value may come."""
    given: dict[str, Any] = {"name": "g", "strategy": "one_for_all", "max_restarts": 1, "period": 1, field: value}
    with pytest.raises(InvalidSettingError, match=field):
        runtime.manager.define_group(**given)
    assert runtime.manager.list_groups() == []
