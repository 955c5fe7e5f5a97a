"""What scenarios look at: plain functions with JSON arguments, for ``ares arena run`` and for Chaos Toolkit.

A probe that answers True or False is given the tolerance ``true``; one that counts, a number, a list of two bounds, or
a range. See :mod:`ares_celery.arena.actions` for where the agents are found.
"""

from __future__ import annotations

from typing import Any, Final

from ares_celery.arena.ring import Ring, at_hand
from ares_celery.errors import AgentNotFoundError, AresError
from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.model.durations import parse_duration
from ares_celery.model.event import EventType, ReadOptions
from ares_celery.store.base import EventStore

__all__ = [
    "active_faults",
    "agent_answers",
    "agent_deaths",
    "agent_is",
    "agent_restarts",
    "agent_state",
    "agents_running",
    "becomes",
    "none_parked",
    "stream_version",
]

Span = float | str
#: Seconds between two looks.
_INTERVAL: Final = 0.05
#: Events of one read.
_PAGE: Final = 250


def agent_state(agent_id: str) -> str:
    """The state that the agent is in now: running, paused, resurrecting and so on."""
    with at_hand() as ring:
        return _info(ring, agent_id).state.value


def agent_is(agent_id: str, *, state: str = "running") -> bool:
    """The agent is in this state now."""
    return agent_state(agent_id) == state


def becomes(agent_id: str, *, state: str = "running", incarnation: int = 0, timeout: Span = "30s") -> bool:
    """The agent is in this state, and at least in this incarnation, within ``timeout``."""
    wanted = AgentState(state)
    with at_hand() as ring:
        until = ring.clock.monotonic() + parse_duration(timeout).total_seconds()
        while True:
            info = _info(ring, agent_id)
            if info.state is wanted and info.incarnation >= incarnation:
                return True
            if ring.clock.monotonic() >= until or ring.pause(_INTERVAL):
                return False


def agent_answers(agent_id: str, message: Any = None, *, timeout: Span = "10s") -> bool:  # noqa: ANN401 - JSON
    """The agent answers a message within ``timeout``; an error of its code is no answer."""
    with at_hand() as ring:
        try:
            ring.manager.process(agent_id, message, timeout=parse_duration(timeout).total_seconds())
        except AgentNotFoundError:
            raise
        except AresError:
            return False
        return True


def agent_restarts(agent_id: str) -> int:
    """How often the agent was brought back."""
    with at_hand() as ring:
        return _info(ring, agent_id).restarts


def agent_deaths(agent_id: str, *, within: Span) -> int:
    """How often the agent was found dead within the time until now, as its events say; a wanted restore is no death."""
    with at_hand() as ring:
        _info(ring, agent_id)
        since = ring.manager.introspect().time - parse_duration(within)
        events: EventStore = ring.manager.events
        last, found = 0, 0
        while True:
            # Newest first: what is older than that is never read.
            page = events.read(agent_id, ReadOptions(to_version=last, limit=_PAGE, direction="descending"))
            for event in page:
                if event.time < since:
                    return found
                found += event.type == EventType.FAILOVER_TRIGGERED and event.payload.get("cause") != "restore"
            last = int(page[-1].version) - 1 if page else 0
            if len(page) < _PAGE or not last:
                return found


def agents_running(*, type: str = "") -> int:  # noqa: A002 - as in Manager.list_agents
    """How many agents run now, or those of one type."""
    with at_hand() as ring:
        return len(ring.manager.list_agents(states=[AgentState.RUNNING], type=type or None))


def none_parked() -> bool:
    """No agent was given up on."""
    with at_hand() as ring:
        return not ring.manager.list_agents(states=[AgentState.PARKED])


def active_faults(agent_id: str | None = None) -> int:
    """How many faults are active, of the agent or of all."""
    with at_hand() as ring:
        return len(ring.manager.list_faults(agent_id))


def stream_version(agent_id: str) -> int:
    """The version of the agent's last event."""
    with at_hand() as ring:
        return int(ring.manager.events.stream_version(agent_id))


def _info(ring: Ring, agent_id: str) -> AgentInfo:
    info: AgentInfo | None = ring.manager.get_agent_info(agent_id)
    if info is None:
        raise AgentNotFoundError(agent_id=agent_id)
    return info
