"""One agent, as the code of a service holds it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, Protocol

from typing_extensions import override

from ares_celery.errors import AgentNotFoundError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.runtime.chunk_stream import ChunkStream

__all__ = ["PROCESS_TIMEOUT", "AgentHandle", "AgentOperations"]

#: Seconds that an answer may take when the caller names none.
PROCESS_TIMEOUT: Final = 30.0


class AgentOperations(Protocol):
    """What a handle passes its calls on to: a Manager."""

    def get_agent_info(self, agent_id: str) -> AgentInfo | None:
        """What is known of the agent."""
        ...

    def process(
        self, agent_id: str, message: object, timeout: timedelta | float = ..., message_id: str | None = None
    ) -> Any:  # noqa: ANN401 - the JSON value that the agent answered
        """Asks the agent."""
        ...

    def process_stream(
        self,
        agent_id: str,
        message: object,
        *,
        timeout: timedelta | float = ...,
        message_id: str | None = None,
        detached: bool = False,
    ) -> ChunkStream:
        """Asks the agent and gives its answer in pieces."""
        ...

    def send(self, agent_id: str, message: object, *, message_id: str | None = None) -> str:
        """Sends it a message."""
        ...

    def stop_agent(
        self, agent_id: str, *, wait: bool = ..., force: bool = ..., reason: str = ..., actor: str = ...
    ) -> None:
        """Stops it."""
        ...

    def restart_agent(self, agent_id: str, *, reason: str = ..., actor: str = ...) -> None:
        """Restarts it."""
        ...

    def wait_for(
        self, agent_id: str, states: Iterable[AgentState | str], *, timeout: timedelta | float = ...
    ) -> AgentInfo:
        """Waits for a state."""
        ...


class AgentHandle:
    """One agent, as a service holds it; holds no state, so it never goes stale."""

    def __init__(self, manager: AgentOperations, agent_id: AgentId) -> None:
        """Binds the agent's id to a manager."""
        self._manager = manager
        self.id: str = agent_id

    @property
    def incarnation(self) -> int:
        """Which life it is in now."""
        return self.info().incarnation

    def info(self) -> AgentInfo:
        """What is known of it now. Raises AgentNotFoundError."""
        found = self._manager.get_agent_info(self.id)
        if found is None:
            raise AgentNotFoundError(agent_id=self.id)
        return found

    def process(
        self, message: object, timeout: timedelta | float = PROCESS_TIMEOUT, message_id: str | None = None
    ) -> Any:  # noqa: ANN401
        """Asks it; see :meth:`Manager.process`."""
        return self._manager.process(self.id, message, timeout, message_id)

    def process_stream(
        self,
        message: object,
        *,
        timeout: timedelta | float = PROCESS_TIMEOUT,
        message_id: str | None = None,
        detached: bool = False,
    ) -> ChunkStream:
        """Asks it and gives its answer in pieces; see :meth:`Manager.process_stream`."""
        return self._manager.process_stream(self.id, message, timeout=timeout, message_id=message_id, detached=detached)

    def send(self, message: object, *, message_id: str | None = None) -> str:
        """Sends it a message; see :meth:`Manager.send`."""
        return self._manager.send(self.id, message, message_id=message_id)

    def stop(self, *, wait: bool = True, force: bool = False, reason: str = "", actor: str = "") -> None:
        """Stops it; see :meth:`Manager.stop_agent`."""
        self._manager.stop_agent(self.id, wait=wait, force=force, reason=reason, actor=actor)

    def restart(self, *, reason: str = "", actor: str = "") -> None:
        """Restarts it; see :meth:`Manager.restart_agent`."""
        self._manager.restart_agent(self.id, reason=reason, actor=actor)

    def wait(self, state: AgentState | str, timeout: timedelta | float = 60.0) -> AgentInfo:
        """Waits until it is in this state; see :meth:`Manager.wait_for`."""
        return self._manager.wait_for(self.id, [state], timeout=timeout)

    @override
    def __repr__(self) -> str:
        """Its id."""
        return f"AgentHandle({self.id!r})"
