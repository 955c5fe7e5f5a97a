"""Looking at agents: the part of a Manager that changes nobody's life."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Final, Protocol

from ares_celery.clock import Clock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentNotFoundError,
)
from ares_celery.ids import AgentId, check_agent_id
from ares_celery.model.agent import AgentInfo, AgentRecord, AgentState
from ares_celery.model.info import agent_info
from ares_celery.runtime.callers import check_timeout
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.waiting import awaited_states, known_states, timed_out
from ares_celery.store.base import Store

__all__ = ["AgentQueries", "Ports"]

#: Seconds between two looks at an agent that is waited for, at first and at most.
_FIRST_LOOK: Final = 0.005
_LONGEST_LOOK: Final = 0.1


class Ports(Protocol):
    """What a manager works with; made on first use, anew after a fork."""

    @property
    def store(self) -> Store:
        """The open namespace."""
        ...

    @property
    def committer(self) -> Committer:
        """The loop for every change."""
        ...

    @property
    def config(self) -> RuntimeConfig:
        """The namespace's settings."""
        ...

    def close(self) -> None:
        """Closes what was opened."""
        ...


class AgentQueries:
    """What is known of agents."""

    def __init__(self, ports: Ports, clock: Clock) -> None:
        """Binds the queries; nothing is opened yet."""
        self._ports = ports
        self._clock = clock
        self._never = threading.Event()

    # -- looking ----------------------------------------------------------------------------------------------------

    def get_agent_info(self, agent_id: str) -> AgentInfo | None:
        """What is known of the agent, or None when it does not exist."""
        record = self._ports.store.read(check_agent_id(agent_id)).record
        return agent_info(record) if record else None

    def list_agents(
        self,
        *,
        states: Iterable[AgentState | str] | None = None,
        type: str | None = None,  # noqa: A002
    ) -> list[AgentInfo]:
        """All agents, stopped ones included, or those in some states or of one type; sorted by id."""
        wanted = None if states is None else known_states(states)
        reads = self._ports.store.read_many(self._ports.store.list_ids(wanted))
        records = [read.record for read in reads if read.record is not None]
        return [agent_info(record) for record in records if type is None or record.spec.type == type]

    def wait_for(
        self,
        agent_id: str,
        states: Iterable[AgentState | str],
        *,
        timeout: timedelta | float = 60.0,
    ) -> AgentInfo:
        """Waits until the agent is in one of the states.

        Raises:
            WaitTimeoutError: It is not; field ``state`` says where it is. AgentNotFoundError.
            InvalidSettingError: No state is named, or there is no such state; or the timeout is none.
        """
        checked, wanted = check_agent_id(agent_id), awaited_states(states)
        limit = check_timeout(timeout).total_seconds()
        until, pause = self._clock.monotonic() + limit, _FIRST_LOOK
        while True:
            record = self._record(checked)
            if record.state in wanted:
                return agent_info(record)
            if self._clock.monotonic() >= until:
                raise timed_out(agent_info(record), wanted, limit)
            self._clock.wait(self._never, pause)
            pause = min(pause * 1.5, _LONGEST_LOOK)

    def _record(self, agent_id: AgentId) -> AgentRecord:
        record = self._ports.store.read(agent_id).record
        if record is None:
            raise AgentNotFoundError(agent_id=agent_id)
        return record
