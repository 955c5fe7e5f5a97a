"""Where actions and probes find the agents: the run that calls them, else the environment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import StoreUnavailableError
from ares_celery.model.agent import AgentInfo, AgentState
from ares_celery.runtime.callers import asking_as

if TYPE_CHECKING:
    from ares_celery.manager import CoreManager

__all__ = ["Ring", "Undo", "at_hand", "entered"]

#: Seconds between two looks.
_LOOK: Final = 0.05
#: Leases that a death may take to be noticed.
_LEASES: Final = 4


@dataclass(frozen=True, slots=True)
class Undo:
    """What sets something right again that an action has done.

    Attributes:
        name: What it undoes.
        call: Does it; safe to call when it was undone already.
    """

    name: str
    call: Callable[[], object]


@dataclass(slots=True)
class Ring:
    """What the activities of one run share.

    Attributes:
        manager: Of the namespace.
        clock: Waits go through it.
        stop: Set when the run is to end.
        undone: What was done by actions and ends with the run.
        killed: Agents whose process was killed, each with the incarnation that died with it.
        actor: On whose behalf actions act; empty: the user of this process.
    """

    manager: CoreManager
    clock: Clock = field(default_factory=SystemClock)
    stop: threading.Event = field(default_factory=threading.Event)
    undone: list[Undo] = field(default_factory=list[Undo])
    killed: dict[str, int] = field(default_factory=dict[str, int])
    actor: str = ""

    def pause(self, seconds: float) -> bool:
        """Waits; True when the run is to end before that."""
        return self.clock.wait(self.stop, seconds)

    def later(self, name: str, call: Callable[[], object]) -> Undo:
        """Keeps what undoes an action until the run ends."""
        undo = Undo(name, call)
        self.undone.append(undo)
        return undo

    def forget(self, undo: Undo) -> None:
        """It is undone: what somebody else does of the kind until the end of the run is not to be."""
        self.undone.remove(undo)

    def is_dead(self, info: AgentInfo) -> bool:
        """Its process was killed, and nobody has noticed yet: what is said of it is of before."""
        return info.state is AgentState.RUNNING and info.incarnation <= self.killed.get(info.id, 0)

    def await_notice(self) -> None:
        """Waits until the death of everyone who was killed is noticed, a few leases at most: who would tell it then?

        Without this a probe right after a kill would find the agent running, and a verdict no death at all.
        """
        if not self.killed:
            return
        until = self.clock.monotonic() + _LEASES * self.manager.config.lease_ttl.total_seconds()
        while self._has_dead() and self.clock.monotonic() < until:
            if self.pause(_LOOK):
                return

    def _has_dead(self) -> bool:
        try:
            return any(map(self.is_dead, self.manager.list_agents()))
        except StoreUnavailableError:
            # Away on purpose, perhaps; nobody notices a death meanwhile.
            return True


_current: Final[ContextVar[Ring | None]] = ContextVar("ares_ring", default=None)


@contextmanager
def entered(ring: Ring) -> Generator[Ring]:
    """Lets whatever is called inside find the ring; threads find it with a copy of the context."""
    token = _current.set(ring)
    try:
        with asking_as(ring.actor):
            yield ring
    finally:
        _current.reset(token)


@contextmanager
def at_hand() -> Generator[Ring]:
    """The ring of the run; without one, as under ``chaos run``, the namespace that ``ARES_*`` names."""
    ring = _current.get()
    if ring is not None:
        yield ring
        return
    from ares_celery.celery_app.client import Manager  # noqa: PLC0415 - Celery costs 0.3 s: paid by who needs it

    with Manager.connect() as manager:
        yield Ring(manager)
