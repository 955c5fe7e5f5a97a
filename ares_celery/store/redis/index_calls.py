"""Calls that ask for many agents at once: who is where, and how many."""

from __future__ import annotations

from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentState
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import as_it_is, as_texts

__all__ = ["count_state", "hosted_by", "list_state", "read_counters"]


def hosted_by(keys: Keys, *, shard: int, identity: str) -> Call[list[AgentId]]:
    """Reads the agents of one shard that a process hosts: one range of a sorted set."""
    return Call(
        lambda reply: [AgentId(member.decode().rpartition("|")[2]) for member in reply],
        # ``}`` is the character behind ``|``: the range holds what begins with the identity and its bar, nothing else.
        args=("ZRANGEBYLEX", keys.hosts(shard), f"[{identity}|", f"({identity}}}"),
    )


def list_state(keys: Keys, *, shard: int, state: AgentState) -> Call[list[str]]:
    """Reads the ids of one shard's agents in a state."""
    return Call(as_texts, args=("ZRANGE", keys.state(shard, state), 0, -1))


def count_state(keys: Keys, *, shard: int, state: AgentState) -> Call[int]:
    """Counts one shard's agents in a state."""
    return Call(as_it_is, args=("ZCARD", keys.state(shard, state)))


def read_counters(keys: Keys, *, shard: int) -> Call[dict[str, int]]:
    """Reads one shard's part of the counters."""
    return Call(
        lambda reply: {name.decode(): int(count) for name, count in reply.items()},
        args=("HGETALL", keys.counters(shard)),
    )
