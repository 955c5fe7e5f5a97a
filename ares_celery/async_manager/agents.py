"""What coroutines ask of agents' lives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, get_args

from ares_celery.async_manager.handle import AsyncAgentHandle
from ares_celery.async_manager.messages import AsyncMessages
from ares_celery.async_manager.queries import AsyncQueries
from ares_celery.errors import AgentParkedError, WaitTimeoutError
from ares_celery.ids import AgentId, check_agent_id
from ares_celery.model.agent import AgentInfo, AgentSpec, AgentState
from ares_celery.model.command import IfExists
from ares_celery.model.waits import InterruptInfo
from ares_celery.runtime.administration import Apply
from ares_celery.runtime.callers import check_choice, check_flags, check_timeout
from ares_celery.runtime.handle import AgentHandle
from ares_celery.runtime.waiting import RESTING, STARTED, Wait

__all__ = ["AsyncAgents"]


class AsyncAgents(AsyncMessages, AsyncQueries):
    """Starts, stops, restarts agents. A caller that is cancelled leaves what it asked for to its end."""

    async def register_agent(
        self,
        agent: AgentSpec | object,
        factory: Callable[..., Any] | None = None,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AsyncAgentHandle:
        """Makes an agent known; see :meth:`Manager.register_agent`."""
        call = self._calls.core.register_agent
        return self._handle(await self._calls.run(call, agent, factory, reason=reason, actor=actor, op=op))

    async def start_agent(  # noqa: PLR0913 - the public name
        self,
        agent: AgentSpec | object | str,
        *,
        if_exists: IfExists = "error",
        wait: Wait = "durable",
        timeout: timedelta | float | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AsyncAgentHandle:
        """Wants an agent to run; see :meth:`Manager.start_agent`.

        Example:
            ``await manager.start_agent(AgentSpec(id="counter-1", type="counter"), if_exists="return", wait="running")``
        """
        check_choice("wait", wait, get_args(Wait))
        limit = None if timeout is None else check_timeout(timeout)
        call = self._calls.core.start_agent
        asked = await self._calls.run(call, agent, if_exists=if_exists, reason=reason, actor=actor, op=op)
        if wait == "running":
            if limit is None:
                limit = (await self._calls.run(lambda: self._calls.core.config)).start_timeout
            info = await self.wait_for(asked.id, STARTED, timeout=limit)
            if info.state is AgentState.PARKED:
                raise AgentParkedError(agent_id=asked.id, cause=info.cause, reason=info.last_error)
        return self._handle(asked)

    async def stop_agent(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        *,
        wait: bool = True,
        force: bool = False,
        timeout: timedelta | float | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> None:
        """Wants an agent not to run, whatever restarts; see :meth:`Manager.stop_agent`.

        A caller that is cancelled while it waits leaves the agent asked to stop: it ends by itself, or is fenced when
        ``agent_stop_timeout`` is over.
        """
        call = self._calls.core.stop_agent
        check_flags(wait=wait, force=force)
        limit = None if timeout is None else check_timeout(timeout)
        await self._calls.run(call, agent_id, wait=False, force=force, reason=reason, actor=actor, op=op)
        if not wait:
            return
        if limit is None:
            limit = (await self._calls.run(lambda: self._calls.core.config)).agent_stop_timeout
        try:
            await self.wait_for(agent_id, RESTING, timeout=limit)
        except WaitTimeoutError:
            await self._calls.run(call, agent_id, wait=False, force=True, reason=reason, actor=actor)

    async def restart_agent(self, agent_id: str, *, reason: str = "", actor: str = "", op: str = "") -> None:
        """Ends the incarnation in order and begins a new one; see :meth:`Manager.restart_agent`."""
        await self._calls.run(self._calls.core.restart_agent, agent_id, reason=reason, actor=actor, op=op)

    async def restore_agent(
        self,
        agent_id: str,
        factory: Callable[..., Any] | str | None = None,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> None:
        """Fails over on purpose; see :meth:`Manager.restore_agent`."""
        call = self._calls.core.restore_agent
        await self._calls.run(call, agent_id, factory, reason=reason, actor=actor, op=op)

    async def notify_agent_dead(
        self, agent_id: str, reason: str, *, epoch: int | None = None, actor: str = "", op: str = ""
    ) -> None:
        """Reports a death; see :meth:`Manager.notify_agent_dead`."""
        call = self._calls.core.notify_agent_dead
        await self._calls.run(call, agent_id, reason, epoch=epoch, actor=actor, op=op)

    async def pause_agent(
        self,
        agent_id: str,
        *,
        duration: timedelta | float | str | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> None:
        """Lets an agent end in order and rest; see :meth:`Manager.pause_agent`."""
        call = self._calls.core.pause_agent
        await self._calls.run(call, agent_id, duration=duration, reason=reason, actor=actor, op=op)

    async def resume_agent(self, agent_id: str, *, reason: str = "", actor: str = "", op: str = "") -> None:
        """Lets a paused agent run again; not a restart. One that is not paused: no effect."""
        await self._calls.run(self._calls.core.resume_agent, agent_id, reason=reason, actor=actor, op=op)

    async def unpark_agent(
        self, agent_id: str, *, accept_loss: bool = False, reason: str = "", actor: str = "", op: str = ""
    ) -> None:
        """Starts a parked agent again with a full restart budget; see :meth:`Manager.unpark_agent`."""
        call = self._calls.core.unpark_agent
        await self._calls.run(call, agent_id, accept_loss=accept_loss, reason=reason, actor=actor, op=op)

    async def reconcile_agent(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        *,
        execution: str | None = None,
        step: str | None = None,
        done: Any = ...,  # noqa: ANN401 - a JSON value
        retry: bool = False,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AgentInfo:
        """Says what became of a step of a parked agent; see :meth:`Manager.reconcile_agent`."""
        call, named = self._calls.core.reconcile_agent, {"execution": execution, "step": step}
        return await self._calls.run(call, agent_id, **named, done=done, retry=retry, reason=reason, actor=actor, op=op)

    async def delete_agent(self, agent_id: str, *, reason: str = "", actor: str = "", op: str = "") -> None:
        """Forgets a resting agent and every key of it; see :meth:`Manager.delete_agent`."""
        await self._calls.run(self._calls.core.delete_agent, agent_id, reason=reason, actor=actor, op=op)

    async def kill_agent(
        self, agent_id: str, *, force: bool = False, reason: str = "", actor: str = ""
    ) -> Mapping[str, Any]:
        """Sends SIGKILL to the process that hosts the agent; see :meth:`Manager.kill_agent`."""
        call = self._calls.core.kill_agent
        return await self._calls.run(call, agent_id, force=force, reason=reason, actor=actor)

    async def kill_worker(
        self, worker: str, *, force: bool = False, reason: str = "", actor: str = ""
    ) -> Mapping[str, Any]:
        """Sends SIGKILL to the main process of a worker; see :meth:`Manager.kill_worker`."""
        call = self._calls.core.kill_worker
        return await self._calls.run(call, worker, force=force, reason=reason, actor=actor)

    async def update_agent(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        *,
        config: Mapping[str, Any] | None = None,
        budget: Mapping[str, float | None] | None = None,
        apply: Apply = "next",
        merge: bool = False,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AgentInfo:
        """Gives an agent another config or budget; see :meth:`Manager.update_agent`."""
        call = self._calls.core.update_agent
        return await self._calls.run(
            call, agent_id, config=config, budget=budget, apply=apply, merge=merge, reason=reason, actor=actor, op=op
        )

    async def fork_agent(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        new_id: str,
        *,
        at: int | None = None,
        start: bool = True,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> AsyncAgentHandle:
        """Makes a new agent with the state that another had at some version; see :meth:`Manager.fork_agent`."""
        call = self._calls.core.fork_agent
        return self._handle(
            await self._calls.run(call, agent_id, new_id, at=at, start=start, reason=reason, actor=actor, op=op)
        )

    async def approve(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        name: str,
        decision: str | bool = True,  # noqa: FBT001, FBT002 - the public name
        payload: Any = None,  # noqa: ANN401 - a JSON value
        *,
        interrupt_id: str | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> InterruptInfo:
        """Decides what an agent has asked; see :meth:`Manager.approve`."""
        call = self._calls.core.approve
        return await self._calls.run(
            call, agent_id, name, decision, payload, interrupt_id=interrupt_id, reason=reason, actor=actor, op=op
        )

    async def interrupts(self, agent_id: str) -> list[InterruptInfo]:
        """What the agent asks and has asked people; see :meth:`Manager.interrupts`."""
        return await self._calls.run(self._calls.core.interrupts, agent_id)

    async def get_agent(self, agent_id: str) -> AsyncAgentHandle | None:
        """A handle of the agent, or None when it does not exist."""
        checked = check_agent_id(agent_id)
        return AsyncAgentHandle(self, checked) if await self.get_agent_info(checked) is not None else None

    def _handle(self, handle: AgentHandle) -> AsyncAgentHandle:
        return AsyncAgentHandle(self, AgentId(handle.id))
