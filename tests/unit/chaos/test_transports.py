"""Before each request the agent is asked; inside a limit one layer repeats what was refused, and no other does."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from ares_celery.chaos.http_kit import HttpKit
from ares_celery.chaos.transports import (
    LONGEST_CLOSING,
    LONGEST_HOLD,
    TRIES,
    AsyncFaultTransport,
    FaultTransport,
    passing,
)
from ares_celery.errors import AresError, BudgetExceededError, StopSignal
from ares_celery.model.fault import Fault, FaultKind

LIBRARIES = [name for name in ("httpx2", "httpx") if importlib.util.find_spec(name)]
if not LIBRARIES:
    pytest.skip("neither httpx2 nor httpx is installed", allow_module_level=True)

OK: tuple[int, dict[str, str]] = (200, {})


class World:
    """An agent that calls a provider, both colours: what was asked of whom, in order."""

    def __init__(self, kit: HttpKit, *, is_async: bool) -> None:
        self.kit = kit
        self.log: list[str] = []
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.fault: Fault | None = None
        self.refusal: BaseException | None = None
        self.place: Place | AsyncPlace | None = None
        gate = AsyncGate(self) if is_async else Gate(self)
        kind: Any = AsyncFaultTransport if is_async else FaultTransport
        self.transport = kind(self, kit, gate, random.Random(7))
        self.is_async = is_async

    def within(self) -> World:
        """Inside of a limit from now on."""
        self.place = AsyncPlace(self) if self.is_async else Place(self)
        return self

    def handle_request(self, request: Any) -> Any:
        """As the library's own transport."""
        return self.answer(request)

    async def handle_async_request(self, request: Any) -> Any:
        """Likewise."""
        return self.answer(request)

    def answer(self, request: Any) -> Any:
        """What the provider says next; 200 for ever behind that."""
        status, headers = self.answers.pop(0) if self.answers else OK
        self.log.append(f"sent {status}")
        return self.kit.module.Response(status, headers=headers, json={})

    def send(self, *, repeat: int = 0, content: Any = b"{}") -> Any:
        """One request, as an SDK sends it."""
        headers = {"x-stainless-retry-count": str(repeat)}
        request = self.kit.module.Request("POST", "http://provider/v1/messages", headers=headers, content=content)
        if self.is_async:
            return asyncio.run(self.transport.handle_async_request(request))
        return self.transport.handle_request(request)

    def ask(self) -> None:
        """What the agent says to a request."""
        self.log.append("permit")
        if self.refusal is not None:
            raise self.refusal

    @property
    def sent(self) -> int:
        """Requests that reached the provider."""
        return sum(line.startswith("sent") for line in self.log)

    def waits(self, kind: str) -> list[float]:
        """The lengths of waits, or of closings."""
        return [float(line.partition(" ")[2]) for line in self.log if line.startswith(kind)]


class Gate:
    def __init__(self, world: World) -> None:
        self.world = world

    def permit(self) -> None:
        self.world.ask()

    def take(self) -> Fault | None:
        return self.world.fault

    def turns(self) -> Any:
        return self.world.place


class AsyncGate:
    def __init__(self, world: World) -> None:
        self.world = world

    async def permit(self) -> None:
        self.world.ask()

    async def take(self) -> Fault | None:
        return self.world.fault

    def turns(self) -> Any:
        return self.world.place


class Place:
    def __init__(self, world: World) -> None:
        self.log = world.log
        self.tries, self.held = 0, 0.0

    def turn(self) -> None:
        self.log.append("turn")

    def close(self, seconds: float, by: Fault | None) -> None:
        self.log.append(f"close {seconds}" if by is None else f"close {seconds} by {by.id}")

    def wait(self, seconds: float) -> None:
        if seconds:
            self.log.append(f"wait {seconds}")


class AsyncPlace:
    def __init__(self, world: World) -> None:
        self.plain = Place(world)
        self.tries, self.held = 0, 0.0

    async def turn(self) -> None:
        self.plain.turn()

    async def close(self, seconds: float, by: Fault | None) -> None:
        self.plain.close(seconds, by)

    async def wait(self, seconds: float) -> None:
        self.plain.wait(seconds)


@pytest.fixture(params=LIBRARIES)
def kit(request: pytest.FixtureRequest) -> HttpKit:
    """Each library that there is."""
    return HttpKit(importlib.import_module(request.param))


@pytest.fixture(params=["plain", "async"])
def world(request: pytest.FixtureRequest, kit: HttpKit) -> World:
    """An agent of each colour, outside of every limit."""
    return World(kit, is_async=request.param == "async")


def test_outside_of_a_limit_answers_are_the_clients_affair(world: World) -> None:
    """Nothing is repeated or marked: the SDK does what it always does."""
    world.answers = [(429, {"retry-after": "7"}), (500, {})]
    assert [world.send().status_code for _ in range(3)] == [429, 500, 200]
    assert world.log == ["permit", "sent 429", "permit", "sent 500", "permit", "sent 200"]
    world.answers = [(429, {"retry-after": "7"})]
    assert "x-should-retry" not in world.send().headers


def test_a_refusal_closes_the_limit_and_the_request_is_sent_again(world: World) -> None:
    """For as long as it asks; the turn behind it is the limit's."""
    world.within().answers = [(429, {"retry-after": "7"})]
    assert world.send().status_code == 200
    assert world.log == ["permit", "turn", "sent 429", "close 7.0", "permit", "turn", "sent 200"]


@pytest.mark.parametrize("status", [429, 503, 529])
def test_a_refusal_that_names_no_time_closes_for_longer_each_time(world: World, status: int) -> None:
    """Twice as long, with jitter; after five tries the client gets the answer, and is not to repeat it."""
    world.within().answers = [(status, {})] * 9
    answer = world.send()
    assert (answer.status_code, answer.headers["x-should-retry"], world.sent) == (status, "false", TRIES)
    closings = world.waits("close")
    assert len(closings) == TRIES, "the last one too: it is for everybody"
    assert all(0.5 * 2**number <= closing <= 2**number for number, closing in enumerate(closings))


@pytest.mark.parametrize("status", [408, 409, 500, 502])
def test_any_other_passing_error_is_repeated_and_closes_nothing(world: World, status: int) -> None:
    """It is no word on how many calls may be made."""
    world.within().answers = [(status, {}), (status, {"retry-after": "3"})]
    assert world.send().status_code == 200
    first, second = world.waits("wait")
    assert (0.5 <= first <= 1, second, world.waits("close"), world.sent) == (True, 3.0, [], 3)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_an_error_that_stays_is_the_clients_at_once(world: World, status: int) -> None:
    """Nobody repeats it."""
    world.within().answers = [(status, {})]
    answer = world.send()
    assert (answer.status_code, answer.headers["x-should-retry"], world.sent) == (status, "false", 1)


def test_a_provider_that_says_not_to_repeat_is_heard(world: World) -> None:
    """An account without money; nobody else is held up for it, unless it asks to wait."""
    world.within().answers = [(429, {"x-should-retry": "false"})]
    assert world.send().status_code == 429
    assert (world.sent, world.waits("close")) == (1, [])
    world.answers = [(429, {"x-should-retry": "false", "retry-after": "9"})]
    assert world.send().status_code == 429
    assert (world.sent, world.waits("close")) == (2, [9.0])


def test_a_request_is_held_for_two_minutes_at_most(world: World) -> None:
    """Then its client learns of it; the limit stays closed as long as was asked, an hour at most."""
    world.within().answers = [(429, {"retry-after": "70"}), (429, {"retry-after": "70"})]
    answer = world.send()
    assert (answer.status_code, answer.headers["x-should-retry"]) == (429, "false")
    assert (world.sent, world.waits("close")) == (2, [70.0, 70.0])
    assert LONGEST_HOLD == 120
    world.answers = [(429, {"retry-after": "86400"})]
    assert world.send().status_code == 429
    assert world.waits("close")[-1] == LONGEST_CLOSING == 3600


def test_a_repeat_of_the_clients_own_counts_on(world: World) -> None:
    """It repeats requests that got no answer: all tries together stay within five."""
    world.within().answers = [(500, {})] * 3
    world.send()
    assert world.sent == 4
    world.answers = [(500, {})] * 9
    world.send(repeat=1)
    assert world.sent == 5
    world.send()
    assert world.sent == 10, "another request begins anew"


def test_a_body_that_is_there_only_once_is_not_sent_again(world: World, kit: HttpKit) -> None:
    """A file that is uploaded as it is read; the limit is closed all the same."""

    def pieces() -> Iterator[bytes]:
        yield b"{}"

    async def async_pieces() -> AsyncIterator[bytes]:
        yield b"{}"

    world.within().answers = [(429, {"retry-after": "7"})]
    body: Callable[[], Any] = async_pieces if world.is_async else pieces
    answer = world.send(content=body())
    assert (answer.status_code, world.sent, world.waits("close")) == (429, 1, [7.0])


def test_an_agent_that_may_do_no_more_sends_nothing(world: World) -> None:
    """Neither first nor again."""
    world.refusal = BudgetExceededError(agent_id="a", budget="usd", spent=1, limit=1, whose="a")
    with pytest.raises(BudgetExceededError):
        world.send()
    with pytest.raises(BudgetExceededError):
        world.within().send()
    assert world.sent == 0


def test_a_signal_passes_as_it_is(world: World) -> None:
    """It is no error of the request."""
    world.refusal = StopSignal()
    with pytest.raises(StopSignal):
        world.send()


@pytest.mark.parametrize("kind", ["timeout", "connection"])
def test_a_fault_may_be_no_answer_at_all(world: World, kit: HttpKit, kind: str) -> None:
    """The library's own errors, with the request."""
    world.fault = Fault("f-1", "a", FaultKind.LLM, error_type=kind)
    expected = kit.module.ReadTimeout if kind == "timeout" else kit.module.ConnectError
    with pytest.raises(expected, match="fault f-1") as caught:
        world.send()
    assert caught.value.request.url.host == "provider"
    assert world.sent == 0


def test_a_refusal_on_purpose_closes_the_limit_as_a_real_one_does(world: World) -> None:
    """Each try asks anew whether it meets the fault."""
    world.within().fault = Fault("f-1", "a", FaultKind.LLM, error_type="rate_limit", retry_after=7.0)
    answer = world.send()
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["x-ares-fault"]) == (429, "7", "f-1")
    assert (world.sent, world.log.count("close 7.0 by f-1"), world.log.count("turn")) == (0, 5, 5)


def test_an_error_is_of_the_kind_that_the_sdk_at_hand_lets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where that SDK is in use; else it stays what it is."""
    base = type("AnthropicError", (Exception,), {})
    sdk = type("sdk", (), {"AnthropicError": base})
    monkeypatch.setitem(sys.modules, "anthropic", sdk)
    error = BudgetExceededError(agent_id="a", budget="usd", spent=1, limit=1, whose="a")
    passed = passing(error, "anthropic")
    assert isinstance(passed, base)
    assert isinstance(passed, BudgetExceededError)
    assert (passed.fields, type(passed).__name__, str(passed)) == (error.fields, "BudgetExceededError", str(error))
    monkeypatch.setitem(sys.modules, "openai", None)
    assert passing(error, "openai") is error
    monkeypatch.setattr(sdk, "AnthropicError", "no class")
    assert passing(AresError(), "anthropic").fields == AresError().fields
