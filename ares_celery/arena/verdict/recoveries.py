"""Which deaths an agent really came back from: a life that ends at once again is no return, but a relapse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from ares_celery.arena.verdict.history import Failover, FailoverReader
from ares_celery.model.event import Event, EventType

__all__ = ["RecoveryReader"]

_GIVEN_UP: Final = frozenset({EventType.AGENT_EXHAUSTED, EventType.AGENT_PARKED})
_BEGINS: Final = frozenset({EventType.AGENT_STARTED, EventType.FAILOVER_COMPLETED})
#: Ends of an incarnation that are no death: whoever watches for a relapse need not go on.
_ORDERED: Final = frozenset({"restore", "drain"})


class RecoveryReader:
    """Reads the stream of one agent once, and joins each death with the relapses behind it.

    A death within ``steady`` of the last return is a relapse, unless it was ordered: the recovery goes on. One that was
    completed is over once the agent stayed up for that long, or was ended in order before.
    """

    def __init__(self, agent_id: str, steady: timedelta, is_ordered: Callable[[Failover, Failover], bool]) -> None:
        """Nothing was seen yet.

        Args:
            agent_id: Whose stream.
            steady: How long an agent has to stay up.
            is_ordered: Of two deaths, the second one is the work of somebody, and no relapse of the first.
        """
        self._agent_id = agent_id
        self._reader = FailoverReader(agent_id)
        self._steady = steady
        self._is_ordered = is_ordered
        #: Closed, and perhaps not for good.
        self._last: Failover | None = None
        self._closed: datetime | None = None
        #: What the one that goes on now belongs to.
        self._before: Failover | None = None
        self._seen: datetime | None = None
        self._life = 0

    def see(self, event: Event) -> Iterator[Failover]:
        """The failovers that are over for good with this event."""
        self._seen = event.time
        if event.type in _BEGINS:
            self._life = int(event.payload.get("incarnation") or 0)
        if self._last is not None and self._is_settled_by(event):
            yield self._take()
        if event.type == EventType.AGENT_STOPPED and event.payload.get("auto_restore") is False:
            yield from self._lost(event)
            return
        ended = self._reader.see(event)
        if ended is not None:
            self._close(ended, event.time)
        if event.type == EventType.FAILOVER_TRIGGERED:
            going = self._reader.going
            if self._last is None:
                return
            if going is not None and going.cause not in _ORDERED and not self._is_ordered(self._last, going):
                self._before, self._last = self._last, None
            else:
                yield self._take()
        elif self._last is not None and event.type in _GIVEN_UP:
            yield _given_up(self._take())

    def end(self, until: datetime) -> Iterator[Failover]:
        """What is left when all events were seen; ``until``: so far nothing else has happened."""
        going = self._reader.going
        if going is not None:
            self._close(going, going.triggered)
        if self._last is None:
            return
        one = self._take()
        known = until if self._seen is None else max(until, self._seen)
        if one.completed is not None and known - one.completed < self._steady:
            one = replace(one, completed=None, end="unsteady")
        yield one

    def _is_settled_by(self, event: Event) -> bool:
        """The last one is over, whatever this event is: time has shown it, or somebody ended the agent."""
        if self._closed is not None and event.time - self._closed >= self._steady:
            return True
        is_stop = event.type == EventType.AGENT_STOPPED and "auto_restore" not in event.payload
        return is_stop or event.type in {EventType.AGENT_COMPLETED, EventType.AGENT_STARTED}

    def _lost(self, event: Event) -> Iterator[Failover]:
        """A death after which nobody brings the agent back: of it there is no failover."""
        if self._reader.going is not None:
            return
        cause = str(event.payload.get("cause", ""))
        death = Failover(self._agent_id, self._life, event.time, cause=cause, end="given up")
        if self._last is None:
            yield death
        elif self._is_ordered(self._last, death):
            yield self._take()
            yield death
        else:
            yield _given_up(self._take())

    def _close(self, ended: Failover, moment: datetime) -> None:
        before, self._before = self._before, None
        if before is not None:
            ended = replace(
                before,
                completed=ended.completed,
                end=ended.end,
                relapses=before.relapses + 1,
                backoff=before.backoff + ended.backoff,
            )
        self._last, self._closed = ended, moment

    def _take(self) -> Failover:
        last = self._last
        assert last is not None  # noqa: S101 - callers have looked
        self._last = self._closed = None
        return last


def _given_up(last: Failover) -> Failover:
    """One that nobody goes on with, though it had perhaps just come back."""
    if last.end != "completed":
        return last
    return replace(last, completed=None, end="given up", relapses=last.relapses + 1)
