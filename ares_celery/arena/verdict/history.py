"""What the stream of one agent tells of its deaths and returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from ares_celery.model.event import Event, EventType

__all__ = ["Failover", "Span", "failovers", "spans"]


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
        end: ``completed``, ``failed``, ``aborted``, or empty while it goes on.
    """

    agent_id: str
    incarnation: int
    triggered: datetime
    completed: datetime | None = None
    cause: str = ""
    charged: bool = False
    end: str = ""

    @property
    def seconds(self) -> float | None:
        """From the trigger until the agent ran again."""
        return None if self.completed is None else (self.completed - self.triggered).total_seconds()

    @property
    def is_death(self) -> bool:
        """Nobody asked for it."""
        return self.cause != "restore"


_ENDS = {
    EventType.FAILOVER_COMPLETED.value: "completed",
    EventType.FAILOVER_FAILED.value: "failed",
    EventType.FAILOVER_ABORTED.value: "aborted",
}


def failovers(agent_id: str, events: Sequence[Event]) -> tuple[Failover, ...]:
    """The failovers of an agent, in order: each from its trigger to what closed it."""
    found: list[Failover] = []
    going: Failover | None = None
    for event in events:
        if event.type == EventType.FAILOVER_TRIGGERED:
            if going is not None:
                found.append(going)
            payload = event.payload
            going = Failover(
                agent_id,
                int(payload.get("incarnation") or 0),
                event.time,
                cause=str(payload.get("cause", "")),
                charged=bool(payload.get("charged", False)),
            )
        elif event.type in _ENDS and going is not None:
            end = _ENDS[event.type]
            completed = event.time if end == "completed" else None
            found.append(
                Failover(agent_id, going.incarnation, going.triggered, completed, going.cause, going.charged, end)
            )
            going = None
    return (*found, going) if going is not None else tuple(found)


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


def spans(agent_id: str, events: Sequence[Event], start: datetime, end: datetime) -> tuple[Span, ...]:
    """What an agent was during a time, without gaps: ``out`` before anything is known of it."""
    return tuple(one for one in _spans(agent_id, events, start, end) if one.end > one.start)


def _spans(agent_id: str, events: Sequence[Event], start: datetime, end: datetime) -> Iterator[Span]:
    state, since = "out", start
    for event in events:
        after = _state_after(event)
        if after is None or after == state:
            continue
        moment = min(max(event.time, start), end)
        yield Span(agent_id, state, since, moment)
        state, since = after, moment
    yield Span(agent_id, state, since, end)


def _state_after(event: Event) -> str | None:
    if event.type == EventType.AGENT_STOPPED:
        return "down" if event.payload.get("auto_restore") else "out"
    return _STATES.get(event.type)
