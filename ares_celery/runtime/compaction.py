"""Compaction: long streams get summaries, and where the namespace wants it, what they cover is removed."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ares_celery.agents.summariser import Summariser, check_summariser, registered_summariser
from ares_celery.config import ConfigSource, RuntimeConfig, config_source
from ares_celery.errors import AresError, StopSignal, StreamNotFoundError, VersionConflictError
from ares_celery.errors.wording import describe_error, message_of
from ares_celery.ids import Version
from ares_celery.model.event import Event, ReadOptions
from ares_celery.model.summary import Summary, SummaryBuilder
from ares_celery.runtime.interrupts import Interrupts
from ares_celery.store.base import EventStore

__all__ = ["CompactionReport", "Compactor"]

log: Final = logging.getLogger(__name__)

#: Events read in one round trip; bounds memory.
PAGE: Final = 1_000
#: Seconds that a user's summariser may take.
SUMMARISER_LIMIT: Final = 30.0
#: Characters of a text; more is no summary.
LONGEST_TEXT: Final = 10_000
#: Calls of summarisers that may hang at once: each holds a thread, and one more would hang as well.
_MOST_HANGING: Final = 4
#: Tries when others summarise the same stream at the same time.
_TRIES: Final = 3


def _nobody() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What one pass over all streams did.

    Attributes:
        compacted: Streams that got a summary.
        trimmed: Events that were removed.
        failed: Streams that could not be compacted, each with the error's text; the pass went on.
    """

    compacted: tuple[str, ...] = ()
    trimmed: int = 0
    failed: Mapping[str, str] = field(default_factory=_nobody)


class Compactor:
    """Summarises streams of one namespace; safe to share between threads and to run in many processes at once.

    Args:
        events: The streams.
        config: The namespace's compaction_threshold, compaction_keep and trim_events.
        summariser: Writes the texts; None = the one that this process has registered, if any.
        limit: Seconds that it may take.
    """

    def __init__(
        self,
        events: EventStore,
        config: RuntimeConfig | ConfigSource,
        *,
        summariser: Summariser | None = None,
        limit: float = SUMMARISER_LIMIT,
    ) -> None:
        if summariser is not None:
            check_summariser(summariser)
        self._events = events
        self._settings = config_source(config)
        self._summariser = summariser
        self._limit = limit

    @property
    def _config(self) -> RuntimeConfig:
        return self._settings()

    def compact(self, stream_id: str) -> Summary | None:
        """Summarises the events of a stream that no summary covers, but for the newest ``compaction_keep``.

        Summaries of a stream follow each other without overlap. With ``trim_events`` the events that summaries cover
        are removed, of an agent as far as its snapshots allow.

        Returns:
            The new summary; None when no more than ``compaction_threshold`` events wait for one.

        Raises:
            StoreUnavailableError, AresError: Nothing was stored, or nobody knows; compacting again is safe.
        """
        made = self._summarise(stream_id)
        self._events.prune_summaries(stream_id)
        self._trim(stream_id)
        return made

    def compact_all(self) -> CompactionReport:
        """Compacts every stream that is due; an error of one is logged and told, and the others are done.

        Raises:
            AresError: The streams could not even be listed.
        """
        compacted: list[str] = []
        failed: dict[str, str] = {}
        trimmed = 0
        for stream_id in self._events.streams():
            try:
                if self._summarise(stream_id) is not None:
                    compacted.append(stream_id)
                self._events.prune_summaries(stream_id)
                trimmed += self._trim(stream_id)
            except Exception as error:
                log.exception("stream %s could not be compacted; the others follow", stream_id)
                failed[stream_id] = str(error)
        return CompactionReport(tuple(compacted), trimmed, failed)

    def _summarise(self, stream_id: str) -> Summary | None:
        for _ in range(_TRIES):
            after = self._events.summarised_version(stream_id)
            version = self._events.stream_version(stream_id)
            if version - after <= self._config.compaction_threshold:
                return None
            last = Version(version - self._config.compaction_keep)
            summary = self._draft(stream_id, after, last)
            if summary is None:
                return None
            try:
                return self._events.save_summary(summary, after=after)
            except VersionConflictError:
                log.info("stream %s was summarised by somebody else meanwhile", stream_id)
            except StreamNotFoundError:
                return None  # deleted meanwhile
        return None

    def _draft(self, stream_id: str, after: Version, last: Version) -> Summary | None:
        """The summary of a part; None when nothing of it is left."""
        builder = SummaryBuilder(stream_id)
        count = 0
        for event in self._read(stream_id, after, last):
            builder.add(event)
            count += 1
        if not count:
            return None
        summary = builder.build(uuid.uuid4().hex)
        writer = self._summariser or registered_summariser()
        return summary if writer is None else self._written_by(writer, summary)

    def _read(self, stream_id: str, after: Version, last: Version) -> Iterator[Event]:
        position = after
        while position < last:
            options = ReadOptions(from_version=position + 1, to_version=last, limit=PAGE, summaries=False)
            page = self._events.read(stream_id, options)
            yield from page
            if len(page) < PAGE:
                return
            position = page[-1].version

    def _written_by(self, writer: Summariser, summary: Summary) -> Summary:
        """The summary with a user's text; with ours, and the problem, when that did not work."""
        attempt = _Attempt(
            writer, summary, self._read(summary.stream_id, Version(summary.start_version - 1), summary.end_version)
        )
        problem = attempt.run(self._limit)
        if problem:
            log.error(
                "the summariser failed on versions %s to %s of stream %s, the runtime's own text is used: %s",
                summary.start_version,
                summary.end_version,
                summary.stream_id,
                problem,
            )
            return replace(summary, metadata={**summary.metadata, "summariser_error": problem[:1_000]})
        return replace(summary, text=attempt.text)

    def _trim(self, stream_id: str) -> int:
        if not self._config.trim_events:
            return 0
        covered = self._events.summarised_version(stream_id)
        return self._events.trim_before(stream_id, covered) if covered else 0


_hanging_lock: Final = threading.Lock()
#: Calls of this process that were given up and have not returned.
_hanging: Final[set[_Attempt]] = set()


class _Attempt:
    """One call of a user's summariser, on a thread of its own, as it may hang."""

    def __init__(self, writer: Summariser, summary: Summary, events: Iterator[Event]) -> None:
        self._writer = writer
        self._summary = summary
        self._events = events
        self._interrupts = Interrupts()
        self._over = threading.Event()
        self._answer: Any = None
        self._problem = ""
        self.text = ""

    def run(self, limit: float) -> str:
        """Calls it; says what went wrong, or nothing."""
        with _hanging_lock:
            if len(_hanging) >= _MOST_HANGING:
                return f"{len(_hanging)} earlier calls have not returned"
        thread = threading.Thread(target=self._call, name="ares-summariser", daemon=True)
        thread.start()
        thread.join(limit)
        if thread.is_alive():
            with _hanging_lock:
                if not self._over.is_set():
                    _hanging.add(self)
            # Reached at its next bytecode; what blocks outside of Python keeps its thread, until too many do.
            self._interrupts.send(StopSignal)
            return f"it took longer than {limit:g} s"
        return self._problem or self._take()

    def _take(self) -> str:
        """Takes its answer; says what is wrong with it, or nothing."""
        if not isinstance(self._answer, str) or not self._answer:
            return f"it returned a {type(self._answer).__name__}, not a text"
        if len(self._answer) > LONGEST_TEXT:
            return f"it returned {len(self._answer)} characters; {LONGEST_TEXT} are the most"
        if not _is_text(self._answer):
            return "its text holds half of a surrogate pair"
        self.text = self._answer
        return ""

    def _call(self) -> None:
        try:
            with self._interrupts.allowed():
                self._answer = self._writer(self._summary, self._events)
        except BaseException as error:  # noqa: BLE001 - a user's code may raise anything; it ends here
            self._problem = describe_error(error) if not isinstance(error, AresError) else message_of(error)
        finally:
            with _hanging_lock:
                self._over.set()
                _hanging.discard(self)


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
