"""AsyncManager on real loops, a real server and agents that really run: its waits, its ends, its many loops."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from typing import Any, ClassVar, cast

import pytest
import redis

from ares_celery import (
    AgentContext,
    AgentFailedError,
    AgentNotFoundError,
    AgentNotRunningError,
    AgentSpec,
    AgentState,
    AsyncManager,
    AsyncSubscription,
    Event,
    EventFilter,
    EventStoreClosedError,
    NewEvent,
    ProcessTimeoutError,
    RuntimeConfig,
    RuntimePermissionError,
    WaitTimeoutError,
)
from ares_celery.agents.registry import Registry
from ares_celery.async_manager import chunk_stream
from ares_celery.async_manager.core import CoreAsyncManager
from ares_celery.errors import MessageNotFoundError, RuntimeAlreadyStartedError
from tests.hosting import FAST
from tests.redis_server import RedisServer
from tests.wait import wait_until_async

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

SETTINGS = RuntimeConfig.parse({**FAST, "drain_timeout": "3s"})


class Echo:
    """Says what it was told; what it is told to do it does."""

    #: Whose streams have ended, and who has stopped.
    ended: ClassVar[list[str]] = []
    is_open: ClassVar[threading.Event] = threading.Event()

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.handled: list[Any] = []

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        self.handled.append(message)
        if message == "fail":
            raise KeyError("told to")
        if message == "wait":
            while not self.is_open.is_set():
                await ctx.sleep(0.01)
        if message == "handled":
            return self.handled
        return {"you said": message}

    async def process_stream(self, ctx: AgentContext, message: Any) -> AsyncIterator[Any]:
        try:
            for number in range(int(message)):
                yield number
                await ctx.sleep(0.01)
        finally:
            self.ended.append(self.agent_id)


class Lasting(Echo):
    """Takes its time to stop."""

    async def stop(self, ctx: AgentContext) -> None:
        self.ended.append("stopped")


def local(server: RedisServer) -> CoreAsyncManager:
    """A manager with types of its own."""
    registry = Registry()
    registry.register("echo", Echo)
    registry.register("lasting", Lasting)
    return AsyncManager.local(SETTINGS, redis_url=server.url, registry=registry)


@pytest.fixture
async def manager(redis_server: RedisServer) -> AsyncIterator[CoreAsyncManager]:
    """A running one in a namespace of its own."""
    Echo.ended.clear()
    Echo.is_open.clear()
    async with local(redis_server) as made:
        await made.start()
        yield made
        await made.stop()


def clients(server: RedisServer) -> int:
    """Connections to the server."""
    with redis.Redis.from_url(server.url) as client:
        return len(cast("list[object]", client.client_list()))


async def test_an_agent_is_forked_and_its_fork_answers(manager: CoreAsyncManager) -> None:
    """Awaited, as every other name."""
    await manager.start_agent(AgentSpec(id="a", type="echo"), wait="running")

    fork = await manager.fork_agent("a", "b", at=1, reason="to see")

    await fork.wait("running")
    assert await fork.process("hello") == {"you said": "hello"}
    types = [event.type for event in await manager.events.read("b")]
    assert types[:3] == ["agent.started", "agent.forked", "agent.started"]


async def test_two_thousand_callers_share_a_handful_of_connections(
    make_redis_server: Callable[..., RedisServer],
) -> None:
    """All wait at once, each gets its own answer; five connections and no thread more than one caller needs."""
    server = make_redis_server()
    async with local(server) as manager:
        await manager.start()
        specs = [AgentSpec(id=f"echo-{n}", type="echo") for n in range(10)]
        await asyncio.gather(*(manager.start_agent(spec, wait="running") for spec in specs))
        before, threads = clients(server), set(threading.enumerate())
        calls = [
            asyncio.create_task(manager.process(f"echo-{n % 10}", n, timeout=50, message_id=f"m{n}"))
            for n in range(2_000)
        ]
        most = 0
        while not all(call.done() for call in calls):
            most = max(most, await asyncio.to_thread(clients, server))
        answers = await asyncio.gather(*calls)
        assert answers == [{"you said": n} for n in range(2_000)]
        # Four that call, one that listens; the host has one more for each of its own loops and threads that are busy at
        # once, and looks of this test are still closing. Far from one a caller.
        assert most - before <= 20
        # No wait has a thread: those that are new are asyncio.to_thread's own.
        new = [thread.name for thread in set(threading.enumerate()) - threads]
        assert [name for name in new if not name.startswith("asyncio")] == []
        for n in range(10):
            told = await manager.process(f"echo-{n}", "handled", timeout=20)
            assert sorted(one for one in told if one != "handled") == list(range(n, 2_000, 10))
        await manager.stop()


async def test_agents_are_started_asked_looked_at_and_stopped(manager: CoreAsyncManager) -> None:
    """The whole life of one, with every handle's method; errors are those of a Manager."""
    handle = await manager.start_agent(AgentSpec(id="echo-1", type="echo"), wait="running")
    assert (await handle.info()).state is AgentState.RUNNING
    assert await handle.incarnation == 1
    assert await handle.process("hello", timeout=10) == {"you said": "hello"}
    assert await handle.send("quietly", message_id="q1") == "q1"
    await wait_until_async(lambda: _handled(manager, "echo-1", "quietly"))
    with pytest.raises(AgentFailedError) as failed:
        await handle.process("fail", timeout=10)
    assert (failed.value.type, "told to" in str(failed.value.traceback)) == ("KeyError", True)
    with pytest.raises(AgentNotFoundError):
        await manager.process("nobody", 1)
    assert [info.id for info in await manager.list_agents(states={"running"})] == ["echo-1"]
    await handle.restart(reason="better")
    assert (await manager.wait_for("echo-1", {"running"}, timeout=10)).id == "echo-1"
    await wait_until_async(lambda: _incarnation(manager, "echo-1", 2))
    found = await manager.get_agent("echo-1")
    assert found is not None
    assert repr(found) == "AsyncAgentHandle('echo-1')"
    await found.stop(reason="done")
    assert (await found.wait("stopped", timeout=5)).reason == "done"
    with pytest.raises(AgentNotRunningError):
        await found.process(1)
    await manager.delete_agent("echo-1")
    assert await manager.get_agent("echo-1") is None
    with pytest.raises(AgentNotFoundError):
        await found.info()


async def _handled(manager: CoreAsyncManager, agent_id: str, message: object) -> bool:
    return message in await manager.process(agent_id, "handled", timeout=10)


async def _incarnation(manager: CoreAsyncManager, agent_id: str, number: int) -> bool:
    info = await manager.get_agent_info(agent_id)
    return info is not None and info.incarnation == number and info.state is AgentState.RUNNING


async def test_everything_else_that_a_manager_does(manager: CoreAsyncManager) -> None:
    """Groups, settings, DAGs, the audit, numbers, ports: awaited, with the values of a Manager."""
    assert (await manager.define_group("pair", "one_for_all")).name == "pair"
    assert [group.name for group in await manager.list_groups()] == ["pair"]
    assert (await manager.set_config({"max_inbox": 7}, reason="small")).max_inbox == 7
    assert (await manager.config).max_inbox == 7
    await manager.register_agent_dag("plan", {"a": ["b"]})
    assert await manager.get_agent_dag("plan") == {"a": ["b"]}
    assert {entry.operation for entry in await manager.audit()} >= {"group.define", "dag.register"}
    await manager.register_agent(AgentSpec(id="echo-1", type="echo"))
    await manager.start_agent("echo-1", wait="running")
    assert (await manager.stats()).active_agents == 1
    assert (await manager.introspect()).runtime["namespace"] == manager.namespace
    (stored,) = await manager.events.append("elsewhere", [NewEvent("thing.happened", {"n": 1})])
    assert await manager.events.read("elsewhere") == (stored,)
    assert await manager.events.stream_version("elsewhere") == 1
    assert "elsewhere" in await manager.events.streams()
    await manager.snapshots.save("elsewhere", {"n": 1})
    assert await manager.snapshots.load("elsewhere") == {"n": 1}
    session = await manager.memory.open_session("echo-1")
    assert await manager.memory.latest_session("echo-1") == session
    assert await manager.checkpoints.list_executions("echo-1") == ()
    assert await manager.dead_letters() == []
    with pytest.raises(RuntimeAlreadyStartedError):
        await manager.start()


# -- waits ------------------------------------------------------------------------------------------------------------


async def test_hundreds_of_waits_for_states_use_no_thread(manager: CoreAsyncManager) -> None:
    """They look together, all see the state, and one that it never comes to says where the agent is."""
    await manager.register_agent(AgentSpec(id="echo-1", type="echo"))
    waits = [asyncio.create_task(manager.wait_for("echo-1", {"running"}, timeout=20)) for _ in range(500)]
    vain = asyncio.create_task(manager.wait_for("echo-1", "completed", timeout=0.3))
    await asyncio.sleep(0)
    await manager.start_agent("echo-1")
    assert {info.state for info in await asyncio.gather(*waits)} == {AgentState.RUNNING}
    with pytest.raises(WaitTimeoutError) as late:
        await vain
    assert (late.value.state, late.value.wanted) == ("running", "completed")
    with pytest.raises(AgentNotFoundError):
        await manager.wait_for("nobody", {"running"}, timeout=5)


async def test_a_cancelled_process_leaves_its_message_which_is_answered(manager: CoreAsyncManager) -> None:
    """The same id asks again, and gets the answer to the one message."""
    await manager.start_agent(AgentSpec(id="echo-1", type="echo"), wait="running")
    asking = asyncio.create_task(manager.process("echo-1", "wait", message_id="m1"))
    with pytest.raises(ProcessTimeoutError):
        await manager.process("echo-1", "wait", message_id="m1", timeout=0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    Echo.is_open.set()
    assert await manager.process("echo-1", "wait", message_id="m1", timeout=10) == {"you said": "wait"}
    assert await manager.process("echo-1", "handled", timeout=10) == ["wait", "handled"]


async def test_streams_come_whole_and_end_with_their_reader(manager: CoreAsyncManager) -> None:
    """To the end; or left by break, by the end of the block, by cancelling: then the agent's generator is closed."""
    await manager.start_agent(AgentSpec(id="echo-1", type="echo"), wait="running")
    chunks = [chunk async for chunk in manager.process_stream("echo-1", 5, timeout=10)]
    assert [(chunk.seq, chunk.data, chunk.final) for chunk in chunks] == [
        *((n + 1, n, False) for n in range(5)),
        (6, None, True),
    ]
    await wait_until_async(lambda: len(Echo.ended) == 1)

    async for chunk in manager.process_stream("echo-1", 100_000, timeout=10):
        assert chunk.seq == 1
        break
    await wait_until_async(lambda: len(Echo.ended) == 2, "a stream that was broken off to end")

    async with manager.process_stream("echo-1", 100_000, timeout=10) as stream:
        assert (await anext(stream)).data == 0
    await wait_until_async(lambda: len(Echo.ended) == 3, "a stream whose block was left to end")
    with pytest.raises(StopAsyncIteration):
        await anext(stream)

    reading = asyncio.create_task(_read_all(manager, "echo-1"))
    await wait_until_async(lambda: _is_streaming(manager, "echo-1"))
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await wait_until_async(lambda: len(Echo.ended) == 4, "a stream whose reader was cancelled to end")
    assert {letter.reason for letter in await manager.dead_letters("echo-1")} == {"caller_left"}


async def _read_all(manager: CoreAsyncManager, agent_id: str) -> int:
    return len([chunk async for chunk in manager.process_stream(agent_id, 100_000, message_id="cut", timeout=10)])


async def _is_streaming(manager: CoreAsyncManager, agent_id: str) -> bool:
    try:
        return bool(await manager.read_chunks(agent_id, "cut", timeout=0))
    except MessageNotFoundError:  # the other task has not asked yet
        return False


async def test_a_detached_stream_goes_on_without_its_reader(manager: CoreAsyncManager) -> None:
    """Read again by its id, from the start or from a seq on."""
    await manager.start_agent(AgentSpec(id="echo-1", type="echo"), wait="running")
    async with manager.process_stream("echo-1", 30, message_id="long", detached=True, timeout=10) as stream:
        await anext(stream)
    await wait_until_async(lambda: len(Echo.ended) == 1)
    again = [chunk.seq async for chunk in manager.process_stream("echo-1", 30, message_id="long", detached=True)]
    assert again == list(range(1, 32))
    assert [chunk.seq for chunk in await manager.read_chunks("echo-1", "long", 29)] == [30, 31]


async def test_a_reader_that_is_busy_with_a_chunk_has_not_left(
    manager: CoreAsyncManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two reads the stream itself shows presence, which is what keeps its lease."""
    shown: list[str] = []
    whole = chunk_stream.AsyncChunkStream.show_presence

    async def show(self: chunk_stream.AsyncChunkStream) -> None:
        await whole(self)
        shown.append(self.message_id)

    monkeypatch.setattr(chunk_stream, "SIGN", 0.02)
    monkeypatch.setattr(chunk_stream.AsyncChunkStream, "show_presence", show)
    await manager.start_agent(AgentSpec(id="echo-1", type="echo"), wait="running")
    async with manager.process_stream("echo-1", 3, message_id="slowly", timeout=10) as stream:
        await anext(stream)
        await wait_until_async(lambda: len(shown) > 2)
        assert [chunk.seq async for chunk in stream] == [2, 3, 4]
    assert set(shown) == {"slowly"}


async def test_a_stopping_agent_is_waited_for_without_a_thread(manager: CoreAsyncManager) -> None:
    """One that hangs is fenced when the time is over."""
    for n in range(12):
        await manager.start_agent(AgentSpec(id=f"lasting-{n}", type="lasting"), wait="running")
    await asyncio.gather(*(manager.stop_agent(f"lasting-{n}") for n in range(12)))
    assert Echo.ended.count("stopped") == 12
    assert {info.state for info in await manager.list_agents()} == {AgentState.STOPPED}


async def test_events_are_followed_by_many_coroutines(manager: CoreAsyncManager) -> None:
    """An async iterator, begun by await, by entering, or by the first read; left in the middle, it ends."""
    await manager.events.append("s", [NewEvent("before", {})])
    begun = await manager.events.subscribe(EventFilter(streams={"s"}))
    await manager.events.append("s", [NewEvent("after", {})])
    event = await begun.poll(10)
    assert event is not None
    assert (event.type, event.version) == ("after", 2)
    cursor = begun.cursor
    async with manager.events.subscribe(EventFilter(streams={"s"}), cursor=cursor) as second:
        readers = [asyncio.create_task(_first(one)) for one in (begun, second)]
        await asyncio.sleep(0)
        await manager.events.append("s", [NewEvent("later", {})])
        assert [one.version for one in await asyncio.gather(*readers)] == [3, 3]
    assert second.closed
    await begun.close()
    assert await begun.poll(1) is None


async def _first(subscription: AsyncSubscription) -> Event:
    async for event in subscription:
        return event
    pytest.fail("it ended")


# -- ends -------------------------------------------------------------------------------------------------------------


def test_one_object_serves_loop_after_loop_and_leaves_nothing(redis_server: RedisServer) -> None:
    """asyncio.run() again and again, without closing: every loop's connections are gone with it, and no warning."""
    manager = local(redis_server)

    async def ask(*, first: bool) -> object:
        if first:
            await manager.start()
            for agent_id in ("echo-1", "streams"):
                await manager.start_agent(AgentSpec(id=agent_id, type="echo"), wait="running")
        # Left open on purpose.
        subscription = await manager.events.subscribe()
        stream = manager.process_stream("streams", 1_000, timeout=5)
        await anext(stream)
        answer = await manager.process("echo-1", "hello", timeout=10) if not first else None
        assert not subscription.closed
        return answer

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(ask(first=True))
        before = clients(redis_server)
        for _ in range(5):
            # The stream of the loop before was told to end, or this one would have to wait for it.
            assert asyncio.run(ask(first=False)) == {"you said": "hello"}
            gc.collect()
        # Each loop had three at least; threads may have made some more of their own.
        assert clients(redis_server) <= before + 4
        asyncio.run(_stop_and_close(manager))
        gc.collect()


async def _stop_and_close(manager: CoreAsyncManager) -> None:
    await manager.stop()
    await manager.close()


def test_loops_in_several_threads_share_one_object(redis_server: RedisServer) -> None:
    """Each with connections of its own; closing in one ends the waits of all."""
    manager = local(redis_server)
    asyncio.run(_start(manager))
    waiting, ended = threading.Barrier(5, timeout=20), list[object]()

    async def wait() -> None:
        assert await manager.process("echo-1", "hello", timeout=10) == {"you said": "hello"}
        waits: list[asyncio.Task[Any]] = [
            asyncio.create_task(manager.wait_for("echo-1", {"completed"}, timeout=30)),
            asyncio.create_task(_all_of(manager)),
        ]
        await asyncio.sleep(0)
        await asyncio.to_thread(waiting.wait)
        ended.extend(await asyncio.gather(*waits, return_exceptions=True))

    threads = [threading.Thread(target=asyncio.run, args=(wait(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        waiting.wait()
    finally:
        asyncio.run(_stop_and_close(manager))
        for thread in threads:
            thread.join(20)
    assert sorted(type(one).__name__ for one in ended) == ["EventStoreClosedError"] * 4 + ["list"] * 4


async def _start(manager: CoreAsyncManager) -> None:
    await manager.start()
    await manager.start_agent(AgentSpec(id="echo-1", type="echo"), wait="running")


async def _all_of(manager: CoreAsyncManager) -> list[Event]:
    return [event async for event in manager.events.subscribe(EventFilter(types={"never.comes"}))]


async def test_use_after_close_says_so(redis_server: RedisServer) -> None:
    """Every kind of call, also of one that was never used; closing again is no error."""
    for manager in (local(redis_server), AsyncManager(redis_url=redis_server.url, namespace="closed")):
        await manager.close()
        await manager.close()
        for call in (
            manager.process("a", 1),
            manager.stats(),
            manager.start_agent("a"),
            manager.wait_for("a", {"running"}),
            manager.events.read("a"),
            manager.events.subscribe().begin(),
            anext(manager.process_stream("a", 1)),
        ):
            with pytest.raises(EventStoreClosedError, match="make a new one"):
                await call


async def test_a_connected_one_may_not_end_the_namespace(redis_server: RedisServer, namespace: str) -> None:
    """Nothing is opened and no thread started by making one."""
    threads = threading.enumerate()
    async with AsyncManager.connect(redis_url=redis_server.url, namespace=namespace) as manager:
        assert threading.enumerate() == threads
        assert manager.namespace == namespace
        for call in (manager.start, manager.stop):
            with pytest.raises(RuntimePermissionError):
                await call()
