"""Who is whose child, in Redis."""

from __future__ import annotations

from ares_celery.ids import AgentId
from ares_celery.model.event import NewEvent
from ares_celery.store.family import Adopted
from ares_celery.store.redis import family_calls
from ares_celery.store.redis.agent_store import OWN_EVENT_BYTES
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.stored_events import encode_events, lifecycle_events

__all__ = ["RedisFamilyStore"]


class RedisFamilyStore(Part):
    """Implements :class:`~ares_celery.store.family.FamilyStore`."""

    def adopt(self, agent_id: AgentId, fence: str, child_id: AgentId, *, key: str, event: NewEvent) -> Adopted:
        """Lists a child before it is made, in one atomic step."""
        (encoded,) = encode_events(agent_id, lifecycle_events([event]), epoch=0, limit=OWN_EVENT_BYTES)
        call = family_calls.adopt(
            self._bound.keys, agent_id=agent_id, fence=fence, child_id=child_id, key=key, event=encoded
        )
        return self._bound.client.run(call)

    def children(self, agent_id: AgentId) -> list[AgentId]:
        """The listed children in the order in which they were spawned last."""
        return self._bound.client.run(family_calls.children(self._bound.keys, agent_id=agent_id))

    def forget_child(self, agent_id: AgentId, child_id: AgentId, *, number: int) -> bool:
        """Takes a deleted child off the list, unless another one has come under its id."""
        call = family_calls.forget_child(self._bound.keys, agent_id=agent_id, child_id=child_id, number=number)
        return self._bound.client.run(call)
