"""Reading an agent's history for recovery: page by page, in order, and never past what is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from ares_celery.agents.contract import Applier, Replayer
from ares_celery.errors import EventIntegrityError
from ares_celery.errors.wording import say_place
from ares_celery.ids import AgentId, Version
from ares_celery.model.command import Finding
from ares_celery.model.event import Event, EventType, ReadOptions, is_runtime_event
from ares_celery.runtime.integrity import Violation
from ares_celery.store.base import EventReader

__all__ = ["PAGE", "History", "Patience", "ReplayPolicy", "at_once", "replay_events", "replayable"]

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Events read in one round trip: bounds memory, and costs about one call a thousand events.
PAGE: Final = 1000
#: Violations that an event names one by one.
_MOST_NAMED: Final = 20


class Patience(Protocol):
    """Makes a call of the store; one that is away is waited for."""

    def __call__(self, call: Callable[[], T], /) -> T:
        """The call's value."""
        ...


def at_once(call: Callable[[], T], /) -> T:
    """No patience: what the call raises is raised."""
    return call()


@dataclass(frozen=True, slots=True)
class ReplayPolicy:
    """How the events after the snapshot are handed over.

    Attributes:
        lifecycle: The runtime's own events are handed over too.
        newest: At most so many, the newest; 0 = all of them, whatever their number.
        forgive: A gap is passed over, and said, instead of ending the recovery.
    """

    lifecycle: bool = False
    newest: int = 0
    forgive: bool = False


def replayable(event: Event, *, lifecycle: bool) -> bool:
    """The agent gets this event: its own, or with ``lifecycle`` also the runtime's."""
    return lifecycle or not is_runtime_event(event)


class History:
    """The events of one agent up to the version of its claim.

    Args:
        events: Where they are.
        agent_id: Whose they are.
        last: Version of the last one.
        forgiven: What is missing or damaged up to this version is passed over.
        patience: For each read.
    """

    def __init__(
        self, events: EventReader, agent_id: AgentId, last: Version, *, forgiven: int, patience: Patience = at_once
    ) -> None:
        self._events = events
        self._agent_id = agent_id
        self._last = last
        self._forgiven = forgiven
        self._patience = patience
        self._violations: list[Violation] = []

    def after(self, position: int, first_page: Sequence[Event] | None = None) -> Iterator[Event]:
        """Events with versions after ``position``, page by page, each checked for gaps.

        Args:
            position: Version before the first one.
            first_page: The first of them, where they are here already.

        Raises:
            EventIntegrityError: Something is missing or damaged and not forgiven; field ``version`` says where.
        """
        page = first_page or ()
        while position < self._last:
            damaged: EventIntegrityError | None = None
            if not page:
                page, damaged = self._read(position)
            if not page and damaged is None:
                self._violated(Violation("truncated", position + 1, self._last), "events are missing")
                return
            for event in page:
                if event.version != position + 1:
                    self._violated(Violation("gap", position + 1, event.version - 1), "events are missing")
                position = event.version
                yield event
            if damaged is not None:
                position = int(damaged.fields["version"])
                self._violated(Violation("damaged", position, position), str(damaged.fields.get("problem", "")))
            page = ()

    def newest_of(self, event_type: str) -> Event | None:
        """The newest event of a type; read backwards, so that it costs little where it is near the end."""
        position = self._last
        while position > 0:
            page = self._read_by(ReadOptions(to_version=position, limit=PAGE, direction="descending"))
            for event in page:
                if event.type == event_type and not is_runtime_event(event):
                    return event
            if len(page) < PAGE:
                return None
            position = Version(page[-1].version - 1)
        return None

    def _read(self, position: int) -> tuple[tuple[Event, ...], EventIntegrityError | None]:
        """The next page; where it holds a damaged event, what is before that, and what was said of it."""
        try:
            return self._page(position, self._last), None
        except EventIntegrityError as error:
            before = int(error.fields["version"]) - 1
            return (self._page(position, before) if before > position else ()), error

    def _page(self, position: int, last: int) -> tuple[Event, ...]:
        return self._read_by(ReadOptions(from_version=position + 1, to_version=last, limit=PAGE))

    def _read_by(self, options: ReadOptions) -> tuple[Event, ...]:
        # A summary must never stand in for an event here.
        events_only = replace(options, summaries=False)
        return self._patience(lambda: self._events.read(self._agent_id, events_only))

    def _violated(self, violation: Violation, problem: str) -> None:
        if violation.last > self._forgiven:
            first = max(violation.first, self._forgiven + 1)
            raise EventIntegrityError(agent_id=self._agent_id, version=first, problem=problem)
        log.error(
            "agent %s: events %d to %d: %s; recovery goes on (integrity=warn, or the loss was accepted)",
            self._agent_id,
            violation.first,
            violation.last,
            problem,
        )
        self._violations.append(violation)

    def findings(self) -> Iterator[Finding]:
        """What was passed over, as one event's worth."""
        if self._violations:
            named = [
                {"kind": one.kind, "from_version": one.first, "to_version": one.last}
                for one in self._violations[:_MOST_NAMED]
            ]
            payload: dict[str, Any] = {"count": len(self._violations), "violations": named}
            yield Finding(EventType.INTEGRITY_VIOLATED, payload, "integrity_violations")


def replay_events(agent: Applier | Replayer, events: Iterable[Event]) -> int:
    """Hands events to an agent; returns how many.

    ``apply`` gets them one by one as they are read; ``replay_events`` gets all of them at once, in memory.
    """
    if isinstance(agent, Applier):
        count = 0
        for count, event in enumerate(events, 1):  # noqa: B007 - the last count is the answer
            try:
                agent.apply(event)
            except BaseException as error:
                say_place(error, f"apply raised on event {event.type!r}, version {event.version}")
                raise
        return count
    everything = tuple(events)
    try:
        agent.replay_events(everything)
    except BaseException as error:
        say_place(error, f"replay_events raised on {len(everything)} events")
        raise
    return len(everything)
