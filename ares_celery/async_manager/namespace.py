"""What coroutines ask of a namespace as a whole: groups, settings, DAGs, streams that grew long."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from ares_celery.agents.summariser import Summariser
from ares_celery.async_manager.calls import Calls
from ares_celery.config import RuntimeConfig
from ares_celery.model.arena import ArenaHold
from ares_celery.model.audit import AuditEntry
from ares_celery.model.group import GroupInfo, Strategy, StrategyName
from ares_celery.model.introspection import RuntimeSnapshot
from ares_celery.model.stats import RuntimeStats
from ares_celery.model.summary import Summary
from ares_celery.runtime.compaction import CompactionReport

__all__ = ["AsyncNamespace"]


class AsyncNamespace:
    """The half of an AsyncManager that is about no single agent's life."""

    _calls: Calls

    async def start(self, *, reason: str = "", actor: str = "") -> None:
        """Makes the namespace's runtime run; see :meth:`Manager.start`."""
        await self._calls.run(self._calls.core.start, reason=reason, actor=actor)

    async def stop(self, *, reason: str = "", actor: str = "") -> None:
        """Ends every agent in order, and keeps all from starting until start(); see :meth:`Manager.stop`."""
        await self._calls.run(self._calls.core.stop, reason=reason, actor=actor)

    async def stats(self) -> RuntimeStats:
        """The namespace in numbers."""
        return await self._calls.run(self._calls.core.stats)

    async def hold_arena(self, owner: str, info: Mapping[str, Any], *, reason: str = "", actor: str = "") -> ArenaHold:
        """Takes the arena for a survival run, or keeps it; see :meth:`Manager.hold_arena`."""
        return await self._calls.run(self._calls.core.hold_arena, owner, info, reason=reason, actor=actor)

    async def release_arena(self, owner: str) -> bool:
        """Frees the arena of a run that is over; False when it is another's by now."""
        return await self._calls.run(self._calls.core.release_arena, owner)

    async def arena(self) -> ArenaHold | None:
        """The survival run that is under way in the namespace; None when there is none."""
        return await self._calls.run(self._calls.core.arena)

    async def stop_arena(self, *, reason: str = "", actor: str = "") -> ArenaHold | None:
        """Asks the survival run that is under way to end; see :meth:`Manager.stop_arena`."""
        return await self._calls.run(self._calls.core.stop_arena, reason=reason, actor=actor)

    async def introspect(self) -> RuntimeSnapshot:
        """Everything that is known of the namespace at this moment; see :meth:`Manager.introspect`."""
        return await self._calls.run(self._calls.core.introspect)

    async def define_group(  # noqa: PLR0913 - the public name
        self,
        name: str,
        strategy: Strategy | StrategyName = "one_for_one",
        max_restarts: int = 10,
        period: timedelta | float | str = 60.0,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> GroupInfo:
        """Defines a group, or defines it anew; see :meth:`Manager.define_group`."""
        call = self._calls.core.define_group
        return await self._calls.run(call, name, strategy, max_restarts, period, reason=reason, actor=actor, op=op)

    async def get_group(self, name: str) -> GroupInfo | None:
        """What is known of a group; None when it does not exist. Raises UnreadableGroupError."""
        return await self._calls.run(self._calls.core.get_group, name)

    async def list_groups(self) -> list[GroupInfo]:
        """All groups, sorted by name; one that cannot be read is logged and left out."""
        return await self._calls.run(self._calls.core.list_groups)

    async def delete_group(self, name: str, *, reason: str = "", actor: str = "", op: str = "") -> None:
        """Forgets a group that no agent belongs to any longer; see :meth:`Manager.delete_group`."""
        await self._calls.run(self._calls.core.delete_group, name, reason=reason, actor=actor, op=op)

    async def set_config(
        self, settings: Mapping[str, Any], *, reason: str = "", actor: str = "", op: str = ""
    ) -> RuntimeConfig:
        """Changes settings of the namespace, all that are named or none; see :meth:`Manager.set_config`."""
        return await self._calls.run(self._calls.core.set_config, settings, reason=reason, actor=actor, op=op)

    async def audit(
        self, agent_id: str | None = None, *, since: datetime | timedelta | str | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """Who asked for what and why, oldest first: the newest ``limit`` entries; see :meth:`Manager.audit`."""
        return await self._calls.run(self._calls.core.audit, agent_id, since=since, limit=limit)

    async def register_agent_dag(self, key: str, value: object, *, reason: str = "", actor: str = "") -> None:
        """Keeps a DAG, any JSON value, under a key; see :meth:`Manager.register_agent_dag`."""
        await self._calls.run(self._calls.core.register_agent_dag, key, value, reason=reason, actor=actor)

    async def get_agent_dag(self, key: str) -> Any:  # noqa: ANN401 - JSON
        """The DAG under a key; None when there is none."""
        return await self._calls.run(self._calls.core.get_agent_dag, key)

    async def compact(self, stream_id: str, *, summariser: Summariser | None = None) -> Summary | None:
        """Summarises the events of a stream that no summary covers yet; see :meth:`Manager.compact`."""
        return await self._calls.run(self._calls.core.compact, stream_id, summariser=summariser)

    async def compact_all(self, *, summariser: Summariser | None = None) -> CompactionReport:
        """Compacts every stream that is due; goes on past errors, which the report tells."""
        return await self._calls.run(self._calls.core.compact_all, summariser=summariser)
