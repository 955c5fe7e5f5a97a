"""Who compacts without being asked: each process looks after the streams of the agents that it hosts."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from ares_celery.background import counted_work
from ares_celery.config import ConfigSource, RuntimeConfig, config_source

__all__ = ["CompactionDuty"]

log: Final = logging.getLogger(__name__)

#: A stream is looked at each time it has grown by this part of compaction_threshold.
LOOKS: Final = 4
#: Streams that may wait; those beyond are looked at when they have grown further.
MOST_WAITING: Final = 1_000
#: Seconds that closing waits for a compaction that goes on.
_CLOSE_TIMEOUT: Final = 1.0


class _Hosted(Protocol):
    @property
    def agent_id(self) -> str:
        """Whose stream."""
        ...

    @property
    def last_version(self) -> int:
        """How far it has got."""
        ...


class CompactionDuty:
    """Sees how streams of hosted agents grow, and compacts them one by one on a thread of its own.

    Costs appends nothing: :meth:`look` compares numbers that the process has anyway, once a heartbeat. What a dying
    process leaves undone, the next look at the stream does, in whichever process.
    """

    def __init__(self, compact: Callable[[str], object], config: RuntimeConfig | ConfigSource) -> None:
        """Starts no thread before a stream is due.

        Args:
            compact: Compacts one stream.
            config: The namespace's compaction_threshold.
        """
        self._compact = compact
        self._settings = config_source(config)
        self._seen: dict[str, int] = {}
        self._waiting: queue.Queue[str | None] = queue.Queue(MOST_WAITING)
        self._queued: set[str] = set()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def _step(self) -> int:
        return max(1, self._settings().compaction_threshold // LOOKS)

    def look(self, hosted: Iterable[_Hosted]) -> None:
        """Takes note of the agents hosted now; for one thread."""
        before, self._seen = self._seen, {}
        for one in hosted:
            reached = one.last_version // self._step
            self._seen[one.agent_id] = reached
            if reached > before.get(one.agent_id, reached) and not self._put(one.agent_id):
                self._seen[one.agent_id] = before[one.agent_id]

    def close(self) -> None:
        """Ends the thread; what waits is left to the next look of whoever hosts the agent then."""
        self._closed = True
        if self._thread is not None:
            # Where there is no room, it sees that it is closed after what it does now.
            with contextlib.suppress(queue.Full):
                self._waiting.put_nowait(None)
            self._thread.join(_CLOSE_TIMEOUT)

    def _put(self, stream_id: str) -> bool:
        if stream_id in self._queued:
            return True
        try:
            self._waiting.put_nowait(stream_id)
        except queue.Full:
            return False
        self._queued.add(stream_id)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ares-compaction", daemon=True)
            self._thread.start()
        return True

    def _run(self) -> None:
        while (stream_id := self._waiting.get()) is not None and not self._closed:
            self._queued.discard(stream_id)
            try:
                with counted_work("compaction"):
                    self._compact(stream_id)
            except Exception:
                log.exception("stream %s could not be compacted; tried again when it has grown", stream_id)
