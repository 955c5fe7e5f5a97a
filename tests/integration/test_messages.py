"""Messages to agents in a whole runtime: answers, streams, what is given up on, and who is told when nobody answers."""

from __future__ import annotations

import ast
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Generator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from ares_celery import (
    AgentContext,
    AgentFailedError,
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    AgentSpec,
    Chunk,
    Event,
    EventFilter,
    Manager,
    MessageIdReusedError,
    MessagePoisonedError,
    NewEvent,
    OperationNotSupportedError,
    StreamCancelledError,
    StreamResult,
    SyncAgentContext,
    UnserialisableError,
)
from ares_celery.clock import to_datetime
from ares_celery.model.command import Die, Park
from ares_celery.model.message import DeadReason
from ares_celery.model.restart import DeathCause
from tests.hosting import Runtime
from tests.redis_server import RedisServer
from tests.wait import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
def runtime(redis_server: RedisServer, namespace: str) -> Iterator[Runtime]:
    """A whole runtime that hears of messages at once."""
    with Runtime(redis_server.url, namespace, hints=True) as made:
        made.manager.start()
        yield made


class Writer:
    """Streams numbers, as it is told."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: dict[str, Any]) -> object:
        """Answers at once, or raises."""
        if "raise" in message:
            raise ValueError(message["raise"])
        return {"echo": message}

    async def process_stream(self, ctx: AgentContext, message: dict[str, Any]) -> AsyncIterator[Any]:
        """Yields what is asked for."""
        try:
            for number in range(message["count"]):
                yield {"n": number}
                await ctx.sleep(message.get("pause", 0))
            if "raise" in message:
                raise ValueError(message["raise"])
            yield StreamResult({"sum": message["count"]})
        finally:
            ENDS.append((self.agent_id, message["count"]))


class PlainWriter:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id
        self.never = threading.Event()

    def process(self, ctx: SyncAgentContext, message: dict[str, Any]) -> object:
        """Answers at once, or raises."""
        if "raise" in message:
            raise ValueError(message["raise"])
        return {"echo": message}

    def process_stream(self, ctx: SyncAgentContext, message: dict[str, Any]) -> Generator[Any, None, Any]:
        """Yields what is asked for."""
        try:
            for number in range(message["count"]):
                yield {"n": number}
                self.never.wait(message.get("pause", 0))
            if "raise" in message:
                raise ValueError(message["raise"])
            return {"sum": message["count"]}
        finally:
            ENDS.append((self.agent_id, message["count"]))


ENDS: list[tuple[str, int]] = []
WRITERS = [Writer, PlainWriter]


def begin(runtime: Runtime, kind: type, agent_id: str = "w") -> None:
    """Starts an agent of this class."""
    runtime.register(kind.__name__, kind)
    runtime.manager.start_agent(AgentSpec(id=agent_id, type=kind.__name__), wait="running")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_stream_gives_every_chunk_once_and_its_result_last(runtime: Runtime, kind: type) -> None:
    """Seq from 1 without gaps; the end is one more chunk, which carries the result."""
    begin(runtime, kind)
    with runtime.manager.process_stream("w", {"count": 120}, timeout=5) as stream:
        chunks = list(stream)
    assert chunks == [
        *(Chunk(number + 1, {"n": number}, final=False) for number in range(120)),
        Chunk(121, {"sum": 120}, final=True),
    ]
    assert stream.is_over
    again = runtime.manager.process_stream("w", {"count": 120}, timeout=5, message_id=stream.message_id)
    assert list(again) == chunks
    assert runtime.manager.read_chunks("w", stream.message_id, after_seq=120) == (chunks[-1],)
    assert ENDS.count(("w", 120)) == 1


@pytest.mark.parametrize("kind", WRITERS)
def test_the_first_chunk_of_a_pause_comes_at_once(runtime: Runtime, kind: type) -> None:
    """It is read while the agent still works on the next."""
    begin(runtime, kind)
    with runtime.manager.process_stream("w", {"count": 3, "pause": 0.4}, timeout=5) as stream:
        seen = [next(stream) for _ in range(3)]
        assert [chunk.seq for chunk in seen] == [1, 2, 3]
        assert not stream.is_over
        assert next(stream).final


@pytest.mark.parametrize("kind", WRITERS)
def test_who_asks_a_stream_only_for_its_result_gets_it(runtime: Runtime, kind: type) -> None:
    """An agent with one of both methods answers both kinds of calls."""
    streams = type("Streams", (), {k: v for k, v in vars(kind).items() if k in ("__init__", "process_stream")})
    answers = type("Answers", (), {k: v for k, v in vars(kind).items() if k in ("__init__", "process")})
    begin(runtime, streams, "s")
    begin(runtime, answers, "a")
    assert runtime.manager.process("s", {"count": 2}, timeout=5) == {"sum": 2}
    chunks = list(runtime.manager.process_stream("a", {"x": 1}, timeout=5))
    assert chunks == [Chunk(1, {"echo": {"x": 1}}, final=True)]


@pytest.mark.parametrize("kind", WRITERS)
def test_what_the_agent_raises_reaches_the_caller_with_its_traceback(runtime: Runtime, kind: type) -> None:
    """Of a stream behind the chunks that came before; type, message and the text of the traceback."""
    begin(runtime, kind)
    stream = runtime.manager.process_stream("w", {"count": 2, "raise": "boom"}, timeout=5)
    assert [next(stream).seq, next(stream).seq] == [1, 2]
    with pytest.raises(AgentFailedError) as in_stream:
        next(stream)
    with pytest.raises(StopIteration):
        next(stream)
    with pytest.raises(AgentFailedError) as in_process:
        runtime.manager.process("w", {"raise": "boom"}, timeout=5)
    for caught in (in_stream, in_process):
        assert (caught.value.type, caught.value.error, caught.value.agent_id) == ("ValueError", "boom", "w")
        assert 'raise ValueError(message["raise"])' in caught.value.traceback


@pytest.mark.parametrize("kind", WRITERS)
def test_leaving_a_stream_ends_it_in_the_agent(runtime: Runtime, kind: type) -> None:
    """The generator is closed, the message is a dead letter, and the agent answers the next one."""
    begin(runtime, kind)
    for chunk in runtime.manager.process_stream("w", {"count": 10_000, "pause": 0.02}, timeout=5, message_id="m"):
        if chunk.seq == 3:
            break
    wait_until(lambda: ENDS == [("w", 10_000)], "the generator to be closed")
    wait_until(lambda: runtime.manager.dead_letters("w") != [], "the dead letter")
    (letter,) = runtime.manager.dead_letters()
    assert (letter.message_id, letter.reason, letter.kind) == ("m", DeadReason.CALLER_LEFT, "stream")
    assert letter.body == {"count": 10_000, "pause": 0.02}
    assert letter.sent_at <= letter.time
    (event,) = runtime.events("w", "message.dead_lettered")
    assert (event.payload["message_id"], event.payload["reason"]) == ("m", "caller_left")
    assert runtime.store.counters()["dead_letters_caller_left"] == 1
    with pytest.raises(StreamCancelledError):
        list(runtime.manager.process_stream("w", {"count": 10_000, "pause": 0.02}, timeout=5, message_id="m"))
    assert runtime.manager.process("w", {"x": 1}, timeout=5) == {"echo": {"x": 1}}


def test_leaving_ends_an_await_too(runtime: Runtime) -> None:
    """The agent need not yield once more."""
    begin(runtime, Writer)
    stream = runtime.manager.process_stream("w", {"count": 2, "pause": 60}, timeout=5)
    assert next(stream).seq == 1
    stream.close()
    stream.close()
    wait_until(lambda: ENDS == [("w", 2)], "the generator to be closed")


@pytest.mark.parametrize("kind", WRITERS)
def test_a_detached_stream_goes_on_without_its_caller(runtime: Runtime, kind: type) -> None:
    """It is read again by its message id from its start, and behind any seq."""
    begin(runtime, kind)
    stream = runtime.manager.process_stream("w", {"count": 8, "pause": 0.02}, timeout=5, message_id="m", detached=True)
    assert next(stream).seq == 1
    stream.close()
    wait_until(lambda: ENDS == [("w", 8)], "the stream to come to its end")
    again = runtime.manager.process_stream("w", {"count": 8, "pause": 0.02}, timeout=5, message_id="m", detached=True)
    assert [chunk.seq for chunk in again] == list(range(1, 10))
    assert runtime.manager.dead_letters() == []


class Relay:
    """Sends what it is told to others, and to itself; remembers what it was sent."""

    got: list[tuple[str, object]]

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: Any) -> object:
        """Sends, or remembers."""
        if isinstance(message, dict) and "to" in message:
            return [await ctx.send(to, message["say"], **message.get("options", {})) for to in message["to"]]
        GOT.append((self.agent_id, message))
        if message == "fail":
            raise ValueError("it cannot")
        return message


class PlainRelay:
    """The same, plain."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    def process(self, ctx: SyncAgentContext, message: Any) -> object:
        """Sends, or remembers."""
        if isinstance(message, dict) and "to" in message:
            return [ctx.send(to, message["say"], **message.get("options", {})) for to in message["to"]]
        GOT.append((self.agent_id, message))
        if message == "fail":
            raise ValueError("it cannot")
        return message


GOT: list[tuple[str, object]] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    """Each test begins with nothing remembered."""
    for one in (GOT, ENDS, STARTED, LET_GO):
        one.clear()


@pytest.mark.parametrize("kind", [Relay, PlainRelay])
def test_agents_send_to_each_other_and_to_themselves(runtime: Runtime, kind: type) -> None:
    """Each message arrives once; to nobody, to one that is stopped and with a used id the typed error is raised."""
    begin(runtime, kind, "a")
    begin(runtime, kind, "b")
    runtime.manager.process("a", {"to": ["b", "b", "a"], "say": "hello"}, timeout=5)
    wait_until(lambda: sorted(GOT) == [("a", "hello"), ("b", "hello"), ("b", "hello")], f"three messages, not {GOT}")
    with pytest.raises(AgentFailedError) as nobody:
        runtime.manager.process("a", {"to": ["nobody"], "say": 1}, timeout=5)
    assert nobody.value.type == "AgentNotFoundError"
    runtime.manager.stop_agent("b")
    with pytest.raises(AgentFailedError) as stopped:
        runtime.manager.process("a", {"to": ["b"], "say": 1}, timeout=5)
    assert stopped.value.type == "AgentNotRunningError"
    used = {"options": {"message_id": "mine"}}
    runtime.manager.process("a", {"to": ["a"], "say": 1, **used}, timeout=5)
    with pytest.raises(AgentFailedError) as reused:
        runtime.manager.process("a", {"to": ["a"], "say": 2, **used}, timeout=5)
    assert reused.value.type == "MessageIdReusedError"


def test_a_send_that_fails_is_a_dead_letter(runtime: Runtime) -> None:
    """Nobody waits for its answer, so it is kept with what was raised; the agent goes on."""
    begin(runtime, Relay, "a")
    runtime.manager.send("a", "fail", message_id="m1")
    wait_until(lambda: runtime.manager.dead_letters() != [], "the dead letter")
    (letter,) = runtime.manager.dead_letters("a")
    assert (letter.reason, letter.kind, letter.body) == (DeadReason.FAILED, "send", "fail")
    assert "ValueError: it cannot" in letter.problem
    with pytest.raises(AgentFailedError):
        runtime.manager.process("a", "fail", timeout=5)
    assert len(runtime.manager.dead_letters()) == 1
    runtime.store.settle_letters([letter])
    assert runtime.manager.dead_letters() == []


def test_an_id_belongs_to_one_message_and_one_kind_of_call(runtime: Runtime) -> None:
    """A retried call gets the first answer; another body and another kind are refused by name."""
    begin(runtime, Relay, "a")
    for body in ({"x": 1, "y": 2}, {"y": 2, "x": 1}):
        assert runtime.manager.process("a", body, timeout=5, message_id="m") == {"x": 1, "y": 2}
    assert len(GOT) == 1
    with pytest.raises(MessageIdReusedError, match="by process\\(\\), with another body") as other:
        runtime.manager.process("a", {"x": 1}, timeout=5, message_id="m")
    assert (other.value.agent_id, other.value.message_id) == ("a", "m")
    with pytest.raises(MessageIdReusedError, match="by process\\(\\)"):
        runtime.manager.send("a", {"x": 1, "y": 2}, message_id="m")
    with pytest.raises(MessageIdReusedError, match="by process\\(\\)"):
        runtime.manager.process_stream("a", {"x": 1, "y": 2}, message_id="m")
    assert len(GOT) == 1


class Slow:
    """Takes long over a message, until it is let go."""

    def __init__(self, agent_id: str) -> None:
        self.agent_id = agent_id

    async def process(self, ctx: AgentContext, message: Any) -> object:
        """Waits, or answers at once."""
        if message == "quick":
            return "quick"
        STARTED.append(message)
        while message not in LET_GO:
            await ctx.sleep(0.01)
        return message


STARTED: list[object] = []
LET_GO: set[object] = set()


def begun_messages(count: int) -> None:
    """Waits until so many handlings have begun."""
    wait_until(lambda: len(STARTED) == count, f"handling number {count}", timeout=10)


def waiting(runtime: Runtime, agent_id: str, message: object, **options: Any) -> tuple[threading.Thread, list[Any]]:
    """A caller on a thread of its own, and what it got."""
    got: list[Any] = []

    def ask() -> None:
        try:
            got.append(runtime.manager.process(agent_id, message, timeout=20, **options))
        except Exception as error:  # noqa: BLE001 - the test looks at it
            got.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    return thread, got


def test_callers_learn_at_once_that_the_agent_comes_to_rest(runtime: Runtime) -> None:
    """Not at their timeout; their message stays, and is answered after the next start."""
    begin(runtime, Slow, "s")
    first, got = waiting(runtime, "s", "one", message_id="m1")
    second, also = waiting(runtime, "s", "two", message_id="m2")
    wait_until(lambda: len(STARTED) == 1, "the first message to be in hand")
    runtime.manager.stop_agent("s")
    for thread in (first, second):
        thread.join(3)
        assert not thread.is_alive()
    for error in (*got, *also):
        assert isinstance(error, AgentNotRunningError)
        assert error.state == "stopped"
    with pytest.raises(AgentNotRunningError):
        runtime.manager.process("s", "three", timeout=5)
    assert len(runtime.store.inbox("s")) == 2  # type: ignore[arg-type]
    LET_GO.update({"one", "two"})
    runtime.manager.start_agent("s", wait="running")
    assert runtime.manager.process("s", "one", timeout=5, message_id="m1") == "one"
    assert runtime.manager.process("s", "two", timeout=5, message_id="m2") == "two"


def test_callers_learn_of_parking_and_of_deletion(runtime: Runtime) -> None:
    """Parked with its cause; deleted while paused, the agent is not found, and its messages are dead letters."""
    begin(runtime, Slow, "s")
    thread, got = waiting(runtime, "s", "one")
    wait_until(lambda: len(STARTED) == 1, "the message to be in hand")
    record = runtime.store.read("s").record  # type: ignore[arg-type]
    assert record is not None
    runtime.committer.apply(record.id, Park(fence=record.fence, cause="integrity", reason="gap at 3"))
    thread.join(3)
    assert isinstance(got[0], AgentParkedError)
    assert got[0].cause == "integrity"
    begin(runtime, Relay, "p")
    runtime.manager.pause_agent("p")
    runtime.until("p", "paused")
    thread, got = waiting(runtime, "p", "hello", message_id="m")
    wait_until(lambda: len(runtime.store.inbox("p")) == 1, "the message to wait")  # type: ignore[arg-type]
    assert got == []
    runtime.manager.delete_agent("p")
    thread.join(3)
    assert isinstance(got[0], AgentNotFoundError)
    (letter,) = runtime.manager.dead_letters("p")
    assert (letter.reason, letter.body, letter.kind) == (DeadReason.DELETED, "hello", "process")


def test_a_message_that_kills_its_agent_again_and_again_is_skipped(runtime: Runtime) -> None:
    """From the third death on; its caller is told, the agent answers the next and is not parked."""
    begin(runtime, Slow, "s")
    thread, got = waiting(runtime, "s", "poison", message_id="bad")
    quick, answers = waiting(runtime, "s", "quick")
    for death in range(1, 4):
        begun_messages(death)
        record = runtime.store.read("s").record  # type: ignore[arg-type]
        assert record is not None
        runtime.committer.apply(record.id, Die(epoch=record.epoch, reason="killed", cause=DeathCause.LOST, proof=True))
        runtime.until("s", "running", incarnation=death + 1)
    for one in (thread, quick):
        one.join(5)
    assert isinstance(got[0], MessagePoisonedError)
    assert got[0].deaths == 3
    assert answers == ["quick"]
    assert len(STARTED) == 3
    (letter,) = runtime.manager.dead_letters("s")
    assert (letter.reason, letter.message_id) == (DeadReason.POISON, "bad")
    assert runtime.manager.process("s", "quick", timeout=5) == "quick"


def test_an_end_in_order_is_no_death_of_a_message(runtime: Runtime) -> None:
    """Restarted again and again in mid-message, the agent still gets it."""
    begin(runtime, Slow, "s")
    thread, got = waiting(runtime, "s", "long", message_id="m")
    for restart in range(1, 6):
        begun_messages(restart)
        runtime.manager.restart_agent("s")
        runtime.until("s", "running", incarnation=restart + 1)
    LET_GO.add("long")
    thread.join(5)
    assert got == ["long"]


def test_bad_pieces_end_a_stream_and_name_themselves(runtime: Runtime) -> None:
    """What is no JSON, and a process_stream that yields nothing at all."""

    class Bad:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        async def process_stream(self, ctx: AgentContext, message: Any) -> AsyncIterator[Any]:
            yield 1
            yield {1, 2}

    class Listing:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        async def process_stream(self, ctx: AgentContext, message: Any) -> Any:
            return message

    begin(runtime, Bad, "b")
    begin(runtime, Listing, "l")
    stream = runtime.manager.process_stream("b", 1, timeout=5)
    assert next(stream).data == 1
    with pytest.raises(AgentFailedError, match="a chunk of the answer") as bad:
        next(stream)
    assert bad.value.type == UnserialisableError.__name__
    with pytest.raises(AgentFailedError, match="process_stream gave a int"):
        next(runtime.manager.process_stream("l", 1, timeout=5))


def test_an_agent_that_takes_no_messages_says_so(runtime: Runtime) -> None:
    """To who waits by an error, else by a dead letter."""

    class Deaf:
        def __init__(self, agent_id: str) -> None:
            self.agent_id = agent_id

        async def start(self, ctx: AgentContext) -> None:
            while not ctx.stop_requested:
                await ctx.sleep(1)

    begin(runtime, Deaf, "d")
    with pytest.raises(OperationNotSupportedError, match="neither process"):
        next(runtime.manager.process_stream("d", 1, timeout=5))
    runtime.manager.send("d", "hello")
    wait_until(lambda: runtime.manager.dead_letters("d") != [], "the dead letter")


def test_streams_of_one_agent_run_side_by_side(runtime: Runtime) -> None:
    """As many as its concurrency; leaving one leaves the others alone."""
    runtime.register("many", Writer, concurrency=3)
    runtime.manager.start_agent(AgentSpec(id="w", type="many"), wait="running")
    left, slow = (
        runtime.manager.process_stream("w", {"count": count, "pause": 0.05}, timeout=5) for count in (10_000, 9_000)
    )
    assert (next(left).seq, next(slow).seq) == (1, 1)
    assert runtime.manager.process("w", {"x": 1}, timeout=5) == {"echo": {"x": 1}}
    left.close()
    wait_until(lambda: ENDS == [("w", 10_000)], "the first stream to end")
    assert next(slow).seq == 2
    slow.close()
    wait_until(lambda: len(ENDS) == 2, "the second stream to end")


RESUME = """
import sys
from ares_celery import Manager
with Manager(redis_url=sys.argv[1], namespace=sys.argv[2]) as manager:
    with manager.events.subscribe(cursor=sys.argv[3]) as subscription:
        found = []
        while len(found) < int(sys.argv[4]):
            event = subscription.poll(10)
            if event is None:
                break
            if event.type == "counted":
                found.append(event.payload["n"])
    print(found, subscription.lost)
"""


@pytest.mark.spec(102, 103)
def test_subscriptions_of_callers_see_matches_only_and_go_on_elsewhere(
    runtime: Runtime, redis_server: RedisServer, namespace: str
) -> None:
    """By stream, type and time; closing ends the iteration; another process goes on at the cursor, without a gap."""
    with Manager(redis_url=redis_server.url, namespace=namespace) as caller:
        later = to_datetime(runtime.store.server_time()) + timedelta(days=1)
        by_type = caller.events.subscribe(EventFilter(streams=["w"], types=["counted"]))
        by_time = caller.events.subscribe(EventFilter(since=later))
        slow = caller.events.subscribe(EventFilter(streams=["w"], types=["counted"]))
        caller.events.append("other", [NewEvent("counted", {"n": -1})])
        caller.events.append("w", [NewEvent("ignored", {})])
        for number in range(40):
            caller.events.append("w", [NewEvent("counted", {"n": number})])
        found: list[Event] = []
        reader = threading.Thread(target=lambda: found.extend(by_type))
        reader.start()
        wait_until(lambda: len(found) == 40, "the matches")
        by_type.close()
        reader.join(5)
        assert not reader.is_alive()
        assert [event.payload["n"] for event in found] == list(range(40))
        assert {(event.stream_id, event.type) for event in found} == {("w", "counted")}
        assert by_time.poll(0.1) is None
        by_time.close()
        assert list(by_time) == []
        first = [next(slow).payload["n"] for _ in range(10)]
        cursor = slow.cursor
        slow.close()
    command = [sys.executable, "-c", RESUME, redis_server.url, namespace, cursor, "31"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    rest, lost = done.stdout.rsplit(" ", 1)
    assert (first, int(lost)) == (list(range(10)), 0)
    assert sorted(ast.literal_eval(rest)) == [-1, *range(10, 40)]


def test_more_callers_wait_than_a_pool_for_short_calls_holds(runtime: Runtime) -> None:
    """A hundred threads ask an agent that takes its time: each gets its answer."""
    begin(runtime, Slow, "s")
    callers = [waiting(runtime, "s", f"m{number}") for number in range(100)]
    wait_until(lambda: len(runtime.store.inbox("s", limit=200)) == 100, "all to have asked", timeout=15)  # type: ignore[arg-type]
    LET_GO.update(f"m{number}" for number in range(100))
    for thread, _ in callers:
        thread.join(15)
    assert sorted(got[0] for _, got in callers) == sorted(LET_GO)  # type: ignore[type-var]
