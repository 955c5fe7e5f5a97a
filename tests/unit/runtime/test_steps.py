"""Steps of agents run once for their id, whatever dies; real host, real store in memory, manual clock."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typing_extensions import override

from ares_celery.agents.secrets import SECRETS, StoredPlace
from ares_celery.agents.steps import step
from ares_celery.agents.tools import tool
from ares_celery.errors import (
    AgentFailedError,
    AgentParkedError,
    ExecutionStateError,
    InvalidExecutionIdError,
    InvalidSettingError,
    InvalidStepIdError,
    SecretsHookError,
    StepFailedError,
    StepIdReusedError,
    StepRejectedError,
    StepResultTooLargeError,
    StepSignatureError,
    StepTimeoutError,
    StoreUnavailableError,
    ToolError,
    UnserialisableError,
)
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentState
from ares_celery.model.execution import ExecutionState
from ares_celery.testing import AgentHarness

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


async def fetch(what: str) -> dict[str, Any]:
    """Safe."""
    RAN.append(f"fetch {what}")
    return {"got": what}


def plain(what: str) -> str:
    """Safe, and plain."""
    RAN.append(f"plain {what}")
    return what.upper()


@step(replay="keyed")
async def charge(order: str, idempotency_key: str = "") -> str:
    """Keyed."""
    RAN.append(f"charge {order} {idempotency_key}")
    return f"paid {order}"


@step(replay="never")
async def mail(to: str) -> str:
    """Never twice."""
    RAN.append(f"mail {to}")
    return f"told {to}"


@tool("st-refund", replay="keyed")
def refund(order: str, idempotency_key: str = "") -> str:
    """A keyed tool."""
    RAN.append(f"refund {order} {idempotency_key}")
    return f"refunded {order}"


@tool("st-look", replay="safe")
async def look(what: str) -> str:
    """A safe tool."""
    RAN.append(f"look {what}")
    return what


class Worker:
    """Async: does four things in its main loop."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: Any) -> Any:
        one = await ctx.step("fetch", fetch, "a")
        two = await ctx.step("plain", plain, "b")
        three = await ctx.step("charge", charge, "o-1")
        four = await ctx.step("mail", mail, "eve")
        return [one, two, three, four]


class PlainWorker:
    """Plain: the same."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: Any) -> Any:
        one = ctx.step("fetch", fetch, "a")
        two = ctx.step("plain", plain, "b")
        three = ctx.step("charge", charge, "o-1")
        four = ctx.step("mail", mail, "eve")
        return [one, two, three, four]


DONE = [{"got": "a"}, "B", "paid o-1", "told eve"]


@pytest.mark.parametrize("agent", [Worker, PlainWorker])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_was_recorded_is_not_run_again_after_a_death(agent: type[Any], count: int) -> None:
    """Whichever step it was; the effect of the one at hand may come twice, with the same key."""
    with AgentHarness(agent) as harness:
        harness.crash(before="step.completed", count=count)
        harness.restart()
        harness.run_until(lambda: harness.info.state.value == "completed")
        assert harness.info.result == DONE
        names = [line.split(" ", 1)[0] for line in RAN]
        twice = ["fetch", "plain", "charge"][count - 1]
        assert names == ["fetch", "plain", "charge", "mail"][:count] + names[count:]
        assert names.count(twice) == 2
        assert len(names) == 5
        assert len({line for line in RAN if line.startswith("charge")}) == 1, "one key in both lives"
        assert list(harness.steps().values()) == DONE


def made(
    body: Callable[[Any], Awaitable[Any]], handle: Callable[[Any, Any], Awaitable[Any]] | None = None
) -> type[Any]:
    """An async agent's class with this main loop, and perhaps this handling of messages."""

    class Made:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        async def start(self, ctx: Any) -> Any:
            return await body(ctx)

    if handle is not None:

        async def process(self: Any, ctx: Any, message: Any) -> Any:
            return await handle(ctx, message)

        Made.process = process  # type: ignore[attr-defined]
    return Made


def completed(harness: AgentHarness) -> Any:
    """Runs it to its end; what it returned."""
    harness.run_until(lambda: harness.info.state is AgentState.COMPLETED, timeout=600)
    return harness.info.result


def types(harness: AgentHarness) -> list[str]:
    """The runtime's events about steps and executions, in order."""
    return [event.type for event in harness.all_events if event.type.startswith(("step.", "execution."))]


@pytest.mark.pain("P23")
def test_reordered_code_takes_over_what_was_recorded() -> None:
    """New code calls the same steps in another order and between new ones: nothing of the old ones is run again."""

    async def old(ctx: Any) -> Any:
        first = await ctx.step("a", fetch, "a")
        second = await ctx.step("b", charge, "b")
        third = await ctx.tool("st-refund")("c")
        await ctx.sleep(60)
        return [first, second, third]

    async def new(ctx: Any) -> Any:
        third = await ctx.tool("st-refund")(order="c")
        between = await ctx.step("new", plain, "x")
        second = await ctx.step("b", charge, "b")
        first = await ctx.step("a", fetch, "a")
        return [first, second, third, between]

    with AgentHarness(made(old)) as harness:
        harness.advance(1)
        assert [line.split()[0] for line in RAN] == ["fetch", "charge", "refund"]
        harness.crash()
        harness.restart(made(new))
        assert completed(harness) == [{"got": "a"}, "paid b", "refunded c", "X"]
        assert [line.split()[0] for line in RAN] == ["fetch", "charge", "refund", "plain"]


@pytest.mark.pain("P20")
@pytest.mark.pain("P23")
def test_a_changed_step_is_refused_and_its_agent_parks_until_the_code_fits_again() -> None:
    """With an event that names both functions; nothing is run, no restart is used up; `formerly` takes it over."""

    async def old(ctx: Any) -> Any:
        await ctx.step("a", fetch, "a")
        await ctx.sleep(60)

    async def changed(ctx: Any) -> Any:
        return await ctx.step("a", plain, "a")

    async def says_so(ctx: Any) -> Any:
        return await ctx.step.with_options(formerly=["fetch"])("a", plain, "a")

    with AgentHarness(made(old)) as harness:
        harness.advance(1)
        harness.crash()
        harness.restart(made(changed))
        harness.run_until(lambda: harness.info.state is AgentState.PARKED)
        assert (harness.info.cause, harness.info.charged) == ("step_changed", 1), "the crash alone was charged"
        assert "'fetch'" in harness.info.reason
        assert "'plain'" in harness.info.reason
        refused = harness.all_events[-2]
        assert refused.type == "step.refused"
        assert (refused.payload["recorded"], refused.payload["function"]) == ("fetch", "plain")
        harness._bench.use(harness._bench.record.spec.type, made(says_so))
        harness._bench.manager.unpark_agent("a", actor="test")
        harness._bench.bring_up()
        assert completed(harness) == {"got": "a"}
        assert RAN == ["fetch a"]
        assert types(harness)[-2:] == ["step.migrated", "execution.completed"]


def test_a_changed_step_in_a_message_leaves_the_message_for_other_code() -> None:
    """It is not answered with the error, and goes on once the function is back."""

    async def idle(ctx: Any) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(60)

    async def old(ctx: Any, message: Any) -> Any:
        await ctx.step("a", fetch, message)
        await ctx.sleep(60)
        return "old"

    async def changed(ctx: Any, message: Any) -> Any:
        return await ctx.step("a", plain, message)

    with AgentHarness(made(idle, old)) as harness:
        harness.send("m")
        harness.advance(1)
        harness.crash()
        harness.restart(made(idle, changed))
        harness.run_until(lambda: harness.info.state is AgentState.PARKED)
        assert harness.info.cause == "step_changed"
        assert RAN == ["fetch m"]


class Leaver:
    """Its first life makes a step of a message and does not answer it; later ones answer without a step."""

    def __init__(self, agent_id: str, *, waits: bool, fails: bool) -> None:
        self.waits, self.fails = waits, fails

    async def process(self, ctx: Any, message: Any) -> str:
        if ctx.incarnation == 1:
            await ctx.step("a", fetch, message)
            if self.waits:
                await ctx.sleep_until(datetime(2026, 1, 3, tzinfo=UTC), release_slot=True)
            while True:
                await ctx.sleep(3_600)
        return self.answer()

    def answer(self) -> str:
        if self.fails:
            raise ValueError("no")
        return "done"


class PlainLeaver(Leaver):
    """The same, plain."""

    @override
    def process(self, ctx: Any, message: Any) -> str:  # type: ignore[override]
        if ctx.incarnation == 1:
            ctx.step("a", plain, message)
            if self.waits:
                ctx.sleep_until(datetime(2026, 1, 3, tzinfo=UTC), release_slot=True)
            while True:
                ctx.sleep(3_600)
        return self.answer()


@pytest.mark.parametrize("kind", [Leaver, PlainLeaver])
@pytest.mark.parametrize("end", ["drain", "stop", "crash", "wait"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_message_that_is_handled_again_without_steps_ends_its_execution(
    kind: type[Leaver], end: str, *, fails: bool
) -> None:
    """However the first handling came to its end: nothing stays unfinished in the list of executions."""
    with AgentHarness(kind, config={"waits": end == "wait", "fails": fails}) as harness:
        harness.send("m", message_id="m-1")
        harness.advance(1)
        assert len(RAN) == 1
        if end == "wait":
            harness.advance(timedelta(days=3))
        else:
            getattr(harness, end)()
            assert (harness._bench.record.executions, RAN[1:]) == (1, [])
            harness.restart()
        harness.advance(2)
        ended = [one for one in harness.all_events if one.type in {"execution.completed", "execution.failed"}]
        told = "execution.failed" if fails else "execution.completed"
        assert [(one.type, one.payload["execution"]) for one in ended] == [(told, "msg:m-1")]
        assert harness._bench.record.executions == 0
        assert len(RAN) == 1


def test_an_id_names_one_step_and_nested_ones_have_those_around_them_in_front() -> None:
    """Twice is refused with the cure, parallel ones are fine, an inner step is recorded by itself."""

    async def outer(ctx: Any) -> Any:
        return [await ctx.step("inner", fetch, "i"), await ctx.step("other", plain, "j")]

    async def body(ctx: Any) -> Any:
        both = await asyncio.gather(*(ctx.step(f"fetch:{n}", fetch, str(n)) for n in range(3)))
        nested = await ctx.step("outer", outer, ctx)
        with pytest.raises(StepIdReusedError, match="put the index in the id"):
            await ctx.step("outer", outer, ctx)
        with pytest.raises(InvalidStepIdError):
            await ctx.step("", fetch, "x")
        with pytest.raises(TypeError, match="without calling it"):
            await ctx.step("called", 7)
        return [both, nested]

    with AgentHarness(made(body)) as harness:
        assert completed(harness) == [[{"got": "0"}, {"got": "1"}, {"got": "2"}], [{"got": "i"}, "J"]]
        assert sorted(harness.steps()) == ["fetch:0", "fetch:1", "fetch:2", "outer", "outer/inner", "outer/other"]


def test_a_step_that_raised_may_be_used_again_and_inner_ones_are_not_repeated() -> None:
    """Also by its own retries: an inner step that was recorded is returned in the next try."""
    tries: list[int] = []

    async def flaky(ctx: Any) -> Any:
        got = await ctx.step("inner", fetch, "i")
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("away")
        return got

    async def body(ctx: Any) -> Any:
        with pytest.raises(ConnectionError):
            await ctx.step("flaky", flaky, ctx)
        began = ctx._clock.monotonic()
        got = await ctx.step.with_options(retries=2)("flaky", flaky, ctx)
        return [got, ctx._clock.monotonic() - began]

    with AgentHarness(made(body)) as harness:
        assert completed(harness) == [{"got": "i"}, 1.0]
        assert RAN == ["fetch i"]
        expected = ["step.completed", "step.failed", "step.failed", "step.recovery.started", "step.completed"]
        assert types(harness)[:6] == [*expected, "step.recovery.completed"]
        failed = [event.payload for event in harness.all_events if event.type == "step.failed"]
        assert [one["will_retry"] for one in failed] == [False, True]
        assert failed[0]["problem"] == "ConnectionError: away"
        assert harness.steps()["flaky"] == {"got": "i"}


def test_retries_wait_longer_each_time_and_end_with_the_error() -> None:
    """1, 2, 4 … 30 seconds; the last error is raised, as it is, and nothing is recorded."""
    at: list[float] = []

    async def never_there(ctx: Any) -> None:
        at.append(ctx._clock.monotonic())
        raise LookupError("no")

    async def body(ctx: Any) -> Any:
        with pytest.raises(LookupError):
            await ctx.step.with_options(retries=7)("x", never_there, ctx)

    with AgentHarness(made(body)) as harness:
        completed(harness)
        assert [round(b - a) for a, b in itertools.pairwise(at)] == [1, 2, 4, 8, 16, 30, 30]
        assert types(harness)[-1:] == ["execution.completed"]
        assert types(harness)[-2] == "step.recovery.failed"
        assert harness.steps() == {}


def test_a_stop_ends_the_wait_for_a_retry_and_the_step_comes_again() -> None:
    """In order, with nothing recorded."""

    async def body(ctx: Any) -> Any:
        await ctx.step.with_options(retries=9)("x", failing, "x")

    with AgentHarness(made(body)) as harness:
        harness.advance(0.5)
        harness.stop()
        assert harness.info.state is AgentState.STOPPED
        assert len(RAN) == 1


async def failing(what: str) -> None:
    """Raises."""
    RAN.append(f"failing {what}")
    raise ValueError(what)


class Failing:
    """Async: makes a step that must not run twice, and fails."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: Any) -> Any:
        found: list[str] = []
        try:
            await ctx.step.with_options(replay="never")("bad", failing, "x")
        except StepFailedError as error:
            found = [error.error_type, error.problem, type(error.__cause__).__name__]
        with suppress(StepFailedError):
            await ctx.step.with_options(replay="never")("exit", leaving)
        if ctx.incarnation == 1:
            await ctx.sleep(60)
        return found


class PlainFailing:
    """Plain: the same."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: Any) -> Any:
        found: list[str] = []
        try:
            ctx.step.with_options(replay="never")("bad", failing, "x")
        except StepFailedError as error:
            found = [error.error_type, error.problem, type(error.__cause__).__name__]
        with suppress(StepFailedError):
            ctx.step.with_options(replay="never")("exit", leaving)
        if ctx.incarnation == 1:
            ctx.sleep(60)
        return found


def leaving() -> None:
    """Ends as programs do."""
    raise SystemExit(3)


@pytest.mark.parametrize("agent", [Failing, PlainFailing])
def test_what_a_step_that_must_not_run_twice_raised_is_its_outcome_in_every_life_alike(agent: type[Any]) -> None:
    """StepFailedError from the first life on, so that `except` means the same; there what it raised is the cause."""
    with AgentHarness(agent) as harness:
        harness.advance(1)
        assert sorted(harness.steps()) == ["bad", "exit"]
        harness.crash()
        harness.restart()
        assert completed(harness) == ["ValueError", "x", "NoneType"], "of an earlier life only the words are there"
        assert RAN == ["failing x"]
        assert harness.info.intents == 0

    with AgentHarness(agent) as harness:
        harness.advance(61)
        assert harness.info.result == ["ValueError", "x", "ValueError"]


def unkept(kind: str) -> object:
    """Returns what cannot be recorded."""
    RAN.append(f"unkept {kind}")
    return {"odd": {1, 2}, "large": "x" * 2_000_000, "secret": "secret"}[kind]


class Unkept:
    """Async: makes a step whose result cannot be recorded."""

    def __init__(self, agent_id: str, kind: str = "odd", replay: str = "never") -> None:
        self.agent_id, self.kind, self.replay = agent_id, kind, replay

    async def start(self, ctx: Any) -> Any:
        return await ctx.step.with_options(replay=self.replay)("pay", unkept, self.kind)


class PlainUnkept:
    """Plain: the same."""

    def __init__(self, agent_id: str, kind: str = "odd", replay: str = "never") -> None:
        self.agent_id, self.kind, self.replay = agent_id, kind, replay

    def start(self, ctx: Any) -> Any:
        return ctx.step.with_options(replay=self.replay)("pay", unkept, self.kind)


def guarding(value: Any, place: StoredPlace) -> Any:
    """A secrets hook that fails on a result."""
    if place.what == "result":
        raise ValueError(value)
    return value


@pytest.mark.parametrize("agent", [Unkept, PlainUnkept])
@pytest.mark.parametrize(
    ("kind", "problem"),
    [("odd", "is a set"), ("large", "store it elsewhere"), ("secret", "the secrets hook failed")],
    ids=["no JSON", "too large", "the hook raised"],
)
def test_what_returned_and_cannot_be_recorded_asks_a_person_and_her_word_is_its_result(
    agent: type[Any], kind: str, problem: str
) -> None:
    """It is paid: no failure is recorded, nothing runs again, and the reason offers no repetition. Uncharged."""
    hook = guarding if kind == "secret" else None
    with SECRETS.override(hook), AgentHarness(agent, config={"kind": kind}) as harness:
        harness.run_until("agent.parked")
        info = harness.info
        assert (info.cause, info.intents, info.charged, harness.steps()) == ("reconcile", 1, 0, {})
        for part in (f'unkept("{kind}")', "it returned, and its result cannot be recorded: ", problem):
            assert info.reason.count(part) == 1
        assert "--done RESULT" in info.reason
        assert "--retry" not in info.reason
        assert "its code failed" not in info.reason
        harness.manager.reconcile_agent("a", done="paid", actor="ann")
        harness.restart()
        assert completed(harness) == "paid"
        assert len(RAN) == 1


@pytest.mark.parametrize("agent", [Unkept, PlainUnkept])
@pytest.mark.parametrize("kind", ["odd", "large", "secret"])
def test_a_step_that_may_run_again_and_whose_result_cannot_be_recorded_parks_at_once(
    agent: type[Any], kind: str
) -> None:
    """A restart would repeat the work and come to the same; the cure is said, and unparked code goes on."""
    hook = guarding if kind == "secret" else None
    with SECRETS.override(hook), AgentHarness(agent, config={"kind": kind, "replay": "safe"}) as harness:
        harness.run_until("agent.parked")
        info = harness.info
        assert (info.cause, info.charged, info.intents, RAN) == ("step_result", 0, 0, [f"unkept {kind}"])
        assert "'pay'" in info.reason
        with pytest.raises(AgentParkedError, match="deploy a function whose result can be recorded"):
            harness.ask("anything")


def test_a_result_that_cannot_be_recorded_parks_in_a_group_too() -> None:
    """Of tasks of the main loop."""

    async def body(ctx: Any) -> None:
        await ctx.sleep(10)
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.step("pay", unkept, "odd"))

    with AgentHarness(made(body)) as harness:
        harness.run_until("agent.parked")
        assert harness.info.cause == "step_result"


def test_a_result_that_cannot_be_recorded_in_a_message_is_the_answer_to_that_message() -> None:
    """One odd message does not stop an agent."""

    async def idle(ctx: Any) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(60)

    async def handle(ctx: Any, message: Any) -> Any:
        return await ctx.step("pay", unkept if message == "odd" else len, message)

    with AgentHarness(made(idle, handle)) as harness:
        with pytest.raises(AgentFailedError, match="is a set"):
            harness.ask("odd", message_id="m-1")
        assert harness.is_running
        assert harness.ask("even") == 4
        assert RAN == ["unkept odd"]


@pytest.mark.parametrize("agent", [Worker, PlainWorker])
def test_an_intent_without_outcome_is_never_run_again_silently(agent: type[Any]) -> None:
    """Killed between the effect and its record: the intent stays, with what it was called with."""
    with AgentHarness(agent) as harness:
        harness.crash(before="step.completed", count=4)
        with suppress(AgentParkedError, AgentFailedError):
            harness.restart()
            harness.advance(5)
        assert RAN.count("mail eve") == 1
        (intent,) = harness._bench.store.checkpoints.intents("a")
        assert (intent.execution, intent.step, intent.function) == ("main", "mail", "mail")
        assert (intent.arguments, intent.incarnation) == ({"args": ["eve"], "kwargs": {}}, 1)
        assert (harness.info.state, harness.info.cause, harness.info.charged) == (AgentState.PARKED, "reconcile", 1)
        harness.manager.reconcile_agent("a", done="said so", actor="ann")
        harness.restart()
        harness.advance(1)
        assert RAN.count("mail eve") == 1
        assert "said so" in str(harness.info.result)


def test_a_timeout_of_what_must_not_run_twice_leaves_its_intent_and_ends_the_incarnation() -> None:
    """Nobody knows what it did; of other steps nothing remains, and they are tried again."""
    noticed: list[str] = []

    async def slow(what: str) -> str:
        RAN.append(f"slow {what}")
        if len(RAN) < 3 or what == "never":
            await asyncio.Event().wait()
        return what

    async def body(ctx: Any) -> Any:
        assert await ctx.step.with_options(timeout=1, retries=2)("safe", slow, "safe") == "safe"
        try:
            await ctx.step.with_options(replay="never", timeout="1s")("never", slow, "never")
        except StepTimeoutError:
            noticed.append(f"{ctx.stop_requested} {ctx._incarnation.unsettled}")
            raise

    with AgentHarness(made(body)) as harness:
        harness.run_until(lambda: harness.info.state is not AgentState.RUNNING and noticed)
        assert noticed == ["True {('main', 'never'): ''}"]
        assert [line.split()[1] for line in RAN] == ["safe", "safe", "safe", "never"]
        assert (harness.info.intents, harness.info.cause, harness.info.charged) == (1, "reconcile", 0)


def test_retries_of_what_must_not_run_twice_are_refused_at_once() -> None:
    """Where it is declared, and where it is called."""
    with pytest.raises(InvalidSettingError, match="must not run twice"):
        step(replay="never", retries=1)

    async def body(ctx: Any) -> Any:
        with pytest.raises(InvalidSettingError, match="must not run twice"):
            await ctx.step.with_options(retries=1)("mail", mail, "eve")

    with AgentHarness(made(body)) as harness:
        completed(harness)
        assert RAN == []


def test_a_keyed_function_without_the_parameter_does_not_run() -> None:
    """The error names function, step and parameter."""

    async def body(ctx: Any) -> Any:
        with pytest.raises(StepSignatureError, match=r"'fetch' of step 'f' has no parameter 'idempotency_key'"):
            await ctx.step.with_options(replay="keyed")("f", fetch, "x")

    with AgentHarness(made(body)) as harness:
        completed(harness)
        assert RAN == []


def test_executions_finish_with_their_block_go_on_after_an_error_and_are_then_read_only() -> None:
    """A finished one returns what it has, and runs nothing new."""

    async def body(ctx: Any) -> Any:
        with suppress(ValueError):
            async with ctx.execution("order-1"):
                await ctx.step("a", fetch, "a")
                raise ValueError("half")
        async with ctx.execution("order-1") as again:
            assert (again.id, again.recorded, again.is_finished) == ("order-1", 1, False)
            await ctx.step("a", fetch, "a")
            await ctx.step("b", fetch, "b")
            with pytest.raises(ExecutionStateError, match="entered it already"):
                await ctx.execution("order-1").__aenter__()
        async with ctx.execution("order-1") as finished:
            assert finished.is_finished
            assert await ctx.step("b", fetch, "b") == {"got": "b"}
            with pytest.raises(ExecutionStateError, match="a new step is not run"):
                await ctx.step("c", fetch, "c")
        for reserved in ("main", "msg:1"):
            with pytest.raises(InvalidExecutionIdError, match="runtime's own"):
                async with ctx.execution(reserved):
                    pass

    with AgentHarness(made(body)) as harness:
        completed(harness)
        assert RAN == ["fetch a", "fetch b"]
        assert list(harness.steps("order-1")) == ["a", "b"]


@pytest.mark.spec(126)
@pytest.mark.parametrize("colour", ["async", "plain"])
def test_a_message_that_comes_again_after_a_death_has_its_keyed_effect_once(colour: str) -> None:
    """Killed between the effect and its record: the same key comes again; killed after it: nothing does."""
    effects: dict[str, int] = {}

    def pay(order: str, idempotency_key: str = "") -> str:
        RAN.append(order)
        effects.setdefault(idempotency_key, 0)
        effects[idempotency_key] += 1
        return idempotency_key

    async def idle(ctx: Any) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(60)

    async def handle(ctx: Any, message: Any) -> Any:
        await ctx.sleep(1)
        key = await ctx.step.with_options(replay="keyed")("pay", pay, message)
        await ctx.emit("paid", {"key": key})
        return await ctx.tool("st-look")(message)

    class Plain:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        def process(self, ctx: Any, message: Any) -> Any:
            ctx.sleep(1)
            key = ctx.step.with_options(replay="keyed")("pay", pay, message)
            ctx.emit("paid", {"key": key})
            return ctx.tool("st-look")(message)

    with AgentHarness(made(idle, handle) if colour == "async" else Plain) as harness:
        harness.send("o-1", message_id="m-1")
        harness.crash(before="step.completed")
        harness.restart()
        harness.crash(before="paid")
        harness.restart()
        harness.run_until("paid")
        harness.advance(1)
        assert RAN == ["o-1", "o-1", "look o-1"], "run twice, as nobody knew; then recorded"
        assert list(effects.values()) == [2]
        assert len(effects) == 1, "the other side, which does its work once for a key, did it once"
        assert list(harness.steps("msg:m-1").values())[1:] == ["o-1"]
        ended = harness._bench.store.checkpoints.load("a", "msg:m-1")
        assert ended is not None
        assert ended.state is ExecutionState.COMPLETED
        assert harness._bench.record.executions == 0


def test_calls_of_tools_are_known_by_their_arguments_and_number() -> None:
    """However they are passed; a failed one gives its number back; in `main` only once, unless it is safe."""
    failed: list[int] = []

    @tool("st-odd", replay="keyed")
    async def odd(n: int, idempotency_key: str = "") -> str:
        if not failed:
            failed.append(n)
            raise ConnectionError("away")
        return idempotency_key

    async def body(ctx: Any) -> Any:
        async with ctx.execution("e"):
            with pytest.raises(ConnectionError):
                await ctx.tool("st-odd")(1)
            first, second = await ctx.tool("st-odd")(n=1), await ctx.tool("st-odd")(1)
            assert first != second
            assert await ctx.tool("st-odd").with_options(step_id="mine")(1) not in {first, second}
            for strange in (object(), float("nan"), [{"deep": float("inf")}]):
                with pytest.raises(ToolError, match="step_id="):
                    await ctx.tool("st-odd")(strange)
            with pytest.raises(TypeError, match="missing a required argument"):
                await ctx.tool("st-odd")()
        await ctx.tool("st-refund")("o")
        with pytest.raises(StepIdReusedError, match=r"with_options\(step_id="):
            await ctx.tool("st-refund")("o")
        for _ in range(2):
            await ctx.tool("st-look")("free")

    with AgentHarness(made(body)) as harness:
        completed(harness)
        names = [name.partition(":")[2].partition(":")[0] or name for name in harness.steps("e")]
        assert names == ["st-odd", "st-odd", "mine"]
        assert [name.endswith("#2") for name in harness.steps("e")] == [False, True, False]
        assert len(harness.steps()) == 1, "safe tools outside of every execution are recorded nowhere"


def test_main_is_begun_anew_when_a_completed_agent_is_started_again() -> None:
    """With other keys: it is another run; one that was only stopped goes on."""

    async def body(ctx: Any) -> Any:
        got = await ctx.step("charge", charge, "o-1")
        if ctx.incarnation == 1:
            await ctx.sleep(60)
        return got

    with AgentHarness(made(body)) as harness:
        harness.advance(1)
        harness.stop()
        harness.restart()
        completed(harness)
        assert len(RAN) == 1
        harness.restart()
        completed(harness)
        assert len(RAN) == len(set(RAN)) == 2


def test_results_are_plain_json_within_the_limit_or_refused_with_nothing_recorded() -> None:
    """What is returned is what was recorded, in the first life too."""

    async def odd(kind: str) -> object:
        return {"tuple": (1, 2), "large": "x" * 2_000_000, "dict": {"a": [1, None]}}[kind]

    async def body(ctx: Any) -> Any:
        with pytest.raises(UnserialisableError, match="tuple"):
            await ctx.step("x", odd, "tuple")
        with pytest.raises(StepResultTooLargeError, match="store it elsewhere and return a reference"):
            await ctx.step("x", odd, "large")
        return await ctx.step("x", odd, "dict")

    with AgentHarness(made(body)) as harness:
        assert completed(harness) == {"a": [1, None]}
        assert list(harness.steps()) == ["x"]


def test_the_secrets_hook_sees_what_is_stored_and_a_failing_one_keeps_it_out() -> None:
    """Results, arguments and errors; with a way back the agent gets the value itself, in later lives too."""
    places: list[tuple[str, str]] = []

    def hide(value: Any, place: StoredPlace) -> Any:
        places.append((place.step, place.what))
        if place.step == "broken":
            raise ValueError("secret-7")
        return json.loads(json.dumps(value).replace("secret-7", "***"))

    def reveal(value: Any, place: StoredPlace) -> Any:
        return json.loads(json.dumps(value).replace("***", "secret-7"))

    async def body(ctx: Any) -> Any:
        got = await ctx.step("safe", fetch, "secret-7")
        told = await ctx.step("mail", mail, "secret-7")
        with pytest.raises(SecretsHookError) as caught:
            await ctx.step("broken", fetch, "secret-7")
        assert "secret-7" not in str(caught.value)
        with pytest.raises(StepFailedError, match=r"ValueError: \*\*\*"):
            await ctx.step.with_options(replay="never")("bad", failing, "secret-7")
        if ctx.incarnation == 1:
            await ctx.sleep(60)
        return [got, told]

    with SECRETS.override(hide, reveal), AgentHarness(made(body)) as harness:
        harness.advance(1)
        stored = [value for key in harness._bench.store.events.read("a") for value in [str(key.payload)]]
        assert not any("secret-7" in text for text in stored)
        assert harness.steps()["safe"] == {"got": "***"}
        assert harness.steps()["mail"] == "told ***"
        assert harness.steps()["bad"]["message"] == "***"
        assert ("mail", "arguments") in places
        assert ("bad", "error") in places


def test_a_gate_and_whoever_asks_people_come_before_a_step_runs_and_not_before_a_recorded_one() -> None:
    """What they raise keeps it from running."""
    asked: list[str] = []

    async def gate() -> None:
        asked.append("gate")

    async def ask(seen: Any) -> None:
        asked.append(seen.step_id)
        if seen.step_id == "no":
            raise StepRejectedError(agent_id="a", step="no")

    async def body(ctx: Any) -> Any:
        ctx.steps.gate, ctx.steps.interrupter = gate, ask
        await ctx.step("yes", fetch, "x")
        with pytest.raises(StepRejectedError):
            await ctx.step("no", fetch, "y")
        if ctx.incarnation == 1:
            await ctx.sleep(60)

    with AgentHarness(made(body)) as harness:
        harness.advance(1)
        assert asked == ["gate", "yes", "gate", "no"]
        harness.crash()
        harness.restart()
        completed(harness)
        assert asked[4:] == ["gate", "no"]
        assert RAN == ["fetch x"]


def test_a_message_that_kills_its_agent_leaves_no_execution_behind() -> None:
    """Once it is given up on, its execution has failed, also where the last incarnation ran no step of it."""

    async def idle(ctx: Any) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(60)

    async def handle(ctx: Any, message: Any) -> Any:
        await ctx.step("a", fetch, message)
        await ctx.sleep(1)
        raise SystemExit

    with AgentHarness(made(idle, handle), settings={"poison_after": 2}) as harness:
        harness.send("bad", message_id="m-1")
        for _ in range(2):
            harness.crash()
            harness.restart()
        harness.advance(5)
        assert RAN == ["fetch bad"]
        ended = harness._bench.store.checkpoints.load("a", "msg:m-1")
        assert ended is not None
        assert ended.state is ExecutionState.FAILED
        assert harness._bench.record.executions == 0


def test_a_message_whose_step_has_an_unknown_outcome_is_not_answered() -> None:
    """It waits until a person has said how the step came out; what was answered before stays answered."""

    async def stuck() -> None:
        await asyncio.Event().wait()

    async def idle(ctx: Any) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(60)

    async def handle(ctx: Any, message: Any) -> Any:
        return await ctx.step.with_options(replay="never", timeout=1)("stuck", stuck)

    with AgentHarness(made(idle, handle)) as harness:
        harness.send("m", message_id="m-1")
        harness.run_until(lambda: not harness.is_running)
        assert (harness.info.intents, harness.info.cause) == (1, "reconcile")
        waiting = harness._bench.store.inbox(AgentId("a"), limit=10)
        assert [message.message_id for message in waiting] == ["m-1"]


@pytest.mark.parametrize("message_id", ["m" * 396, "m" * 397, "m" * 400, "two\nlines", "a|b:{c}@%/é"])
def test_a_message_of_any_id_has_an_execution(message_id: str) -> None:
    """Also where an execution of that name could not be: it comes again after a death and goes on where it was."""

    async def idle(ctx: Any) -> None:
        while not ctx.stop_requested:
            await ctx.sleep(60)

    async def handle(ctx: Any, message: Any) -> Any:
        found = await ctx.step("mail", mail, message)
        if ctx.incarnation == 1:
            await ctx.sleep(60)
        await ctx.emit("handled")
        return found

    with AgentHarness(made(idle, handle)) as harness:
        harness.send("eve", message_id=message_id)
        harness.advance(1)
        harness.crash()
        harness.restart()
        harness.advance(1)
        assert RAN == ["mail eve"]
        assert (len(harness.events), harness._bench.record.executions) == (1, 0)


def test_a_message_that_is_handled_inside_of_a_block_has_an_execution_of_its_own() -> None:
    """A plain agent answers at the context calls of its main loop; what it does then is not the loop's work."""

    class Plain:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        def start(self, ctx: Any) -> None:
            with ctx.execution("loop"):
                ctx.step("a", plain, "a")
                ctx.sleep(5)

        def process(self, ctx: Any, message: Any) -> Any:
            return ctx.step("a", plain, message)

    with AgentHarness(Plain) as harness:
        assert harness.ask("m", message_id="m-1") == "M"
        harness.advance(10)
        assert (harness.steps("loop"), harness.steps("msg:m-1")) == ({"a": "A"}, {"a": "M"})


def test_of_calls_at_once_the_one_that_failed_gives_its_own_number_back() -> None:
    """Its repeat is the same step, with the same key, though later ones of its kind are there."""
    keys: list[str] = []

    @tool("st-once", replay="keyed")
    async def once(idempotency_key: str = "") -> str:
        keys.append(idempotency_key)
        if len(keys) == 1:
            raise ConnectionError("away")
        return idempotency_key

    async def body(ctx: Any) -> Any:
        async with ctx.execution("e"):
            call = ctx.tool("st-once")
            await asyncio.gather(call(), call(), return_exceptions=True)
            return await call()

    with AgentHarness(made(body)) as harness:
        assert completed(harness) == keys[0] == keys[2] != keys[1]


def test_nothing_is_tried_again_by_an_agent_that_is_asked_to_end() -> None:
    """It is told so, and the step comes again in the next life."""

    async def asked(ctx: Any) -> None:
        ctx._incarnation.ask("stop")
        raise ConnectionError("away")

    async def body(ctx: Any) -> Any:
        with suppress(ConnectionError):
            await ctx.step.with_options(retries=3)("x", asked, ctx)

    with AgentHarness(made(body)) as harness:
        harness.advance(1)
        (failed,) = [event.payload for event in harness.all_events if event.type == "step.failed"]
        assert failed["will_retry"] is False


class _Flaky:
    """A store that once does not answer; the write may have come through."""

    def __init__(self, store: Any, *, arrives: bool) -> None:
        self._store, self._arrives, self.lost = store, arrives, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def record_step(self, *args: Any, **kwargs: Any) -> Any:
        if self.lost:
            return self._store.record_step(*args, **kwargs)
        self.lost += 1
        written = self._store.record_step(*args, **kwargs) if self._arrives else None
        error = StoreUnavailableError(url="nowhere", problem="the answer was lost")

        async def answer() -> None:
            if written is not None:
                await written
            raise error

        if asyncio.iscoroutine(written) or not hasattr(self._store, "close"):
            return answer()
        raise error


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("colour", ["async", "plain"])
def test_an_outcome_is_recorded_although_the_agent_ends_and_the_store_stumbles(colour: str, arrives: bool) -> None:  # noqa: FBT001
    """A stop or a drain waits for such a step anyway: one answer that is lost costs no person's time."""

    def about_to(ctx: Any) -> Any:
        ctx.steps._store = _Flaky(ctx.steps._store, arrives=arrives)
        ctx._incarnation.ask("stop")
        RAN.append("paid")
        return "paid"

    class Async:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        async def start(self, ctx: Any) -> Any:
            got = await ctx.step.with_options(replay="never")("pay", about_to, ctx)
            assert ctx.steps._store.lost == 1
            return got

    class Plain:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        def start(self, ctx: Any) -> Any:
            got = ctx.step.with_options(replay="never")("pay", about_to, ctx)
            assert ctx.steps._store.lost == 1
            return got

    with AgentHarness(Async if colour == "async" else Plain) as harness:
        assert completed(harness) == "paid"
        assert (RAN, harness.steps(), harness.info.intents) == (["paid"], {"pay": "paid"}, 0)
