"""What the stream of one agent tells of its deaths and returns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from ares_celery.model.event import Event, EventType

__all__ = ["Failover", "FailoverReader", "Span", "SpanReader", "failovers", "spans"]


@dataclass(frozen=True, slots=True)
class Failover:
    """A death, or a restore that somebody asked for, and what came of it.

    Attributes:
        agent_id: Whose.
        incarnation: The one that ended.
        triggered: When it was found, by the clock of the store.
        completed: When the agent's code ran again; None: it did not, so far.
        cause: The class of the death; ``restore`` when somebody asked for it.
        charged: It counts against the restart budget.
        end: ``completed``, ``failed``, ``aborted``, ``given up``, ``unsteady``, or empty while it goes on.
        relapses: Further deaths, each of an agent that had just come back.
        backoff: Seconds of it that were waits before a first try, on purpose.
    """

    agent_id: str
    incarnation: int
    triggered: datetime
    completed: datetime | None = None
    cause: str = ""
    charged: bool = False
    end: str = ""
    relapses: int = 0
    backoff: float = 0.0

    @property
    def seconds(self) -> float | None:
        """From the trigger, the first one of several, until the agent ran again."""
        return None if self.completed is None else (self.completed - self.triggered).total_seconds()

    @property
    def is_death(self) -> bool:
        """Nobody asked for it."""
        return self.cause != "restore"

    @property
    def is_lost(self) -> bool:
        """A death without a return, that nobody has ended by another wish."""
        return self.is_death and self.completed is None and self.end != "aborted"


_ENDS = {
    EventType.FAILOVER_COMPLETED.value: "completed",
    EventType.FAILOVER_FAILED.value: "failed",
    EventType.FAILOVER_ABORTED.value: "aborted",
}


class FailoverReader:
    """Reads a stream once, event by event, and tells of each failover when it is over."""

    def __init__(self, agent_id: str) -> None:
        """Nothing is known yet."""
        self._agent_id = agent_id
        self._going: Failover | None = None

    def see(self, event: Event) -> Failover | None:
        """The failover that this event closes; None: it closes none."""
        going = self._going
        if event.type == EventType.FAILOVER_TRIGGERED:
            payload = event.payload
            self._going = Failover(
                self._agent_id,
                int(payload.get("incarnation") or 0),
                event.time,
                cause=str(payload.get("cause", "")),
                charged=bool(payload.get("charged", False)),
                backoff=_seconds(payload.get("delay_ms")),
            )
            return going
        if event.type not in _ENDS or going is None:
            return None
        self._going = None
        end = _ENDS[event.type]
        return replace(going, completed=event.time if end == "completed" else None, end=end)

    @property
    def going(self) -> Failover | None:
        """The one that nothing has closed so far."""
        return self._going


def _seconds(milliseconds: object) -> float:
    return milliseconds / 1000 if isinstance(milliseconds, int | float) else 0.0


def failovers(agent_id: str, events: Iterable[Event]) -> tuple[Failover, ...]:
    """The failovers of an agent, in order: each from its trigger to what closed it."""
    reader = FailoverReader(agent_id)
    found = [one for event in events if (one := reader.see(event)) is not None]
    return (*found, reader.going) if reader.going is not None else tuple(found)


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which an agent was ``up``, ``down``, or ``out``: at rest on purpose.

    Attributes:
        agent_id: Whose.
        state: Which of the three.
        start: From when, by the clock of the store.
        end: Until when.
    """

    agent_id: str
    state: str
    start: datetime
    end: datetime

    @property
    def seconds(self) -> float:
        """How long."""
        return (self.end - self.start).total_seconds()


_STATES = {
    EventType.AGENT_STARTED.value: "up",
    EventType.FAILOVER_COMPLETED.value: "up",
    EventType.FAILOVER_TRIGGERED.value: "down",
    EventType.FAILOVER_FAILED.value: "down",
    EventType.AGENT_EXHAUSTED.value: "down",
    EventType.AGENT_PARKED.value: "down",
    EventType.AGENT_COMPLETED.value: "out",
    EventType.FAILOVER_ABORTED.value: "out",
}


class SpanReader:
    """Reads a stream once, and tells what the agent was during a time, without gaps."""

    def __init__(self, agent_id: str, start: datetime, end: datetime) -> None:
        """It is ``out`` before anything is known of it."""
        self._agent_id = agent_id
        self._start, self._end = start, end
        self._state, self._since = "out", start

    def see(self, event: Event) -> Span | None:
        """The span that this event ends; None: it ends none that took any time."""
        after = _state_after(event)
        if after is None or after == self._state:
            return None
        moment = min(max(event.time, self._start), self._end)
        ended = Span(self._agent_id, self._state, self._since, moment)
        self._state, self._since = after, moment
        return ended if ended.end > ended.start else None

    def last(self) -> Span | None:
        """What it was at the end, when all events were seen."""
        return Span(self._agent_id, self._state, self._since, self._end) if self._end > self._since else None


def spans(agent_id: str, events: Iterable[Event], start: datetime, end: datetime) -> tuple[Span, ...]:
    """What an agent was during a time, without gaps: ``out`` before anything is known of it."""
    reader = SpanReader(agent_id, start, end)
    found = [reader.see(event) for event in events]
    return tuple(one for one in (*found, reader.last()) if one is not None)


def _state_after(event: Event) -> str | None:
    if event.type == EventType.AGENT_STOPPED:
        # Of an end in order it says nothing; of a death, whether somebody brings the agent back.
        return "down" if "auto_restore" in event.payload else "out"
    return _STATES.get(event.type)
