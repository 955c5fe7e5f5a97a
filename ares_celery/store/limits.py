"""The ports for limits that the agents of the whole fleet share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from ares_celery.ids import AgentId
from ares_celery.model.fault import Fault
from ares_celery.model.limits import Admission, FleetLimit, LimitAsk

__all__ = ["AsyncLimitStore", "LimitStore"]


class LimitStore(Protocol):
    """Says who may call something now, and when the others are to ask again. Knows nothing of what is called."""

    def enter_limit(self, limit: FleetLimit, member: str, ask: LimitAsk) -> Admission:
        """Asks for a turn, in one step; whoever is to wait keeps its turn until it asks again.

        Args:
            limit: As this asker wants it; the last one that asked counts.
            member: Who asks. The same one again gets the same answer, or its turn when that has come: an id for each
                place, and one for each further call.
            ask: ``place``: a place, kept for lease_ttl without a word of its holder, and a call in it; ``call``: one
                more call of one that holds a place; ``look``: only that the limit is not closed.
        """
        ...

    def close_limit(self, name: str, delay: timedelta, *, op: str, by: Fault | None = None) -> timedelta:
        """Lets nobody through for a time; one that is closed for longer stays so. Returns for how long it is closed.

        Those who wait are let through over some seconds behind it, never all at once.

        Args:
            name: Of the limit; nobody needs to have asked for it before.
            delay: From now on, by the store's clock.
            op: Operation id; a repeat of the last one does not close it for longer.
            by: The fault whose answer closes it: not beyond its end, and not at all once it was healed, which opens the
                limit again. None: its provider has refused a call.
        """
        ...

    def leave_limit(self, name: str, member: str) -> None:
        """Gives a place back, or leaves the queue; of an absent one is no error."""
        ...

    def note_limited(self, agent_id: AgentId, fence: str, name: str) -> None:
        """Notes which limit an incarnation waits for; empty: none. Shown until it ends. Raises FencedError."""
        ...

    def keep_limit(self, name: str, members: Sequence[str]) -> int:
        """Keeps places for another lease_ttl; returns how many of them were still held."""
        ...


class AsyncLimitStore(Protocol):
    """The same, awaitable."""

    async def enter_limit(self, limit: FleetLimit, member: str, ask: LimitAsk) -> Admission:
        """See :meth:`LimitStore.enter_limit`."""
        ...

    async def close_limit(self, name: str, delay: timedelta, *, op: str, by: Fault | None = None) -> timedelta:
        """See :meth:`LimitStore.close_limit`."""
        ...

    async def leave_limit(self, name: str, member: str) -> None:
        """See :meth:`LimitStore.leave_limit`."""
        ...

    async def note_limited(self, agent_id: AgentId, fence: str, name: str) -> None:
        """See :meth:`LimitStore.note_limited`."""
        ...
