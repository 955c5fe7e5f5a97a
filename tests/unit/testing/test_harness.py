"""The harness: an agent's life in a test, with the runtime's real code."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typing_extensions import override

from ares_celery import (
    AgentContext,
    AgentFailedError,
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    AgentStuckError,
    AgentTypeError,
    DidNotHappenError,
    Event,
    InvalidConfigError,
    InvalidSettingError,
    OperationNotSupportedError,
    ProcessTimeoutError,
    SyncAgentContext,
    UnknownAgentTypeError,
    agent,
)
from ares_celery.agents.mcp_servers import mcp_server
from ares_celery.agents.resources import RESOURCES, worker_resource
from ares_celery.agents.tools import tool
from ares_celery.store.redis.scripts import SCRIPT_NAMES, Scripts
from ares_celery.testing import AgentHarness, SentMessage, memory_server
from tests.unit.testing.agents import Counter, PlainCounter, Totals, stubborn
from tests.wait import assert_stays

COLOURS = pytest.mark.parametrize("made", [Counter, PlainCounter], ids=["async", "plain"])


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Any:
    """Whatever a test does, its harness leaves none behind."""
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@COLOURS
def test_a_day_of_an_agent_takes_no_real_time(made: type[Totals]) -> None:
    """Its sleeps are in simulated time, and its events carry the times of that."""
    with AgentHarness(made, config={"step": 2}) as harness:
        event = harness.run_until("ticked", count=25, timeout="24h")
        assert event.time == datetime(2026, 1, 2, tzinfo=UTC)
        assert harness.now == 24 * 3600
        assert harness.agent.total == 50
        assert [event.payload["by"] for event in harness.events] == [2] * 25
        assert [event.type for event in harness.all_events][:2] == ["agent.started", "ticked"]


@COLOURS
def test_two_runs_give_equal_events(made: type[Totals]) -> None:
    """Times, versions, ids and payloads, through a crash and a restart."""

    def life() -> list[Event]:
        with AgentHarness(made) as harness:
            harness.run_until("ticked", count=3, timeout="3h")
            harness.crash()
            harness.restart()
            harness.ask("total")
            harness.stop()
            return harness.all_events

    assert [(e.id, e.version, e.type, e.payload, e.time, e.metadata) for e in life()] == [
        (e.id, e.version, e.type, e.payload, e.time, e.metadata) for e in life()
    ]


@COLOURS
def test_nothing_runs_between_two_calls(made: type[Totals]) -> None:
    """The agent stands still at its first write until the test lets it go on."""
    with AgentHarness(made) as harness:
        assert harness.events == []
        assert harness.info.state == "running"
        harness.advance(1)
        assert len(harness.events) == 1
        harness.advance(3598.9)
        assert len(harness.events) == 1
        harness.advance(0.2)
        assert len(harness.events) == 2


@COLOURS
def test_a_message_is_answered_at_once(made: type[Totals]) -> None:
    """As a JSON value; the time that the answer takes passes."""
    with AgentHarness(made) as harness:
        harness.run_until("ticked")
        assert harness.ask("total") == {"total": 1}
        assert harness.now == 0
        assert harness.ask("slow") == {"total": 1}
        assert harness.now == 30
        assert harness.ask("total", message_id="m1") == harness.ask("total", message_id="m1")


@COLOURS
def test_the_agents_exception_reaches_who_asks(made: type[Totals]) -> None:
    """With its type, its text and its traceback, which pytest shows as a note; the agent lives on."""
    with AgentHarness(made) as harness:
        harness.run_until("ticked")
        with pytest.raises(AgentFailedError, match="no such thing") as caught:
            harness.ask("fail")
        assert caught.value.type == "ValueError"
        assert 'raise ValueError("no such thing")' in caught.value.__notes__[0]
        assert harness.ask("total") == {"total": 1}


@COLOURS
def test_messages_to_others_are_kept_for_the_test(made: type[Totals]) -> None:
    """Nobody gets them, and what is not JSON is refused as in production."""
    with AgentHarness(made) as harness:
        harness.run_until("ticked")
        sent = harness.ask({"forward": "b"})
        assert harness.sent == [SentMessage("b", {"total": 1}, sent)]
        assert harness.ask({"forward": "a"})
        assert len(harness.sent) == 1


@COLOURS
def test_no_answer_in_time_says_where_the_agent_is(made: type[Totals]) -> None:
    """The simulated time is over."""
    with AgentHarness(made) as harness:
        harness.run_until("ticked")
        with pytest.raises(ProcessTimeoutError) as caught:
            harness.ask("slow", timeout=5)
        assert harness.now == 5
        assert "agents.py:" in caught.value.__notes__[0]


# -- deaths -----------------------------------------------------------------------------------------------------------


@COLOURS
def test_a_crash_loses_nothing_that_was_stored(made: type[Totals]) -> None:
    """The next incarnation folds what the store has; the dead one's code goes no further, not even to its finally."""
    with AgentHarness(made) as harness:
        harness.run_until("ticked", count=3, timeout="3h")
        first = harness.agent
        harness.crash()
        assert not harness.is_running
        harness.advance("10h")
        assert first.unwound == ""
        assert len(harness.events) == 3
        harness.restart()
        assert harness.agent is not first
        assert harness.agent.total == 3
        assert harness.info.incarnation == 2
        assert harness.info.restarts == 1
        types = [event.type for event in harness.all_events]
        assert types[-3:] == ["agent.stopped", "failover.triggered", "failover.completed"]
    assert first.unwound == "yes"


@COLOURS
@pytest.mark.parametrize(("moment", "stored"), [("before", 1), ("after", 2)])
def test_a_crash_at_a_write_is_before_or_after_the_store_has_it(made: type[Totals], moment: str, stored: int) -> None:
    """Durable first: what is stored counts, whether or not the agent ever learnt it."""
    with AgentHarness(made) as harness:
        harness.run_until("ticked")
        before, after = ("ticked", None) if moment == "before" else (None, "ticked")
        harness.crash(before=before, after=after, timeout="2h")
        assert len(harness.events) == stored
        assert harness.agent.total == 1
        harness.restart()
        assert harness.agent.total == stored


@COLOURS
def test_a_crash_can_wait_for_the_nth_write(made: type[Totals]) -> None:
    """Counted from the call, of any type."""
    with AgentHarness(made) as harness:
        harness.run_until("ticked")
        harness.crash(after="*", count=2, timeout="5h")
        assert len(harness.events) == 3


def test_a_crash_that_never_comes_says_so_and_leaves_the_agent_alone() -> None:
    """The agent lives on."""
    with AgentHarness(Counter) as harness:
        with pytest.raises(DidNotHappenError, match="emit event 'other' did not happen within 60 simulated"):
            harness.crash(before="other")
        assert harness.is_running
        with pytest.raises(DidNotHappenError, match="emit event 'ticked' number 3 did not"):
            harness.crash(before="ticked", count=3, timeout="2h")
        harness.run_until("ticked", count=9, timeout="9h")
        harness.crash()
        with pytest.raises(AgentNotRunningError):
            harness.crash()


@COLOURS
def test_a_dead_process_writes_nothing_any_more(made: type[Totals]) -> None:
    """Its code is unwound when the test ends, and cannot store a word then, not even what it was about to store."""
    with AgentHarness(made) as harness:
        harness.crash()
        process = harness._bench._processes[0]
        harness._bench._end(process)
        assert process.stage.is_over
        assert harness.agent.unwound == "yes"
        assert harness.events == []
        assert harness.info.state == "running"
        harness.restart()
        harness.run_until("ticked")


def test_the_servers_time_is_the_tests() -> None:
    """No script asks in words that would get the machine's own."""
    for name in SCRIPT_NAMES:
        code = re.sub(r"--.*", "", Scripts(flags=False).text(name))
        assert "TIME" not in code.replace(memory_server._ASKED, ""), name


def test_an_exception_of_start_fails_the_call_that_let_it_run() -> None:
    """With the agent's traceback; the backoff is waited out by restart()."""

    class Fails(Totals):
        async def start(self, ctx: AgentContext) -> None:
            await ctx.sleep(1)
            raise RuntimeError("out of order")

    with AgentHarness(Fails) as harness:
        with pytest.raises(AgentFailedError, match="out of order") as caught:
            harness.run_until("never")
        assert "in the agent:" in caught.value.__notes__[0]
        assert harness.info.state == "resurrecting"
        harness.restart()
        assert harness.info.incarnation == 2
        with pytest.raises(AgentFailedError):
            harness.advance(2)
        before = harness.now
        harness.restart()
        assert harness.info.incarnation == 3
        assert harness.now == before + 1


def test_an_agent_that_dies_too_often_is_parked() -> None:
    """By the same rule as in production; the settings are the test's."""
    with AgentHarness(Counter, settings={"max_restarts_per_agent": 1}) as harness:
        harness.crash()
        harness.restart()
        harness.crash()
        with pytest.raises(AgentParkedError):
            harness.restart()
        assert harness.info.state == "parked"
        harness.manager.unpark_agent("a")
        harness.restart()
        assert harness.info.state == "running"


def test_a_recovery_that_fails_says_what_it_raised() -> None:
    """restart() tries once; the next call tries again."""

    class Forgets(Counter):
        broken = False

        @override
        def restore_state(self, state: dict[str, Any]) -> None:
            if self.broken:
                raise KeyError("total")
            super().restore_state(state)

    with AgentHarness(Forgets, settings={"snapshot_every_events": 1}) as harness:
        harness.run_until("ticked", count=2, timeout="2h")
        Forgets.broken = True
        harness.crash()
        with pytest.raises(AgentFailedError, match="total"):
            harness.restart()
        Forgets.broken = False
        harness.restart()
        assert harness.agent.total == 2


def test_new_code_takes_over_the_old_state() -> None:
    """restart(NewClass) is a deployment: the snapshot of the old code is given to the new one."""

    class Doubled(Counter):
        @override
        def restore_state(self, state: dict[str, Any]) -> None:
            self.total = state["total"] * 100

    with AgentHarness(Counter) as harness:
        harness.run_until("ticked")
        harness.restart(Doubled)
        assert type(harness.agent) is Doubled
        assert harness.agent.total == 100
        assert harness.info.restarts == 0


# -- orderly ends -----------------------------------------------------------------------------------------------------


@COLOURS
def test_a_stopped_agent_keeps_its_state(made: type[Totals]) -> None:
    """Its last snapshot is taken; restart() starts it anew."""
    with AgentHarness(made) as harness:
        harness.run_until("ticked", count=2, timeout="2h")
        assert len(harness.snapshots) == 1
        harness.run_until("ticked", count=3, timeout="2h")
        harness.stop()
        assert harness.info.state == "stopped"
        assert harness.agent.unwound == "yes"
        assert harness.snapshots[-1].state == {"total": 3}
        with pytest.raises(AgentNotRunningError):
            harness.ask("total")
        with pytest.raises(DidNotHappenError, match="is stopped"):
            harness.run_until("ticked", count=9)
        harness.restart()
        assert harness.state == {"total": 3}
        assert harness.info.restarts == 0


@COLOURS
def test_a_paused_agent_answers_when_it_is_resumed(made: type[Totals]) -> None:
    """Messages wait."""
    with AgentHarness(made) as harness:
        harness.run_until("ticked")
        harness.pause()
        assert harness.info.state == "paused"
        with pytest.raises(ProcessTimeoutError):
            harness.ask("total", message_id="m1")
        harness.resume()
        assert harness.ask("total", message_id="m1") == {"total": 2}
        assert harness.ask("total", message_id="m1") == {"total": 2}


@COLOURS
def test_a_drained_agent_goes_on_elsewhere(made: type[Totals]) -> None:
    """Not charged, with a snapshot."""
    with AgentHarness(made) as harness:
        harness.run_until("ticked")
        harness.drain()
        assert harness.info.state == "starting"
        assert [one.state for one in harness.snapshots] == [{"total": 1}]
        harness.restart()
        assert (harness.info.state, harness.info.incarnation, harness.info.charged) == ("running", 2, 0)


def test_an_agent_that_does_not_stop_is_fenced_in_simulated_time() -> None:
    """Within agent_stop_timeout; its code is cancelled."""

    class Stays(Totals):
        async def start(self, ctx: AgentContext) -> None:
            while True:
                try:
                    await asyncio.sleep(100)  # on purpose: simulated time
                except asyncio.CancelledError:
                    if ctx.stopping_reason == "fenced":
                        raise

    with AgentHarness(Stays) as harness:
        harness.advance(1)
        harness.stop()
        assert harness.info.state == "stopped"
        assert harness.now <= 15


def test_an_agent_that_is_done_has_a_result() -> None:
    """What start returns; nothing can come any more."""

    class Works(Totals):
        async def start(self, ctx: AgentContext) -> dict[str, int]:
            await ctx.emit("ticked", {"by": 1})
            await ctx.sleep(10)
            return {"total": self.total}

    with AgentHarness(Works) as harness:
        harness.advance(20)
        assert harness.now == 20
        assert harness.info.state == "completed"
        assert harness.info.result == {"total": 1}
        assert not harness.is_running


# -- snapshots, kinds of agents ---------------------------------------------------------------------------------------


@COLOURS
def test_snapshots_are_taken_as_the_settings_say(made: type[Totals]) -> None:
    """At settled points, in simulated time, the last three kept."""
    with AgentHarness(made, settings={"snapshot_interval": "2h"}) as harness:
        harness.run_until("ticked", count=9, timeout="9h")
        harness.advance(1)
        assert [one.state["total"] for one in harness.snapshots] == [5, 7, 9]


def test_an_agent_that_only_answers_is_asked() -> None:
    """A plain function as a factory, and no start."""

    class Echo:
        def process(self, ctx: SyncAgentContext, message: object) -> object:
            return message

    def make(agent_id: str) -> Echo:
        return Echo()

    with AgentHarness(make, "echo-1") as harness:
        assert harness.ask([1, {"a": None}]) == [1, {"a": None}]
        assert harness.info.type == "make"
        assert harness.info.id == "echo-1"


def test_a_registered_type_is_known_by_its_name() -> None:
    """With what @agent said of it."""

    @agent("harness-known", schema=3)
    class Known(Counter):
        pass

    with AgentHarness("harness-known") as harness:
        harness.run_until("ticked")
        harness.stop()
        assert isinstance(harness.agent, Known)
        assert harness.snapshots[-1].schema == 3
    with pytest.raises(UnknownAgentTypeError):
        AgentHarness("harness-unknown")


async def test_an_async_test_calls_the_same_methods() -> None:
    """The harness has its own loop on its own thread; the test's stands still meanwhile."""
    with AgentHarness(Counter) as harness:
        harness.run_until("ticked")
        assert harness.ask("total") == {"total": 1}
        await asyncio.sleep(0)


def test_work_in_threads_of_the_loop_is_waited_for() -> None:
    """Simulated time stands still until it is done."""

    class Threads(Totals):
        async def start(self, ctx: AgentContext) -> None:
            async with asyncio.timeout(0.001):
                await asyncio.to_thread(threading.Event().wait, 0.05)
            await ctx.emit("ticked", {"by": 1})

    with AgentHarness(Threads) as harness:
        harness.run_until("ticked")
        assert harness.now == 0


def test_what_the_agent_left_on_its_loop_is_ended() -> None:
    """Tasks of its own and generators that nobody has read to their end."""
    ended: list[str] = []

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def background() -> None:
        try:
            await asyncio.sleep(10**6)  # on purpose: simulated time
        finally:
            ended.append("task")

    class Leaves(Totals):
        async def start(self, ctx: AgentContext) -> None:
            self.task = asyncio.create_task(background())
            self.numbers = numbers()
            await anext(self.numbers)
            await ctx.sleep(10)

    with AgentHarness(Leaves) as harness:
        harness.advance(1)
        assert ended == []
    assert sorted(ended) == ["generator", "task"]


def test_state_makes_the_round_trip_through_json() -> None:
    """What a snapshot would lose is lost in a test too."""

    class Numbers(Counter):
        @override
        def snapshot(self) -> dict[str, Any]:
            return {"list": [1, 2], "total": 1}

    with AgentHarness(Numbers) as harness:
        assert harness.state == {"list": [1, 2], "total": 1}


def test_what_agents_share_can_be_replaced() -> None:
    """A model, a tool and an MCP server, for this harness alone; a fallible one is called as in production."""

    class Session:
        async def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
            return f"{name} of {arguments['repo']}"

    class Asks:
        def __init__(self, agent_id: str) -> None: ...

        async def process(self, ctx: AgentContext, message: str) -> list[Any]:
            llm = await ctx.resource("harness-llm")
            paid = await ctx.tool("harness-pay")(order=message)
            return [llm(message), paid, await ctx.mcp("harness-github").call_tool("issues", {"repo": message})]

    def pay(order: str) -> str:
        if order == "pears":
            raise ValueError("no pears")
        return f"paid {order}"

    @worker_resource("harness-llm")
    def dead() -> Iterator[object]:
        yield list[object]().pop()

    tool("harness-pay")(pay)
    mcp_server("harness-github")(contextlib.nullcontext)
    shared = {"harness-llm": str.upper}, {"harness-pay": pay}, {"harness-github": Session()}
    with AgentHarness(Asks, resources=shared[0], tools=shared[1], mcp=shared[2]) as harness:
        assert harness.ask("apples") == ["APPLES", "paid apples", "issues of apples"]
        with pytest.raises(AgentFailedError, match="no pears"):
            harness.ask("pears")
    with AgentHarness(Asks) as harness, pytest.raises(AgentFailedError, match="harness-llm"):
        harness.ask("apples")


@pytest.mark.parametrize("is_async", [True, False], ids=["on the loop", "on a thread"])
def test_what_agents_share_is_opened_once_a_process_and_closed_with_the_harness(*, is_async: bool) -> None:
    """Also by a process that was killed: nothing stays open when the test ends."""
    said: list[str] = []

    async def opens() -> AsyncIterator[int]:
        said.append("open")
        await asyncio.sleep(5)  # on purpose: simulated time
        yield 7
        said.append("closed")

    def opens_plainly() -> Iterator[int]:
        said.append("open")
        yield 7
        said.append("closed")

    RESOURCES.register(f"harness-{is_async}", opens if is_async else opens_plainly)

    class Uses:
        def __init__(self, agent_id: str) -> None: ...

        async def process(self, ctx: AgentContext, message: str) -> Any:
            return await ctx.resource(f"harness-{is_async}")

    with AgentHarness(Uses) as harness:
        assert (harness.ask("a"), harness.ask("b"), said) == (7, 7, ["open"])
        assert harness.now == (5 if is_async else 0)
        harness.crash()
        harness.restart()
        assert (harness.ask("a"), said) == (7, ["open", "open"])
    assert said == ["open", "open", "closed", "closed"]


# -- wrong use --------------------------------------------------------------------------------------------------------


@COLOURS
def test_an_event_that_never_comes_says_what_did(made: type[Totals]) -> None:
    """The last events, and the line at which the agent waits."""
    with AgentHarness(made) as harness, pytest.raises(DidNotHappenError) as caught:
        harness.run_until("counted", timeout="90m")
    text = str(caught.value)
    assert text.startswith("event 'counted' did not happen within 5400 simulated seconds")
    assert "running, incarnation 1, at 5400 s" in text
    assert "agents.py:" in text
    assert "in start: " in text
    assert "ctx.sleep(3600)" in text
    assert "01:00:00  ticked  {'by': 1}" in text
    assert isinstance(caught.value, AssertionError)


def test_a_function_or_a_number_can_be_waited_for() -> None:
    """What the function gives is returned."""
    with AgentHarness(Counter) as harness:
        assert harness.run_until(lambda: harness.agent.total >= 2 and harness.agent.total, timeout="2h") == 2
        assert harness.run_until(3, timeout="2h").version == 4
        with pytest.raises(DidNotHappenError, match="the condition '<lambda>'"):
            harness.run_until(lambda: False)


def test_code_that_never_waits_is_ended_with_its_stack() -> None:
    """In real time; the harness is of no more use, and leaves no thread."""

    def hold() -> None:
        while True:
            pass

    with AgentHarness(stubborn(hold), patience=1) as harness:
        with pytest.raises(AgentStuckError, match="within 1 real seconds") as caught:
            harness.advance(5)
        assert "in hold" in str(caught.value)


def end_for_good(harness: AgentHarness) -> None:
    """Ends the thread that a hopeless agent has kept."""
    stage = harness._bench._processes[0].stage
    if stage.is_loose:
        assert stage._back.acquire(timeout=10)
        stage.is_loose = False
    while not stage.is_over:
        harness._bench.clock.move_to(harness.now + 1)
        stage.give_turn(10)
    stage.join(10)


def test_code_that_blocks_outside_of_python_is_named_and_left() -> None:
    """Nothing can end it; the test goes on at once."""
    held = threading.Event()

    def hold() -> None:
        held.wait()

    harness = AgentHarness(stubborn(hold), patience=1)
    with pytest.raises(AgentStuckError, match="cannot be ended") as caught:
        harness.advance(5)
    assert "held.wait()" in str(caught.value)
    with pytest.raises(AgentStuckError, match="when the test ended"):
        harness.close()
    held.set()
    end_for_good(harness)


def hopeless(is_over: threading.Event) -> tuple[type[Totals], type[Totals]]:
    """Agents that eat whatever would end them, until it is over."""

    class Eats(Totals):
        async def start(self, ctx: AgentContext) -> None:
            while not is_over.is_set():
                with contextlib.suppress(BaseException):
                    self.total += 1
                    await asyncio.sleep(1)  # on purpose: simulated time

    class EatsPlainly(Totals):
        def start(self, ctx: SyncAgentContext) -> None:
            while not is_over.is_set():
                with contextlib.suppress(BaseException):
                    self.total += 1
                    ctx.sleep(1)

    return Eats, EatsPlainly


@pytest.mark.parametrize("colour", [0, 1], ids=["async", "plain"])
def test_code_that_does_not_end_fails_the_test_and_holds_no_core(colour: int) -> None:
    """The error says where it is; its thread stands still. What the test says of itself comes first."""
    is_over = threading.Event()
    made = hopeless(is_over)[colour]
    harness = AgentHarness(made)
    harness.advance(3)
    with pytest.raises(AgentStuckError, match=r"when the test ended.*\n.*sleep\(1\)"):
        harness.close()
    eaten = harness.agent.total
    assert_stays(lambda: harness.agent.total == eaten, "its code stands still", seconds=0.1)
    with pytest.raises(LookupError), AgentHarness(made) as other:
        raise LookupError
    is_over.set()
    end_for_good(harness)
    end_for_good(other)


def test_the_kit_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra."""
    monkeypatch.setitem(sys.modules, "fakeredis", None)
    with pytest.raises(OperationNotSupportedError, match=r"ares-celery\[testing\]"):
        AgentHarness(Counter)


def test_code_that_emits_without_ever_waiting_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated time cannot pass."""
    monkeypatch.setattr("ares_celery.testing.bench._MOST_TURNS", 50)

    class Spins(Totals):
        async def start(self, ctx: AgentContext) -> None:
            while True:
                await ctx.emit("ticked", {"by": 1})

    with AgentHarness(Spins) as harness:
        assert harness.run_until("ticked", count=20).version == 21
        assert harness.agent.total == 20
        with pytest.raises(AgentStuckError, match="without ever sleeping"):
            harness.advance(1)


def test_what_does_not_fit_is_refused_at_once() -> None:
    """By the errors of production, and nothing is left."""
    with pytest.raises(InvalidConfigError):
        AgentHarness(Counter, config={"pace": 1})
    with pytest.raises(AgentTypeError):
        AgentHarness(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match="restarts: there is no such field"):
        AgentHarness(Counter, spec={"restarts": 1})


def test_a_closed_harness_says_so() -> None:
    """Closing it twice is no error."""
    harness = AgentHarness(Counter)
    harness.close()
    harness.close()
    with pytest.raises(OperationNotSupportedError, match="closed"):
        harness.advance(1)
    for used in (lambda: harness.ask("x"), lambda: harness.send("x"), lambda: harness.events, lambda: harness.info):
        with pytest.raises(OperationNotSupportedError, match="closed; use it inside its block"):
            used()


def test_a_message_to_an_agent_that_is_missing_raises_as_in_production() -> None:
    """Only while the test says that it is missing; all others are taken to be there."""

    class Tells(Totals):
        async def process(self, ctx: AgentContext, message: str) -> str:
            try:
                await ctx.send(message, "hello")
            except AgentNotFoundError as error:
                return str(error.fields["agent_id"])
            return "sent"

    with AgentHarness(Tells, missing=["b"]) as harness:
        assert [harness.ask("b"), harness.ask("c")] == ["b", "sent"]
        harness.missing.clear()
        assert harness.ask("b") == "sent"
        assert [sent.agent_id for sent in harness.sent] == ["c", "b"]


def test_who_asks_an_agent_that_has_crashed_is_told_so() -> None:
    """Not that time has passed: none did."""
    with AgentHarness(Counter) as harness:
        harness.crash()
        with pytest.raises(ProcessTimeoutError, match=r"has crashed in this test.*call restart\(\)"):
            harness.ask("total", message_id="m")
        with pytest.raises(DidNotHappenError, match=r"call restart\(\)"):
            harness.run_until("never")
        harness.restart()
        assert harness.is_running


@pytest.mark.parametrize("method", ["apply", "replay_events"])
def test_what_apply_raises_names_the_event(method: str) -> None:
    """When it is emitted, and at each replay, in the reason that operators read."""

    class Emits:
        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            await ctx.emit("odd", {})
            await ctx.sleep(3600)

    def fail(self: object, given: object) -> None:
        raise KeyError("nope")

    broken = type("Broken", (Emits,), {method: fail})
    with AgentHarness(Emits) as harness:
        harness.run_until("odd")
        harness.advance(1)
        harness.crash()
        with pytest.raises(AgentFailedError) as caught:
            harness.restart(broken)
        where = "apply raised on event 'odd', version 2" if method == "apply" else "replay_events raised on 1 events"
        assert where in str(caught.value)
        assert harness.info.last_error == f"start failed: {where}: KeyError: 'nope'"
    if method == "apply":
        said = "apply raised on event 'odd', version 2: 'nope'"
        with AgentHarness(broken) as harness, pytest.raises(AgentFailedError, match=said):
            harness.advance(1)


def test_simulated_time_begins_when_the_test_says() -> None:
    """For code that asks the machine; a moment without a zone is none."""

    class Quiet:
        """Does nothing."""

        def __init__(self, agent_id: str) -> None: ...

    noon = datetime(2031, 5, 6, 12, tzinfo=UTC)
    with AgentHarness(Quiet, begins=noon) as harness:
        harness.advance("1h")
        assert harness.all_events[0].time == noon
        harness.restart()
        assert harness.all_events[-1].time == noon + timedelta(hours=1)
    with pytest.raises(InvalidSettingError, match=r"begins.*zone"):
        AgentHarness(Quiet, begins=datetime(2031, 5, 6, 12))  # noqa: DTZ001 - the point of it
