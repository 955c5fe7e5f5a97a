"""The port for agents that spawn others: who is whose child."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentRecord
from ares_celery.model.event import NewEvent

__all__ = ["MOST_CHILDREN", "Adopted", "FamilyStore"]

#: Children of one agent that are listed: each stop of it has to see to all of them.
MOST_CHILDREN = 10_000


@dataclass(frozen=True, slots=True)
class Adopted:
    """A child as its parent has taken it in.

    Attributes:
        number: Which child of the parent it is; another call with the same child gets another one.
        stops: How often the parent was stopped so far.
        stopping: The parent is asked to stop: the child may not run.
    """

    number: int
    stops: int
    stopping: bool


class FamilyStore(Protocol):
    """The children of agents, in the shard of the parent."""

    def adopt(self, agent_id: AgentId, fence: str, child_id: AgentId, *, key: str, event: NewEvent) -> Adopted:
        """Lists a child before it is made, in one atomic step: from then on a stop of the parent looks for it.

        Args:
            agent_id: The parent.
            fence: Demanded to be equal to the parent's.
            child_id: The child, in whatever shard.
            key: Names the call; a repeat changes nothing and tells how the parent stands now.
            event: Tells of it in the parent's stream.

        Raises:
            FencedError: The parent's incarnation is over. ChildLimitError: It has too many children.
        """
        ...

    def children(self, agent_id: AgentId) -> list[AgentId]:
        """The listed children in the order in which they were spawned last; those not made yet among them."""
        ...

    def forget_child(self, agent_id: AgentId, child_id: AgentId, *, number: int) -> bool:
        """Takes a deleted child off the list, unless another one has come under its id. Idempotent."""
        ...

    def read_record(self, agent_id: AgentId) -> AgentRecord | None:
        """An agent as it is now; None when it does not exist.

        Raises:
            UnreadableRecordError: There is a record, and this version cannot read it.
        """
        ...
