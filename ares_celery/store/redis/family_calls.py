"""Calls about agents that spawn others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ares_celery.errors import ChildLimitError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentRecord, Desired
from ares_celery.model.command import Deadline
from ares_celery.store.family import MOST_CHILDREN, Adopted
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.event_calls import FEED_LENGTH
from ares_celery.store.redis.keys import Keys, deadline_member
from ares_celery.store.redis.replies import fenced, unknown_reply
from ares_celery.store.redis.stored_events import EncodedEvent

__all__ = ["adopt", "children", "deleted_child", "forget_child"]


def adopt(
    keys: Keys, *, agent_id: AgentId, fence: str, child_id: AgentId, key: str, event: EncodedEvent
) -> Call[Adopted]:
    """Lists a child, before it is made."""
    return Call(
        lambda reply: _parse_adopt(agent_id, fence, reply),
        script="adopt",
        keys=(
            keys.agent(agent_id),
            keys.children(agent_id),
            keys.events(agent_id),
            keys.feed(keys.shard_of(agent_id)),
        ),
        args=(fence, child_id, key, agent_id, event.data, event.type, FEED_LENGTH, MOST_CHILDREN),
    )


def _parse_adopt(agent_id: AgentId, fence: str, reply: Sequence[bytes]) -> Adopted:
    match reply:
        case [number, stops, desired]:
            return Adopted(int(number), int(stops), stopping=desired.decode() == Desired.STOPPED)
        case [b"fenced"]:
            raise fenced(agent_id, fence)
        case [b"full"]:
            raise ChildLimitError(agent_id=agent_id, limit=MOST_CHILDREN)
        case _:
            raise unknown_reply("adopt", reply)


def children(keys: Keys, *, agent_id: AgentId) -> Call[list[AgentId]]:
    """Reads the list, oldest call first."""
    return Call(_parse_children, args=("HGETALL", keys.children(agent_id)))


def _parse_children(reply: Mapping[bytes, bytes]) -> list[AgentId]:
    numbered = sorted((int(known.partition(b"|")[0]), child.decode()) for child, known in reply.items())
    return [AgentId(child) for _, child in numbered]


def deleted_child(record: AgentRecord | None) -> str:
    """The deadline by which the parent of a deleted agent learns of it; empty: nobody spawned it."""
    if record is None or record.birth is None or record.spec.parent is None:
        return ""
    return deadline_member(Deadline.CHILDREN, record.id, f"{record.spec.parent}|{record.birth.number}")


def forget_child(keys: Keys, *, agent_id: AgentId, child_id: AgentId, number: int) -> Call[bool]:
    """Takes a child off the list."""
    return Call(bool, script="forget_child", keys=(keys.children(agent_id),), args=(child_id, number))
