"""Whether one more message in a queue would help anybody: agents that wait for a slot need none while theirs waits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

from ares_celery.clock import Clock
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentState
from ares_celery.store.base import AgentStore

__all__ = ["QueueRoom"]

#: Messages for each agent that waits, at most: its own, and one in case that was lost and others' fill the queue.
_MOST_EACH: Final = 2
#: States in which an agent may wait for a message to be read.
_WAITING: Final = (AgentState.STARTING, AgentState.RESURRECTING)
#: How long a count of waiting agents serves.
_COUNT_AGE: Final = timedelta(seconds=1)


class QueueRoom:
    """Bounds the messages of a queue by the number of agents that wait.

    An empty queue always takes the message again, so a lost one is repaired at the next spacing while slots are free.
    In a queue with messages the workers are busy: a lost one is then repaired as long as the queue holds fewer than two
    for each waiting agent, and at the latest when it has been read down to that.

    Args:
        store: The namespace.
        waiting: How many messages a queue holds; None = unknown, which never holds a message back.
        clock: Monotonic time of this process.
    """

    def __init__(self, store: AgentStore, waiting: Callable[[str | None], int | None], clock: Clock) -> None:
        self._store = store
        self._waiting = waiting
        self._clock = clock
        self._most = 0
        self._counted_at: float | None = None

    def crowded(self, agent_ids: Sequence[AgentId]) -> frozenset[AgentId]:
        """Those of the agents whose queue has no room for another message, if the others are sent theirs, in order."""
        room: dict[str | None, int | None] = {}
        found: set[AgentId] = set()
        for agent_id, read in zip(agent_ids, self._store.read_many(agent_ids), strict=True):
            if read.record is None:
                continue
            queue = read.record.spec.queue
            if queue not in room:
                room[queue] = self._room_in(queue)
            left = room[queue]
            if left is None:
                continue
            if left <= 0:
                found.add(agent_id)
            room[queue] = left - 1
        return frozenset(found)

    def _room_in(self, queue: str | None) -> int | None:
        held = self._waiting(queue)
        return None if not held else self._most_messages() - held

    def _most_messages(self) -> int:
        now = self._clock.monotonic()
        if self._counted_at is None or now - self._counted_at >= _COUNT_AGE.total_seconds():
            counts = self._store.count_by_state()
            self._most = _MOST_EACH * sum(counts.get(state, 0) for state in _WAITING)
            self._counted_at = now
        return self._most
