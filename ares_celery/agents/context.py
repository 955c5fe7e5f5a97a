"""What an agent's code gets in its hands: the context of one incarnation."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, overload

from ares_celery.agents.children import Spawning, SyncSpawning
from ares_celery.agents.models import ModelCalls, SyncModelCalls
from ares_celery.agents.sharing import Sharing, SyncSharing
from ares_celery.agents.steps import Stepping, SyncStepping
from ares_celery.model.event import Event
from ares_celery.model.waits import Approval

__all__ = ["AgentContext", "ContextInfo", "StoppingReason", "SyncAgentContext"]

StoppingReason = Literal["stop", "pause", "drain", "fenced"]


class ContextInfo(Protocol):
    """What both kinds of context know of the incarnation."""

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        ...

    @property
    def type(self) -> str:
        """The agent's type."""
        ...

    @property
    def epoch(self) -> int:
        """The incarnation's epoch, its fencing token; a number that only grows."""
        ...

    @property
    def fence(self) -> str:
        """What this incarnation shows with every write; for ``Manager.checkpoints.apply``. Not to be kept or sent."""
        ...

    @property
    def incarnation(self) -> int:
        """Which life this is, from 1."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """The spec's config."""
        ...

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry agent id, incarnation and task id."""
        ...

    @property
    def stop_requested(self) -> bool:
        """The agent should return from ``start`` soon; reading True makes a return a yield, not completion."""
        ...

    @property
    def stopping_reason(self) -> StoppingReason | None:
        """Why it should return; None while it should not."""
        ...

    def complete(self, result: object = None) -> Awaitable[None]:
        """Says that the agent is done, for good, whatever else is asked meanwhile; ``start`` should return next.

        Works with and without ``await``. ``result`` is a JSON value, shown in AgentInfo.
        """
        ...


class AgentContext(ContextInfo, Sharing, Spawning, Stepping, ModelCalls, Protocol):
    """The context of an agent whose methods are ``async``.

    Every call waits while the store is away, and raises FencedSignal (not an Exception) once the incarnation is over.
    """

    @overload
    async def emit(
        self,
        type: str,
        payload: Mapping[str, Any] | None = None,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
        step: None = None,
    ) -> Event: ...
    @overload
    async def emit(
        self,
        type: str,
        payload: Mapping[str, Any] | None = None,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
        step: str,
    ) -> Event | None: ...
    async def emit(
        self,
        type: str,  # noqa: A002
        payload: Mapping[str, Any] | None = None,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
        step: str | None = None,
    ) -> Event | None:
        """Stores an event, then applies it; returns when both are done.

        Durable first: when it returns, Redis has the event, and ``apply`` (if defined) ran.

        Code that runs again after a death, as the handling of a message does, emits again. With ``step`` it does not:
        the event and the record of the step are one write.

        Args:
            type: What happened; the runtime's own types are refused.
            payload: JSON values.
            metadata: JSON values about the event rather than of it: a trace id, a user. ``module`` is the runtime's.
            step: Id of a step of the current execution: the event is stored once in it, whatever dies meanwhile.

        Returns:
            The event; None when an earlier run of the step has stored it, so that it is in the history already.

        Raises:
            EventTooLargeError, UnserialisableError: Refused; nothing was stored or applied.
            StepIdReusedError, StepChangedError, StepLimitError, BudgetExceededError: As for any step.
        """
        ...

    async def emit_many(self, events: Iterable[tuple[str, Mapping[str, Any]]], /) -> tuple[Event, ...]:
        """Stores several events at once, all or none, then applies them in order."""
        ...

    async def sleep(self, seconds: float, /) -> None:
        """Waits; wakes at once on stop, pause and drain. A settled point: snapshots are taken here."""
        ...

    async def sleep_until(self, t: datetime, /, *, release_slot: bool = False) -> None:
        """Waits until a moment has come, by the clock of Redis; returns at once when it has.

        It never returns early: when the agent is to end meanwhile, it raises StopSignal, which ends the agent's code in
        order, and the next incarnation waits for what is left.

        Args:
            t: An aware datetime. It is a moment of the wall clock: when that steps, the wait is shorter or longer. One
                that is worked out from the clock of a machine is as wrong as that clock; for a span there is ``sleep``.
            release_slot: The agent gives its slot back while it waits, and costs nothing but its record: the
                incarnation ends in order, ``finally`` blocks and ``stop`` included, and ``start`` begins from the top
                when the time has come. Recorded steps are skipped then, so the time should come from one:
                ``t = await ctx.step("when", …)``.

        Raises:
            InvalidSettingError: ``t`` is no datetime, or has no zone.
        """
        ...

    async def wait_for_approval(
        self,
        name: str,
        /,
        payload: object = None,
        timeout: timedelta | float | str | None = None,
        release_slot: bool = False,  # noqa: FBT001, FBT002 - the public name
    ) -> Approval:
        """Asks people something, and waits until one of them has decided: ``manager.approve(agent_id, name, …)``.

        The decision is recorded as step ``approval:<name>`` of the current execution, so it is asked once, whatever
        dies meanwhile; the first decision stands.

        Args:
            name: What is asked; one open question of a name at a time.
            payload: What people are told; a JSON value.
            timeout: How long they may take; None = as long as it takes.
            release_slot: As for :meth:`sleep_until`.

        Returns:
            The decision, which is true when it is a yes.

        Raises:
            ApprovalTimeoutError: Nobody decided in time.
            InterruptOpenError: Another execution asks under this name. StepIdReusedError: This one did already.
            InterruptLimitError, UnserialisableError, EventTooLargeError, InvalidSettingError: Nothing was asked.
        """
        ...

    async def snapshot(self) -> bool:
        """Takes a snapshot now; True when it is stored.

        False when the agent has no ``snapshot``, while an emit is in flight, and for an empty one of an agent that
        folds its events: those alone bring back more.
        """
        ...

    def heartbeat(self) -> None:
        """Says that the agent makes progress; shown as ``last_progress``."""
        ...

    async def charge(self, tokens: int = 0, usd: float = 0, steps: int = 0) -> Mapping[str, float]:
        """Records what was spent: tokens of a model, dollars, steps; returns all that the agent has spent so far.

        Restarts, stops and a new start keep what was spent; the agents of a tree share the budget of the one at its
        top. When the spec's ``budget`` is used up, the next step, call of a tool, an MCP server or a model raises
        BudgetExceededError, and the agent is parked. The charge itself is recorded, and raises nothing.

        Charge where it is spent, inside the step: what stands outside of steps runs again when the agent comes back.

        Args:
            tokens: Of a language model.
            usd: Dollars, counted in millionths.
            steps: Work that counts as steps; recorded steps count by themselves.

        Raises:
            InvalidSettingError: A number is negative, not finite, or too large to be meant; nothing was recorded.
        """
        ...

    async def send(self, agent_id: str, message: object, /, *, message_id: str | None = None) -> str:
        """Sends a message to another agent's inbox; returns its message id."""
        ...


class SyncAgentContext(ContextInfo, SyncSharing, SyncSpawning, SyncStepping, SyncModelCalls, Protocol):
    """The context of an agent whose methods are plain; the same names. Messages are handed over at its calls."""

    @overload
    def emit(
        self,
        type: str,
        payload: Mapping[str, Any] | None = None,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
        step: None = None,
    ) -> Event: ...
    @overload
    def emit(
        self,
        type: str,
        payload: Mapping[str, Any] | None = None,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
        step: str,
    ) -> Event | None: ...
    def emit(
        self,
        type: str,  # noqa: A002
        payload: Mapping[str, Any] | None = None,
        /,
        *,
        metadata: Mapping[str, Any] | None = None,
        step: str | None = None,
    ) -> Event | None:
        """See :meth:`AgentContext.emit`."""
        ...

    def emit_many(self, events: Iterable[tuple[str, Mapping[str, Any]]], /) -> tuple[Event, ...]:
        """See :meth:`AgentContext.emit_many`."""
        ...

    def sleep(self, seconds: float, /) -> None:
        """See :meth:`AgentContext.sleep`."""
        ...

    def sleep_until(self, t: datetime, /, *, release_slot: bool = False) -> None:
        """See :meth:`AgentContext.sleep_until`."""
        ...

    def wait_for_approval(
        self,
        name: str,
        /,
        payload: object = None,
        timeout: timedelta | float | str | None = None,
        release_slot: bool = False,  # noqa: FBT001, FBT002 - the public name
    ) -> Approval:
        """See :meth:`AgentContext.wait_for_approval`."""
        ...

    def snapshot(self) -> bool:
        """See :meth:`AgentContext.snapshot`."""
        ...

    def heartbeat(self) -> None:
        """See :meth:`AgentContext.heartbeat`."""
        ...

    def charge(self, tokens: int = 0, usd: float = 0, steps: int = 0) -> Mapping[str, float]:
        """See :meth:`AgentContext.charge`."""
        ...

    def send(self, agent_id: str, message: object, /, *, message_id: str | None = None) -> str:
        """See :meth:`AgentContext.send`."""
        ...
