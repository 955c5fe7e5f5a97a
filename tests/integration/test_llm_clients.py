"""The real SDKs of OpenAI and Anthropic over our transport, against a real server: faults are what production gives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from ares_celery.chaos.http_kit import HttpKit, find_kit
from ares_celery.chaos.llm_clients import Connections, make_client
from ares_celery.chaos.transports import AsyncFaultTransport, FaultTransport
from ares_celery.errors import BudgetExceededError
from ares_celery.model.causes import cause_of
from ares_celery.model.fault import LLM_ERRORS, Fault, FaultKind
from ares_celery.model.restart import DeathCause
from tests.llm_server import WORDS, LLMServer

openai: Any = pytest.importorskip("openai")
anthropic: Any = pytest.importorskip("anthropic")

pytestmark = pytest.mark.integration

TEXT = "".join(WORDS)
ASK: Any = {"model": "m", "messages": [{"role": "user", "content": 'say "stream": true'}]}


class Gate:
    """An agent in the colour of its client."""

    def __init__(self, *, is_async: bool) -> None:
        self.is_async = is_async
        self.faults: list[Fault | None] = []
        self.refusal: Exception | None = None
        self.place: Any = None

    def permit(self) -> Any:
        """Refuses when told to."""
        return self._in_colour(self._permit)

    def take(self) -> Any:
        """The next fault; the last one stays."""
        return self._in_colour(self._take)

    def turns(self) -> Any:
        """The place in a limit."""
        return self.place

    def _permit(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def _take(self) -> Fault | None:
        return self.faults.pop(0) if len(self.faults) > 1 else next(iter(self.faults), None)

    def _in_colour(self, function: Callable[[], Any]) -> Any:
        async def later() -> Any:
            return function()

        return later() if self.is_async else function()


class Place:
    """A place in a limit that waits for nobody."""

    def __init__(self, *, is_async: bool) -> None:
        self.is_async = is_async
        self.tries, self.held = 0, 0.0
        self.closings: list[float] = []

    def turn(self) -> Any:
        """At once."""
        return self._done()

    def close(self, seconds: float, by: object) -> Any:
        """Notes it."""
        self.closings.append(seconds)
        return self._done()

    def wait(self, seconds: float) -> Any:
        """Not at all."""
        return self._done()

    def _done(self) -> Any:
        return asyncio.sleep(0) if self.is_async else None


class Model:
    """One SDK in one colour, as a test calls it."""

    def __init__(self, provider: str, server: LLMServer, kit: HttpKit, *, is_async: bool) -> None:
        self.provider, self.server, self.kit, self.is_async = provider, server, kit, is_async
        self.sdk = {"openai": openai, "anthropic": anthropic}[provider]
        self.gate = Gate(is_async=is_async)
        self.connections = Connections()
        #: What of a stream has come.
        self.came: list[str] = []

    def fail(self, kind: str, *, times: int = 0) -> None:
        """The next requests meet a fault: so many, or all."""
        fault: Any = Fault("f-1", "a", FaultKind.LLM, error_type=kind, retry_after=0.01)
        self.gate.faults = [fault] * times + [None] if times else [fault]

    def call(self, *, stream: bool = False, retries: int = 0) -> str:
        """The text of an answer, whole or as a stream."""
        self.came.clear()
        return asyncio.run(self._acall(stream, retries)) if self.is_async else self._call(stream, retries)

    def _sdk(self, retries: int) -> Any:
        kind: Any = AsyncFaultTransport if self.is_async else FaultTransport

        def wrap(inner: Any) -> Any:
            return kind(inner, self.kit, self.gate, random.Random(7))

        http = make_client(self.kit, self.connections, wrap, {}, is_async=self.is_async)
        name = {"openai": "OpenAI", "anthropic": "Anthropic"}[self.provider]
        base = self.server.url + ("/v1" if self.provider == "openai" else "")
        make = getattr(self.sdk, f"Async{name}" if self.is_async else name)
        client = make(api_key="k", base_url=base, http_client=http, max_retries=retries)
        return (
            client.chat.completions.create
            if self.provider == "openai"
            else partial(client.messages.create, max_tokens=9)
        )

    def _call(self, stream: bool, retries: int) -> str:  # noqa: FBT001 - a parameter of the test
        answer = self._sdk(retries)(**ASK, stream=stream)
        if not stream:
            return self._text(answer)
        for event in answer:
            self._note(event)
        return "".join(self.came)

    async def _acall(self, stream: bool, retries: int) -> str:  # noqa: FBT001 - as above
        try:
            answer = await self._sdk(retries)(**ASK, stream=stream)
            if not stream:
                return self._text(answer)
            async for event in answer:
                self._note(event)
            return "".join(self.came)
        finally:
            await asyncio.to_thread(self.connections.close)

    def _text(self, answer: Any) -> str:
        return str(answer.choices[0].message.content if self.provider == "openai" else answer.content[0].text)

    def _note(self, event: Any) -> None:
        if self.provider == "openai":
            self.came.append(event.choices[0].delta.content)
        elif event.type == "content_block_delta":
            self.came.append(event.delta.text)
        elif event.type == "message_start":
            self.came.append("")


@pytest.fixture(scope="module")
def server() -> Iterator[LLMServer]:
    """One for all tests here."""
    with LLMServer() as made:
        yield made


@pytest.fixture(params=["plain", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """Of the agent."""
    return str(request.param)


@pytest.fixture(params=["openai", "anthropic"])
def model(request: pytest.FixtureRequest, colour: str, server: LLMServer) -> Iterator[Model]:
    """Each SDK in each colour, over the library that it uses."""
    server.calls.clear()
    server.refusals.clear()
    made = Model(request.param, server, find_kit(), is_async=colour == "async")
    yield made
    made.connections.close()


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_fault_a_call_goes_through_untouched(model: Model, stream: bool) -> None:  # noqa: FBT001 - a parameter
    """The answer, the key, the body and each event of a stream."""
    assert model.call(stream=stream) == TEXT
    (call,) = model.server.calls
    assert call.headers["authorization"] == "Bearer k"
    assert call.body["messages"] == ASK["messages"]
    if stream:
        assert [word for word in model.came if word] == list(WORDS), "piece by piece"


#: What the SDKs raise, by fault; and how many requests reach the provider.
RAISED = {
    "rate_limit": ("RateLimitError", "RateLimitError", 0),
    "timeout": ("APITimeoutError", "APITimeoutError", 0),
    "connection": ("APIConnectionError", "APIConnectionError", 0),
    "server_error": ("InternalServerError", "InternalServerError", 0),
    "overloaded": ("InternalServerError", "OverloadedError", 0),
    "auth": ("AuthenticationError", "AuthenticationError", 0),
    "malformed": ("JSONDecodeError", "JSONDecodeError", 0),
    "cut_stream": ("APIConnectionError", "APIConnectionError", 1),
}


@pytest.mark.parametrize("kind", LLM_ERRORS)
def test_each_fault_raises_what_production_would(model: Model, kind: str) -> None:
    """In the SDK's own classes; none but a wrong key would be charged to an agent."""
    model.fail(kind)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is what is asserted
        model.call()
    of_openai, of_anthropic, sent = RAISED[kind]
    assert type(caught.value).__name__ == (of_openai if model.provider == "openai" else of_anthropic)
    assert len(model.server.calls) == sent
    assert cause_of(caught.value) is (DeathCause.CRASH if kind == "auth" else DeathCause.LLM)
    response = getattr(caught.value, "response", None)
    if response is not None:
        assert response.headers["x-ares-fault"] == "f-1"
        asks = {"rate_limit": "0.01", "overloaded": "0.01"}.get(kind)
        assert response.headers.get("retry-after") == asks
    model.gate.faults.clear()
    assert model.call() == TEXT, "healed"


@pytest.mark.parametrize("kind", ["malformed", "cut_stream"])
def test_a_stream_breaks_where_it_would(model: Model, kind: str) -> None:
    """After its first event, or at one that nobody can read; uncharged."""
    model.fail(kind)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is what is asserted
        model.call(stream=True)
    if kind == "malformed":
        assert (model.came, type(caught.value).__name__) == ([], "JSONDecodeError")
    else:
        assert len(model.came) == 1
        assert type(caught.value).__name__ in {"APIConnectionError", "RemoteProtocolError"}
    assert cause_of(caught.value) is DeathCause.LLM


@pytest.mark.parametrize("kind", ["rate_limit", "connection"])
def test_outside_of_a_limit_an_sdk_heals_by_itself_as_in_production(model: Model, kind: str) -> None:
    """Its own repeats, which we leave alone: one that fails once is not even seen by the agent."""
    model.fail(kind, times=1)
    assert model.call(retries=2) == TEXT
    (call,) = model.server.calls
    assert call.headers["x-stainless-retry-count"] == "1"


def test_inside_a_limit_no_repeat_is_multiplied(model: Model) -> None:
    """Five requests in all, although the SDK would repeat each of them twice; then it raises what it got."""
    model.gate.place = Place(is_async=model.is_async)
    model.server.refuse(429, times=50, retry_after="0.01")
    with pytest.raises(model.sdk.RateLimitError) as caught:
        model.call(retries=2)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert model.server.statuses == [429] * 5
    assert model.gate.place.closings == [0.01] * 5
    model.server.refusals.clear()
    model.server.calls.clear()
    model.server.refuse(500, times=50)
    with pytest.raises(model.sdk.InternalServerError):
        model.call(retries=2)
    assert model.server.statuses == [500] * 5


def test_inside_a_limit_a_refusal_is_not_even_seen_by_the_sdk(model: Model) -> None:
    """The same request again, body and all; a stream as well."""
    model.gate.place = Place(is_async=model.is_async)
    model.server.refuse(529, times=2, retry_after="0.01")
    assert model.call(stream=True) == TEXT
    assert model.server.statuses == [529, 529, 200]
    assert [call.body for call in model.server.calls] == [model.server.calls[0].body] * 3
    assert {call.headers["x-stainless-retry-count"] for call in model.server.calls} == {"0"}


def test_a_spent_budget_is_raised_as_it_is_and_at_once(model: Model) -> None:
    """No SDK takes it for a lost connection and tries again; nothing is sent."""
    model.gate.refusal = BudgetExceededError(agent_id="a", budget="usd", spent=1, limit=1, whose="a")
    with pytest.raises(BudgetExceededError) as caught:
        model.call(retries=2)
    assert caught.value.fields == model.gate.refusal.fields
    assert model.server.calls == []


def test_the_older_library_will_do_where_an_sdk_takes_it(server: LLMServer, colour: str) -> None:
    """OpenAI's maps its errors as well."""
    kit = HttpKit(pytest.importorskip("httpx"))
    server.calls.clear()
    model = Model("openai", server, kit, is_async=colour == "async")
    assert model.call(stream=True) == TEXT
    for kind, name in {"rate_limit": "RateLimitError", "timeout": "APITimeoutError"}.items():
        model.fail(kind)
        with pytest.raises(getattr(openai, name)):
            model.call()
    model.connections.close()
