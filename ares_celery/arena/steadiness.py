"""Whether the agents of a run are well at its end: back from their deaths, and not about to die again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import timedelta
from typing import Final

from ares_celery.arena.ring import Ring
from ares_celery.errors import StoreUnavailableError
from ares_celery.model.agent import AgentInfo, AgentState, Desired
from ares_celery.model.durations import format_duration

__all__ = ["Watch"]

#: Seconds between two looks at whether all is well again.
_LOOK: Final = 0.1
_UP: Final = frozenset({AgentState.RUNNING, AgentState.WAITING})
#: Characters of an agent's last error that a reason has.
_LONGEST: Final = 300


def _nothing() -> object:
    return None


class Watch:
    """Knows how often each agent had died when a run began, and says at its end who is not well."""

    def __init__(self, ring: Ring, steady: timedelta) -> None:
        """Looks at the agents now.

        Raises:
            StoreUnavailableError.
        """
        self._ring = ring
        self._steady = steady
        infos: list[AgentInfo] = list(ring.manager.list_agents())
        self._deaths = {info.id: _deaths_of(info) for info in infos}
        #: Those that were up then.
        self.up: frozenset[str] = frozenset(info.id for info in infos if info.state in _UP)
        #: Those that ran then, and did not wait without a process.
        self.running: frozenset[str] = frozenset(info.id for info in infos if info.state is AgentState.RUNNING)
        #: Deaths and the moment since when an agent is seen up with no more of them.
        self._since: dict[str, tuple[int, float]] = {}

    def away(
        self, agents: Collection[str], settle: timedelta, look: Callable[[], object] = _nothing
    ) -> tuple[str, ...]:
        """Waits until each agent is well, and tells of those that are not, in sentences; at once where nobody has died.

        Well is who has not died since the run began, stays up for ``steady`` behind its last death, has completed,
        was deleted, or is at rest because somebody wants it.

        Args:
            agents: Ids.
            settle: How long they may take to come back; who is up then may still show that it stays so.
            look: Called now and then meanwhile.
        """
        clock = self._ring.clock
        until = clock.monotonic() + settle.total_seconds()
        left: dict[str, AgentInfo | None] = dict.fromkeys(agents)
        while True:
            known = self._look(left)
            now = clock.monotonic()
            may_wait = now < until or (known and now < until + self._steady.total_seconds() and self._is_any_up(left))
            if not any(info is None or info.state is not AgentState.PARKED for info in left.values()) or not may_wait:
                break
            if self._ring.pause(_LOOK):
                break
            look()
        return tuple(self._told(left, settle))

    def _look(self, left: dict[str, AgentInfo | None]) -> bool:
        """Drops who is well; False when nobody can say."""
        try:
            infos: dict[str, AgentInfo] = {info.id: info for info in self._ring.manager.list_agents()}
        except StoreUnavailableError:
            return False
        for agent_id in list(left):
            info = infos.get(agent_id)
            if info is None or self._is_well(info):
                del left[agent_id]
            else:
                left[agent_id] = info
        return True

    def _is_well(self, info: AgentInfo) -> bool:
        if info.state is AgentState.PARKED:
            return False
        if info.state is AgentState.COMPLETED or info.desired is not Desired.RUNNING:
            return True
        if info.state not in _UP or self._ring.is_dead(info):
            self._since.pop(info.id, None)
            return False
        deaths, now = _deaths_of(info), self._ring.clock.monotonic()
        if deaths == self._deaths.get(info.id, deaths):
            return True
        seen, since = self._since.get(info.id, (deaths, now))
        if seen != deaths:
            since = now
        self._since[info.id] = deaths, since
        return now - since >= self._steady.total_seconds()

    def _is_any_up(self, left: Mapping[str, AgentInfo | None]) -> bool:
        return any(agent_id in self._since for agent_id in left)

    def _told(self, left: Mapping[str, AgentInfo | None], settle: timedelta) -> Iterator[str]:
        for agent_id, info in left.items():
            if info is None:
                yield f"{agent_id} could not be looked at: the store does not answer"
                continue
            error = info.last_error or info.reason
            because = f": {error[:_LONGEST]}" if error else ""
            deaths = _deaths_of(info) - self._deaths.get(agent_id, 0)
            if info.state is AgentState.PARKED:
                yield f"{agent_id} was given up on ({info.cause}){because}"
            elif deaths > 1 or agent_id in self._since:
                steady = format_duration(self._steady)
                yield f"{agent_id} died {deaths} times and did not stay up for {steady}{because}"
            else:
                state = "dead, and nobody has noticed" if self._ring.is_dead(info) else info.state.value
                yield f"{agent_id} did not come back within {format_duration(settle)}, it is {state}{because}"


def _deaths_of(info: AgentInfo) -> int:
    return sum(info.deaths.values())
