"""The faults on purpose that one incarnation feels, as its hosting process knows them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, Final, Protocol

from ares_celery.clock import Clock, instant_from
from ares_celery.errors import AgentSignal, AresError, MemoryCorruptedError, StoreUnavailableError
from ares_celery.errors.wording import message_of
from ares_celery.ids import AgentId
from ares_celery.model.fault import Fault, FaultKind, by_precedence

__all__ = ["ActiveFaults", "FaultWatch", "StateLostSignal", "ends_at"]

log: Final = logging.getLogger(__name__)


class StateLostSignal(AgentSignal):
    """The instance is no longer what its events say: it dies of an error, and what comes back is what is stored."""

    def __init__(self, error: BaseException) -> None:
        """Carries what the death is told with."""
        super().__init__(message_of(error))
        self.error = error


class ActiveFaults:
    """What disturbs one incarnation; never changes, so that any thread may look at it.

    A fault ends by the clock of this process too: nobody has to say so, and no store has to answer.

    Example:
        >>> from ares_celery.clock import SystemClock
        >>> clock = SystemClock()
        >>> slow = Fault("op-1", "counter-1", FaultKind.SLOW, delay=0.5)
        >>> faults = ActiveFaults("counter-1", [(slow, clock.monotonic() + 60)], clock)
        >>> faults.active(FaultKind.SLOW).delay, faults.active(FaultKind.MCP)
        (0.5, None)
    """

    __slots__ = ("_agent_id", "_clock", "_felt")

    def __init__(self, agent_id: str, faults: Iterable[tuple[Fault, float]], clock: Clock) -> None:
        """Takes faults with the monotonic moments at which they end."""
        self._agent_id = agent_id
        self._clock = clock
        self._felt = tuple(sorted(faults, key=lambda one: by_precedence(one[0])))

    def active(self, kind: FaultKind) -> Fault | None:
        """The oldest fault of a kind that is not over."""
        return next(iter(self.all(kind)), None)

    def all(self, kind: FaultKind | None = None) -> tuple[Fault, ...]:
        """Those of a kind, or of every kind, that are not over, as they are felt."""
        now = self._clock.monotonic()
        return tuple(fault for fault, end in self._felt if end > now and kind in (None, fault.kind))

    def first(self) -> Fault | None:
        """The one that is felt first."""
        return next(iter(self.all()), None)

    def left(self, fault: Fault) -> float:
        """Seconds until a fault ends by itself; zero for one that is not among these."""
        now = self._clock.monotonic()
        return max((end - now for one, end in self._felt if one.id == fault.id), default=0.0)

    @property
    def is_cut_off(self) -> bool:
        """A partition keeps the incarnation from its store."""
        return self.active(FaultKind.PARTITION) is not None

    def demand_store(self) -> None:
        """Before a call of the store on the incarnation's behalf.

        Raises:
            StoreUnavailableError: A partition cuts it off.
        """
        fault = self.active(FaultKind.PARTITION)
        if fault is not None:
            text = f"agent {self._agent_id!r} is cut off from its store on purpose (fault {fault.id})"
            raise StoreUnavailableError(url="its namespace", problem=f"partition {fault.id}", message=text)

    def demand_memory(self) -> None:
        """Before a call of the agent's code.

        Raises:
            StateLostSignal: The instance is not to be trusted any more.
        """
        fault = self.active(FaultKind.MEMORY)
        if fault is not None:
            raise StateLostSignal(MemoryCorruptedError(agent_id=self._agent_id, fault=fault.id))

    def demand(self) -> None:
        """Both: what is felt first counts."""
        self.demand_store()
        self.demand_memory()


class _Disturbed(Protocol):
    """An incarnation, as far as faults go."""

    @property
    def agent_id(self) -> AgentId: ...
    @property
    def epoch(self) -> int: ...
    def disturb(self, faults: Any) -> None: ...  # noqa: ANN401 - ActiveFaults, or None


class _Faults(Protocol):
    def faults(self, agent_id: AgentId) -> tuple[Fault, ...]: ...


class FaultWatch:
    """Brings the faults of hosted agents into the process, through a store that no partition cuts.

    Args:
        store: The process's own.
        clock: Monotonic time.
    """

    def __init__(self, store: _Faults, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def look(self, incarnation: _Disturbed, offset: float) -> None:
        """Tells an incarnation what disturbs it now. While the store does not answer, it feels what it felt.

        Args:
            incarnation: Whose faults.
            offset: Seconds that the store's clock is ahead of this process's monotonic one.
        """
        try:
            found = self._store.faults(incarnation.agent_id)
        except StoreUnavailableError:
            return
        except AresError:
            log.exception("agent %s: its faults cannot be read; those that are known go on", incarnation.agent_id)
            return
        mine = [(fault, ends_at(fault, offset)) for fault in found if fault.epoch in (0, incarnation.epoch)]
        incarnation.disturb(ActiveFaults(incarnation.agent_id, mine, self._clock) if mine else None)


def ends_at(fault: Fault, offset: float) -> float:
    """The monotonic moment at which a fault ends; ``offset`` as for :meth:`FaultWatch.look`."""
    return instant_from(fault.until) / 1_000_000 - offset
