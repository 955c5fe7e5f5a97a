"""Faults on purpose in a test of one agent: the very ones that ``Manager`` injects, in simulated time."""

from __future__ import annotations

from datetime import timedelta

from ares_celery.errors import FaultNotFoundError, InvalidSettingError
from ares_celery.model.fault import Fault, FaultKind, Injection
from ares_celery.model.fault_names import fault_kind
from ares_celery.testing.bench import ACTOR
from ares_celery.testing.children import Children

__all__ = ["Faults"]


class Faults(Children):
    """What a test does to its agent on purpose; needs no permission, as nothing else is in its namespace."""

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Those that are active, as they are felt: by precedence, then the oldest first."""
        return self._bench.store.faults(self._bench.agent_id)

    def inject(  # noqa: PLR0913 - whatever a fault may have
        self,
        kind: FaultKind | str,
        *,
        duration: timedelta | float | str | None = None,
        count: int | None = None,
        probability: float = 1.0,
        seed: int = 0,
        delay: timedelta | float | str | None = None,
        timeout: timedelta | float | str | None = None,
        error_type: str = "rate_limit",
        retry_after: timedelta | float | str | None = None,
        server: str = "",
    ) -> Fault:
        """Disturbs the agent from its next call on; what is felt is the same as in a fleet.

        With a ``partition`` the agent is resurrected in another process when its lease has run out; the old one stands
        still until the partition ends. ``memory`` ends the incarnation at its next call, which raises AgentFailedError
        here, as does all that waits for the agent until :meth:`restart`.

        Args:
            kind: ``partition``, ``memory``, ``mcp``, ``llm``, ``slow`` or ``tool_timeout``, or another name of it.
            duration: Simulated time until it ends by itself; a minute when nobody says.
            count: Calls that it affects at most.
            probability: Of affecting a call.
            seed: Decides which ones.
            delay: How long each call waits; of ``slow``.
            timeout: How long each call of a tool may take; of ``tool_timeout``.
            error_type: How calls of language models fail; of ``llm``.
            retry_after: What the failing model asks to wait; of ``llm``.
            server: The MCP server that is cut off; empty: all; of ``mcp``.

        Raises:
            InvalidSettingError: Something does not fit. AgentNotRunningError: It needs an incarnation.

        Example:
            >>> from ares_celery.testing import AgentHarness
            >>> class Echo:
            ...     def __init__(self, agent_id: str) -> None: ...
            ...     async def process(self, ctx, message): return message
            >>> with AgentHarness(Echo) as harness:
            ...     fault = harness.inject("slow", delay="20s")
            ...     answer = harness.ask("hello")
            ...     answer, harness.now
            ('hello', 20.0)
        """
        bench = self._bench
        named = fault_kind(kind)
        if named is None:
            raise InvalidSettingError(field="kind", value=str(kind), problem=f"use one of {', '.join(FaultKind)}")
        injection = Injection.of(
            bench.agent_id,
            named,
            duration=duration,
            count=count,
            probability=probability,
            seed=seed,
            delay=delay,
            timeout=timeout,
            error_type=error_type,
            retry_after=retry_after,
            server=server,
        )
        bench.disturbances.look()
        op = f"fault-{next(bench.numbers)}"
        fault = bench.store.inject(injection, allowed=True, op=op, reason="", actor=ACTOR)
        bench.disturbances.begin(fault)
        bench.disturbances.look()
        return fault

    def heal(self, fault: FaultKind | str | None = None) -> tuple[Fault, ...]:
        """Ends faults now; gives those that were active.

        Args:
            fault: A kind or an id; None: all.

        Raises:
            FaultNotFoundError: It is neither a kind nor the id of an active fault.
        """
        bench = self._bench
        op = f"heal-{next(bench.numbers)}"
        kind = fault_kind(fault)
        healed = bench.store.heal(bench.agent_id, fault=kind or fault, op=op, reason="", actor=ACTOR)
        bench.disturbances.look()
        if fault is not None and kind is None and not healed:
            raise FaultNotFoundError(fault=str(fault), kinds=", ".join(FaultKind))
        return healed
