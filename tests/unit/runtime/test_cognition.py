"""A memory manager may raise, hang and return rubbish: the agent goes on with what is known."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from ares_celery import ConversationMessage
from ares_celery.model.command import Finding
from ares_celery.runtime.bounded import LOOKUP_LIMIT, BoundedCalls
from ares_celery.runtime.cognition import Cognition, build_cognitive_state
from tests.wait import wait_until


class Memory:
    """A memory manager with answers of the test's own."""

    def __init__(self, latest: Any = None, messages: Any = ()) -> None:
        self.latest, self.said = latest, messages
        self.asked: list[tuple[str, ...]] = []

    def open_session(self, agent_id: str, session_id: str | None = None) -> str:
        raise NotImplementedError

    def add_message(
        self, agent_id: str, session_id: str, message: ConversationMessage, *, message_id: str = ""
    ) -> None:
        raise NotImplementedError

    def latest_session(self, agent_id: str) -> Any:
        self.asked.append(("latest_session", agent_id))
        return answer(self.latest)

    def messages(self, agent_id: str, session_id: str) -> Any:
        self.asked.append(("messages", agent_id, session_id))
        return answer(self.said)


def answer(value: Any) -> Any:
    """What the test wants: a value, an error, or a hang until the test is over."""
    if isinstance(value, threading.Event):
        value.wait(20)
        return None
    if isinstance(value, BaseException):
        raise value
    return value


TWO = (ConversationMessage("user", "hello"), {"role": "assistant", "content": "hi", "mood": "good"})


def build(memory: Memory, session: str | None, *, limit: float = 5.0) -> tuple[dict[str, Any], list[Finding]]:
    """What restore_state would get, and what is said of it."""
    found: list[Finding] = []
    events: Any = None
    return build_cognitive_state("a", session, Cognition(memory, events, limit=limit), found), found


def test_the_session_of_the_events_comes_before_the_latest_one() -> None:
    """Which is not asked for then."""
    memory = Memory("latest", TWO)
    state, found = build(memory, "named")
    assert state["session_id"] == "named"
    assert [message["content"] for message in state["conversation_history"]] == ["hello", "hi"]
    assert state["conversation_history"][0]["tool_calls"] == []
    assert state["conversation_history"][1] == TWO[1]
    assert memory.asked == [("messages", "a", "named")]
    assert found == []


def test_without_messages_only_the_session_of_the_events_is_set() -> None:
    """A session that only the memory manager knows, and that holds nothing, sets neither key."""
    assert build(Memory("latest", ()), None)[0] == {}
    assert build(Memory(None, TWO), None)[0] == {}
    assert build(Memory("latest", ()), "named")[0] == {"session_id": "named"}
    assert build_cognitive_state("a", "named", None, []) == {"session_id": "named"}
    assert build_cognitive_state("a", None, None, []) == {}


def breaks() -> Iterator[ConversationMessage]:
    """Messages that come one by one from somewhere, until it is away."""
    yield ConversationMessage("user", "x")
    raise LookupError("the cursor is gone")


RUBBISH = [
    breaks(),
    itertools.repeat({"role": "user"}),
    OSError("gone"),
    SystemExit(3),
    7,
    [ConversationMessage("user", "x"), "no message"],
    [{"content": "without a role"}],
]


@pytest.mark.parametrize(
    "said", RUBBISH, ids=["breaks", "endless", "raises", "exits", "number", "no message", "no role"]
)
def test_whatever_a_lookup_does_the_session_of_the_events_is_kept(said: Any) -> None:
    """And one finding names the manager, the call and the problem."""
    state, found = build(Memory("latest", said), "named")
    assert state == {"session_id": "named"}
    (finding,) = found
    assert (finding.kind, finding.counter) == ("recovery.degraded", "memory_failures")
    assert finding.payload["part"] == "memory"
    assert finding.payload["name"].endswith(".Memory")
    assert finding.payload["operation"] == "messages"
    assert finding.payload["problem"]


@pytest.mark.parametrize("latest", [ValueError("gone"), 7, ""], ids=["raises", "number", "empty"])
def test_a_latest_session_that_nobody_can_tell_sets_nothing(latest: Any) -> None:
    """The messages are not asked for."""
    memory = Memory(latest, TWO)
    state, found = build(memory, None)
    assert (state, len(found), memory.asked) == ({}, 1, [("latest_session", "a")])


def test_a_lookup_that_hangs_is_given_up_after_five_seconds() -> None:
    """Each of them; shown with a shorter limit."""
    events: Any = None
    assert LOOKUP_LIMIT == 5.0
    assert Cognition(Memory(), events)._calls.limit == LOOKUP_LIMIT
    over = threading.Event()
    try:
        state, found = build(Memory(over, TWO), None, limit=0.05)
        assert (state, found[0].payload["problem"]) == ({}, "it did not return within 0.05 s")
        state, found = build(Memory("latest", over), "named", limit=0.05)
        assert (state, found[0].payload["operation"]) == ({"session_id": "named"}, "messages")
    finally:
        over.set()


def test_lookups_wait_for_the_event_store_to_be_handed_over() -> None:
    """A manager that takes it has it before it is asked; one whose taking fails is asked all the same."""
    order: list[str] = []
    events: Any = "the streams"
    may_take = threading.Event()

    def take(given: object) -> None:
        may_take.wait(5)
        order.append(f"took {given}")

    cognition = Cognition(Memory("latest", TWO), events, taker=take)
    asking = threading.Thread(target=lambda: order.append(str(cognition.latest_session("a", []))))
    asking.start()
    may_take.set()
    asking.join(5)
    assert order == ["took the streams", "latest"]

    def fails(given: object) -> None:
        raise RuntimeError("no room")

    assert Cognition(Memory("latest"), events, taker=fails).latest_session("a", []) == "latest"


def test_messages_that_come_one_by_one_are_waited_for_no_longer_than_a_call() -> None:
    """Reading them is part of the lookup."""
    over = threading.Event()

    def slow() -> Iterator[ConversationMessage]:
        over.wait(20)
        yield TWO[0]

    try:
        state, found = build(Memory("latest", slow()), "named", limit=0.05)
        assert (state, found[0].payload["problem"]) == ({"session_id": "named"}, "it did not return within 0.05 s")
    finally:
        over.set()
    assert [message["content"] for message in build(Memory("s", iter(TWO)), None)[0]["conversation_history"]]


def test_calls_that_merely_run_at_once_are_all_made() -> None:
    """A worker that takes over hundreds of agents asks for all of them together; nothing hangs."""
    together, calls = threading.Barrier(32), BoundedCalls(20)
    answers: list[str] = []
    asking = [threading.Thread(target=lambda: answers.append(calls.call(together.wait, 15).problem)) for _ in range(32)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert answers == [""] * 32


def test_calls_that_hang_are_bounded_in_number_and_the_next_ones_are_not_made() -> None:
    """Eight hold a thread each; a ninth is refused at once; when they return, calls are made again."""
    over, calls = threading.Event(), BoundedCalls(0.01)
    made: list[int] = []
    for _ in range(8):
        assert "did not return" in calls.call(over.wait, 20).problem
    assert "8 earlier calls have not returned" in calls.call(made.append, 1).problem
    over.set()
    wait_until(lambda: calls.call(made.append, 2).problem == "")
    assert made[0] == 2
