"""Events that are stored once although the code that emits them runs again; in simulated time."""

from __future__ import annotations

from typing import Any

import pytest

from ares_celery import AgentContext, AgentFailedError, SyncAgentContext
from ares_celery.errors import StoreUnavailableError
from ares_celery.model.event import Event
from ares_celery.store.redis.store import RedisStore
from ares_celery.testing import AgentHarness

GIVEN: list[Event | None] = []


@pytest.fixture(autouse=True)
def nothing_given() -> None:
    """Each test counts from the start."""
    GIVEN.clear()


class Base:
    """Folds what it has emitted."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.total = 0

    def apply(self, event: Event) -> None:
        if event.type == "refunded":
            self.total += event.payload["amount"]


class Clerk(Base):
    """Refunds what a message names, tells it, and mails."""

    async def process(self, ctx: AgentContext, message: dict[str, Any]) -> int:
        GIVEN.append(await ctx.emit("refunded", {"amount": message["amount"]}, step="told", metadata={"by": "clerk"}))
        await ctx.step("mail", len, "x")
        await ctx.emit("mailed")
        return self.total


class PlainClerk(Base):
    """The same on a thread."""

    def process(self, ctx: SyncAgentContext, message: dict[str, Any]) -> int:
        GIVEN.append(ctx.emit("refunded", {"amount": message["amount"]}, step="told", metadata={"by": "clerk"}))
        ctx.step("mail", len, "x")
        ctx.emit("mailed")
        return self.total


CLERKS = pytest.mark.parametrize("clerk", [Clerk, PlainClerk])


@CLERKS
@pytest.mark.parametrize("moment", [{"before": "mailed"}, {"after": "refunded"}, {"before": "step.completed"}])
def test_an_event_of_a_step_is_stored_once_whenever_its_agent_dies(clerk: type[Base], moment: dict[str, Any]) -> None:
    """Applied once too; whoever emits again gets nothing back."""
    with AgentHarness(clerk) as harness:
        harness.pause()
        harness.send({"amount": 5}, message_id="m1")
        harness.resume()
        harness.crash(**moment)
        harness.restart()
        harness.run_until("mailed")
        (event,) = [one for one in harness.events if one.type == "refunded"]
        assert (event.payload, event.metadata, event.epoch > 0) == ({"amount": 5}, {"by": "clerk"}, True)
        assert harness.agent.total == 5
        assert GIVEN[-1] is None
        (step, *_) = [one for one in harness.manager.checkpoints.steps("a", "msg:m1") if one.id == "told"]
        assert (step.function, step.value) == ("emit:refunded", None)


@CLERKS
def test_the_event_is_given_to_who_emits_it_first(clerk: type[Base]) -> None:
    """And counts as a step of the agent; in another execution it is another one."""
    with AgentHarness(clerk) as harness:
        assert harness.ask({"amount": 5}) == 5
        assert harness.ask({"amount": 6}) == 11
        first, second = GIVEN
        assert first is not None
        assert second is not None
        assert [first.payload, second.payload] == [{"amount": 5}, {"amount": 6}]
        assert [one for one in harness.events if one.type == "refunded"] == [first, second]


@CLERKS
def test_a_lost_answer_of_the_store_stores_nothing_twice(clerk: type[Base], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same again finds what is there, and the event is read, applied and given as if the answer had come."""
    lost: list[str] = []
    whole = RedisStore.record_step

    def lose(self: RedisStore, *args: Any, **named: Any) -> Any:
        recorded = whole(self, *args, **named)
        if named.get("event") is not None and not lost:
            lost.append(named["op"])
            raise StoreUnavailableError(url="redis://here", problem="the answer was lost")
        return recorded

    monkeypatch.setattr(RedisStore, "record_step", lose)
    with AgentHarness(clerk) as harness:
        assert harness.ask({"amount": 5}) == 5
        assert len(lost) == 1
        (event,) = [one for one in harness.events if one.type == "refunded"]
        assert [event] == GIVEN


class Careless(Base):
    """Uses ids as nobody should."""

    async def process(self, ctx: AgentContext, message: Any) -> Any:
        if message == "twice":
            await ctx.emit("refunded", {"amount": 1}, step="told")
            return await ctx.emit("refunded", {"amount": 1}, step="told")
        await ctx.emit("refunded", {"amount": "x" * (1 << 20)}, step="told")
        return None


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("twice", "StepIdReusedError"),
        ("large", "EventTooLargeError"),
    ],
)
def test_what_cannot_be_stored_is_refused_as_elsewhere(message: Any, problem: str) -> None:
    """An id that is used already, a payload that is too large; the agent lives."""
    with AgentHarness(Careless) as harness:
        with pytest.raises(AgentFailedError, match=problem):
            harness.ask(message)
        assert harness.is_running


def test_another_type_of_event_under_a_recorded_id_is_a_changed_step() -> None:
    """As another function is: it is refused, and told."""

    class Later(Base):
        """What a deployment brings."""

        async def process(self, ctx: AgentContext, message: Any) -> None:
            await ctx.emit("paid-back", message, step="told")
            await ctx.emit("mailed")

    with AgentHarness(Clerk) as harness:
        harness.pause()
        harness.send({"amount": 5}, message_id="m1")
        harness.resume()
        harness.crash(after="refunded")
        harness.restart(Later)
        refused = harness.run_until("step.refused")
        assert (refused.payload["recorded"], refused.payload["step"]) == ("emit:refunded", "told")


class Rounds(Base):
    """Works in executions, whose ends are told by events that nothing applies."""

    async def start(self, ctx: AgentContext) -> None:
        for number in range(3):
            async with ctx.execution(f"round-{number}"):
                await ctx.step("work", len, "x")
                await ctx.emit("refunded", {"amount": 1}, step="told")


class PlainRounds(Base):
    """The same on a thread."""

    def start(self, ctx: SyncAgentContext) -> None:
        for number in range(3):
            with ctx.execution(f"round-{number}"):
                ctx.step("work", len, "x")
                ctx.emit("refunded", {"amount": 1}, step="told")


@pytest.mark.parametrize("rounds", [Rounds, PlainRounds])
def test_the_event_shows_the_newest_version_that_is_known(rounds: type[Base], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only those that the agent has applied: a store that came back older is to be noticed."""
    shown: list[tuple[int, int]] = []
    whole = RedisStore.record_step

    def look(self: RedisStore, agent_id: Any, *args: Any, **named: Any) -> Any:
        if named.get("event") is not None:
            shown.append((int(named["expected"]), int(self.events.stream_version(agent_id))))
        return whole(self, agent_id, *args, **named)

    monkeypatch.setattr(RedisStore, "record_step", look)
    with AgentHarness(rounds) as harness:
        harness.run_until("refunded", count=3)
        harness.advance(1)
        assert harness.agent.total == 3
    assert len(shown) == 3
    assert [expected for expected, _ in shown] == [stored for _, stored in shown]
