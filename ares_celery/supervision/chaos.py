"""The part of a Manager that disturbs agents on purpose, and heals them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ares_celery.errors import InvalidSettingError
from ares_celery.ids import check_agent_id
from ares_celery.model.arguments import check_timeout
from ares_celery.model.fault import Fault, FaultKind, Injection
from ares_celery.runtime.callers import check_flags, check_texts, me
from ares_celery.supervision.fault_care import FaultCare, Seconds
from ares_celery.supervision.killing import kill_hosting_process, kill_worker_process

__all__ = ["Chaos"]


class Chaos(FaultCare):
    """Faults on purpose. Refused unless the namespace allows them, by its settings or for a time.

    Every fault ends by itself: after ``duration`` (a minute unless it says otherwise, a day at most), also when nobody
    is left to end it. What a fault does is felt by the agent's next call.
    """

    def slow_agent(  # noqa: PLR0913 - the public name
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
        """Lets each call of an agent (a message, a step, a tool) wait first; a stop ends the wait early.

        Args:
            agent_id: Which agent.
            delay: How long; replaces an earlier one, and 0 clears it.
            duration: When the fault ends by itself; default a minute, at most a day.
            count: It also ends after so many calls.
            probability: Of affecting a call.
            seed: Decides which calls; drawn and shown unless given.
            reason: Kept with the fault, in its event and in the audit stream.
            actor: Who asks; default user@host.
            op: Operation id, and id of the fault; default a fresh one. A repeat returns the same fault.

        Returns:
            The fault; None when it was cleared.

        Raises:
            AgentNotFoundError. ChaosDisabledError: Faults are not allowed here.
            InvalidSettingError: A value cannot be; the error names it.

        Example:
            ``manager.slow_agent("counter-1", "500ms", duration="2m", probability=0.2, seed=7)``
        """
        if _clears("delay", delay):
            self.heal(check_agent_id(agent_id), FaultKind.SLOW, reason=reason, actor=actor, op=op)
            return None
        return self._inject(
            Injection.of(
                agent_id,
                FaultKind.SLOW,
                delay=delay,
                duration=duration,
                count=count,
                probability=probability,
                seed=seed,
            ),
            reason=reason,
            actor=actor,
            op=op,
        )

    def tool_timeout(  # noqa: PLR0913 - the public name
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
        """Cuts each call of a tool off after ``timeout``; replaces an earlier one, and 0 clears it.

        All else as for :meth:`slow_agent`.

        Example:
            ``manager.tool_timeout("counter-1", 2, count=3)``
        """
        if _clears("timeout", timeout):
            self.heal(check_agent_id(agent_id), FaultKind.TOOL_TIMEOUT, reason=reason, actor=actor, op=op)
            return None
        return self._inject(
            Injection.of(
                agent_id,
                FaultKind.TOOL_TIMEOUT,
                timeout=timeout,
                duration=duration,
                count=count,
                probability=probability,
                seed=seed,
            ),
            reason=reason,
            actor=actor,
            op=op,
        )

    def partition_network(
        self,
        agent_id: str,
        duration: Seconds | None = None,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> Fault:
        """Cuts the incarnation that runs now off from its store: its lease runs out, and the agent runs elsewhere.

        Args:
            agent_id: Which agent.
            duration: When the fault ends by itself; default a minute, at most a day. Longer than a lease, or the agent
                only waits.
            reason: As for :meth:`slow_agent`.
            actor: Likewise.
            op: Likewise.

        Raises:
            AgentNotFoundError. AgentNotRunningError: Nothing hosts it. ChaosDisabledError. InvalidSettingError.
        """
        injection = Injection.of(agent_id, FaultKind.PARTITION, duration=duration)
        return self._inject(injection, reason=reason, actor=actor, op=op)

    def corrupt_memory(
        self,
        agent_id: str,
        *,
        duration: Seconds | None = None,
        seed: int | None = None,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> Fault:
        """Damages the newest stored snapshot, and ends the instance that runs now at its next call, as by a crash.

        The next incarnation finds the damage, tells of it, and comes back from an older snapshot or the events.

        Args:
            agent_id: Which agent.
            duration: Until when the instance dies of it; default a minute, at most a day.
            seed: Decides how the snapshot is damaged, and where.
            reason: As for :meth:`slow_agent`.
            actor: Likewise.
            op: Likewise.

        Raises:
            AgentNotFoundError. AgentNotRunningError: Nothing hosts it. ChaosDisabledError. InvalidSettingError.
        """
        injection = Injection.of(agent_id, FaultKind.MEMORY, duration=duration, seed=seed)
        return self._inject(injection, reason=reason, actor=actor, op=op)

    def disconnect_mcp(  # noqa: PLR0913 - the public name
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
        """Cuts an agent's connections to MCP servers; those of other agents go on.

        Args:
            agent_id: Which agent.
            duration: When the fault ends by itself; default a minute, at most a day.
            server: Only this server; empty = all.
            count: As for :meth:`slow_agent`.
            probability: Likewise.
            seed: Likewise.
            reason: Likewise.
            actor: Likewise.
            op: Likewise.

        Raises:
            AgentNotFoundError. ChaosDisabledError. InvalidSettingError.
        """
        injection = Injection.of(
            agent_id,
            FaultKind.MCP,
            server=server,
            duration=duration,
            count=count,
            probability=probability,
            seed=seed,
        )
        return self._inject(injection, reason=reason, actor=actor, op=op)

    def inject_llm_failure(  # noqa: PLR0913 - the public name
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
        """Lets calls of language models fail as the real thing does, for clients that use ``ctx.llm_http_client()``.

        Args:
            agent_id: Which agent.
            error_type: One of ``LLM_ERRORS``: rate_limit, timeout, connection, server_error, overloaded, auth,
                malformed, cut_stream.
            retry_after: What the failing model asks to wait; None: it does not say.
            duration: When the fault ends by itself; default a minute, at most a day.
            count: As for :meth:`slow_agent`.
            probability: Likewise.
            seed: Likewise.
            reason: Likewise.
            actor: Likewise.
            op: Likewise.

        Raises:
            AgentNotFoundError. ChaosDisabledError. InvalidSettingError.

        Example:
            ``manager.inject_llm_failure("writer-1", "rate_limit", retry_after=7, count=1)``
        """
        injection = Injection.of(
            agent_id,
            FaultKind.LLM,
            error_type=error_type,
            retry_after=retry_after,
            duration=duration,
            count=count,
            probability=probability,
            seed=seed,
        )
        return self._inject(injection, reason=reason, actor=actor, op=op)

    def kill_agent(self, agent_id: str, *, force: bool = False, reason: str = "", actor: str = "") -> Mapping[str, Any]:
        """Sends SIGKILL to the process that hosts the agent, without any intent: it will be resurrected.

        Args:
            agent_id: Which agent.
            force: Also when other agents live in the same process.
            reason: Kept in the audit stream.
            actor: Who asks; default user@host.

        Returns:
            ``agent_id``, ``pid``, ``worker`` and ``co_tenants``, the ids that died with it.

        Raises:
            AgentNotFoundError. ChaosDisabledError: The namespace does not allow faults.
            AgentNotRunningError: Nothing hosts it. OperationNotSupportedError: Its process hosts others too (their ids
            are in field ``co_tenants``), or runs on another machine.
        """
        check_flags(force=force)
        check_texts(reason=reason, actor=actor)
        checked, store = check_agent_id(agent_id), self._ports.store
        self._record(checked)
        allowed = self._allows_faults or store.chaos_state().until is not None
        return kill_hosting_process(store, checked, allowed=allowed, force=force, why=(reason, actor or me()))

    def kill_worker(self, worker: str, *, force: bool = False, reason: str = "", actor: str = "") -> Mapping[str, Any]:
        """Sends SIGKILL to the main process of a worker, whose pool children go with it; its agents are resurrected.

        Args:
            worker: Its name as Celery says it, such as ``agents@host``; that of ``AgentInfo.worker``.
            force: Also when it hosts agents, which all die.
            reason: Kept in the audit stream.
            actor: Who asks; default user@host.

        Returns:
            ``worker``, ``pid`` and ``agents``, the ids that died with it.

        Raises:
            ChaosDisabledError: The namespace does not allow faults. WorkerNotFoundError: None of that name has
                reported within a minute.
            OperationNotSupportedError: It hosts agents (their ids are in field ``agents``), has ended, or runs on
                another machine.
        """
        check_flags(force=force)
        check_texts(worker=worker, reason=reason, actor=actor)
        store = self._ports.store
        allowed = self._allows_faults or store.chaos_state().until is not None
        return kill_worker_process(store, worker, allowed=allowed, force=force, why=(reason, actor or me()))

    # -- inside -----------------------------------------------------------------------------------------------------

    @property
    def _allows_faults(self) -> bool:
        """The settings allow faults for good, as they are now."""
        return self._ports.store.refresh_config().chaos

    def _inject(self, injection: Injection, *, reason: str, actor: str, op: str) -> Fault:
        check_texts(reason=reason, actor=actor, op=op)
        store, asked = self._ports.store, op or uuid.uuid4().hex
        return self._patiently(
            lambda: store.inject(injection, allowed=self._allows_faults, op=asked, reason=reason, actor=actor or me())
        )


def _clears(field: str, value: object) -> bool:
    """Zero means that there shall be none."""
    if value is None:
        problem = "say how long, such as '500ms'; 0 clears it"
        raise InvalidSettingError(field=field, value=None, problem=problem)
    return check_timeout(value, field) == timedelta(0)
