"""Faults in simulated time: what the agent under test feels, for how long, and what comes after."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
from typing_extensions import override

from ares_celery import (
    AgentContext,
    AgentFailedError,
    AgentParkedError,
    Event,
    FaultNotFoundError,
    InvalidSettingError,
    MCPConnectionLostError,
    SyncAgentContext,
    ToolTimeoutError,
    mcp_server,
    tool,
)
from ares_celery.model.fault import FaultKind, Injection
from ares_celery.runtime.outcome import Noop
from ares_celery.testing import AgentHarness


class WikiSession:
    """Stands for the session of a library."""

    async def call_tool(self, name: str) -> str:
        if name == "hang":
            await asyncio.Event().wait()
        return f"{name}!"


@mcp_server("faults-wiki")
def faults_wiki() -> WikiSession:
    """Replaced in each test."""
    raise AssertionError


@tool("faults-look", replay="safe")
async def look(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)  # on purpose: simulated time
    return "seen"


@tool("faults-pay", replay="never")
async def pay(seconds: float) -> str:
    """Must not be done twice."""
    await asyncio.sleep(seconds)  # on purpose: simulated time
    return "paid"


async def think(what: str) -> str:
    """A step."""
    return what


async def work(seconds: float) -> str:
    """A step that takes its time."""
    await asyncio.sleep(seconds)  # on purpose: simulated time
    return "done"


async def ask_a_model(ctx: AgentContext) -> int:
    """The status of an answer."""
    library: Any = importlib.import_module("httpx2" if importlib.util.find_spec("httpx2") else "httpx")

    def answer(_: object) -> Any:
        return library.Response(200, json={})

    client = ctx.llm_http_client(transport=library.MockTransport(answer))
    return int((await client.post("http://provider/v1/messages")).status_code)


class Keeps:
    """What both colours share: it counts what it was told to count."""

    def __init__(self, agent_id: str) -> None:
        self.counted = 0
        self.caught: list[str] = []

    def apply(self, event: Event) -> None:
        """Folds."""
        if event.type == "counted":
            self.counted += 1

    def snapshot(self) -> dict[str, Any]:
        """All of it."""
        return {"counted": self.counted}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """As it was."""
        self.counted = state["counted"]


class Doer(Keeps):
    """Does what a message says."""

    async def process(self, ctx: AgentContext, message: str) -> Any:  # noqa: PLR0911 - a table of what it can do
        """Gives what it did."""
        what, _, rest = message.partition(" ")
        match what:
            case "count":
                await ctx.emit("counted")
                return self.counted
            case "work":
                return await ctx.step("work", work, 3)
            case "answer":
                await asyncio.sleep(3)  # on purpose: simulated time
                return message
            case "later":
                await asyncio.sleep(3)  # on purpose: simulated time
                await ctx.emit("counted")
                return self.counted
            case "step":
                return await ctx.step(rest, think, rest)
            case "look" | "pay":
                return await self._guarded(ctx.tool(f"faults-{what}")(float(rest)))
            case "wiki":
                return await self._guarded(ctx.mcp("faults-wiki").call_tool(rest))
            case "snapshot":
                return await ctx.snapshot()
            case "ask":
                return await ask_a_model(ctx)
            case _:
                return message

    async def _guarded(self, call: Any) -> Any:
        try:
            return await call
        except (MCPConnectionLostError, ToolTimeoutError) as error:
            return type(error).__name__


class PlainDoer(Keeps):
    """The same, plain."""

    def process(self, ctx: SyncAgentContext, message: str) -> Any:  # noqa: PLR0911 - a table of what it can do
        """As above."""
        what, _, rest = message.partition(" ")
        try:
            match what:
                case "count":
                    ctx.emit("counted")
                    return self.counted
                case "work":
                    return ctx.step("work", ctx.sleep, 3)
                case "answer":
                    ctx.sleep(3)
                    return message
                case "later":
                    ctx.sleep(3)
                    ctx.emit("counted")
                    return self.counted
                case "step":
                    return ctx.step(rest, str, rest)
                case "wiki":
                    return ctx.mcp("faults-wiki").call_tool(rest)
                case "snapshot":
                    return ctx.snapshot()
                case _:
                    return message
        except MCPConnectionLostError as error:
            return type(error).__name__


COLOURS = pytest.mark.parametrize("kind", [Doer, PlainDoer], ids=["async", "plain"])


def harness(kind: type[Any]) -> AgentHarness:
    """One with a server."""
    return AgentHarness(kind, mcp={"faults-wiki": WikiSession()}, settings={"lease_ttl": "8s"})


@COLOURS
@pytest.mark.spec(136)
@pytest.mark.spec(140)
def test_a_slow_agent_waits_before_each_message_and_step_until_it_is_healed(kind: type[Any]) -> None:
    """Felt by the next call; a wait ends early when the agent is asked to stop, or healed, or the fault is over."""
    with harness(kind) as one:
        one.inject("slow", delay=3, duration="1h")
        assert (one.ask("echo"), one.now) == ("echo", 3)
        assert (one.ask("step a"), one.now) == ("a", 9)
        one.heal("slow")
        assert (one.ask("step b"), one.now) == ("b", 9)
        one.inject("slow", delay=50)
        one.inject("slow", delay=40, duration=5)
        assert [fault.delay for fault in one.faults] == [40]
        assert (one.ask("echo"), round(one.now, 1)) == ("echo", 14)
        one.advance(1)
        assert one.faults == ()
        assert [event.payload["by"] for event in one.all_events if event.type == "fault.ended"] == ["replaced", "time"]
        one.inject("slow", delay="30m", duration="1h")
        one.send("step c")
        began = one.now
        one.stop()
        assert one.now - began < 5
        assert one.info.state == "stopped"


@COLOURS
@pytest.mark.spec(136)
def test_a_paused_agent_answers_nothing_before_it_is_resumed(kind: type[Any]) -> None:
    """Felt by the next message; it waits, and is handled then."""
    with harness(kind) as one:
        one.pause()
        one.send("count")
        one.advance("1h")
        assert (one.info.paused, one.events) == (True, [])
        one.resume()
        one.run_until("counted")
        assert (one.info.restarts, one.agent.counted) == (0, 1)


@COLOURS
def test_what_is_done_to_an_agent_and_not_to_its_incarnation_outlives_deaths(kind: type[Any]) -> None:
    """The next incarnation feels it from its first call on, and no longer than the fault lasts."""
    with harness(kind) as one:
        one.inject("slow", delay=3, duration="1m")
        one.crash()
        one.restart()
        assert one.info.incarnation == 2
        began = one.now
        one.ask("echo")
        assert one.now - began == 3
        one.advance("1m")
        began = one.now
        one.ask("echo")
        assert one.now == began


@COLOURS
def test_a_seed_says_which_calls_are_affected_and_a_count_how_many(kind: type[Any]) -> None:
    """The same seed, the same calls; after the last of the count the fault is over, and says so."""

    def delays(seed: int) -> list[float]:
        with harness(kind) as one:
            one.inject("slow", delay=1, duration="1h", probability=0.5, count=3, seed=seed)
            found: list[float] = []
            for _ in range(12):
                began = one.now
                one.ask("echo")
                found.append(one.now - began)
            assert one.faults == ()
            assert [event.payload["by"] for event in one.all_events if event.type == "fault.ended"] == ["count"]
            return found

    assert delays(7) == delays(7)
    assert sorted(delays(7)) == [0] * 9 + [1] * 3


@pytest.mark.spec(136)
def test_a_call_of_a_tool_is_cut_off_and_what_must_not_run_twice_waits_for_a_person() -> None:
    """The shorter of both limits; a call that is quick enough goes through."""
    with harness(Doer) as one:
        one.inject("tool_timeout", timeout=2, duration="1h")
        assert (one.ask("look 1"), one.now) == ("seen", 1)
        assert (one.ask("look 9"), one.now) == ("ToolTimeoutError", 3)
        one.heal()
        assert one.ask("look 9.5") == "seen"
        one.inject("tool_timeout", timeout=2)
        with pytest.raises(AgentParkedError):
            one.ask("pay 9")
        assert (one.info.state, one.info.cause) == ("parked", "reconcile")
        assert [event.payload["step"] for event in one.all_events if event.type == "step.started"] != []


#: A call that each kind disturbs, what it comes to then, and what it comes to else.
DISTURBED: dict[str, tuple[dict[str, Any], str]] = {
    "slow": ({"delay": 3}, "echo"),
    "tool_timeout": ({"timeout": 0.5}, "look 1"),
    "partition": ({}, "echo"),
    "memory": ({}, "count"),
    "mcp": ({}, "wiki a"),
    "llm": ({"error_type": "auth"}, "ask"),
}
needs_http = pytest.mark.skipif(
    not any(importlib.util.find_spec(name) for name in ("httpx2", "httpx")),
    reason="neither httpx2 nor httpx is installed",
)


@pytest.mark.spec(139)
@pytest.mark.parametrize("ends", ["healed", "by time"])
@pytest.mark.parametrize("kind", [pytest.param(one, marks=needs_http) if one == "llm" else one for one in DISTURBED])
def test_when_a_fault_is_healed_or_over_calls_succeed_again(kind: str, ends: str) -> None:
    """As they did before it, in the same incarnation; the list shows it for as long as it is active."""
    given, what = DISTURBED[kind]

    def calls(one: AgentHarness) -> tuple[Any, float]:
        began = one.now
        return one.ask(what), one.now - began

    with harness(Doer) as one:
        before = calls(one)
        fault = one.inject(kind, duration="6s", **given)
        assert list(one.faults) == [fault]
        if kind in ("slow", "tool_timeout", "mcp", "llm"):
            assert calls(one) != before
            assert list(one.faults) == [fault]
        if ends == "healed":
            assert one.heal() == (fault,)
        else:
            one.advance("6.1s")
        assert not list(one.faults)
        told = [(event.type, event.payload.get("by")) for event in one.all_events if event.type.startswith("fault.")]
        assert told[1:] == [("fault.healed", None) if ends == "healed" else ("fault.ended", "time")]
        after = calls(one)
        assert after == (before if kind != "memory" else (before[0] + 1, before[1]))
        assert (one.info.incarnation, one.info.degraded) == (1, "")


@COLOURS
@pytest.mark.spec(136)
@pytest.mark.pain("P37")
def test_an_agent_without_its_server_is_degraded_for_as_long_as_the_fault_lasts(kind: type[Any]) -> None:
    """Ten minutes: it answers all the time, nothing is charged, and then it calls the server again."""
    with harness(kind) as one:
        assert one.ask("wiki a") == "a!"
        one.inject("mcp", duration="10m")
        for _ in range(3):
            assert one.ask("wiki b") == "MCPConnectionLostError"
            assert one.ask("count") > 0
            assert "MCP server 'faults-wiki' is not connected: it is cut off on purpose" in one.info.degraded
            one.advance("3m")
        one.advance("2m")
        assert one.ask("wiki c") == "c!"
        assert (one.info.degraded, one.info.incarnation, one.info.restarts, one.info.charged) == ("", 1, 0, 0)
        told = [event.type for event in one.all_events if event.type.startswith("mcp.")]
        assert told == ["mcp.disconnected", "mcp.connected"]


@pytest.mark.spec(136)
def test_a_call_that_waits_for_a_server_ends_with_the_connection() -> None:
    """Without a call of its own the agent learns of the fault."""
    with harness(Doer) as one:
        one.send("wiki hang", message_id="m")
        one.advance(5)
        one.inject("mcp", server="faults-wiki")
        one.advance(0)
        assert one.info.degraded.startswith("MCP server 'faults-wiki' is not connected: it was closed during the call")
        assert one.ask("count") == 1


@COLOURS
@pytest.mark.spec(136)
def test_a_corrupt_memory_ends_the_instance_and_its_events_bring_it_back(kind: type[Any]) -> None:
    """The damaged snapshot is noticed and passed over; nothing acknowledged is lost; the death says why."""
    with harness(kind) as one:
        assert [one.ask("count") for _ in range(3)] == [1, 2, 3]
        one.ask("snapshot")
        assert one.ask("count") == 4
        one.inject("memory", seed=3)
        assert one.snapshots == []
        with pytest.raises(AgentFailedError, match="MemoryCorruptedError: the memory of agent 'a' was corrupted"):
            one.send("count")
        one.restart()
        assert (one.info.incarnation, one.info.deaths) == (2, {"crash": 1})
        one.run_until("counted", count=5)
        assert one.agent.counted == 5, "the message that met the fault is handled by the next incarnation"
        (damaged,) = [event.payload for event in one.all_events if event.type == "snapshot.damaged"]
        assert damaged["place"] == "namespace"
        (died,) = [event.payload["reason"] for event in one.all_events if event.type == "agent.stopped"]
        assert died.startswith("MemoryCorruptedError: ")
        assert one.ask("count") == 6, "the fault was on the incarnation that has died of it"


class Injects(Keeps):
    """A fault comes while its state is taken, of which its process does not know yet."""

    due: ClassVar[list[Callable[[], object]]] = []

    @override
    def snapshot(self) -> dict[str, Any]:
        """All of it."""
        while Injects.due:
            Injects.due.pop()()
        return super().snapshot()


class InjectsDoer(Injects, Doer):
    """Awaited."""


class InjectsPlainDoer(Injects, PlainDoer):
    """Plain."""


@pytest.mark.parametrize("kind", [InjectsDoer, InjectsPlainDoer], ids=["async", "plain"])
@pytest.mark.parametrize("ends", [False, True], ids=["asked", "at its end"])
@pytest.mark.parametrize("elsewhere", [False, True], ids=["namespace", "own store"])
def test_a_snapshot_that_is_under_way_when_the_memory_is_corrupted_is_not_stored(
    kind: type[Any], *, ends: bool, elsewhere: bool
) -> None:
    """The store refuses it before the process has heard of the fault, and the instance dies of that: a crash."""
    own = Shelf()
    with AgentHarness(kind, snapshot_store=own if elsewhere else None) as one:
        assert [one.ask("count") for _ in range(2)] == [1, 2]
        assert one.ask("snapshot") is True
        assert one.ask("count") == 3
        before = dict(own.states)
        injection = Injection.of("a", FaultKind.MEMORY, seed=3)
        Injects.due.append(lambda: one._bench.store.inject(injection, allowed=True, op="f", reason="", actor=""))
        if ends:
            one.stop()
        else:
            with pytest.raises(AgentFailedError, match=r"MemoryCorruptedError: the memory of agent 'a' .*fault f"):
                one.ask("snapshot")
        assert one.snapshots == []
        assert own.states == before
        one.restart()
        assert one.agent.counted == 3, "nothing that was acknowledged is lost"
        kinds = [event.type for event in one.all_events]
        assert kinds.count("snapshot.damaged") == (0 if elsewhere else 1)
        assert one.ask("snapshot") is True, "the next incarnation's memory is whole"


class Shelf:
    """A snapshot store of a user's own."""

    def __init__(self) -> None:
        self.states: dict[str, Mapping[str, Any]] = {}

    def save(self, agent_id: str, state: Mapping[str, Any]) -> None:
        """Keeps the newest."""
        self.states[agent_id] = dict(state)

    def load(self, agent_id: str) -> Mapping[str, Any] | None:
        """The newest."""
        return self.states.get(agent_id)

    def delete(self, agent_id: str) -> None:
        """Forgets it."""
        self.states.pop(agent_id, None)


@COLOURS
@pytest.mark.spec(136)
@pytest.mark.spec(52)
def test_a_partition_outlasts_the_lease_and_the_old_incarnation_is_fenced(kind: type[Any]) -> None:
    """The agent goes on in another process; when it is over, nothing of what the old one tries is stored."""
    with harness(kind) as one:
        assert one.ask("count") == 1
        old = one.agent
        one.send("later")
        one.inject("partition", duration="1m")
        one.send("count", message_id="m")
        one.advance(7)
        assert (one.info.incarnation, one.info.state) == (1, "running")
        assert (old.counted, len(one.events)) == (1, 1), "it stores nothing, and what is sent does not reach it"
        one.advance(5)
        assert (one.info.incarnation, one.info.state, dict(one.info.deaths)) == (2, "running", {"lost": 1})
        assert one.agent is not old
        one.run_until("counted", count=3)
        before = len(one.all_events)
        one.advance("2m")
        assert one._bench._processes[0].outcome == Noop("fenced")
        assert [event.type for event in one.all_events[before:]] == ["fault.ended"]
        assert one.ask("count") == 4
        assert (old.counted, one.agent.counted) == (1, 4)
        epochs = [event.epoch for event in one.events]
        assert epochs == sorted(epochs)
        assert [event.payload["by"] for event in one.all_events if event.type == "fault.ended"] == ["time"]


@COLOURS
def test_whatever_an_agent_that_is_cut_off_has_done_is_recorded_when_it_is_over(kind: type[Any]) -> None:
    """Each of its calls of the store fails, the record of a step too, which waits as in an outage."""
    with harness(kind) as one:
        one.send("work", message_id="w")
        one.inject("partition", duration=6)
        one.send("count", message_id="m")
        one.advance(5)
        assert one.steps("msg:w") == {}
        one.advance(2)
        assert list(one.steps("msg:w")) == ["work"]
        assert (len(one.events), one.info.incarnation) == (1, 1)


@COLOURS
def test_an_answer_of_whoever_is_cut_off_comes_when_it_is_over(kind: type[Any]) -> None:
    """Or, had its lease run out, from the next incarnation: it stores no reply meanwhile."""
    with harness(kind) as one:
        one.send("answer", message_id="m")
        one.inject("partition", duration=6)
        one.advance(5)
        left = one._bench.store.inbox(one._bench.agent_id, limit=9)
        assert [message.message_id for message in left] == ["m"]
        one.advance(2)
        assert one._bench.store.inbox(one._bench.agent_id, limit=9) == ()


@COLOURS
def test_an_agent_that_ends_while_it_is_cut_off_is_over_when_the_partition_is(kind: type[Any]) -> None:
    """The store hears of its end afterwards; what it had begun is handed back, not counted as met by a death."""
    with harness(kind) as one:
        one.send("later", message_id="l")
        one.inject("partition", duration=6)
        process = one._bench.process
        assert process is not None
        process.host.drain()
        one.advance(5)
        assert (one.is_running, one.info.state) == (True, "running")
        one.advance(2)
        assert (one.is_running, one.info.state) == (False, "starting")
        left = one._bench.store.inbox(one._bench.agent_id, limit=9)
        assert [message.message_id for message in left] in ([], ["l"])


@COLOURS
def test_a_partition_that_is_healed_before_the_lease_runs_out_costs_nothing(kind: type[Any]) -> None:
    """Calls waited, as in an outage, and go on."""
    with harness(kind) as one:
        one.inject("partition")
        one.send("count")
        one.advance(5)
        assert one.events == []
        one.heal()
        one.run_until("counted")
        one.advance("1h")
        assert (one.info.incarnation, one.info.restarts) == (1, 0)


@pytest.mark.spec(140)
def test_of_several_faults_the_first_by_precedence_is_felt_and_then_the_next() -> None:
    """A call waits for the partition, then dies of the memory; an MCP fault comes before the delay of slow ones."""
    with harness(Doer) as one:
        one.inject("slow", delay=1)
        one.inject("llm")
        one.inject("mcp")
        one.inject("memory")
        one.inject("partition", duration=4)
        kinds = [fault.kind.value for fault in one.faults]
        assert kinds == ["partition", "memory", "mcp", "llm", "slow"]
        one.send("wiki a")
        one.advance(3)
        assert one.is_running
        with pytest.raises(AgentFailedError, match="MemoryCorruptedError"):
            one.advance(2)
        one.restart()
        began = one.now
        one.run_until("mcp.disconnected")
        assert one.now - began == 1, "slow before the message; the call is cut off and waits for nothing"
        assert [fault.kind.value for fault in one.faults] == ["mcp", "llm", "slow"], "its incarnation is over"


def test_an_agent_that_has_only_snapshots_and_loses_them_waits_for_a_person() -> None:
    """It folds no events: there is nothing to come back from, and nobody makes something up."""

    class Noted:
        def __init__(self, agent_id: str) -> None:
            self.words: list[str] = []

        async def process(self, ctx: AgentContext, message: str) -> int:
            self.words.append(message)
            await ctx.snapshot()
            return len(self.words)

        def snapshot(self) -> dict[str, Any]:
            return {"words": self.words}

        def restore_state(self, state: Mapping[str, Any]) -> None:
            self.words = list(state["words"])

    with AgentHarness(Noted) as one:
        assert one.ask("a") == 1
        one.inject("memory")
        with pytest.raises(AgentFailedError):
            one.send("b")
        with pytest.raises(AgentParkedError):
            one.restart()
        assert one.info.cause == "integrity"


def test_a_kind_has_several_names() -> None:
    """As the commands say, or as the actions of scenarios; what is no fault is refused when healed, too."""
    with AgentHarness(Keeps) as one:
        assert one.inject("disconnect-mcp").kind is FaultKind.MCP
        assert one.inject("slow_agent", delay=1).kind is FaultKind.SLOW
        assert [fault.kind.value for fault in one.heal("mcp-disconnect")] == ["mcp"]
        for word in ("kill", "blah"):
            with pytest.raises(FaultNotFoundError, match=word):
                one.heal(word)
        assert [fault.kind.value for fault in one.faults] == ["slow"]


def test_a_kind_that_nobody_knows_is_refused() -> None:
    """With those that there are; nothing is injected."""

    class Idle:
        def __init__(self, agent_id: str) -> None: ...

        async def process(self, ctx: AgentContext, message: Any) -> Any:
            return message

    with AgentHarness(Idle) as harness:
        with pytest.raises(InvalidSettingError, match=r"kind='slo'.*partition, memory, mcp, llm, slow, tool_timeout"):
            harness.inject("slo")
        assert harness.faults == ()
