"""The ends of faults by time: whoever injected them may be gone long since."""

from __future__ import annotations

from typing import Final

from ares_celery.store.base import DueDeadline
from ares_celery.store.faults import FaultDesk

__all__ = ["CHAOS_MEMBER", "FaultKeeper"]

#: Stands for the id in the deadline of the time for which faults are allowed; no agent's id may have the mark.
CHAOS_MEMBER: Final = "@chaos"


class FaultKeeper:
    """Ends what is over; what must not disturb anybody longer does not wait for it, as every look asks the clock."""

    def __init__(self, store: FaultDesk) -> None:
        """Binds it to a namespace."""
        self._store = store

    def handle(self, deadline: DueDeadline) -> None:
        """Ends the fault of a deadline, or the time for which faults are allowed."""
        if deadline.agent_id == CHAOS_MEMBER:
            self._store.settle_chaos()
        else:
            self._store.end_faults(deadline)
