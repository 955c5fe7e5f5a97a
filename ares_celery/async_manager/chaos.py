"""What coroutines do to agents on purpose."""

from __future__ import annotations

from ares_celery.async_manager.calls import Calls
from ares_celery.model.fault import Fault, FaultKind
from ares_celery.model.limits import ClosedLimit
from ares_celery.store.faults import ChaosState
from ares_celery.supervision.fault_care import Seconds

__all__ = ["AsyncChaos"]


class AsyncChaos:
    """Faults on purpose. Refused unless the namespace allows them, by its settings or for a time."""

    _calls: Calls

    async def slow_agent(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        delay: Seconds,
        *,
        duration: Seconds | None = None,
        count: int | None = None,
        probability: float = 1.0,
        seed: int | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> Fault | None:
        """Lets each call of an agent wait first; 0 clears it; see :meth:`Manager.slow_agent`."""
        call = self._calls.core.slow_agent
        return await self._calls.run(
            call,
            agent_id,
            delay,
            duration=duration,
            count=count,
            probability=probability,
            seed=seed,
            reason=reason,
            actor=actor,
            op=op,
        )

    async def tool_timeout(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        timeout: Seconds,
        *,
        duration: Seconds | None = None,
        count: int | None = None,
        probability: float = 1.0,
        seed: int | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> Fault | None:
        """Cuts each call of a tool off; 0 clears it; see :meth:`Manager.tool_timeout`."""
        call = self._calls.core.tool_timeout
        return await self._calls.run(
            call,
            agent_id,
            timeout,
            duration=duration,
            count=count,
            probability=probability,
            seed=seed,
            reason=reason,
            actor=actor,
            op=op,
        )

    async def partition_network(
        self,
        agent_id: str,
        duration: Seconds | None = None,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> Fault:
        """Cuts an incarnation off from its store; see :meth:`Manager.partition_network`."""
        call = self._calls.core.partition_network
        return await self._calls.run(call, agent_id, duration, reason=reason, actor=actor, op=op)

    async def corrupt_memory(
        self,
        agent_id: str,
        *,
        duration: Seconds | None = None,
        seed: int | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> Fault:
        """Damages the newest snapshot and ends the instance; see :meth:`Manager.corrupt_memory`."""
        call = self._calls.core.corrupt_memory
        return await self._calls.run(call, agent_id, duration=duration, seed=seed, reason=reason, actor=actor, op=op)

    async def disconnect_mcp(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        duration: Seconds | None = None,
        *,
        server: str = "",
        count: int | None = None,
        probability: float = 1.0,
        seed: int | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> Fault:
        """Cuts an agent's connections to MCP servers; see :meth:`Manager.disconnect_mcp`."""
        call = self._calls.core.disconnect_mcp
        return await self._calls.run(
            call,
            agent_id,
            duration,
            server=server,
            count=count,
            probability=probability,
            seed=seed,
            reason=reason,
            actor=actor,
            op=op,
        )

    async def inject_llm_failure(  # noqa: PLR0913 - the public name
        self,
        agent_id: str,
        error_type: str = "rate_limit",
        *,
        retry_after: Seconds | None = None,
        duration: Seconds | None = None,
        count: int | None = None,
        probability: float = 1.0,
        seed: int | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> Fault:
        """Lets calls of language models fail; see :meth:`Manager.inject_llm_failure`."""
        call = self._calls.core.inject_llm_failure
        return await self._calls.run(
            call,
            agent_id,
            error_type,
            retry_after=retry_after,
            duration=duration,
            count=count,
            probability=probability,
            seed=seed,
            reason=reason,
            actor=actor,
            op=op,
        )

    async def heal(
        self,
        agent_id: str | None = None,
        fault: FaultKind | str | None = None,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> tuple[Fault, ...]:
        """Ends faults before their time; see :meth:`Manager.heal`."""
        call = self._calls.core.heal
        return await self._calls.run(call, agent_id, fault, reason=reason, actor=actor, op=op)

    async def list_faults(self, agent_id: str | None = None) -> tuple[Fault, ...]:
        """The active faults of an agent, or of all; see :meth:`Manager.list_faults`."""
        return await self._calls.run(self._calls.core.list_faults, agent_id)

    async def closed_limits(self) -> tuple[ClosedLimit, ...]:
        """The limits that let nobody through now; see :meth:`Manager.closed_limits`."""
        return await self._calls.run(self._calls.core.closed_limits)

    async def enable_chaos(
        self,
        duration: Seconds,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> ChaosState:
        """Allows faults for a time; see :meth:`Manager.enable_chaos`."""
        call = self._calls.core.enable_chaos
        return await self._calls.run(call, duration, reason=reason, actor=actor, op=op)

    async def disable_chaos(
        self,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> tuple[Fault, ...]:
        """Ends that time, then heals all that are active; see :meth:`Manager.disable_chaos`."""
        call = self._calls.core.disable_chaos
        return await self._calls.run(call, reason=reason, actor=actor, op=op)
