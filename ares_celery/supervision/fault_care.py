"""The part of a Manager that heals agents of faults, lists these, and says when they are allowed."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeVar

from ares_celery.errors import AgentNotFoundError, FaultNotFoundError, InvalidSettingError, StoreUnavailableError
from ares_celery.ids import AgentId, check_agent_id
from ares_celery.model.arguments import as_shown
from ares_celery.model.fault import Fault, FaultKind, check_fault_duration
from ares_celery.model.fault_names import fault_kind
from ares_celery.model.limits import ClosedLimit
from ares_celery.runtime.callers import check_texts, me
from ares_celery.runtime.queries import AgentQueries
from ares_celery.store.faults import ChaosState

__all__ = ["FaultCare", "Seconds"]

T = TypeVar("T")
_CLOSE_NOTHING: Final = frozenset(FaultKind) - {FaultKind.LLM}
#: A duration: seconds as a number, a timedelta, or text such as ``1m30s``.
Seconds = timedelta | float | str
#: How long a lost reply is asked for again under the same op id, and seconds between two tries.
_PATIENCE: Final = timedelta(seconds=5)
_PAUSE: Final = 0.2


class FaultCare(AgentQueries):
    """What is always allowed: to look at faults, and to end them."""

    def heal(
        self,
        agent_id: str | None = None,
        fault: FaultKind | str | None = None,
        *,
        reason: str = "",
        actor: str = "",
        op: str = "",
    ) -> tuple[Fault, ...]:
        """Ends faults before their time. Allowed at any time; where nothing is active it has no effect.

        A limit that an injected refusal has closed opens again, unless its provider has refused a call as well.

        Args:
            agent_id: Whose; None = of all agents.
            fault: A kind, by any of its names (``mcp``, ``disconnect-mcp``, ``mcp_disconnect``), or the id of an active
                one; None = all.
            reason: Kept in the events and in the audit stream.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Returns:
            What was healed.

        Raises:
            AgentNotFoundError: The agent that is named does not exist.
            FaultNotFoundError: ``fault`` is no kind, and no active fault has that id.

        Example:
            ``manager.heal("counter-1", "slow")``
        """
        checked = None if agent_id is None else check_agent_id(agent_id)
        check_texts(reason=reason, actor=actor, op=op, **({} if fault is None else {"fault": fault}))
        store, asked = self._ports.store, op or uuid.uuid4().hex
        wanted = fault_kind(fault) or fault
        closers = set[AgentId]()
        # Of whom the answer is lost is asked again, although nothing of him is active any more.
        healed: dict[AgentId, tuple[Fault, ...] | None] = {} if checked is None else {checked: None}

        def heal_all() -> None:
            if wanted not in _CLOSE_NOTHING:
                # Also of those that have ended by their count, and are no longer listed.
                closing = [one for one in store.closed_limits() if one.fault and agent_id in (None, one.agent_id)]
                closers.update(AgentId(one.agent_id) for one in closing if wanted in (None, FaultKind.LLM, one.fault))
            if checked is None:
                disturbed = {one for one in store.disturbed() if store.faults(one)}
                healed.update((one, None) for one in disturbed | closers if one not in healed)
            for one in [agent for agent, found in healed.items() if found is None]:
                try:
                    healed[one] = store.heal(one, fault=wanted, op=asked, reason=reason, actor=actor or me())
                except AgentNotFoundError:
                    # Deleted meanwhile, and its faults with it; nobody has named it.
                    if checked is not None:
                        raise
                    healed[one] = ()

        self._patiently(heal_all)
        ended = tuple(one for _, found in sorted(healed.items()) for one in found or ())
        if isinstance(wanted, str) and not isinstance(wanted, FaultKind) and not ended and not closers:
            raise FaultNotFoundError(fault=as_shown(wanted), kinds=", ".join(FaultKind))
        return ended

    def closed_limits(self) -> tuple[ClosedLimit, ...]:
        """The limits of :meth:`ctx.limit <ares_celery.AgentContext.limit>` that let nobody through now, by name.

        One entry for each fault that closes a limit, and one when its provider has refused a call.

        Example:
            ``[one.name for one in manager.closed_limits() if one.fault]``
        """
        return self._ports.store.closed_limits()

    def list_faults(self, agent_id: str | None = None) -> tuple[Fault, ...]:
        """The active faults of an agent, or of all: by agent, then as they are felt (partition, memory, MCP, LLM, …).

        Raises:
            AgentNotFoundError: The agent that is named does not exist.
        """
        if agent_id is None:
            return self._ports.store.all_faults()
        checked = check_agent_id(agent_id)
        found = self._ports.store.faults(checked)
        if not found:
            self._record(checked)
        return found

    # -- whether they are allowed -----------------------------------------------------------------------------------

    def enable_chaos(self, duration: Seconds, *, reason: str = "", actor: str = "", op: str = "") -> ChaosState:
        """Allows faults for a time. With that time every fault ends that it allowed, whoever is left.

        Args:
            duration: How long, at most a day. Where faults are allowed for longer they stay so; :meth:`disable_chaos`
                ends that. For good: ``set_config({"chaos": True})``.
            reason: Kept in the event ``chaos.enabled`` and in the audit stream.
            actor: Who asks; default user@host.
            op: Operation id; default a fresh one.

        Raises:
            InvalidSettingError: The duration cannot be.

        Example:
            ``manager.enable_chaos("1h", reason="game day")``
        """
        limit = check_fault_duration(_said(duration))
        check_texts(reason=reason, actor=actor, op=op)
        store, asked = self._ports.store, op or uuid.uuid4().hex
        return self._patiently(lambda: store.allow_chaos(limit, op=asked, reason=reason, actor=actor or me()))

    def disable_chaos(self, *, reason: str = "", actor: str = "", op: str = "") -> tuple[Fault, ...]:
        """Ends the time for which faults were allowed, then heals all that are active.

        What the namespace's settings allow for good stays allowed: ``set_config({"chaos": False})`` ends that.

        Returns:
            What was healed.
        """
        check_texts(reason=reason, actor=actor, op=op)
        store, asked = self._ports.store, op or uuid.uuid4().hex
        self._patiently(lambda: store.forbid_chaos(op=asked, reason=reason, actor=actor or me()))
        return self.heal(reason=reason, actor=actor, op=asked)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _patiently(self, call: Callable[[], T]) -> T:
        """Asks again under the same operation id while the store does not answer, for a while."""
        until = self._clock.monotonic() + self._ports.committer.bounded(_PATIENCE).total_seconds()
        while True:
            try:
                return call()
            except StoreUnavailableError:
                if self._clock.monotonic() >= until:
                    raise
                self._clock.wait(self._never, _PAUSE)


def _said(duration: object) -> object:
    if duration is None:
        raise InvalidSettingError(field="duration", value=None, problem="say for how long, such as '1h'")
    return duration
