"""What a newcomer to steps is told when something was forgotten or mixed up; real host, store in memory."""

from __future__ import annotations

import asyncio
import logging
import math
from functools import partial
from typing import Any

import pytest

from ares_celery.agents import guards
from ares_celery.agents.guards import guarded, unguarded
from ares_celery.agents.secrets import SECRETS, StoredPlace
from ares_celery.agents.steps import mark_tool, options_of, step
from ares_celery.agents.tools import ToolRegistry, tool
from ares_celery.errors import (
    AgentFailedError,
    FencedSignal,
    InvalidSettingError,
    InvalidStepIdError,
    ToolError,
    UnserialisableError,
)
from ares_celery.model.agent import AgentState
from ares_celery.testing import AgentHarness

PAID: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_is_paid() -> None:
    PAID.clear()
    guards._told.clear()


@tool("sw-pay-out", timeout="20s")
async def pay_out(order: str) -> str:
    """Never, as tools are that say nothing."""
    PAID.append(order)
    return f"paid {order}"


@tool("sw-charge", replay="keyed")
def charge(order: str, idempotency_key: str = "") -> str:
    """Keyed, and plain."""
    PAID.append(f"{order} {idempotency_key}")
    return f"charged {order}"


class Payer:
    """Async: pays by calling tools as steps."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def start(self, ctx: Any) -> Any:
        return [await ctx.step("pay", pay_out, "7"), await ctx.step("charge", charge, "8")]


class PlainPayer:
    """Plain: the same."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def start(self, ctx: Any) -> Any:
        return [ctx.step("pay", pay_out, "7"), ctx.step("charge", charge, "8")]


def ended(harness: AgentHarness) -> Any:
    """Runs it to its end; what it returned."""
    harness.run_until(lambda: harness.info.state is AgentState.COMPLETED, timeout=600)
    return harness.info.result


@pytest.mark.parametrize("agent", [Payer, PlainPayer])
def test_a_tool_that_is_called_as_a_step_keeps_how_it_may_be_repeated(agent: type[Any]) -> None:
    """Never: killed between the effect and its record, it does not run again. Keyed: with its key filled in."""
    with AgentHarness(agent) as harness:
        harness.crash(before="step.completed")
        with pytest.raises(Exception, match="reconcile"):
            harness.restart()
        assert (harness.info.cause, PAID) == ("reconcile", ["7"])
        harness.manager.reconcile_agent("a", done="by hand", actor="ann")
        harness.restart()
        assert ended(harness) == ["by hand", "charged 8"]
        told = [one.payload["replay"] for one in harness.all_events if one.type == "step.completed"]
        assert told == ["keyed"]
        (once, keyed) = PAID
        assert (once, len(keyed.split()[1])) == ("7", 40)


def test_options_of_a_tool_are_those_of_its_step_and_a_call_may_say_others() -> None:
    """Also through partial ones and decorators; where both decorators are, they must agree, in either order."""
    assert (options_of(pay_out).replay, options_of(pay_out).limit) == ("never", 20.0)
    assert options_of(partial(pay_out, "7")).replay == "never"
    assert options_of(pay_out).changed(replay="safe", retries=2).replay == "safe"
    with pytest.raises(ToolError, match="as a step the function says replay='safe'; say the same in both places"):
        tool("sw-both", replay="keyed")(step(_keyed))
    with pytest.raises(InvalidSettingError, match="as a tool the function says replay='never'"):
        step(retries=3)(pay_out)
    both = tool("sw-agreed", replay="keyed")(step(replay="keyed", retries=3)(_agreed))
    assert options_of(both).retries == 3
    # What keeps no attributes, as a bound method or what is built in.
    payer = Payer("a")
    ToolRegistry().register("m", payer.start, replay="never")
    mark_tool(math.comb, "keyed", None)
    assert (options_of(payer.start).replay, options_of(math.comb).replay, options_of(abs).replay) == (
        "never",
        "keyed",
        "safe",
    )


def _keyed(idempotency_key: str = "") -> None: ...


def _agreed(idempotency_key: str = "") -> None: ...


@pytest.mark.parametrize("replay", ["never", "keyed"])
@pytest.mark.parametrize("colour", ["async", "plain"])
def test_a_call_outside_of_every_step_says_once_that_it_protects_nothing(
    replay: str, colour: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In the main loop and in messages, by agents of both colours; not inside of a step, nor outside of agents."""

    async def mail_async(to: str, idempotency_key: str = "") -> str:
        return f"told {to}"

    def mail_plain(to: str, idempotency_key: str = "") -> str:
        return f"told {to}"

    mail: Any = step(replay=replay)(mail_async if colour == "async" else mail_plain)  # type: ignore[call-overload]

    class Caller:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

    async def start(_: Any, ctx: Any) -> None:
        await ctx.step("in-a-step", mail, "eve")
        await ctx.step("outer", nested)
        ctx.logger.warning("here")
        for _ in range(2):
            await mail("eve")
        await ctx.sleep(5)

    async def nested() -> str:
        return str(await mail("eve"))

    def plain_start(_: Any, ctx: Any) -> None:
        ctx.step("in-a-step", mail, "eve")
        ctx.logger.warning("here")
        for _ in range(2):
            mail("eve")
        ctx.sleep(5)

    Caller.start = start if colour == "async" else plain_start  # type: ignore[attr-defined]
    if colour == "plain":
        assert mail("nobody") == "told nobody", "outside of agents it is just called"
    with caplog.at_level(logging.WARNING), AgentHarness(Caller) as harness:
        harness.advance(1)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    name = f"mail_{colour}"
    assert "here" in told[0]
    (warning,) = [text for text in told if f"{name}()" in text]
    assert told.index(warning) == 1
    assert f"replay='{replay}' and is called outside of every step" in warning
    assert f"; call it as a step: ctx.step('{name}', {name}, …)" in warning


def test_a_call_in_a_message_says_so_too_and_one_that_was_made_on_purpose_does_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A tool of which the call itself says that it may be repeated is not recorded outside of executions."""

    @tool("sw-purpose")
    async def purpose() -> int:
        return 1

    @step(replay="never")
    async def in_message() -> int:
        return 2

    class Caller:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        async def start(self, ctx: Any) -> None:
            await ctx.tool(purpose).with_options(replay="safe")()
            while not ctx.stop_requested:
                await ctx.sleep(60)

        async def process(self, ctx: Any, message: Any) -> int:
            return await in_message()

    with caplog.at_level(logging.WARNING), AgentHarness(Caller) as harness:
        assert harness.ask("m") == 2
    assert [record.getMessage().split("()")[0] for record in caplog.records] == ["agent a: in_message"]


def test_a_guard_changes_nothing_else_of_a_function() -> None:
    """Name, signature, colour; safe functions, generators and what is no function are left as they are."""

    async def mail(to: str) -> str:
        """Mails."""
        return to

    def pages() -> Any:
        yield 1

    made = guarded(mail, "never")
    assert (made.__name__, made.__doc__, unguarded(made), guarded(made, "never")) == ("mail", "Mails.", mail, made)
    assert guarded(mail, "safe") is mail
    assert guarded(pages, "never") is pages
    assert guarded(len, "never") is len
    assert unguarded(mail) is mail


def start_of(body: Any) -> type[Any]:
    """An async agent's class with this main loop."""

    class Made:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        async def start(self, ctx: Any) -> Any:
            return await body(ctx)

    return Made


def test_a_step_without_its_id_or_its_function_is_refused_in_words() -> None:
    """An id is a text; the function comes behind it."""

    async def body(ctx: Any) -> str:
        with pytest.raises(InvalidStepIdError, match=r"a step id is a str, not 1 \(int\)"):
            await ctx.step(1, charge, "8")
        with pytest.raises(TypeError, match=r"a step has an id: write await ctx.step\('charge', charge, argument\)"):
            await ctx.step(charge)
        with pytest.raises(TypeError, match="a step has an id"):
            await ctx.step(charge, "8")
        with pytest.raises(TypeError, match="step 'x' has no function"):
            await ctx.step("x")
        return "refused"

    with AgentHarness(start_of(body)) as harness:
        assert ended(harness) == "refused"
        assert PAID == []


@pytest.mark.parametrize("how", ["return", "complete", "message"])
def test_a_result_of_an_agent_that_is_no_json_says_whose_it_is_and_what_is_odd_in_it(how: str) -> None:
    """As the error of a step does."""

    class Odd:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        async def start(self, ctx: Any) -> Any:
            if how == "message":
                await ctx.sleep(60)
            if how == "complete":
                await ctx.complete({"value": object()})
            return {"value": object()}

        async def process(self, ctx: Any, message: Any) -> object:
            return object() if how == "message" else None

    whose, place = {
        "return": (r"the result of start\(\)", "the value at 'value'"),
        "complete": (r"the result given to ctx.complete\(\)", "the value at 'value'"),
        "message": ("the answer to message 'm-1'", "the outermost value"),
    }[how]
    if how == "return":
        del Odd.process
    text = f"UnserialisableError: {whose} of agent 'a' is not plain JSON: {place} is an object; use dict"
    with pytest.raises(AgentFailedError, match=text), AgentHarness(Odd) as harness:
        harness.ask("m", message_id="m-1")


def test_a_result_that_was_not_awaited_says_so() -> None:
    """Its place is quoted, so that no name in it reads as a word of the sentence."""

    async def body(ctx: Any) -> str:
        async def nothing() -> None: ...

        forgotten = nothing()
        with pytest.raises(UnserialisableError, match=r"the value at 'at' is a coroutine \(was await forgotten\?\)"):
            await ctx.step("x", lambda: {"at": forgotten})
        forgotten.close()
        return "refused"

    with AgentHarness(start_of(body)) as harness:
        assert ended(harness) == "refused"


def test_what_a_partial_function_was_bound_to_is_noted_of_a_step_that_must_not_run_twice() -> None:
    """Behind the secrets hook, as all arguments."""

    def hide(value: Any, place: StoredPlace) -> Any:
        if place.what == "arguments":
            assert value == {"args": ["eve", "hi"], "kwargs": {"code": "s-1", "cc": "bob"}}
            return {**value, "kwargs": {**value["kwargs"], "code": "***"}}
        return value

    async def slow(to: str, text: str, *, code: str, cc: str) -> None:
        await asyncio.Event().wait()

    async def body(ctx: Any) -> None:
        bound = partial(partial(slow, "eve", code="s-1"), cc="ann")
        await ctx.step.with_options(replay="never", timeout="1s")("mail", bound, "hi", cc="bob")

    with SECRETS.override(hide), AgentHarness(start_of(body)) as harness:
        harness.run_until("agent.parked")
        assert 'slow("eve", "hi", code="***", cc="bob")' in harness.info.reason


def test_a_ctx_that_outlived_its_incarnation_says_so() -> None:
    """The signal has a text, also where it is raised without one."""
    kept: list[Any] = []

    class Keeper:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        def start(self, ctx: Any) -> None:
            kept.append(ctx)
            ctx.sleep(60)

    with AgentHarness(Keeper) as harness:
        harness.advance(1)
        harness.crash()
    with pytest.raises(FencedSignal, match=r"this incarnation of the agent is over.*keep no ctx"):
        kept[0].emit("late")
    assert str(FencedSignal("why")) == "why"
