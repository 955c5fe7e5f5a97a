"""A streamed answer as its caller reads it."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Self

from typing_extensions import override

from ares_celery.clock import Clock
from ares_celery.errors import AresError, ProcessTimeoutError, StoreUnavailableError, StreamGapError
from ares_celery.ids import AgentId
from ares_celery.model.message import Chunk
from ares_celery.store.messages import Mailbox

__all__ = ["BEYOND", "OUTAGE_PAUSE", "SIGN", "ChunkStream", "OpenStreams"]

log: Final = logging.getLogger(__name__)

#: Seconds between two signs of life of a caller that is busy with what it got; three fit into its lease.
SIGN: Final = 3.0
#: Seconds between two tries while the store is away.
OUTAGE_PAUSE: Final = 0.2
#: A seq beyond every chunk: reading behind it only says that somebody is there.
BEYOND: Final = 2**53 - 1


class ChunkStream(Iterator[Chunk]):
    """Gives the chunks of one answer, in order, each once; made by ``Manager.process_stream``.

    Ends behind the final chunk. :meth:`close`, the end of a ``with`` block, and dropping it before that end the stream
    in the agent, unless it is detached. For one thread at a time.

    Example:
        ``with manager.process_stream("writer-1", "rain") as chunks: first = next(chunks)``
    """

    def __init__(
        self, mailbox: Mailbox, agent_id: AgentId, message_id: str, *, timeout: float, detached: bool, clock: Clock
    ) -> None:
        """Binds a stream that was asked for; its first chunk is waited for when it is read."""
        self._mailbox = mailbox
        self._agent_id = agent_id
        self._timeout = timeout
        self._detached = detached
        self._clock = clock
        self._chunks: deque[Chunk] = deque()
        self._seq = 0
        self._is_over = False
        self._pid = os.getpid()
        #: Names the message; the same id again reads the same stream.
        self.message_id = message_id

    @property
    def seq(self) -> int:
        """The seq of the chunk that was read last; 0 before the first."""
        return self._seq - len(self._chunks)

    @property
    def is_over(self) -> bool:
        """There is nothing more to come: its end was read, it failed, or it was closed."""
        return self._is_over and not self._chunks

    @override
    def __iter__(self) -> Self:
        """Itself."""
        return self

    @override
    def __next__(self) -> Chunk:
        """The next chunk.

        Raises:
            StopIteration: Behind the final one. ProcessTimeoutError: None came in time; the stream goes on.
            StreamGapError: Some are no longer kept; the next call goes on behind them.
            AgentFailedError and others: What the stream ended with.
        """
        if not self._chunks:
            if self._is_over:
                raise StopIteration
            self._fetch()
        return self._chunks.popleft()

    def _fetch(self) -> None:
        try:
            found = self._read()
        except StreamGapError as error:
            self._seq = int(error.fields["last"])
            raise
        except AresError as error:
            self._is_over = not isinstance(error, ConnectionError)
            raise
        if not found:
            raise ProcessTimeoutError(agent_id=self._agent_id, message_id=self.message_id, timeout=self._timeout)
        self._chunks.extend(found)
        self._seq = found[-1].seq
        self._is_over = found[-1].final

    def _read(self) -> tuple[Chunk, ...] | None:
        """Reads; while the store is away, again and again until the time for a chunk is over."""
        until = self._clock.monotonic() + self._timeout
        while True:
            left = max(until - self._clock.monotonic(), 0)
            try:
                return self._mailbox.read_chunks(self._agent_id, self.message_id, after=self._seq, timeout=left)
            except StoreUnavailableError:
                if left <= 0 or self._clock.wait(threading.Event(), OUTAGE_PAUSE):
                    raise

    def show_presence(self) -> None:
        """Says that the caller is still there, between two reads."""
        self._mailbox.read_chunks(self._agent_id, self.message_id, after=BEYOND, timeout=0)

    def close(self) -> None:
        """Leaves the stream: unless it is detached, or over, it ends in the agent. Idempotent; raises nothing."""
        left, self._is_over = not self._is_over and not self._detached, True
        self._chunks.clear()
        if not left or self._pid != os.getpid():
            return
        try:
            self._mailbox.cancel(self._agent_id, self.message_id)
        except AresError as error:
            # Without a sign of life it ends as well, seconds later.
            log.warning("agent %s: the end of stream %s was not told: %s", self._agent_id, self.message_id, error)

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leaves the stream."""
        self.close()

    def __del__(self) -> None:
        """A stream that was dropped was left."""
        if getattr(self, "_pid", 0):
            self.close()


class OpenStreams:
    """The streams that callers of this process have open; while there are some, one thread says that they read.

    A caller may be busy for long with what it got; only a process that is gone has left.
    """

    def __init__(self) -> None:
        """Begins without a thread."""
        self._never = threading.Event()
        self._begin_anew()
        os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """In a forked child: the parent's streams are the parent's, its thread is not here, its lock may be held."""
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[ChunkStream] = weakref.WeakSet()
        self._is_running = False

    def watch(self, stream: ChunkStream, clock: Clock) -> None:
        """Says from now on that this stream is read, until it is over or dropped."""
        with self._lock:
            self._streams.add(stream)
            is_idle, self._is_running = not self._is_running, True
        if is_idle:
            threading.Thread(target=self._run, args=(clock,), name="ares-open-streams", daemon=True).start()

    def _run(self, clock: Clock) -> None:
        while open_now := self._open_after(clock):
            while open_now:
                # Nothing may hold a stream that its caller has dropped: dropping it is leaving it.
                _show_presence(open_now.pop())

    def _open_after(self, clock: Clock) -> list[ChunkStream]:
        """Those that are open seconds later; none: the thread ends."""
        clock.wait(self._never, SIGN)
        with self._lock:
            for over in [stream for stream in self._streams if stream.is_over]:
                self._streams.discard(over)
            open_now = list(self._streams)
            self._is_running = bool(open_now)
        return open_now


def _show_presence(stream: ChunkStream) -> None:
    try:
        stream.show_presence()
    except AresError as error:
        # Whoever reads it learns the same; a store that is away ends nobody's stream for seconds.
        log.debug("stream %s: %s", stream.message_id, error)
    except Exception:
        # A bug of ours: the other streams of this process must not lose their signs over it.
        log.exception("stream %s: no sign that it is read could be given", stream.message_id)
