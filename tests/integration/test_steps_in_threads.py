"""Steps and events of plain agents whose code begins threads of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any

import pytest

from ares_celery.errors import StepThreadError
from ares_celery.model.agent import AgentSpec
from tests.hosting import Runtime
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A running namespace with one host."""
    with Runtime(redis_server.url, namespace, hints=True) as made:
        made.manager.start()
        yield made


@pytest.fixture
def _often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def plain(
    body: Callable[[Any], Any], handle: Callable[[Any, Any], Any] | None = None, applied: list[str] | None = None
) -> type[Any]:
    """A plain agent's class; it notes which events are applied to it."""
    noted = [] if applied is None else applied

    class Plain:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        def start(self, ctx: Any) -> Any:
            return body(ctx)

        def apply(self, event: Any) -> None:
            noted.append(event.payload["name"])

    if handle is not None:

        def process(self: Any, ctx: Any, message: Any) -> Any:
            return handle(ctx, message)

        Plain.process = process  # type: ignore[attr-defined]
    return Plain


def steps(runtime: Runtime, execution: str = "main") -> dict[str, Any]:
    """What an execution of agent `a` has recorded."""
    return {one.id: one.value for one in runtime.store.checkpoints.steps("a", execution)}


def started(runtime: Runtime, agent: type[Any], state: str) -> Any:
    """Starts agent `a` and waits for a state."""
    runtime.register("threaded", agent)
    runtime.manager.start_agent(AgentSpec(id="a", type="threaded"))
    return runtime.until("a", state, timeout=20)


def double(number: int) -> int:
    """Safe."""
    return 2 * number


def fails(number: int) -> int:
    """Raises."""
    raise ValueError(number)


@pytest.mark.usefixtures("_often")
def test_events_that_threads_emit_are_applied_once_and_in_their_order(runtime: Runtime) -> None:
    """However many emit at the same time."""
    applied: list[str] = []

    def body(ctx: Any) -> None:
        def emit(thread: int) -> None:
            for number in range(10):
                ctx.emit("said", {"name": f"{thread}:{number}"})

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(emit, range(8)))

    started(runtime, plain(body, applied=applied), "completed")
    stored = [event.payload["name"] for event in runtime.events("a", "said")]
    assert len(stored) == 80
    assert applied == stored


@pytest.mark.usefixtures("_often")
def test_steps_side_by_side_in_threads_fail_and_succeed_each_by_itself(runtime: Runtime) -> None:
    """What is known of them is one for all: which ids are used, and what runs."""
    odd: list[BaseException] = []

    def body(ctx: Any) -> Any:
        def work(thread: int) -> int:
            found = 0
            for number in range(20):
                try:
                    found += ctx.step(f"{thread}:{number}", fails if number % 2 else double, number)
                except ValueError:
                    pass
                except BaseException as error:  # noqa: BLE001 - whatever it is
                    odd.append(error)
            return found

        with ThreadPoolExecutor(32) as pool:
            return sum(pool.map(work, range(32)))

    info = started(runtime, plain(body), "completed")
    assert odd == []
    assert info.result == 32 * sum(2 * number for number in range(0, 20, 2))
    assert len(steps(runtime)) == 32 * 10


def test_a_step_on_a_thread_without_context_is_refused_where_it_may_belong_to_a_block(runtime: Runtime) -> None:
    """Not recorded in `main` behind everybody's back; with the context it is where it belongs."""

    def body(ctx: Any) -> Any:
        with ThreadPoolExecutor(2) as pool:
            free = pool.submit(ctx.step, "free", double, 1).result()
            with ctx.execution("order-1"):
                with pytest.raises(StepThreadError, match=r"execution 'order-1'.*copy_context"):
                    pool.submit(ctx.step, "lost", double, 2).result()
                kept = pool.submit(copy_context().run, ctx.step, "kept", double, 3).result()
                own = ctx.step("own", double, 4)
        return [free, kept, own]

    info = started(runtime, plain(body), "completed")
    assert info.result == [2, 6, 8], info.reason
    assert steps(runtime) == {"free": 2}
    assert steps(runtime, "order-1") == {"kept": 6, "own": 8}


def test_a_step_on_a_thread_without_context_never_gets_the_result_of_another_message(runtime: Runtime) -> None:
    """In `main` it would be found again in the next life, whatever message that life handles."""

    def body(ctx: Any) -> None:
        while not ctx.stop_requested:
            ctx.sleep(60)

    def handle(ctx: Any, message: int) -> Any:
        with ThreadPoolExecutor(2) as pool:
            with suppress(StepThreadError):
                return pool.submit(ctx.step, "double", double, message).result()
            return pool.submit(copy_context().run, ctx.step, "double", double, message).result()

    started(runtime, plain(body, handle), "running")
    assert runtime.manager.process("a", 1, message_id="m-1", timeout=8) == 2
    assert runtime.manager.process("a", 2, message_id="m-2", timeout=8) == 4
    assert steps(runtime) == {}
    assert (steps(runtime, "msg:m-1"), steps(runtime, "msg:m-2")) == ({"double": 2}, {"double": 4})
