"""Plug-ins and steps under a real host: hooks look on, recovery plug-ins decide about retries."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from typing_extensions import override

from ares_celery.model.agent import AgentSpec
from ares_celery.plugins.basic_recovery import BasicRecoveryPlugin
from ares_celery.plugins.bus import PluginBus
from ares_celery.plugins.contract import StepCall, StepResult
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

TRIES: dict[str, int] = {}


@pytest.fixture
def bus() -> Iterator[PluginBus]:
    """The process's bus, started."""
    made = PluginBus()
    made.start()
    yield made
    made.stop()


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str, bus: PluginBus) -> Iterator[Runtime]:
    """A running namespace with one host and that bus."""
    TRIES.clear()
    with Runtime(redis_server.url, namespace, bus=bus) as made:
        made.manager.start()
        made.register("async", Worker)
        made.register("plain", PlainWorker)
        yield made


class Hook:
    """Notes what it is told, and raises if it is to."""

    def __init__(self, *, raises: bool = False) -> None:
        self.raises = raises
        self.before: list[StepCall] = []
        self.after: list[tuple[StepCall, StepResult]] = []

    def before_step(self, step: StepCall) -> None:
        self.before.append(step)
        if self.raises:
            raise ValueError("a hook's own")

    def after_step(self, step: StepCall, result: StepResult) -> None:
        self.after.append((step, result))
        if self.raises:
            raise ValueError("a hook's own")


async def flaky(step_id: str) -> str:
    """Fails the first time."""
    TRIES[step_id] = TRIES.get(step_id, 0) + 1
    if TRIES[step_id] == 1:
        raise ConnectionError("away")
    return f"{step_id} done"


class Worker:
    """Async: runs the step that a message names, with one retry."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: Any, message: str) -> Any:
        try:
            return await ctx.step.with_options(retries=1)(message, flaky, message)
        except ConnectionError as error:
            return f"{message} gave up: {error}"


class PlainWorker:
    """Plain: the same."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: Any, message: str) -> Any:
        try:
            return ctx.step.with_options(retries=1)(message, flaky, message)
        except ConnectionError as error:
            return f"{message} gave up: {error}"


def told(runtime: Runtime, agent_id: str) -> list[str]:
    """The runtime's events about steps."""
    return [kind for kind in runtime.types(agent_id) if kind.startswith("step.")]


@pytest.mark.spec(130)
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_hook_that_raises_stops_neither_later_hooks_nor_the_step_and_its_error_is_returned(
    runtime: Runtime, bus: PluginBus, kind: str
) -> None:
    """Around every try of a step, with all that is known of it; the bus returns and counts what the hook raised."""
    bad, good = Hook(raises=True), Hook()
    bus.register_hook("bad", bad)
    bus.register_hook("good", good)
    runtime.manager.start_agent(AgentSpec(id="a", type=kind))
    assert runtime.manager.process("a", "charge", timeout=10, message_id="m-1") == "charge done"
    seen = [(step.agent_id, step.agent_type, step.execution, step.step_id, step.attempt) for step in good.before]
    assert seen == [("a", kind, "msg:m-1", "charge", attempt) for attempt in (1, 2)]
    assert bad.before == good.before
    # What follows a try that failed is told beside the agent.
    wait_until(lambda: len(good.after) == len(bad.after) == 2, "both to hear of both tries")
    results = sorted((step.attempt, result.value, result.error) for step, result in good.after)
    assert results == [(1, None, "ConnectionError: away"), (2, "charge done", "")]
    assert TRIES == {"charge": 2}
    assert bus.counts["plugin_failures"] == 4
    error = bus.before_step(good.before[0])
    assert error is not None
    assert "bad" in str(error)
    assert "a hook's own" in str(error)
    assert len(good.before) == 3


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_hook_hears_that_a_step_has_run_when_it_is_recorded(runtime: Runtime, bus: PluginBus, kind: str) -> None:
    """However long it takes: a death meanwhile repeats nothing, and leaves no outcome unknown."""
    recorded: list[tuple[int, list[str]]] = []

    class Looking(Hook):
        """Looks at what the store knows."""

        @override
        def after_step(self, step: StepCall, result: StepResult) -> None:
            """The try that succeeded is told last."""
            known = runtime.store.checkpoints.steps(step.agent_id, step.execution)
            recorded.append((step.attempt, [one.id for one in known]))

    bus.register_hook("looking", Looking())
    runtime.manager.start_agent(AgentSpec(id="a", type=kind))
    assert runtime.manager.process("a", "charge", timeout=10, message_id="m-1") == "charge done"
    wait_until(lambda: len(recorded) == 2, "both tries to be told")
    assert (2, ["charge"]) in recorded


@pytest.mark.spec(133)
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_the_allow_list_decides_whether_a_failed_step_is_tried_again(
    runtime: Runtime, bus: PluginBus, kind: str
) -> None:
    """Unknown: no; allowed: yes; revoked: no; seen in what ran, in what the agent got and in the events."""
    plugin = BasicRecoveryPlugin(allow=["allowed", "revoked"])
    plugin.revoke("revoked")
    bus.register(plugin)
    runtime.manager.start_agent(AgentSpec(id="a", type=kind))
    assert runtime.manager.process("a", "unknown", timeout=10) == "unknown gave up: away"
    assert told(runtime, "a") == ["step.failed", "step.recovery.failed"]
    assert runtime.manager.process("a", "allowed", timeout=10) == "allowed done"
    assert told(runtime, "a")[2:] == [
        "step.failed",
        "step.recovery.started",
        "step.completed",
        "step.recovery.completed",
    ]
    assert runtime.manager.process("a", "revoked", timeout=10) == "revoked gave up: away"
    assert told(runtime, "a")[6:] == ["step.failed", "step.recovery.failed"]
    assert TRIES == {"unknown": 1, "allowed": 2, "revoked": 1}
    failed = [event.payload for event in runtime.events("a") if event.type == "step.recovery.failed"]
    assert [one["reason"] for one in failed] == ["plug-in basic_recovery refuses it"] * 2
    retried = [event.payload["will_retry"] for event in runtime.events("a") if event.type == "step.failed"]
    assert retried == [False, True, False]


def test_who_listens_in_the_process_hears_steps_as_they_are_stored(runtime: Runtime, bus: PluginBus) -> None:
    """The very events of the stream, each once."""
    heard = bus.subscribe("step.*", buffer=100)
    runtime.manager.start_agent(AgentSpec(id="a", type="async"))
    runtime.manager.process("a", "charge", timeout=10)
    stored = [event for event in runtime.events("a") if event.type.startswith("step.")]
    seen: list[Any] = []

    def all_heard() -> bool:
        seen.extend(heard.take(100, timedelta(0)))
        return len(seen) >= len(stored)

    wait_until(all_heard, "all to be heard")
    assert sorted(seen, key=lambda event: event.version) == stored
