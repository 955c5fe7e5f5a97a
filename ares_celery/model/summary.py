"""Summaries: what a part of a stream said, for readers; never for recovery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from ares_celery.clock import to_datetime
from ares_celery.ids import Version
from ares_celery.model.event import Event

__all__ = ["Outcome", "Summary", "SummaryBuilder", "describe"]

#: Errors kept in a summary, and shown in its text.
MOST_ERRORS: Final = 10
ERRORS_SHOWN: Final = 3
#: Task ids, tools and types kept in a summary: with more, the numbers go on and the names stop.
MOST_NAMES: Final = 100
#: Characters of a request, of an error, and of any name.
LONGEST_REQUEST: Final = 200
LONGEST_ERROR: Final = 500
LONGEST_NAME: Final = 200
#: Stands for what had no place among the names.
OTHERS: Final = "…"

_COMPLETED: Final = frozenset({"agent.completed", "task.completed", "workflow.completed"})
_FAILED: Final = frozenset(
    {"agent.exhausted", "agent.parked", "failover.failed", "task.failed", "task.expired", "workflow.failed"}
)
_TOOLS: Final = frozenset({"tool.called", "tool.call.started"})
_NOT_YET: Final = to_datetime(0)
_REQUESTS: Final = ("request", "input", "prompt", "query")


class Outcome(StrEnum):
    """How the work in a part of a stream went."""

    #: Something was completed and nothing failed.
    COMPLETED = "completed"
    #: Something failed and nothing was completed.
    FAILED = "failed"
    #: Both.
    PARTIAL = "partial"
    #: Neither: it goes on.
    ACTIVE = "active"


def _no_names() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class Summary:
    """What the events of a stream from one version to another said.

    Attributes:
        id: Unique.
        stream_id: Whose events.
        text: A few sentences for people; a summariser of your own may have written them.
        event_count: How many events.
        start_version: The first of them.
        end_version: The last of them; the next summary begins after it.
        start_time: When the first was stored.
        end_time: When the last was stored.
        counts: How many of each type; beyond a hundred types the rest under ``…``.
        outcome: How it went.
        errors: The first ten errors.
        tasks_created: Ids of tasks that were created, at most a hundred.
        tools_called: How often each tool was called.
        request: The first request found, at most 200 characters.
        agent_id: The agent named by the events; the last one where they name several, as for the next three.
        task_id: The task.
        session_id: The session.
        user_id: The user.
        metadata: ``summariser_error`` when a summariser of your own failed.
        created_at: When it was made.
    """

    id: str
    stream_id: str
    text: str
    event_count: int
    start_version: Version
    end_version: Version
    start_time: datetime
    end_time: datetime
    counts: Mapping[str, int] = field(default_factory=_no_names)
    outcome: Outcome = Outcome.ACTIVE
    errors: tuple[str, ...] = ()
    tasks_created: tuple[str, ...] = ()
    tools_called: Mapping[str, int] = field(default_factory=_no_names)
    request: str = ""
    agent_id: str = ""
    task_id: str = ""
    session_id: str = ""
    user_id: str = ""
    metadata: Mapping[str, Any] = field(default_factory=_no_names)
    created_at: datetime = _NOT_YET


class SummaryBuilder:
    """Folds events, one at a time, into what a summary says; its memory is bounded whatever their number."""

    def __init__(self, stream_id: str) -> None:
        """Begins without events."""
        self._stream_id = stream_id
        self._first: Event | None = None
        self._last: Event | None = None
        self._count = 0
        self._types: Counter[str] = Counter()
        self._tools: Counter[str] = Counter()
        self._tasks: list[str] = []
        self._errors: list[str] = []
        self._request = ""
        self._about: dict[str, str] = {}
        self._completed = self._failed = False

    def add(self, event: Event) -> None:
        """Takes the next event of the stream."""
        self._first = self._first or event
        self._last = event
        self._count += 1
        _count(self._types, event.type)
        self._completed |= event.type in _COMPLETED
        self._failed |= event.type in _FAILED
        if event.type in _TOOLS:
            _count(self._tools, _text(event.payload, "tool", "tool_name", "name") or "?")
        if event.type == "task.created" and len(self._tasks) < MOST_NAMES:
            self._tasks.append(_text(event.payload, "task_id", "id")[:LONGEST_NAME])
        if len(self._errors) < MOST_ERRORS and (error := _error_of(event)):
            self._errors.append(error[:LONGEST_ERROR])
        self._request = self._request or _text(event.payload, *_REQUESTS)[:LONGEST_REQUEST]
        for name in ("agent_id", "task_id", "session_id", "user_id"):
            found = _text(event.payload, name) or _text(event.metadata, name)
            if found:
                self._about[name] = found[:LONGEST_NAME]

    def build(self, summary_id: str) -> Summary:
        """What was added so far, with a text that says it.

        Raises:
            ValueError: Nothing was added.
        """
        if self._first is None or self._last is None:
            raise ValueError(f"a summary of stream {self._stream_id!r} needs at least one event")
        summary = Summary(
            id=summary_id,
            stream_id=self._stream_id,
            text="",
            event_count=self._count,
            start_version=self._first.version,
            end_version=self._last.version,
            start_time=self._first.time,
            end_time=self._last.time,
            counts=dict(self._types),
            outcome=self._outcome(),
            errors=tuple(self._errors),
            tasks_created=tuple(self._tasks),
            tools_called=dict(self._tools),
            request=self._request,
            agent_id=self._about.get("agent_id", ""),
            task_id=self._about.get("task_id", ""),
            session_id=self._about.get("session_id", ""),
            user_id=self._about.get("user_id", ""),
        )
        return replace(summary, text=describe(summary))

    def _outcome(self) -> Outcome:
        match self._completed, self._failed:
            case True, True:
                return Outcome.PARTIAL
            case True, False:
                return Outcome.COMPLETED
            case False, True:
                return Outcome.FAILED
            case _:
                return Outcome.ACTIVE


def describe(summary: Summary) -> str:
    """The text of a summary that nobody wrote by hand."""
    most = sorted(summary.counts.items(), key=lambda item: (-item[1], item[0]))[:5]
    parts = [
        f"{summary.event_count} events (versions {summary.start_version} to {summary.end_version}), {summary.outcome}: "
        + ", ".join(f"{count} {kind}" for kind, count in most)
        + (", …" if len(summary.counts) > len(most) else "")
        + "."
    ]
    if summary.request:
        parts.append(f"Request: {summary.request}")
    if summary.tools_called:
        parts.append("Tools: " + ", ".join(f"{name} ({count})" for name, count in summary.tools_called.items()) + ".")
    if summary.errors:
        more = len(summary.errors) - ERRORS_SHOWN
        parts.append("Errors: " + "; ".join(summary.errors[:ERRORS_SHOWN]) + (f"; and {more} more" * (more > 0)))
    return "\n".join(parts)


def _count(names: Counter[str], name: str) -> None:
    known = name[:LONGEST_NAME]
    names[known if known in names or len(names) < MOST_NAMES else OTHERS] += 1


def _text(values: Mapping[str, Any], *names: str) -> str:
    """The first of these values that is a text with something in it."""
    return next((values[name] for name in names if isinstance(values.get(name), str) and values[name]), "")


def _error_of(event: Event) -> str:
    """What an event says of a failure; empty when it tells none."""
    said = _text(event.payload, "error")
    is_failure = event.type in _FAILED or event.type.endswith((".failed", ".error"))
    is_death = event.type == "agent.stopped" and event.payload.get("auto_restore") is True
    if not said and not is_failure and not is_death:
        return ""
    said = said or _text(event.payload, "problem", "reason", "cause", "message")
    return f"{event.type}: {said}" if said else event.type
