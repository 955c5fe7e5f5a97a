"""Waits inside of a process and side by side, against a real server, also when its clock steps."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ares_celery import AgentContext, AgentSpec, SyncAgentContext
from ares_celery.clock import to_datetime
from tests.conftest import REDIS_BINARY, REQUIRE_REDIS
from tests.hosting import Runtime
from tests.redis_server import NoRedisServerError, RedisServer
from tests.stepped_clock import NoCompilerError, SteppedClock
from tests.wait import assert_stays, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

HOUR = timedelta(hours=1)
SOON = timedelta(seconds=1)
KINDS = ("sleeper", "plain-sleeper")


class Sleeper:
    """Waits for a moment where it is."""

    def __init__(self, agent_id: str, until: str) -> None:
        self.until = datetime.fromisoformat(until)

    async def start(self, ctx: AgentContext) -> None:
        await ctx.sleep_until(self.until)
        await ctx.emit("woke")


class PlainSleeper:
    """The same, plain."""

    def __init__(self, agent_id: str, until: str) -> None:
        self.until = datetime.fromisoformat(until)

    def start(self, ctx: SyncAgentContext) -> None:
        ctx.sleep_until(self.until)
        ctx.emit("woke")


class Both:
    """Asks, and waits for a moment; the moment alone would be known sooner."""

    def __init__(self, agent_id: str, until: str) -> None:
        self.until = datetime.fromisoformat(until)

    async def start(self, ctx: AgentContext) -> str:
        word, _ = await asyncio.gather(
            ctx.wait_for_approval("go", release_slot=True), ctx.sleep_until(self.until, release_slot=True)
        )
        return str(word.decision)


@pytest.fixture
def stepped(namespace: str, tmp_path: Path) -> Iterator[tuple[Runtime, SteppedClock]]:
    """A runtime in this process, on a server with a clock of its own."""
    try:
        clock = SteppedClock(tmp_path)
        server = RedisServer(binary=REDIS_BINARY, environment=clock.environment)
    except (NoCompilerError, NoRedisServerError) as error:
        if REQUIRE_REDIS:
            pytest.fail(str(error))
        pytest.skip(str(error))
    with server, Runtime(server.url, namespace, hints=True) as runtime:
        runtime.register("sleeper", Sleeper)
        runtime.register("plain-sleeper", PlainSleeper)
        runtime.register("both", Both)
        runtime.manager.start()
        yield runtime, clock


def start_sleepers(runtime: Runtime, until: datetime) -> None:
    """One of each colour, that runs."""
    for kind in KINDS:
        runtime.manager.start_agent(AgentSpec(id=kind, type=kind, config={"until": until.isoformat()}))
    for kind in KINDS:
        runtime.until(kind, "running")


def now(runtime: Runtime) -> datetime:
    """By the clock of Redis."""
    return to_datetime(runtime.store.server_time())


def woke(runtime: Runtime, agent_id: str) -> datetime:
    """When it went on, by the same clock."""
    (event,) = wait_until(lambda: runtime.events(agent_id, "woke"), f"{agent_id} to wake", timeout=8)
    return event.time


def test_a_moment_is_met_although_the_clock_of_redis_jumps_ahead(stepped: tuple[Runtime, SteppedClock]) -> None:
    """An hour of waiting is over when the clock says so: not before, and within a second."""
    runtime, clock = stepped
    moment = now(runtime) + HOUR
    start_sleepers(runtime, moment)
    clock.step(HOUR - 2 * SOON)
    for kind in KINDS:
        assert timedelta(0) <= woke(runtime, kind) - moment <= SOON
        assert runtime.until(kind, "completed").incarnation == 1


def test_no_moment_comes_early_when_the_clock_of_redis_is_set_back(stepped: tuple[Runtime, SteppedClock]) -> None:
    """What was a second away is an hour and a second away then."""
    runtime, clock = stepped
    moment = now(runtime) + 2 * SOON
    start_sleepers(runtime, moment)
    clock.step(-HOUR)
    assert_stays(lambda: not any(runtime.events(kind, "woke") for kind in KINDS), "nobody to wake", seconds=2.5)
    clock.step(HOUR)
    for kind in KINDS:
        assert woke(runtime, kind) >= moment


def test_a_question_beside_a_moment_is_asked_before_the_slot_is_given_back(
    stepped: tuple[Runtime, SteppedClock],
) -> None:
    """The word is heard at once, the moment is waited for, and either survives the other."""
    runtime, _ = stepped
    moment = now(runtime) + 3 * SOON
    runtime.manager.start_agent(AgentSpec(id="b", type="both", config={"until": moment.isoformat()}))
    runtime.until("b", "waiting")
    assert [one.name for one in runtime.manager.interrupts("b")] == ["go"]
    runtime.manager.approve("b", "go", "yes")
    info = runtime.until("b", "waiting", incarnation=2)
    assert info.waiting_on == "timer"
    assert "step.completed" in runtime.types("b")
    done = runtime.until("b", "completed")
    assert (done.result, done.incarnation, done.restarts) == ("yes", 3, 0)
    assert runtime.events("b", "agent.completed")[0].time >= moment
