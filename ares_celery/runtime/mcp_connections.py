"""The connections to MCP servers of one process: one a server, which all agents share, and who uses it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ares_celery.agents.mcp_servers import MCPServerRegistry
from ares_celery.clock import Clock
from ares_celery.runtime.mcp_holder import GivenSession, HolderKeeper, MCPHolder
from ares_celery.runtime.openings import Opening

__all__ = ["MCPConnections"]


class MCPConnections:
    """Makes the holders, and gives whoever is disturbed alone one of its own; safe to share between threads.

    Args:
        servers: The servers that there are.
        instead: Sessions by name that are used instead.
        keeper: Closes what is opened at the end of the process.
        clock: Monotonic time.
    """

    def __init__(
        self, servers: MCPServerRegistry, instead: Mapping[str, Any], keeper: HolderKeeper, *, clock: Clock
    ) -> None:
        self._servers = servers
        self._instead = instead
        self._keeper = keeper
        self._clock = clock
        self._lock = threading.Lock()
        self._shared: dict[str, MCPHolder] = {}
        self._users: dict[str, set[str]] = {}
        self._own: dict[tuple[str, str], MCPHolder] = {}

    def get(self, name: str) -> MCPHolder | GivenSession:
        """The holder of the connection to a server, or of what stands in for it.

        Raises:
            MCPServerError: Nobody registered it.
        """
        is_replaced, session = self._servers.replacement(name)
        if name in self._instead or is_replaced:
            return GivenSession(name, self._instead.get(name, session))
        manager = self._servers.get(name).manager
        with self._lock:
            if name not in self._shared:
                self._shared[name] = MCPHolder(name, manager, self._keeper, clock=self._clock)
            return self._shared[name]

    def used_by(self, name: str, user: str, *, alone: bool) -> MCPHolder | None:
        """The holder for a call of one user, who is noted; None where a given session stands in.

        Args:
            name: The server's.
            user: Who calls.
            alone: It is to be cut off without disturbing others: while others use the shared one, it gets its own.
        """
        holder = self.get(name)
        if isinstance(holder, GivenSession):
            return None
        with self._lock:
            own, users = self._own.get((name, user)), self._users.setdefault(name, set())
            if alone and users - {user}:
                users.discard(user)
                if own is None:
                    manager = self._servers.get(name).manager
                    own = self._own[name, user] = MCPHolder(name, manager, self._keeper, clock=self._clock)
                return own
            users.add(user)
            self._own.pop((name, user), None)
        if own is not None:
            own.cut()
        return holder

    def cut(self, name: str, user: str) -> None:
        """Closes the connection that only this user uses, if there is one; on the loop."""
        with self._lock:
            found = [self._own.get((name, user))]
            if self._users.get(name) == {user}:
                found.append(self._shared.get(name))
        for holder in found:
            if holder is not None:
                holder.cut()

    def leave(self, user: str) -> None:
        """Somebody uses nothing any more; its own connections are closed. From any thread."""
        with self._lock:
            for users in self._users.values():
                users.discard(user)
            own = [self._own.pop(key) for key in list(self._own) if key[1] == user]
        for holder in own:
            holder.cut()

    def openings(self) -> list[Opening]:
        """What was begun, for whoever closes."""
        with self._lock:
            holders = [*self._shared.values(), *self._own.values()]
        return [holder.opening for holder in holders if holder.opening is not None]
