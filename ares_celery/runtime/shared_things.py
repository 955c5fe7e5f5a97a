"""What the agents of one process share: resources, tools, connections to MCP servers."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ares_celery.agents.mcp_servers import MCP_SERVERS, MCPServerRegistry
from ares_celery.agents.resources import RESOURCES, ResourceRegistry, WorkerResource
from ares_celery.agents.tools import TOOLS, Tool, ToolRegistry
from ares_celery.chaos.llm_clients import Connections
from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import WorkerResourceError
from ares_celery.errors.wording import describe_error
from ares_celery.runtime.limits import HeldPlaces
from ares_celery.runtime.mcp_connections import MCPConnections
from ares_celery.runtime.mcp_holder import GivenSession, MCPHolder
from ares_celery.runtime.offspring import offspring_of
from ares_celery.runtime.openings import (
    Failed,
    Opened,
    Opening,
    Submitter,
    TaskOpening,
    ThreadOpening,
    wait_in_thread,
)

__all__ = ["Limits", "Registries", "SharedThings"]

log: Final = logging.getLogger(__name__)

_NO_LOOP: Final = "it lives on the event loop; write a plain generator, or make the agent's methods async"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long openings may take.

    Attributes:
        open: Seconds for each to open.
        slack: Seconds that whoever waits for it waits longer, for what cannot be cut off.
        close: Seconds for each to close.
        close_all: Seconds for all of them to close.
    """

    open: float = 30.0
    slack: float = 1.0
    close: float = 5.0
    close_all: float = 10.0


@dataclass(slots=True)
class Registries:
    """What there is to share, and what stands in for it: in a process its own, in a test perhaps others.

    Attributes:
        resources: The resources.
        tools: The tools.
        servers: The MCP servers.
        instead: Values by kind (``resource``, ``tool``, ``mcp``) and name that are used instead, before all others.

    Raises:
        WorkerResourceError, ToolError, MCPServerError: Nobody registered what is to be replaced.
    """

    resources: ResourceRegistry = RESOURCES
    tools: ToolRegistry = TOOLS
    servers: MCPServerRegistry = MCP_SERVERS
    instead: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    def __post_init__(self) -> None:
        """Refuses a replacement under a mistyped name: the real thing would be used."""
        find: dict[str, Callable[[str], object]] = {
            "resource": self.resources.get,
            "tool": self.tools.get,
            "mcp": self.servers.get,
        }
        for kind, values in self.instead.items():
            for name in values:
                find[kind](name)


class SharedThings:
    """Opens what agents of this process ask for, once, and closes all of it at the end, the newest first.

    Safe to share between threads. It belongs to the process that made it: a forked child makes its own.

    Args:
        loop: The agents' event loop, for calls from threads. What is async is opened on the loop that asks for it.
        registries: What there is.
        limits: How long openings may take.
        notes_offspring: Notes the processes that openings start, so that they are not ended with an agent.
        clock: Injected in tests.
    """

    def __init__(
        self,
        loop: Callable[[], Submitter],
        *,
        registries: Registries | None = None,
        limits: Limits | None = None,
        notes_offspring: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.loop = loop
        self.limits = limits or Limits()
        #: Processes that belong to what is shared.
        self.offspring: set[int] = set()
        #: To language models.
        self.model_connections = Connections()
        #: In limits of the fleet.
        self.places = HeldPlaces()
        self._registries = registries or Registries()
        #: To MCP servers.
        self.connections = MCPConnections(
            self._registries.servers, self._registries.instead.get("mcp", {}), self, clock=clock or SystemClock()
        )
        self._notes_offspring = notes_offspring
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._begun: dict[str, Opening] = {}
        #: In the order in which they became open.
        self._open: list[Opening] = []
        self._before: dict[Opening, set[int]] = {}
        self._is_closed = False

    # -- resources ----------------------------------------------------------------------------------------------------

    async def resource(self, which: object) -> Any:  # noqa: ANN401 - whatever its function yields
        """The value of a resource, opened if need be; on the loop.

        Raises:
            WorkerResourceError: It is unknown, or it could not be opened.
        """
        name, is_replaced, value = self._find_resource(which)
        if is_replaced:
            return value
        return self._value(name, await self._opening_of(name).wait(self.limits.open + self.limits.slack))

    def resource_in_thread(self, which: object, look: Callable[[], None]) -> Any:  # noqa: ANN401 - as above
        """As :meth:`resource`, for whoever waits on a thread; ``look`` is called meanwhile and may raise."""
        name, is_replaced, value = self._find_resource(which)
        if is_replaced:
            return value
        if self._registries.resources.check(name).is_async:
            raise WorkerResourceError(name=name, problem=_NO_LOOP)
        outcome = self._opening_of(name).outcome
        return self._value(name, wait_in_thread(outcome, self.limits.open + self.limits.slack, look, self._clock))

    def _find_resource(self, which: object) -> tuple[str, bool, Any]:
        name = self._registries.resources.name_of(which)
        instead = self._registries.instead.get("resource", {})
        if name in instead:
            return name, True, instead[name]
        return (name, *self._registries.resources.replacement(name))

    def _value(self, name: str, outcome: Opened | Failed | None) -> Any:  # noqa: ANN401 - as above
        match outcome:
            case Opened(value):
                return value
            case Failed(error):
                raise WorkerResourceError(name=name, problem=describe_error(error)[:1_000]) from error
            case None:
                problem = f"it did not open within {self.limits.open:g} s; the next use waits for it again"
                raise WorkerResourceError(name=name, problem=problem)

    def _opening_of(self, name: str) -> Opening:
        found = self._registries.resources.check(name)
        with self._lock:
            known = self._begun.get(name)
            if known is not None and not known.is_spent:
                return known
            if self._is_closed:
                raise WorkerResourceError(name=name, problem="this process is ending")
            made = self._begun[name] = self._new_opening(found)
            # With the lock held: whoever closes must find it begun.
            self.begin(made)
            return made

    def _new_opening(self, found: WorkerResource) -> Opening:
        label = f"worker resource {found.name!r}"
        if not found.is_async:

            def make_plain() -> Any:  # noqa: ANN401 - a context manager
                return found.manager({need: self.resource_in_thread(need, _nothing) for need in found.needs})

            return ThreadOpening(label, make_plain, on_end=self.note_end)

        async def make() -> AbstractAsyncContextManager[Any]:
            needed = {need: await self.resource(need) for need in found.needs}
            return cast("AbstractAsyncContextManager[Any]", found.manager(needed))

        return TaskOpening(label, make, loop=asyncio.get_running_loop(), limit=self.limits.open, on_end=self.note_end)

    # -- tools and MCP servers ----------------------------------------------------------------------------------------

    def tool(self, which: object) -> Tool:
        """A registered tool, or what stands in for it.

        Raises:
            ToolError: Nobody registered it.
        """
        name = self._registries.tools.name_of(which)
        instead = self._registries.instead.get("tool", {})
        if name in instead:
            with self._registries.tools.override(name, instead[name]):
                return self._registries.tools.find(name)
        return self._registries.tools.find(name)

    def mcp(self, name: str) -> MCPHolder | GivenSession:
        """The holder of the connection to a server, or of what stands in for it.

        Raises:
            MCPServerError: Nobody registered it.
        """
        return self.connections.get(name)

    # -- openings -----------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Nothing is opened any more."""
        return self._is_closed

    def begin(self, opening: Opening) -> None:
        """Starts an opening that is closed with the others."""
        if self._notes_offspring:
            self._before[opening] = set(offspring_of(os.getpid()))
        opening.start()

    def note_end(self, opening: Opening) -> None:
        """Takes note that one is open, has failed or is over; called by its owner."""
        before = self._before.pop(opening, None)
        if not opening.is_open:
            if opening in self._open:
                self._open.remove(opening)
            return
        if before is not None:
            self.offspring |= set(offspring_of(os.getpid())) - before
        self._open.append(opening)

    def close(self) -> None:
        """Closes everything, the newest first, and opens nothing any more; within ``limits.close_all``, on a thread."""
        with self._lock:
            self._is_closed = True
            begun = [*self._begun.values(), *self.connections.openings()]
        opened = list(self._open)
        until = self._clock.monotonic() + self.limits.close_all
        for opening in (*(one for one in begun if one not in opened and not one.over.done()), *reversed(opened)):
            self._close(opening, until)
        self.model_connections.close()

    def _close(self, opening: Opening, until: float) -> None:
        limit = max(0.0, min(self.limits.close, until - self._clock.monotonic()))
        if not opening.close(limit, self.loop):
            log.error("%s does not close in time and is left to the end of the process", opening.label)


def _nothing() -> None:
    """Nobody is to be looked at while a resource waits for another."""
