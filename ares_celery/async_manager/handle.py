"""One agent, as the coroutines of a service hold it."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from datetime import timedelta
from typing import Any, Protocol

from typing_extensions import override

from ares_celery.async_manager.chunk_stream import AsyncChunkStream
from ares_celery.errors import AgentNotFoundError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.runtime.handle import PROCESS_TIMEOUT

__all__ = ["AsyncAgentHandle", "AsyncAgentOperations"]


class AsyncAgentOperations(Protocol):
    """What a handle passes its calls on to: an AsyncManager."""

    async def get_agent_info(self, agent_id: str) -> AgentInfo | None:
        """What is known of the agent."""
        ...

    async def process(
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
    ) -> AsyncChunkStream:
        """Asks the agent and gives its answer in pieces."""
        ...

    async def send(self, agent_id: str, message: object, *, message_id: str | None = None) -> str:
        """Sends it a message."""
        ...

    async def stop_agent(
        self, agent_id: str, *, wait: bool = ..., force: bool = ..., reason: str = ..., actor: str = ...
    ) -> None:
        """Stops it."""
        ...

    async def restart_agent(self, agent_id: str, *, reason: str = ..., actor: str = ...) -> None:
        """Restarts it."""
        ...

    async def wait_for(
        self, agent_id: str, states: Iterable[AgentState | str], *, timeout: timedelta | float = ...
    ) -> AgentInfo:
        """Waits for a state."""
        ...


class AsyncAgentHandle:
    """One agent, as a service holds it; holds no state, so it never goes stale.

    Example:
        ``answer = await (await manager.start_agent("counter-1", if_exists="return")).process({"ask": "total"})``
    """

    def __init__(self, manager: AsyncAgentOperations, agent_id: AgentId) -> None:
        """Binds the agent's id to a manager."""
        self._manager = manager
        self.id: str = agent_id

    @property
    def incarnation(self) -> Awaitable[int]:
        """Which life it is in now: ``await handle.incarnation``."""
        return self._incarnation()

    async def _incarnation(self) -> int:
        return (await self.info()).incarnation

    async def info(self) -> AgentInfo:
        """What is known of it now. Raises AgentNotFoundError."""
        found = await self._manager.get_agent_info(self.id)
        if found is None:
            raise AgentNotFoundError(agent_id=self.id)
        return found

    async def process(
        self, message: object, timeout: timedelta | float = PROCESS_TIMEOUT, message_id: str | None = None
    ) -> Any:  # noqa: ANN401
        """Asks it; see :meth:`AsyncManager.process`."""
        return await self._manager.process(self.id, message, timeout, message_id)

    def process_stream(
        self,
        message: object,
        *,
        timeout: timedelta | float = PROCESS_TIMEOUT,
        message_id: str | None = None,
        detached: bool = False,
    ) -> AsyncChunkStream:
        """Asks it and gives its answer in pieces; see :meth:`AsyncManager.process_stream`."""
        return self._manager.process_stream(self.id, message, timeout=timeout, message_id=message_id, detached=detached)

    async def send(self, message: object, *, message_id: str | None = None) -> str:
        """Sends it a message; see :meth:`AsyncManager.send`."""
        return await self._manager.send(self.id, message, message_id=message_id)

    async def stop(self, *, wait: bool = True, force: bool = False, reason: str = "", actor: str = "") -> None:
        """Stops it; see :meth:`AsyncManager.stop_agent`."""
        await self._manager.stop_agent(self.id, wait=wait, force=force, reason=reason, actor=actor)

    async def restart(self, *, reason: str = "", actor: str = "") -> None:
        """Restarts it; see :meth:`AsyncManager.restart_agent`."""
        await self._manager.restart_agent(self.id, reason=reason, actor=actor)

    async def wait(self, state: AgentState | str, timeout: timedelta | float = 60.0) -> AgentInfo:
        """Waits until it is in this state; see :meth:`AsyncManager.wait_for`."""
        return await self._manager.wait_for(self.id, [state], timeout=timeout)

    @override
    def __repr__(self) -> str:
        """Its id."""
        return f"AsyncAgentHandle({self.id!r})"
