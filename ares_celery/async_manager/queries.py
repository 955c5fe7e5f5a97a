"""Looking at agents, awaitable."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from ares_celery.async_manager.calls import Calls
from ares_celery.errors import AgentNotFoundError
from ares_celery.ids import check_agent_id
from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.model.info import agent_info
from ares_celery.runtime.callers import check_timeout
from ares_celery.runtime.waiting import awaited_states, timed_out

__all__ = ["AsyncQueries"]


class AsyncQueries:
    """What is known of agents. Waits use no thread and no connection of their own."""

    _calls: Calls

    async def get_agent_info(self, agent_id: str) -> AgentInfo | None:
        """What is known of the agent, or None when it does not exist."""
        record = (await (await self._calls.access()).read(check_agent_id(agent_id))).record
        return agent_info(record) if record else None

    async def list_agents(
        self,
        *,
        states: Iterable[AgentState | str] | None = None,
        type: str | None = None,  # noqa: A002
    ) -> list[AgentInfo]:
        """All agents, stopped ones included, or those in some states or of one type; sorted by id."""
        return await self._calls.run(self._calls.core.list_agents, states=states, type=type)

    async def children(self, agent_id: str) -> list[AgentInfo]:
        """The agents that this one has spawned; see :meth:`Manager.children`."""
        return await self._calls.run(self._calls.core.children, agent_id)

    async def wait_for(
        self,
        agent_id: str,
        states: Iterable[AgentState | str],
        *,
        timeout: timedelta | float = 60.0,
    ) -> AgentInfo:
        """Waits until the agent is in one of the states. All waits of a loop look together.

        Raises:
            WaitTimeoutError: It is not; field ``state`` says where it is. AgentNotFoundError.
        """
        checked, wanted = check_agent_id(agent_id), awaited_states(states)
        limit = check_timeout(timeout).total_seconds()
        access, watch = await self._calls.access(), await self._calls.watch()
        until = self._calls.clock.monotonic() + limit
        while True:
            is_there = await watch.until(checked, wanted, until - self._calls.clock.monotonic())
            record = (await access.read(checked)).record
            if record is None:
                raise AgentNotFoundError(agent_id=checked)
            if record.state in wanted:
                return agent_info(record)
            # Seen, but gone again before it was read: looked for again, as long as there is time.
            if not is_there or self._calls.clock.monotonic() >= until:
                raise timed_out(agent_info(record), wanted, limit)
