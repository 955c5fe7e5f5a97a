"""The MCP servers of a process as one incarnation uses them: its calls, cut off when a fault says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from ares_celery.errors import MCPConnectionLostError
from ares_celery.model.event import RUNTIME_MODULE, EventType, NewEvent
from ares_celery.runtime.mcp_connections import MCPConnections
from ares_celery.runtime.mcp_holder import GivenSession, MCPHolder

__all__ = ["Degraded", "MCPUse"]


class _Feels(Protocol):
    """What is known of the faults of the incarnation."""

    @property
    def fence(self) -> str: ...
    def cuts(self, server: str) -> bool: ...
    def disturbs(self, server: str) -> bool: ...
    def on_disturbed(self, tell: Callable[[], None]) -> None: ...


class MCPUse:
    """One incarnation; its coroutines, :meth:`cut` and :meth:`look` run on the event loop.

    Args:
        connections: Of its process.
        user: Stands for it where it feels no faults.
        feels: Its faults; None: it has none.
    """

    def __init__(self, connections: MCPConnections, user: str, feels: _Feels | None = None) -> None:
        self._connections = connections
        self._user = feels.fence if feels is not None else user
        self._feels = feels
        self._flying: dict[str, set[asyncio.Future[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        if feels is not None:
            feels.on_disturbed(self._on_disturbed)

    async def call(
        self, holder: MCPHolder | GivenSession, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:  # noqa: ANN401 - any answer
        """Calls a method of the session. Raises as :meth:`MCPHolder.call`."""
        return await self._through(holder, lambda one, cut: one.call(method, args, kwargs, cut=cut))

    async def tools(self, holder: MCPHolder | GivenSession) -> list[Any]:
        """The tools of the server. Raises as :meth:`MCPHolder.call`."""
        tools: list[Any] = await self._through(holder, lambda one, cut: one.tools(cut=cut))
        return tools

    async def session(self, holder: MCPHolder | GivenSession) -> Any:  # noqa: ANN401 - whatever the library gives
        """The session itself. Raises as :meth:`MCPHolder.call`."""
        return await self._through(holder, lambda one, _: one.session())

    async def cut(self, name: str) -> None:
        """Ends its calls of a server that wait for an answer, and closes the connection that is its alone."""
        for flying in self._flying.get(name, ()):
            if not flying.done():
                flying.set_result(None)
        self._connections.cut(name, self._user)

    async def _through(
        self,
        holder: MCPHolder | GivenSession,
        call: Callable[[MCPHolder | GivenSession, asyncio.Future[None]], Coroutine[Any, Any, Any]],
    ) -> Any:  # noqa: ANN401 - any answer
        self._loop, name = asyncio.get_running_loop(), holder.name
        if isinstance(holder, MCPHolder):
            alone = self._feels is not None and self._feels.disturbs(name)
            holder = self._connections.used_by(name, self._user, alone=alone) or holder
        cut: asyncio.Future[None] = self._loop.create_future()
        flying = self._flying.setdefault(name, set())
        flying.add(cut)
        try:
            return await call(holder, cut)
        finally:
            flying.discard(cut)

    def _on_disturbed(self) -> None:
        """From any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing flies any more
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        """A fault has begun or ended: what it cuts off is cut now, whether anything is called or not."""
        assert self._loop is not None  # noqa: S101 - set before this is called
        for name in self._flying:
            if self._feels is not None and self._feels.cuts(name):
                task = self._loop.create_task(self.cut(name))
                task.add_done_callback(_end)


def _end(task: asyncio.Task[None]) -> None:
    """Nobody waits for it."""
    task.result()


class Degraded:
    """Which servers an agent has lost, and what is told of that; the agent goes on without them."""

    def __init__(self, agent_id: str) -> None:
        self._agent_id = agent_id
        self._lost: dict[str, str] = {}

    @property
    def text(self) -> str:
        """For people; empty while nothing is lost."""
        said = (f"MCP server {server!r} is not connected: {why}" for server, why in self._lost.items())
        return "; ".join(said)[:1_000]

    def lost(self, server: str, error: MCPConnectionLostError) -> list[NewEvent]:
        """A call met a lost connection; the first one is told."""
        is_news = server not in self._lost
        self._lost[server] = str(error.fields["problem"])
        return [self._event(EventType.MCP_DISCONNECTED, server, problem=self._lost[server])] if is_news else []

    def found(self, server: str) -> list[NewEvent]:
        """A call went well; told when there was no connection before."""
        if self._lost.pop(server, None) is None:
            return []
        return [self._event(EventType.MCP_CONNECTED, server)]

    def is_lost(self, server: str) -> bool:
        """Its last call found no connection."""
        return server in self._lost

    def _event(self, kind: EventType, server: str, **more: str) -> NewEvent:
        return NewEvent(kind, {"agent_id": self._agent_id, "server": server, **more}, {"module": RUNTIME_MODULE})
