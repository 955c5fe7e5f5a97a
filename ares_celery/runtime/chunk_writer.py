"""Stores the pieces of an agent's answer: what is yielded within 50 ms goes as one, the first of a pause at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Final

from ares_celery.background import counted_work
from ares_celery.clock import Clock

__all__ = ["AsyncChunkWriter", "CallerLeft", "ChunkWriter"]

#: Seconds within which pieces are gathered.
GATHER: Final = 0.05
#: Pieces and bytes that are gathered at most: more is stored at once, and the agent waits for it.
MOST_PIECES: Final = 500
MOST_BYTES: Final = 256 << 10
#: Seconds between two looks whether the caller is still there, while the agent yields nothing.
LOOK: Final = 2.0


class CallerLeft(Exception):
    """The caller of the stream has left."""


class _Gathered:
    """Pieces that are not stored yet, and when the last ones were."""

    def __init__(self, stored: int, clock: Clock) -> None:
        self._clock = clock
        self._pieces: list[bytes] = []
        self._bytes = 0
        self._stored_at = clock.monotonic() - GATHER
        #: Pieces that an incarnation before this one has stored: they are counted, and not sent again.
        self._known = stored
        #: How many pieces the agent has given so far.
        self.seq = 0

    def add(self, piece: bytes) -> bool:
        """Takes a piece; True when it has to be stored now."""
        self.seq += 1
        if self.seq <= self._known:
            return False
        self._pieces.append(piece)
        self._bytes += len(piece)
        is_much = len(self._pieces) >= MOST_PIECES or self._bytes >= MOST_BYTES
        return is_much or self.due_in() <= 0

    def due_in(self) -> float:
        """Seconds until what was gathered has to be stored."""
        return self._stored_at + GATHER - self._clock.monotonic()

    @property
    def is_empty(self) -> bool:
        """Nothing waits to be stored."""
        return not self._pieces

    def take(self) -> tuple[int, list[bytes]]:
        """All of it, with the seq of its first piece."""
        pieces, self._pieces, self._bytes = self._pieces, [], 0
        self._stored_at = self._clock.monotonic()
        return self.seq - len(pieces) + 1, pieces


class AsyncChunkWriter:
    """For one stream of an agent on the event loop."""

    def __init__(
        self,
        write: Callable[[int, list[bytes]], Awaitable[int | None]],
        clock: Clock,
        *,
        stored: int,
        on_left: Callable[[], None],
    ) -> None:
        """Binds the writer.

        Args:
            write: Stores pieces from a seq on; None: the caller has left.
            clock: For the gathering.
            stored: Pieces that are stored already.
            on_left: Called when a store that the agent does not wait for finds that the caller has left.
        """
        self._write = write
        self._gathered = _Gathered(stored, clock)
        self._on_left = on_left
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._storing: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    @property
    def seq(self) -> int:
        """How many pieces the agent has given so far."""
        return self._gathered.seq

    async def put(self, piece: bytes) -> None:
        """Takes a piece; waits while much is to be stored. Raises CallerLeft, and what storing raised."""
        if self._failure is not None:
            raise self._failure
        if self._gathered.add(piece):
            await self.flush()
        elif self._timer is None and not self._gathered.is_empty:
            self._timer = asyncio.get_running_loop().call_later(max(self._gathered.due_in(), 0), self._store_soon)

    async def flush(self) -> None:
        """Stores what was gathered."""
        async with self._lock:
            self._stop_timer()
            if self._gathered.is_empty:
                return
            if await self._write(*self._gathered.take()) is None:
                raise CallerLeft

    def _store_soon(self) -> None:
        self._timer = None
        self._storing = asyncio.get_running_loop().create_task(self._store())

    async def _store(self) -> None:
        try:
            await self.flush()
        except BaseException as error:  # noqa: BLE001 - raised to the agent's next piece
            self._failure = error
            if isinstance(error, CallerLeft):
                self._on_left()

    async def finish(self) -> None:
        """Stores what is left. Raises what storing raised."""
        self._stop_timer()
        if self._storing is not None:
            await self._storing
        if self._failure is not None:
            raise self._failure
        await self.flush()

    def drop(self) -> None:
        """Stores nothing more."""
        self._stop_timer()
        if self._storing is not None:
            self._storing.cancel()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class ChunkWriter:
    """For one stream of a plain agent: a thread of its own stores what the agent has yielded and goes on from."""

    def __init__(self, write: Callable[[int, list[bytes]], int | None], clock: Clock, *, stored: int) -> None:
        """Begins; see :class:`AsyncChunkWriter`."""
        self._write = write
        self._clock = clock
        self._gathered = _Gathered(stored, clock)
        self._lock = threading.Lock()
        self._bell = threading.Event()
        self._is_over = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ares-chunks", daemon=True)
        self._thread.start()

    @property
    def seq(self) -> int:
        """How many pieces the agent has given so far."""
        return self._gathered.seq

    def put(self, piece: bytes) -> None:
        """Takes a piece; waits while much is to be stored. Raises CallerLeft, and what storing raised."""
        if self._failure is not None:
            raise self._failure
        with self._lock:
            if self._gathered.add(piece):
                self._store()
                return
        self._bell.set()

    def leave(self) -> None:
        """The caller has left: the next piece is refused."""
        self._failure = self._failure or CallerLeft()

    def finish(self, *, store: bool) -> None:
        """Ends the thread, and stores what is left. Raises what storing raised."""
        self._is_over = True
        self._bell.set()
        self._thread.join()
        if store:
            if self._failure is not None:
                raise self._failure
            with self._lock:
                self._store()

    def _store(self, *, ask: bool = False) -> None:
        """Stores what was gathered; with nothing to store it asks, if told to, whether the caller is still there."""
        if (ask or not self._gathered.is_empty) and self._write(*self._gathered.take()) is None:
            raise CallerLeft

    def _run(self) -> None:
        with counted_work("chunks"):
            while not self._is_over and self._failure is None:
                with self._lock:
                    pause = LOOK if self._gathered.is_empty else self._gathered.due_in()
                if self._clock.wait(self._bell, max(pause, 0)) and not self._is_over:
                    self._bell.clear()
                    continue
                self._look()

    def _look(self) -> None:
        try:
            with self._lock:
                if self._is_over:
                    return
                self._store(ask=True)
        except BaseException as error:  # noqa: BLE001 - raised to the agent's next piece
            self._failure = error
