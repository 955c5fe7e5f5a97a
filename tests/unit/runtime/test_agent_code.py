"""What an agent's own code may do, and what becomes of it: one agent at a time, in a harness."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ares_celery import AgentContext, AgentFailedError, Event, EventTooLargeError, SyncAgentContext, UnserialisableError
from ares_celery.testing import AgentHarness


class Plain:
    """Does with each message what the test says."""

    def __init__(self, agent_id: str, answer: Callable[[SyncAgentContext, Any], object] | None = None) -> None:
        self.answer = answer

    def process(self, ctx: SyncAgentContext, message: Any) -> object:
        assert self.answer is not None
        return self.answer(ctx, message)


def answering(answer: Callable[[SyncAgentContext, Any], object]) -> Callable[[str], Plain]:
    """The factory of such an agent."""

    def make(agent_id: str) -> Plain:
        return Plain(agent_id, answer)

    return make


class Ends:
    """Ends as its config says."""

    def __init__(self, agent_id: str, how: str) -> None:
        self.how = how

    async def start(self, ctx: AgentContext) -> object:
        match self.how:
            case "complete":
                ctx.complete({"answer": 42})
            case "complete-awaited":
                await ctx.complete({"answer": 42})
            case "return a result":
                return {"answer": 42}
            case _:
                pass
        return None


@pytest.mark.parametrize(
    ("how", "result"),
    [
        ("return", None),
        ("return a result", {"answer": 42}),
        ("complete", {"answer": 42}),
        ("complete-awaited", {"answer": 42}),
    ],
)
@pytest.mark.spec(21)
def test_a_start_that_returns_is_completed(how: str, result: object) -> None:
    """A transient agent whose start returns has done its work; its result is kept."""
    with AgentHarness(Ends, config={"how": how}) as harness:
        assert harness.info.state == "completed"
        assert harness.info.result == result
        assert [event.type for event in harness.all_events] == ["agent.started", "agent.completed"]


def test_an_oversize_event_is_refused_and_the_agent_lives() -> None:
    """The error names agent, size, limit and cure; nothing is stored or applied."""

    class Emitter:
        def __init__(self, agent_id: str) -> None:
            self.seen: list[Any] = []

        async def process(self, ctx: AgentContext, message: int) -> Any:
            try:
                event = await ctx.emit("told", {"text": "x" * message})
            except EventTooLargeError as error:
                return {"text": str(error)}
            return {"version": event.version, "seen": len(self.seen)}

        def apply(self, event: Event) -> None:
            self.seen.append(event)

    with AgentHarness(Emitter, "e", settings={"max_event_bytes": "1KiB"}) as harness:
        said = harness.ask(2000)["text"]
        assert all(word in said for word in ("'e'", "20", "1024", "max_event_bytes"))
        assert harness.events == harness.agent.seen == []
        assert harness.ask(10) == {"version": 2, "seen": 1}


@pytest.mark.parametrize("answer", [object(), {1, 2}, "x" * 3_000_000], ids=["object", "set", "too large"])
@pytest.mark.parametrize("colour", ["async", "plain"])
def test_an_answer_that_cannot_be_stored_fails_the_call_and_not_the_agent(answer: Any, colour: str) -> None:
    """The message is consumed: it must not come again for ever."""

    class Async:
        def __init__(self, agent_id: str) -> None: ...

        async def process(self, ctx: AgentContext, message: object) -> object:
            return answer if message == "bad" else "good"

    plain = answering(lambda _, message: answer if message == "bad" else "good")
    with AgentHarness(Async if colour == "async" else plain) as harness:
        with pytest.raises(AgentFailedError) as caught:
            harness.ask("bad")
        assert caught.value.fields["type"] in {"UnserialisableError", "EventTooLargeError"}
        assert harness.ask("fine") == "good"
        assert harness.info.incarnation == 1


def test_the_runtimes_own_words_cannot_be_emitted() -> None:
    """agent.stopped says that an agent stopped: nobody else may."""
    with AgentHarness(answering(lambda ctx, message: ctx.emit(message, {"forged": True}).version)) as harness:
        with pytest.raises(AgentFailedError, match="own word"):
            harness.ask("agent.stopped")
        assert harness.events == []
        assert harness.ask("agent.forged") == 2


def test_metadata_of_an_event_is_the_agents_but_for_the_runtimes_key() -> None:
    """It is stored beside the payload; who wrote an event cannot be forged."""
    with AgentHarness(answering(lambda ctx, about: ctx.emit("traced", {"n": 1}, metadata=about).version)) as harness:
        harness.ask({"trace": "t-1"})
        (event,) = harness.events
        assert (event.payload, event.metadata) == ({"n": 1}, {"trace": "t-1"})
        for refused in ({"module": "runtime"}, [1]):
            with pytest.raises(AgentFailedError, match=UnserialisableError.__name__):
                harness.ask(refused)
        assert harness.events == [event]


def test_a_snapshot_that_fails_is_said_once_by_an_event() -> None:
    """Not at every try: the same failure again is only logged."""

    class Broken:
        problem = "no state today"

        def __init__(self, agent_id: str) -> None: ...

        async def start(self, ctx: AgentContext) -> None:
            while not ctx.stop_requested:
                await ctx.emit("ticked")
                await ctx.sleep(60)

        def snapshot(self) -> dict[str, object]:
            raise OSError(self.problem)

        def restore_state(self, state: dict[str, object]) -> None: ...

    with AgentHarness(Broken) as harness:
        harness.run_until("ticked", count=20, timeout="1h")
        harness.agent.problem = "nor tomorrow"
        harness.run_until("ticked", count=40, timeout="1h")
        failed = [event.payload["problem"] for event in harness.all_events if event.type == "snapshot.failed"]
        assert failed == ["OSError: no state today", "OSError: nor tomorrow"]


def test_a_state_is_stored_as_json_would_give_it_back() -> None:
    """What JSON would change is refused, not stored in another form."""

    class Tuples:
        state: Any = (1, 2)

        def __init__(self, agent_id: str) -> None: ...

        def process(self, ctx: SyncAgentContext, message: Any) -> object:
            return ctx.snapshot()

        def snapshot(self) -> dict[str, Any]:
            return {"pair": self.state}

        def restore_state(self, state: dict[str, Any]) -> None:
            self.state = state["pair"]

    with AgentHarness(Tuples) as harness:
        harness.agent.state = {3: "three"}
        with pytest.raises(AgentFailedError, match=UnserialisableError.__name__):
            harness.ask("now")
        harness.agent.state = [1, {"two": None}]
        assert harness.ask("now") is True
        harness.crash()
        harness.restart()
        assert json.dumps(harness.agent.state) == '[1, {"two": null}]'


def test_a_sleep_of_no_time_lets_others_have_their_turn() -> None:
    """Messages, and the other agents of the process: one that only sleeps for 0 seconds does not hold the loop."""

    class Restless:
        def __init__(self, agent_id: str) -> None:
            self.turns = 0

        async def start(self, ctx: AgentContext) -> None:
            while not ctx.stop_requested:
                self.turns += 1
                await ctx.sleep(0)

        async def process(self, ctx: AgentContext, message: object) -> object:
            return message

    with AgentHarness(Restless, patience=2) as harness:
        assert harness.ask("hello") == "hello"
        assert harness.now == 0
        harness.stop()
        assert harness.info.state == "stopped"
        assert harness.agent.turns > 1
