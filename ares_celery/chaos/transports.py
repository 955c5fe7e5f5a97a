"""Transports for clients of language models: they ask before each request, fail it on purpose, and repeat what may be.

They wrap the connections of httpx2 or httpx, and go where a client of these takes its ``transport``.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Awaitable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

from ares_celery.chaos.http_kit import HttpKit
from ares_celery.chaos.llm_answers import ANTHROPIC, OPENAI, is_refusal, may_repeat, provider_of, refused, wait_asked
from ares_celery.errors import AresError
from ares_celery.model.fault import Fault

__all__ = ["AsyncFaultTransport", "AsyncLLMGate", "AsyncTurns", "FaultTransport", "LLMGate", "Turns"]

#: How often one request is sent at most, repeats of the client included.
TRIES: Final = 5
#: Seconds that a request may be held in all; who is told to wait longer learns of it.
LONGEST_HOLD: Final = 120.0
#: Seconds for which one answer may close a limit, whatever it asks for.
LONGEST_CLOSING: Final = 3600.0
#: Seconds before the second try when nobody says how long to wait; twice as long before each next one.
_FIRST_WAIT: Final = 1.0
_LONGEST_WAIT: Final = 30.0
#: The base of the errors that an SDK lets through as they are, and does not answer with a repeat.
_OWN_ERRORS: Final = {ANTHROPIC: "AnthropicError", OPENAI: "OpenAIError"}
#: In which repeat of its own a client is; both SDKs say so.
_REPEATS: Final = "x-stainless-retry-count"
_STREAMS: Final = re.compile(rb'"stream"\s*:\s*true')
_FIRST_ERROR: Final = 400


class Turns(Protocol):
    """A place in a limit, as calls inside of it see it.

    Attributes:
        tries: How often the request at hand was sent.
        held: Seconds that it was held.
    """

    tries: int
    held: float

    def turn(self) -> None:
        """Waits until one more call may be made."""
        ...

    def close(self, seconds: float, by: Fault | None) -> None:
        """Nobody is to call for so long; with the fault that has made up the refusal, not beyond its end."""
        ...

    def wait(self, seconds: float) -> None:
        """Waits; raises a signal when the agent is to end."""
        ...


class LLMGate(Protocol):
    """What an agent has to say about a call of a language model."""

    def permit(self) -> None:
        """Raises when the agent may do no more; waits while it is suspended."""
        ...

    def take(self) -> Fault | None:
        """The fault that this call is to meet, counted as used."""
        ...

    def turns(self) -> Turns | None:
        """The place in a limit that the code at hand holds."""
        ...


class AsyncTurns(Protocol):
    """The same, awaitable."""

    tries: int
    held: float

    async def turn(self) -> None:
        """See :meth:`Turns.turn`."""
        ...

    async def close(self, seconds: float, by: Fault | None) -> None:
        """See :meth:`Turns.close`."""
        ...

    async def wait(self, seconds: float) -> None:
        """See :meth:`Turns.wait`."""
        ...


class AsyncLLMGate(Protocol):
    """The same, awaitable."""

    def permit(self) -> Awaitable[None]:
        """See :meth:`LLMGate.permit`."""
        ...

    def take(self) -> Awaitable[Fault | None]:
        """See :meth:`LLMGate.take`."""
        ...

    def turns(self) -> AsyncTurns | None:
        """See :meth:`LLMGate.turns`."""
        ...


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What follows from an answer.

    Attributes:
        closes: Seconds for which its limit is closed for everybody; None: it is not.
        again: The request is sent again, else the answer is the client's.
        wait: Seconds before, beside those for which the limit is closed.
    """

    closes: float | None = None
    again: bool = False
    wait: float = 0.0


_DONE: Final = _Verdict()


class _Transport:
    """What both kinds share: how a fault looks, and what follows from an answer."""

    def __init__(self, inner: Any, kit: HttpKit, chance: random.Random | None) -> None:  # noqa: ANN401 - the library's
        """Wraps connections.

        Args:
            inner: A transport of the library.
            kit: The library.
            chance: For waits that nobody gave a length.
        """
        self._inner = inner
        self._kit = kit
        self._chance = chance or random.Random()  # noqa: S311 - spreads load, no secret

    def _fail(self, fault: Fault, request: Any) -> Any:  # noqa: ANN401 - the library's
        """The answer that a fault gives; None: a real one, which is cut.

        Raises:
            The library's ReadTimeout or ConnectError.
        """
        module, kind = self._kit.module, fault.error_type
        if kind == "timeout":
            raise module.ReadTimeout(f"The read operation timed out (fault {fault.id})", request=request)
        if kind == "connection":
            raise module.ConnectError(f"All connection attempts failed (fault {fault.id})", request=request)
        if kind == "cut_stream":
            return None
        answer = refused(
            kind, _provider(request), fault_id=fault.id, retry_after=fault.retry_after, streams=self._streams(request)
        )
        return self._kit.answer(request, answer.status, answer.headers, answer.body)

    def _streams(self, request: Any) -> bool:  # noqa: ANN401 - as above
        """The client asks for a stream of events."""
        return self._kit.can_repeat(request) and _STREAMS.search(request.content) is not None

    def _begin(self, place: Turns | AsyncTurns, request: Any) -> None:  # noqa: ANN401 - as above
        """A new request, or a repeat of the client's own: then it counts on."""
        if request.headers.get(_REPEATS, "0") == "0":
            place.tries, place.held = 0, 0.0

    def _judge(self, place: Turns | AsyncTurns, request: Any, response: Any) -> _Verdict:  # noqa: ANN401 - as above
        """What follows from an answer, which is marked for a client that gets it."""
        status, headers = response.status_code, response.headers
        if status < _FIRST_ERROR:
            return _DONE
        repeats = may_repeat(status, headers)
        asked = wait_asked(headers)
        wait = min(asked, LONGEST_CLOSING) if asked is not None else self._own_wait(place.tries)
        closes = wait if is_refusal(status) and (repeats or asked is not None) else None
        is_over = place.tries >= TRIES or place.held + wait > LONGEST_HOLD
        if not repeats or is_over or not self._kit.can_repeat(request):
            # The client would repeat it as well, and ours with it each time.
            headers["x-should-retry"] = "false"
            return _Verdict(closes)
        place.held += wait
        return _Verdict(closes, again=True, wait=wait if closes is None else 0.0)

    def _own_wait(self, tries: int) -> float:
        longest: float = min(_FIRST_WAIT * 2 ** (tries - 1), _LONGEST_WAIT)
        return longest * self._chance.uniform(0.5, 1.0)


class FaultTransport(_Transport):
    """For clients of plain code."""

    def __init__(
        self,
        inner: Any,  # noqa: ANN401 - the library's
        kit: HttpKit,
        gate: LLMGate,
        chance: random.Random | None = None,
    ) -> None:
        """Wraps connections for one agent; ``gate`` speaks for it."""
        super().__init__(inner, kit, chance)
        self._gate = gate

    def handle_request(self, request: Any) -> Any:  # noqa: ANN401 - as above
        """Sends a request when the agent may, and again where its limit's provider has refused it."""
        try:
            return self._handle(request)
        except AresError as error:
            raise passing(error, _provider(request)) from error

    def _handle(self, request: Any) -> Any:  # noqa: ANN401 - as above
        place = self._gate.turns()
        if place is None:
            self._gate.permit()
            return self._send(request)[0]
        self._begin(place, request)
        while True:
            self._gate.permit()
            place.turn()
            place.tries += 1
            response, fault = self._send(request)
            verdict = self._judge(place, request, response)
            if verdict.closes is not None:
                place.close(verdict.closes, fault)
            if not verdict.again:
                return response
            response.close()
            place.wait(verdict.wait)

    def _send(self, request: Any) -> tuple[Any, Fault | None]:  # noqa: ANN401 - as above
        """The answer, and the fault that has made it up."""
        fault = self._gate.take()
        if fault is None:
            return self._inner.handle_request(request), None
        made = self._fail(fault, request)
        if made is not None:
            return made, fault
        return self._kit.cut(self._inner.handle_request(request), is_async=False), None

    def close(self) -> None:
        """Closes the connections."""
        self._inner.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(kind, error, trace)


class AsyncFaultTransport(_Transport):
    """For clients on an event loop."""

    def __init__(
        self,
        inner: Any,  # noqa: ANN401 - the library's
        kit: HttpKit,
        gate: AsyncLLMGate,
        chance: random.Random | None = None,
    ) -> None:
        """See :class:`FaultTransport`."""
        super().__init__(inner, kit, chance)
        self._gate = gate

    async def handle_async_request(self, request: Any) -> Any:  # noqa: ANN401 - as above
        """See :meth:`FaultTransport.handle_request`."""
        try:
            return await self._handle(request)
        except AresError as error:
            raise passing(error, _provider(request)) from error

    async def _handle(self, request: Any) -> Any:  # noqa: ANN401 - as above
        place = self._gate.turns()
        if place is None:
            await self._gate.permit()
            return (await self._send(request))[0]
        self._begin(place, request)
        while True:
            await self._gate.permit()
            await place.turn()
            place.tries += 1
            response, fault = await self._send(request)
            verdict = self._judge(place, request, response)
            if verdict.closes is not None:
                await place.close(verdict.closes, fault)
            if not verdict.again:
                return response
            await response.aclose()
            await place.wait(verdict.wait)

    async def _send(self, request: Any) -> tuple[Any, Fault | None]:  # noqa: ANN401 - as above
        """See :meth:`FaultTransport._send`."""
        fault = await self._gate.take()
        if fault is None:
            return await self._inner.handle_async_request(request), None
        made = self._fail(fault, request)
        if made is not None:
            return made, fault
        return self._kit.cut(await self._inner.handle_async_request(request), is_async=True), None

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)


def passing(error: AresError, provider: str) -> AresError:
    """The same error, as the SDK at hand lets it through: some take others for lost connections, and try again.

    Their own kind of error they raise as it is. So it is of both kinds, where that SDK is in use.
    """
    base = getattr(sys.modules.get(provider), _OWN_ERRORS[provider], None)
    if not isinstance(base, type) or not issubclass(base, Exception):
        return error
    return _of_both(type(error), base)(error.fields)


def _of_both(kind: type[AresError], base: type[Exception]) -> type[AresError]:
    return type(kind.__name__, (kind, base), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def _provider(request: Any) -> str:  # noqa: ANN401 - the library's
    return provider_of(request.url.path, request.headers)
