"""What waits for an agent's state have in common, whether a thread waits or an event loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, cast

from ares_celery.errors import InvalidSettingError, WaitTimeoutError
from ares_celery.model.agent import LIVE, AgentInfo, AgentState, Desired
from ares_celery.runtime.callers import as_shown

__all__ = ["RESTING", "STARTED", "Wait", "awaited_states", "known_states", "timed_out"]

#: What start_agent may wait for.
Wait = Literal["durable", "running"]

#: Where a wait for running ends: it will not run any later either.
STARTED: Final = frozenset({AgentState.RUNNING, AgentState.COMPLETED, AgentState.PARKED})
#: Where a wait for the end of an incarnation ends.
RESTING: Final = frozenset(set(AgentState) - LIVE)


def timed_out(info: AgentInfo, wanted: Iterable[AgentState], timeout: float) -> WaitTimeoutError:
    """The error, with what the agent waits for when nobody has taken it."""
    names = " or ".join(sorted(state.value for state in wanted))
    fields = {"agent_id": info.id, "wanted": names, "timeout": timeout, "state": info.state.value}
    error = WaitTimeoutError(**fields, waiting_on=info.waiting_on)
    if info.waiting_on == "slot":
        hint = "no worker has taken it: does one run that reads its queue, with a free slot?"
    elif info.state is AgentState.REGISTERED and info.desired is Desired.RUNNING:
        hint = "the runtime does not run yet: does an agents worker run? A stopped one needs `ares runtime start`"
    else:
        return error
    return WaitTimeoutError(**fields, waiting_on=info.waiting_on, message=f"{error}; {hint}")


def known_states(states: object) -> list[AgentState]:
    """The states that were named; one alone may be named by itself.

    Raises:
        InvalidSettingError: There is no such state.
    """
    is_one = isinstance(states, str) or not isinstance(states, Iterable)
    named: list[object] = [states] if is_one else list(cast("Iterable[object]", states))
    known = [state.value for state in AgentState]
    for state in named:
        if state not in known:
            raise InvalidSettingError(field="states", value=as_shown(state), problem=f"use some of {', '.join(known)}")
    return [AgentState(str(state)) for state in named]


def awaited_states(states: object) -> frozenset[AgentState]:
    """The states that end a wait.

    Raises:
        InvalidSettingError: There is no such state, or none was named, for which one would wait for ever.
    """
    wanted = frozenset(known_states(states))
    if not wanted:
        names = ", ".join(state.value for state in AgentState)
        raise InvalidSettingError(field="states", value="[]", problem=f"name at least one of {names}")
    return wanted
