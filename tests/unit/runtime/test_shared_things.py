"""What agents share is opened once, by an owner of its own, and closed in order; nothing it does hurts a neighbour."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from ares_celery.agents.resources import ResourceRegistry, override_resource, worker_resource
from ares_celery.clock import SystemClock
from ares_celery.errors import FencedSignal, WorkerResourceError
from ares_celery.runtime.shared_access import AsyncAccess, SyncAccess
from ares_celery.runtime.shared_things import Limits, Registries, SharedThings
from ares_celery.runtime.tool_calls import ToolCaller
from tests.wait import wait_until

CALLER = ToolCaller("a", "test", SystemClock())


class OnLoop:
    """The loop at hand, for other threads."""

    def submit(self, coroutine: Any) -> Any:
        """Runs it there."""
        return asyncio.run_coroutine_threadsafe(coroutine, LOOPS[-1])


LOOPS: list[asyncio.AbstractEventLoop] = []


class World:
    """Registered things, what happened to them, and the access of one agent."""

    def __init__(self) -> None:
        LOOPS.append(asyncio.get_running_loop())
        self.log: list[str] = []
        self.registry = ResourceRegistry()
        self.things = SharedThings(
            OnLoop,
            registries=Registries(resources=self.registry),
            limits=Limits(open=0.1, close=0.1, close_all=0.5),
        )
        self.ctx = AsyncAccess(self.things, CALLER)

    def add(self, name: str, *needs: str) -> None:
        """An async resource that tells when it is opened and closed, and in which task."""

        async def generate(**given: Any) -> AsyncIterator[str]:
            self.log.append(f"open {name}")
            task = asyncio.current_task()
            yield f"{name}({', '.join(given.values())})"
            assert asyncio.current_task() is task, "closed in the task that opened it"
            self.log.append(f"close {name}")

        self.register(name, _with_parameters(generate, needs))

    def register(self, name: str, function: Callable[..., Any]) -> None:
        self.registry.register(name, function)

    async def close(self) -> None:
        await asyncio.to_thread(self.things.close)


def _with_parameters(function: Any, names: tuple[str, ...]) -> Any:
    """A function that names its parameters, as a person would write it."""
    scope: dict[str, Any] = {"function": function}
    pairs = ", ".join(f"{name}={name}" for name in names)
    source = f"async def made({', '.join(names)}):\n    async for value in function({pairs}):\n        yield value\n"
    exec(source, scope)  # noqa: S102 - the text above
    return scope["made"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Closed at the end, whatever the test did."""
    made = World()
    yield made
    await made.close()


async def test_first_uses_at_once_open_once(world: World) -> None:
    """A hundred agents that come together wait for one opening."""
    world.add("llm")
    assert set(await asyncio.gather(*(world.ctx.resource("llm") for _ in range(100)))) == {"llm()"}
    assert await world.ctx.resource("llm") == "llm()"
    assert world.log == ["open llm"]


async def test_what_it_needs_is_opened_before_and_closed_after(world: World) -> None:
    """The newest first, whatever was asked for first; each in the task that opened it."""
    world.add("top", "left", "right")
    world.add("left", "base")
    world.add("right", "base")
    world.add("base")
    assert await world.ctx.resource("top") == "top(left(base()), right(base()))"
    assert world.log[:1] + world.log[3:] == ["open base", "open top"]
    assert sorted(world.log[1:3]) == ["open left", "open right"]
    opened, world.log = world.log, []
    await world.close()
    assert world.log == [line.replace("open", "close") for line in reversed(opened)]


async def test_a_failed_opening_reaches_everybody_who_waits_and_is_tried_again(world: World) -> None:
    """Its error is the cause; nothing of the failure is kept."""
    tries: list[int] = []

    async def flaky() -> AsyncIterator[str]:
        tries.append(1)
        await asyncio.sleep(0)
        if len(tries) == 1:
            raise ConnectionRefusedError("no route")
        yield "there"

    world.register("llm", flaky)
    failed = await asyncio.gather(*(_of(world, "llm") for _ in range(10)), return_exceptions=True)
    assert len(tries) == 1
    for error in failed:
        assert isinstance(error, WorkerResourceError)
        assert (error.fields["name"], error.fields["problem"]) == ("llm", "ConnectionRefusedError: no route")
        assert isinstance(error.__cause__, ConnectionRefusedError)
    assert await world.ctx.resource("llm") == "there"
    assert len(tries) == 2


async def _of(world: World, name: str) -> Any:
    return await world.ctx.resource(name)


async def test_an_agent_that_is_cancelled_while_it_waits_disturbs_nobody(world: World) -> None:
    """Not even the one that asked first."""
    may_open = asyncio.Event()

    async def slow() -> AsyncIterator[str]:
        await may_open.wait()
        yield "there"

    world.register("llm", slow)
    first, second = asyncio.create_task(_of(world, "llm")), asyncio.create_task(_of(world, "llm"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    may_open.set()
    assert await second == "there"


async def test_an_opening_that_hangs_is_given_up_and_begun_anew(world: World) -> None:
    """Bounded in time, and the code behind it is cancelled."""
    cancelled: list[str] = []

    async def hangs() -> AsyncIterator[str]:
        try:
            if not cancelled:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("yes")
            raise
        yield "there"

    world.register("llm", hangs)
    with pytest.raises(WorkerResourceError, match=r"did not open within 0\.1 s"):
        await world.ctx.resource("llm")
    assert cancelled == ["yes"]
    assert await world.ctx.resource("llm") == "there"


async def test_a_timeout_of_the_opening_itself_is_told_as_it_is(world: World) -> None:
    """It is not taken for our limit."""

    async def late() -> AsyncIterator[str]:
        if not world.log:
            raise TimeoutError("the gateway took too long")
        yield ""

    world.register("llm", late)
    with pytest.raises(WorkerResourceError, match="the gateway took too long"):
        await world.ctx.resource("llm")


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, BaseException], ids=lambda error: error.__name__)
async def test_whatever_an_opening_raises_is_an_error_of_the_resource(world: World, error: type[BaseException]) -> None:
    """SystemExit in a task of its own would go through the event loop of all agents."""

    async def raises() -> AsyncIterator[str]:
        if not world.log:
            raise error("no")
        yield ""

    world.register("llm", raises)
    with pytest.raises(WorkerResourceError, match=error.__name__):
        await world.ctx.resource("llm")


async def test_what_does_not_yield_or_yields_twice_is_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The first when it is opened, the second when it is closed; and the others are closed nevertheless."""

    async def never() -> AsyncIterator[str]:
        if world.log:
            yield "never"

    async def twice() -> AsyncIterator[str]:
        yield "one"
        yield "two"

    world.register("never", never)
    world.register("twice", twice)
    with pytest.raises(WorkerResourceError, match="didn't yield"):
        await world.ctx.resource("never")
    world.add("good")
    assert (await world.ctx.resource("good"), await world.ctx.resource("twice")) == ("good()", "one")
    with caplog.at_level(logging.ERROR, "ares_celery.runtime.openings"):
        await world.close()
    assert "worker resource 'twice': closing it failed" in caplog.text
    assert world.log == ["open good", "close good"]


async def test_closing_is_bounded_and_says_who_hangs(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The next ones are closed all the same."""
    ended: list[str] = []

    async def hangs() -> AsyncIterator[str]:
        yield "there"
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    world.add("good")
    world.register("bad", hangs)
    await world.ctx.resource("good")
    await world.ctx.resource("bad")
    began = SystemClock().monotonic()
    with caplog.at_level(logging.ERROR, "ares_celery.runtime"):
        await world.close()
    assert SystemClock().monotonic() - began < 2
    assert "worker resource 'bad' does not close in time" in caplog.text
    assert world.log == ["open good", "close good"]
    await asyncio.sleep(0)
    assert ended == ["cancelled"]


async def test_one_that_ends_by_itself_is_opened_again_at_its_next_use(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """A task group inside it that fails cancels its owner, and no agent."""
    breaks = asyncio.Event()

    async def pumped() -> AsyncIterator[str]:
        async def pump() -> None:
            await breaks.wait()
            raise OSError("the pipe broke")

        world.log.append("open")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(pump())
            yield "there"
            task.cancel()

    world.register("llm", pumped)
    await world.ctx.resource("llm")
    with caplog.at_level(logging.ERROR, "ares_celery.runtime.openings"):
        breaks.set()
        for _ in range(5):
            await asyncio.sleep(0)
    assert "worker resource 'llm': closing it failed" in caplog.text
    assert "the pipe broke" in caplog.text
    breaks.clear()
    assert await world.ctx.resource("llm") == "there"
    assert world.log == ["open", "open"]


async def test_nothing_is_opened_once_the_process_ends(world: World) -> None:
    """What is being opened then is given up; closing twice changes nothing."""

    async def slow() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""

    world.register("slow", slow)
    world.add("llm")
    waiting = asyncio.create_task(_of(world, "slow"))
    await asyncio.sleep(0)
    await world.close()
    with pytest.raises(WorkerResourceError, match="closed while it opened"):
        await waiting
    with pytest.raises(WorkerResourceError, match="this process is ending"):
        await world.ctx.resource("llm")
    await world.close()


async def test_one_that_is_closed_before_its_first_step_says_so_too(world: World) -> None:
    """Nobody waits for an owner that never began."""
    world.add("llm")
    waiting = asyncio.create_task(_of(world, "llm"))
    await asyncio.sleep(0)
    world.things._begun["llm"].ask_to_close()
    with pytest.raises(WorkerResourceError, match="closed while it opened"):
        await waiting
    assert world.log == []
    assert await world.ctx.resource("llm") == "llm()"


async def test_one_that_is_not_awaited_says_so(world: World) -> None:
    """The mistake that everybody makes once."""
    world.add("llm")
    with pytest.raises(WorkerResourceError, match=r"\(await ctx\.resource\('llm'\)\)\.complete"):
        getattr(world.ctx.resource("llm"), "complete")  # noqa: B009 - what a checker would not let pass


async def test_the_function_itself_names_the_resource_and_a_test_may_replace_it(world: World) -> None:
    """An override is given as it is; nothing is opened for it. The registries of a test come before it."""

    async def llm() -> AsyncIterator[str]:
        yield "real"

    world.register("llm", llm)
    assert await world.ctx.resource(llm) == "real"
    with world.registry.override("llm", "fake"):
        assert await world.ctx.resource(llm) == await world.ctx.resource("llm") == "fake"
    assert await world.ctx.resource("llm") == "real"
    worker_resource("named-by-itself")(llm)
    fakes = SharedThings(OnLoop, registries=Registries(instead={"resource": {"named-by-itself": "mine"}}))
    with override_resource("named-by-itself", "fake"):
        assert await AsyncAccess(fakes, CALLER).resource("named-by-itself") == "mine"


class PlainWorld:
    """Plain resources and an agent on a thread."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.registry = ResourceRegistry()
        self.things = SharedThings(
            OnLoop,
            registries=Registries(resources=self.registry),
            limits=Limits(open=0.1, close=0.2, close_all=0.5),
        )
        self.ctx = SyncAccess(self.things, CALLER, lambda: None)


@pytest.fixture
def plain_world() -> Iterator[PlainWorld]:
    """Closed at the end."""
    made = PlainWorld()
    yield made
    made.things.close()


def test_plain_resources_are_opened_and_closed_by_one_thread(plain_world: PlainWorld) -> None:
    """So what a library keeps for each thread is found again; agents of many threads share what it yields."""
    threads: list[threading.Thread] = []

    def connection() -> Iterator[list[str]]:
        threads.append(threading.current_thread())
        yield plain_world.log
        threads.append(threading.current_thread())

    plain_world.registry.register("db", connection)
    found: list[Any] = []
    users = [threading.Thread(target=lambda: found.append(plain_world.ctx.resource("db"))) for _ in range(20)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert len(found) == 20
    assert all(one is plain_world.log for one in found)
    plain_world.things.close()
    assert len(threads) == 2
    assert threads[0] is threads[1]
    assert threads[0] not in users


def test_async_agents_use_plain_resources_and_plain_agents_no_async_ones(plain_world: PlainWorld) -> None:
    """What lives on the event loop cannot be used from a thread: a clear refusal, and nothing is opened."""

    def db() -> Iterator[str]:
        yield "db"

    async def llm() -> AsyncIterator[str]:
        yield "llm"

    async def ask() -> Any:
        return await AsyncAccess(plain_world.things, CALLER).resource("db")

    plain_world.registry.register("db", db)
    plain_world.registry.register("llm", llm)
    assert asyncio.run(ask()) == plain_world.ctx.resource(db) == "db"
    with pytest.raises(WorkerResourceError, match="lives on the event loop"):
        plain_world.ctx.resource("llm")


def test_a_plain_opening_that_hangs_is_waited_for_again_and_not_begun_twice(plain_world: PlainWorld) -> None:
    """Nothing can end its thread, so each use waits its time for the same one."""
    may_open = threading.Event()
    opened: list[int] = []

    def slow() -> Iterator[str]:
        opened.append(1)
        may_open.wait(10)
        yield "there"

    plain_world.registry.register("db", slow)
    plain_world.things.limits = Limits(open=0.05, slack=0)
    for _ in range(2):
        with pytest.raises(WorkerResourceError, match="the next use waits for it again"):
            plain_world.ctx.resource("db")
    may_open.set()
    plain_world.things.limits = Limits(open=5)
    assert plain_world.ctx.resource("db") == "there"
    assert opened == [1]


def test_a_plain_agent_that_waits_is_ended_when_its_incarnation_is(plain_world: PlainWorld) -> None:
    """The opening goes on for the others."""
    may_open = threading.Event()

    def slow() -> Iterator[str]:
        may_open.wait(10)
        yield "there"

    def fenced() -> None:
        raise FencedSignal

    plain_world.registry.register("db", slow)
    with pytest.raises(FencedSignal):
        SyncAccess(plain_world.things, CALLER, fenced, lambda: None).resource("db")
    may_open.set()
    assert plain_world.ctx.resource("db") == "there"


def test_a_plain_resource_that_fails_is_tried_again(plain_world: PlainWorld) -> None:
    """As an async one; what it raises, SystemExit included, stays on its thread."""

    def flaky() -> Iterator[str]:
        plain_world.log.append("open")
        if len(plain_world.log) == 1:
            raise SystemExit(3)
        yield "there"

    plain_world.registry.register("db", flaky)
    with pytest.raises(WorkerResourceError, match="SystemExit"):
        plain_world.ctx.resource("db")
    assert plain_world.ctx.resource("db") == "there"
    wait_until(lambda: len(plain_world.log) == 2, "the second opening")
