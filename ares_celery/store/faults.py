"""The ports for faults on purpose: who injects and heals them, and who feels them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from ares_celery.ids import AgentId
from ares_celery.model.fault import Fault, FaultKind, Injection
from ares_celery.model.limits import ClosedLimit
from ares_celery.store.values import DueDeadline

__all__ = ["AsyncFaultStore", "ChaosState", "FaultDesk", "FaultStore", "FaultUse"]


@dataclass(frozen=True, slots=True)
class FaultUse:
    """What one call met.

    Attributes:
        hit: The fault affects this call.
        used: Calls that it has affected so far, this one included.
        over: It is active no longer: it has ended just now by its count, or before.
    """

    hit: bool
    used: int = 0
    over: bool = False


@dataclass(frozen=True, slots=True)
class ChaosState:
    """Whether faults are allowed for a time.

    Attributes:
        until: Until when; None: not for a time. Setting ``chaos`` allows them for good.
        reason: Why somebody allowed them.
        actor: Who did.
    """

    until: datetime | None = None
    reason: str = ""
    actor: str = ""


class FaultStore(Protocol):
    """What an incarnation, and whoever looks at an agent, reads of its faults."""

    def faults(self, agent_id: AgentId) -> tuple[Fault, ...]:
        """The active faults of an agent, by the clock of Redis, as they are felt: by precedence, then the oldest first.

        Empty without such an agent.
        """
        ...

    def use_fault(self, agent_id: AgentId, fault_id: str, *, op: str = "") -> FaultUse:
        """Asks, in front of one call, whether the fault affects it, and counts it.

        The n-th call that asks is affected as the fault's seed says, whatever process asks; at the last of its count
        the fault ends, with the event ``fault.ended``. One that is over affects nothing, and that is no error.

        Args:
            agent_id: Whose call.
            fault_id: Which fault; only one that is counted (``Fault.is_counted``) needs asking.
            op: Of the call; a repeat within minutes gets the first answer. Empty: a fresh one.
        """
        ...

    def note_degraded(self, agent_id: AgentId, fence: str, text: str) -> None:
        """Notes what the incarnation has to do without; empty: nothing. Shown until it ends. Raises FencedError."""
        ...


class AsyncFaultStore(Protocol):
    """The same as :class:`FaultStore`, awaitable."""

    async def faults(self, agent_id: AgentId) -> tuple[Fault, ...]:
        """See :meth:`FaultStore.faults`."""
        ...

    async def use_fault(self, agent_id: AgentId, fault_id: str, *, op: str = "") -> FaultUse:
        """See :meth:`FaultStore.use_fault`."""
        ...

    async def note_degraded(self, agent_id: AgentId, fence: str, text: str) -> None:
        """See :meth:`FaultStore.note_degraded`."""
        ...


class FaultDesk(FaultStore, Protocol):
    """What people inject, heal and see."""

    def all_faults(self) -> tuple[Fault, ...]:
        """The active faults of all agents, by agent, then as they are felt. Costs O(disturbed agents)."""
        ...

    def inject(self, injection: Injection, *, allowed: bool, op: str, reason: str, actor: str) -> Fault:
        """Makes a fault active: atomically with the event ``fault.injected``, the audit entry and the hint to the host.

        ``slow`` and ``tool_timeout`` replace one of their kind; of the others several may be active. Where chaos is
        allowed for a time only, the fault ends with that time. ``memory`` damages the newest stored snapshot, too.

        Args:
            injection: What is asked for.
            allowed: The namespace's settings allow faults for good.
            op: Operation id, and id of the fault: the same again is the same fault.
            reason: Kept with it.
            actor: Who asks.

        Raises:
            AgentNotFoundError.
            ChaosDisabledError: Faults are not allowed, neither for good nor now.
            AgentNotRunningError: What is done to an incarnation needs one.
            FaultLimitError: The agent has too many already.
            OperationIdReusedError: The id was used for something else.
        """
        ...

    def heal(
        self, agent_id: AgentId, *, fault: FaultKind | str | None, op: str, reason: str, actor: str
    ) -> tuple[Fault, ...]:
        """Ends active faults of an agent: each with the event ``fault.healed``; one audit entry. None: no effect.

        Limits that a healed fault has closed open again. Of all faults, or those of models, that goes also for what one
        has closed that ended by its count.

        Args:
            agent_id: Whose.
            fault: A kind or an id; None = all.
            op: Operation id; the same again returns what the first healed.
            reason: Kept in the audit stream.
            actor: Who asks.

        Returns:
            What was healed.

        Raises:
            AgentNotFoundError. OperationIdReusedError: The id was used for something else.
        """
        ...

    def end_faults(self, due: DueDeadline) -> bool:
        """Ends a fault whose time is over, with the event ``fault.ended``; False when it had ended or moved."""
        ...

    def closed_limits(self) -> tuple[ClosedLimit, ...]:
        """The limits that are closed now, by name: an entry for each fault, one for the provider. Costs O(shards)."""
        ...

    def disturbed(self) -> Sequence[AgentId]:
        """The agents that have faults, sorted. Costs O(disturbed agents)."""
        ...

    def settle_chaos(self) -> bool:
        """Tells the end of the time for which faults were allowed, once it is over; and lets every agent know.

        Returns:
            It was over, and nobody had told.
        """
        ...

    def chaos_state(self) -> ChaosState:
        """Whether faults are allowed for a time now."""
        ...

    def allow_chaos(self, duration: timedelta, *, op: str, reason: str, actor: str) -> ChaosState:
        """Allows faults for a time, unless they are for longer; with the event ``chaos.enabled`` and an audit entry.

        A caller that dies in between leaves some agents without it; the same call again allows it for all.
        """
        ...

    def forbid_chaos(self, *, op: str, reason: str, actor: str) -> ChaosState:
        """Ends the time for which faults were allowed, for every agent; what is active goes on. Idempotent.

        Returns:
            What was allowed before.
        """
        ...
