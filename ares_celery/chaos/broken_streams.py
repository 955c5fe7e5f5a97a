"""Bodies of answers that break off after their first piece, as those do whose server goes away."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

__all__ = ["async_broken_stream", "broken_stream"]

_MESSAGE: Final = "peer closed connection without sending complete message body (incomplete chunked read)"


class _Parts:
    """What breaks off, and how it says so.

    Args:
        inner: The body as it comes.
        error: What is raised then, given a sentence.
        by_event: It is a stream of events that can be read as it comes.
    """

    def __init__(self, inner: Any, error: Any, *, by_event: bool) -> None:  # noqa: ANN401 - the library's
        self._inner = inner
        self._error = error
        self._by_event = by_event

    def _first_of(self, piece: bytes) -> bytes:
        """What of a first piece still arrives: the first event of a stream, the first half of anything else."""
        if not self._by_event:
            return piece[: len(piece) // 2]
        end = piece.find(b"\n\n")
        return piece if end < 0 else piece[: end + 2]


class _Broken(_Parts):
    def __iter__(self) -> Iterator[bytes]:
        for piece in self._inner:
            if piece:
                yield self._first_of(piece)
                break
        raise self._error(_MESSAGE)

    def close(self) -> None:
        self._inner.close()


class _AsyncBroken(_Parts):
    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            if piece:
                yield self._first_of(piece)
                break
        raise self._error(_MESSAGE)

    async def aclose(self) -> None:
        await self._inner.aclose()


def broken_stream(module: Any) -> Any:  # noqa: ANN401 - httpx2 or httpx, and its class
    """The class for threads: answers of the library demand its own base."""
    return type("BrokenStream", (_Broken, module.SyncByteStream), {})


def async_broken_stream(module: Any) -> Any:  # noqa: ANN401 - as above
    """Its twin for an event loop."""
    return type("AsyncBrokenStream", (_AsyncBroken, module.AsyncByteStream), {})
