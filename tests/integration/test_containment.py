"""One agent's worst behaviour, and its neighbours on the same loop and in the same process: they go on."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typing_extensions import override

from ares_celery import AgentContext, AgentFailedError, AgentSpec, Event, SyncAgentContext
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class Neighbour:
    """Ticks."""

    def __init__(self, agent_id: str) -> None:
        self.total = 0

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.emit("ticked", {})
            await ctx.sleep(0.02)

    def apply(self, event: Event) -> None:
        self.total += 1


class Unspeakable(Exception):
    """An exception whose own text raises."""

    @override
    def __str__(self) -> str:
        raise SystemExit("no words")


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A running runtime with one good agent."""
    with Runtime(redis_server.url, namespace) as made:
        made.manager.start()
        made.register("neighbour", Neighbour)
        made.manager.start_agent(AgentSpec(id="n", type="neighbour"), wait="running")
        yield made


def assert_the_neighbour_goes_on(runtime: Runtime) -> None:
    """It ticks, in its first incarnation."""
    before = len(runtime.events("n", "ticked"))
    wait_until(lambda: len(runtime.events("n", "ticked")) > before + 3, "the neighbour to tick on")
    info = runtime.manager.get_agent_info("n")
    assert info is not None
    assert (info.incarnation, info.restarts) == (1, 0)


def test_sys_exit_in_a_task_that_the_agent_made(runtime: Runtime) -> None:
    """Asyncio lets it out of the loop: the loop runs on."""

    class Background:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            async def leave() -> None:
                sys.exit(3)

            self.task = asyncio.create_task(leave())
            while not ctx.stop_requested:
                await ctx.sleep(60)

    runtime.register("background", Background)
    runtime.manager.start_agent(AgentSpec(id="b", type="background"), wait="running")
    assert_the_neighbour_goes_on(runtime)
    runtime.manager.start_agent(AgentSpec(id="n2", type="neighbour"), wait="running")


def test_a_stop_of_the_event_loop(runtime: Runtime) -> None:
    """User code may not end the loop of the others."""

    class Stops:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            asyncio.get_running_loop().stop()
            while not ctx.stop_requested:
                await ctx.sleep(60)

    runtime.register("stops", Stops)
    runtime.manager.start_agent(AgentSpec(id="s", type="stops"), wait="running")
    assert_the_neighbour_goes_on(runtime)


def test_sys_exit_in_is_alive(runtime: Runtime) -> None:
    """A miss like any other, and the keeper goes on renewing."""

    class Sick:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            while not ctx.stop_requested:
                await ctx.sleep(60)

        def is_alive(self) -> bool:
            sys.exit(3)

    runtime.register("sick", Sick)
    runtime.manager.start_agent(AgentSpec(id="s", type="sick", max_restarts=1))
    assert "SystemExit" in runtime.until("s", "parked").reason
    assert_the_neighbour_goes_on(runtime)


@pytest.mark.parametrize("call", ["sleep", "emit"])
def test_an_agent_that_eats_even_signals(runtime: Runtime, call: str) -> None:
    """`except BaseException` around every call: it is stopped all the same, and holds neither loop nor core."""

    class Eater:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            while True:
                try:
                    if call == "sleep":
                        await ctx.sleep(0.02)
                    else:
                        await ctx.emit("eaten", {})
                except BaseException:  # noqa: BLE001, S112 - the point of this agent
                    continue

    runtime.register("eater", Eater)
    runtime.manager.start_agent(AgentSpec(id="e", type="eater"), wait="running")
    runtime.manager.stop_agent("e")
    assert runtime.manager.get_agent_info("e").state == "stopped"  # type: ignore[union-attr]
    assert_the_neighbour_goes_on(runtime)


@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError, GeneratorExit, BaseException, SystemExit, Unspeakable],
    ids=lambda error: error.__name__,
)
@pytest.mark.parametrize("place", ["init", "apply"])
def test_whatever_recovery_raises_is_a_failed_attempt(runtime: Runtime, error: type[BaseException], place: str) -> None:
    """Said as such, at once, and no slot is lost."""

    class Fails:
        def __init__(self, agent_id: str) -> None:
            if place == "init" and armed:
                raise error("cannot")

        async def start(self, ctx: AgentContext) -> None:
            await ctx.emit("one", {})
            while not ctx.stop_requested:
                await ctx.sleep(60)

        def apply(self, event: Event) -> None:
            if armed:
                raise error("cannot")

    armed: list[bool] = []
    runtime.register("fails", Fails)
    runtime.manager.start_agent(AgentSpec(id="f", type="fails", restore_attempts=2), wait="running")
    wait_until(lambda: len(runtime.events("f", "one")) == 1)
    armed.append(True)
    runtime.manager.restart_agent("f")
    info = runtime.until("f", "parked")
    assert info.cause == "attempts"
    assert info.last_error.startswith("start failed: ")
    assert error.__name__ in info.last_error
    assert_the_neighbour_goes_on(runtime)


def test_a_recovery_that_computes_for_ever_gives_its_thread_back(redis_server: RedisServer, namespace: str) -> None:
    """Fenced after start_timeout, interrupted at its next bytecode: no slot is lost to it."""
    over = threading.Event()

    class Endless:
        def __init__(self, agent_id: str) -> None:
            while not over.is_set():
                pass

        async def start(self, ctx: AgentContext) -> None: ...

    with Runtime(redis_server.url, namespace, start_timeout="400ms", restore_timeout="400ms") as runtime:
        runtime.manager.start()
        runtime.register("endless", Endless)
        try:
            runtime.manager.start_agent(AgentSpec(id="e", type="endless", restore_attempts=1))
            runtime.until("e", "parked", timeout=15, judge=True)
            assert runtime.launcher.join(5)
        finally:
            over.set()


@pytest.mark.parametrize("colour", ["async", "plain"])
@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, Unspeakable], ids=lambda error: error.__name__)
def test_what_ends_a_process_call_does_not_come_again(
    runtime: Runtime, error: type[BaseException], colour: str
) -> None:
    """The caller gets it, the message is consumed, and the next one is answered."""

    class Async:
        def __init__(self, agent_id: str) -> None: ...

        async def process(self, ctx: AgentContext, message: object) -> object:
            if message == "bad":
                raise error("poison")
            return "good"

    class Sync:
        def __init__(self, agent_id: str) -> None: ...

        def process(self, ctx: SyncAgentContext, message: object) -> object:
            if message == "bad":
                raise error("poison")
            return "good"

    runtime.register("odd", Async if colour == "async" else Sync)
    runtime.manager.start_agent(AgentSpec(id="o", type="odd"), wait="running")
    with pytest.raises(AgentFailedError) as caught:
        runtime.manager.process("o", "bad", timeout=5)
    assert caught.value.fields["type"] == error.__name__
    runtime.until("o", "running")
    assert runtime.manager.process("o", "fine", timeout=8) == "good"
    assert_the_neighbour_goes_on(runtime)


def test_a_claim_whose_answer_was_lost_is_asked_for_until_it_is_known(
    make_redis_server: Callable[..., RedisServer], namespace: str
) -> None:
    """The claim was made; the claimer does not know: it asks again and runs. Nothing is charged."""
    server = make_redis_server()
    with Runtime(server.url, namespace, lease_ttl="30s") as runtime:
        runtime.manager.start()
        runtime.register("neighbour", Neighbour)
        real, lost = runtime.store.claim, [True]

        def claim(*args: Any, **kwargs: Any) -> Any:
            done = real(*args, **kwargs)
            if lost:
                lost.clear()
                from ares_celery.errors import StoreUnavailableError

                raise StoreUnavailableError(url="redis://x", problem="the answer was lost")
            return done

        vars(runtime.store)["claim"] = claim
        runtime.manager.start_agent(AgentSpec(id="n", type="neighbour"), wait="running")
        assert_the_neighbour_goes_on(runtime)


def test_a_drain_that_an_agent_holds_up_is_given_up_after_its_time(redis_server: RedisServer, namespace: str) -> None:
    """The process is told to end: nobody else can end a thread."""
    hold, told = threading.Event(), threading.Event()

    class Stuck:
        def __init__(self, agent_id: str) -> None: ...

        def start(self, ctx: SyncAgentContext) -> None:
            hold.wait(20)

    with Runtime(redis_server.url, namespace, drain_timeout="500ms") as runtime:
        runtime.manager.start()
        runtime.host._on_stuck = told.set
        runtime.register("stuck", Stuck)
        runtime.manager.start_agent(AgentSpec(id="s", type="stuck"), wait="running")
        runtime.host.drain()
        assert told.wait(5)
        hold.set()
