"""Executions under a real host: what a new incarnation finds of the work of the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from ares_celery import (
    AgentContext,
    AgentSpec,
    CheckpointEnvelope,
    Execution,
    ExecutionState,
    RetryPolicy,
    SyncAgentContext,
)
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.errors import FencedError, StoreUnavailableError
from ares_celery.ids import AgentId
from ares_celery.model.command import Die
from ares_celery.model.execution import Acquire, Create, Delete, Release, Save, Start
from ares_celery.store.redis.checkpoint_store import RedisCheckpointStore
from ares_celery.store.redis.open import open_store
from ares_celery.store.redis.store import RedisStore
from tests.contract.store.acting import AGENT, act, record_of, run, run_namespace, take
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A running namespace with one host."""
    with Runtime(redis_server.url, namespace) as made:
        made.manager.start()
        yield made


def host(runtime: Runtime) -> list[tuple[Execution, ...]]:
    """Registers a type whose incarnations note the executions that they find when their code begins."""
    found: list[tuple[Execution, ...]] = []

    class Worker:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        async def start(self, ctx: AgentContext) -> None:
            found.append(runtime.manager.checkpoints.list_executions(self.agent_id))
            while not ctx.stop_requested:
                await ctx.sleep(60)

        async def process(self, ctx: AgentContext, message: object) -> Any:
            return (await ctx.emit("asked", {})).version

    runtime.register("worker", Worker)
    return found


def fence_of(runtime: Runtime) -> str:
    """The fence of the incarnation that runs."""
    record = runtime.store.read(AgentId("a")).record
    assert record is not None
    return record.fence


def epoch_of(runtime: Runtime) -> int:
    """The epoch of the incarnation that runs."""
    return int(fence_of(runtime).partition("|")[0])


@pytest.mark.spec(122)
@pytest.mark.spec(123)
def test_the_work_of_a_lost_incarnation_is_ready_before_the_next_ones_code_runs(runtime: Runtime) -> None:
    """With its checkpoint and one event; the old owner is refused, the new one goes on, recovering again is nothing."""
    found = host(runtime)
    runtime.manager.start_agent(AgentSpec(id="a", type="worker"), wait="running")
    wait_until(lambda: found == [()], "the first incarnation to look")
    old = fence_of(runtime)
    begin = (
        Create(CheckpointEnvelope(payload={"file": "a.txt"}), RetryPolicy(3, timedelta(seconds=1))),
        Acquire(),
        Start(),
        Save({"row": 3}, {"input_tokens": 10}),
    )
    runtime.store.checkpoints.apply("a", "import", *begin, fence=old, op="begin")
    runtime.store.checkpoints.apply("a", "idle", Create(), fence=old, op="create")
    runtime.manager.notify_agent_dead("a", "process lost", epoch=epoch_of(runtime))
    runtime.until("a", "running", incarnation=2)
    wait_until(lambda: len(found) == 2, "the second incarnation to look")
    idle, taken = found[1]
    assert (taken.id, taken.state, taken.epoch, taken.attempts) == ("import", ExecutionState.READY, 0, 0)
    assert taken.envelope == CheckpointEnvelope(payload={"file": "a.txt"}, step_checkpoint={"row": 3}, input_tokens=10)
    assert (idle.id, idle.state, idle.revision) == ("idle", ExecutionState.READY, 1)
    (expired,) = runtime.events("a", "execution.expired")
    assert (expired.payload["execution"], expired.payload["epoch"]) == ("import", int(old.partition("|")[0]))
    types = runtime.types("a")
    assert types.index("failover.triggered") < types.index("execution.expired") < types.index("failover.completed")
    with pytest.raises(FencedError):
        runtime.store.checkpoints.apply("a", "import", Save({"row": 4}), fence=old, op="late")
    new = fence_of(runtime)
    again = runtime.store.checkpoints.apply("a", "import", Acquire(), Start(), fence=new, op="again")
    assert again is not None
    assert again.epoch > int(old.partition("|")[0])
    assert again.envelope.step_checkpoint == {"row": 3}
    assert runtime.store.checkpoints.recover("a", fence=new, op="another") == ()


def test_an_outage_while_executions_are_given_back_is_no_failed_attempt(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for, as in the rest of the recovery."""
    found = host(runtime)
    runtime.manager.start_agent(AgentSpec(id="a", type="worker"), wait="running")
    begin = (Create(), Acquire(), Start())
    runtime.store.checkpoints.apply("a", "import", *begin, fence=fence_of(runtime), op="begin")
    stock, away = RedisCheckpointStore.recover, [1, 2]

    def recover(self: RedisCheckpointStore, *args: Any, **options: Any) -> Any:
        if away:
            away.pop()
            raise StoreUnavailableError(operation="recover", problem="away")
        return stock(self, *args, **options)

    monkeypatch.setattr(RedisCheckpointStore, "recover", recover)
    runtime.manager.notify_agent_dead("a", "process lost", epoch=epoch_of(runtime))
    assert runtime.until("a", "running", incarnation=2).last_error == "process lost"
    wait_until(lambda: len(found) == 2, "the second incarnation to look")
    assert (found[1][0].state, away) == (ExecutionState.READY, [])
    assert runtime.events("a", "failover.completed")[0].payload["attempts"] == 1


@pytest.mark.spec(125)
def test_the_work_of_an_incarnation_that_ended_in_order_is_only_released(runtime: Runtime) -> None:
    """A worker that shuts down and an operator's stop cost no attempt and are no loss: no event tells of one."""
    found = host(runtime)
    runtime.manager.start_agent(AgentSpec(id="a", type="worker"), wait="running")
    begin = (Create(retry=RetryPolicy(2, timedelta(seconds=60))), Acquire(), Start(), Save({"row": 3}))
    runtime.store.checkpoints.apply("a", "import", *begin, fence=fence_of(runtime), op="begin")
    runtime.host.drain()
    wait_until(lambda: not runtime.host.hosted(), "the drain")
    assert runtime.manager.checkpoints.list_executions("a")[0].state is ExecutionState.RUNNING
    runtime.host.close()
    runtime.host = runtime.new_host()
    runtime.until("a", "running", incarnation=2)
    wait_until(lambda: len(found) == 2, "the second incarnation to look")
    (released,) = found[1]
    assert (released.state, released.epoch, released.attempts) == (ExecutionState.READY, 0, 0)
    assert (released.next_attempt_at, released.envelope.step_checkpoint) == (0, {"row": 3})
    runtime.store.checkpoints.apply("a", "import", Acquire(), fence=fence_of(runtime), op="again")
    runtime.manager.stop_agent("a")
    runtime.manager.start_agent("a", wait="running")
    wait_until(lambda: len(found) == 3, "the third incarnation to look")
    assert (found[2][0].state, found[2][0].attempts) == (ExecutionState.READY, 0)
    assert [kind for kind in runtime.types("a") if kind.startswith("execution.")] == []


def test_the_incarnation_goes_on_above_the_events_of_its_executions(runtime: Runtime) -> None:
    """What the runtime wrote into its stream meanwhile does it no harm."""
    host(runtime)
    runtime.manager.start_agent(AgentSpec(id="a", type="worker"), wait="running")
    fence = fence_of(runtime)
    runtime.store.checkpoints.apply("a", "e", Create(), Acquire(), Start(), fence=fence, op="1")
    runtime.manager.notify_agent_dead("a", "process lost", epoch=epoch_of(runtime))
    runtime.until("a", "running", incarnation=2)
    runtime.manager.process("a", "x")
    runtime.manager.process("a", "y")
    versions = [event.version for event in runtime.events("a")]
    assert versions == list(range(1, len(versions) + 1))
    assert runtime.manager.get_agent_info("a").restarts == 1  # type: ignore[union-attr]


def test_the_executions_of_a_deleted_agent_are_gone_for_the_next_of_its_name(runtime: Runtime) -> None:
    """Nobody finds results of another life."""
    found = host(runtime)
    runtime.manager.start_agent(AgentSpec(id="a", type="worker"), wait="running")
    runtime.store.checkpoints.apply("a", "e", Create(), fence=fence_of(runtime), op="1")
    runtime.manager.stop_agent("a")
    runtime.manager.delete_agent("a")
    assert runtime.manager.checkpoints.list_executions("a") == ()
    runtime.manager.start_agent(AgentSpec(id="a", type="worker"), wait="running")
    wait_until(lambda: len(found) == 2, "the new agent to look")
    assert found[1] == ()


def test_at_maxmemory_work_is_given_back_and_no_more_of_it_is_stored(
    make_redis_server: Callable[[], RedisServer], namespace: str
) -> None:
    """A recovery and a release must not fail for want of memory; a checkpoint that would grow is refused whole."""
    server = make_redis_server()
    store = open_store(ProcessSettings(redis_url=server.url, namespace=namespace), RuntimeConfig())
    run_namespace(store)
    old = run(store)
    begin = (Create(CheckpointEnvelope()), Acquire(), Start(), Save({"row": 3}))
    for name in ("import", "export"):
        store.checkpoints.apply(AGENT, name, *begin, fence=old, op="begin")
    with server.client() as client:
        client.config_set("maxmemory", 1)
        before = store.checkpoints.load(AGENT, "import")
        assert before is not None
        with pytest.raises(StoreUnavailableError, match="memory"):
            store.checkpoints.apply(AGENT, "import", Save("x" * 1_000), fence=old, op="grow")
        after = store.checkpoints.load(AGENT, "import")
        assert after is not None
        assert (after.revision, after.checkpoint) == (before.revision, before.checkpoint)
        released = store.checkpoints.apply(AGENT, "export", Release(), fence=old, op="release")
        assert released is not None
        new = take(store, lost(store), claimer="t2").record.fence
        given_back = store.checkpoints.recover(AGENT, fence=new, op="recover")
        assert [one.id for one in given_back] == ["import"]
        assert store.checkpoints.apply(AGENT, "export", Delete(), fence=new, op="delete") is None
        client.config_set("maxmemory", 0)
    store.close()


def lost(store: RedisStore) -> int:
    """The agent's incarnation dies with its process; gives the epoch of the next one."""
    act(store, Die("process lost", epoch=record_of(store).epoch, proof=True))
    return record_of(store).epoch


def test_an_agents_own_code_works_on_its_executions_with_its_fence(runtime: Runtime) -> None:
    """Both kinds of context have it; the one of an incarnation that is over is refused."""
    fences: dict[str, str] = {}

    def work(ctx: AgentContext | SyncAgentContext, step: object) -> int:
        fences[ctx.agent_id] = ctx.fence
        commands = (Create(CheckpointEnvelope()), Acquire(), Start(), Save({"step": step}))
        done = runtime.manager.checkpoints.apply(ctx.agent_id, "import", *commands, fence=ctx.fence, op=f"step-{step}")
        assert done is not None
        return done.epoch

    class Made:
        def __init__(self, agent_id: str) -> None: ...

    class Plain(Made):
        def process(self, ctx: SyncAgentContext, message: Any) -> object:
            return work(ctx, message)

    class Waiting(Made):
        async def process(self, ctx: AgentContext, message: Any) -> object:
            return await asyncio.to_thread(work, ctx, message)

    for agent_id, factory in (("plain", Plain), ("waiting", Waiting)):
        runtime.register(agent_id, factory)
        runtime.manager.start_agent(AgentSpec(id=agent_id, type=agent_id), wait="running")
        epoch = runtime.manager.process(agent_id, 1, timeout=5)
        assert fences[agent_id].startswith(f"{epoch}|")
        execution = runtime.manager.checkpoints.load(agent_id, "import")
        assert execution is not None
        assert execution.envelope.step_checkpoint == {"step": 1}
        runtime.manager.restart_agent(agent_id)
        runtime.until(agent_id, "running", incarnation=2)
        with pytest.raises(FencedError):
            runtime.manager.checkpoints.apply(agent_id, "import", Release(), fence=fences[agent_id], op="late")
