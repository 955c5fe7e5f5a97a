"""Keys: readable, in the right slot, and no two things under one name."""

from __future__ import annotations

from redis.crc import key_slot

from ares_celery.model.agent import AgentState
from ares_celery.model.command import Deadline
from ares_celery.store.redis.keys import Keys, deadline_member

KEYS = Keys("ares", 16)


def test_the_shard_is_the_crc_of_redis_cluster() -> None:
    """Modulo the number of shards; one agent's keys share it."""
    for number in range(50):
        agent_id = f"tenant:counter-{number}"
        assert KEYS.shard_of(agent_id) == key_slot(agent_id.encode(), 16)
        tag = f"{{ares:{KEYS.shard_of(agent_id)}}}"
        keys = [
            KEYS.agent(agent_id),
            KEYS.events(agent_id),
            KEYS.snapshots(agent_id),
            KEYS.inbox(agent_id),
            KEYS.op(agent_id, "op"),
            KEYS.message(agent_id, "m"),
            KEYS.reply(agent_id, "m"),
            KEYS.deadlines(KEYS.shard_of(agent_id)),
            KEYS.state(KEYS.shard_of(agent_id), AgentState.RUNNING),
        ]
        assert all(key.startswith(f"{tag}:") for key in keys)
        assert len({key_slot(key.encode()) for key in keys}) == 1


def test_ids_are_escaped() -> None:
    """A colon in an id makes no other key, nor do names that callers choose."""
    assert KEYS.agent("counter-1") == f"{{ares:{KEYS.shard_of('counter-1')}}}:agent:counter-1"
    assert KEYS.events("a:b").endswith(":events:a%3Ab")
    assert KEYS.message("a", "b:c").endswith(":message:a:b%3Ac")
    assert KEYS.message("a:b", "c") != KEYS.message("a", "b:c")
    assert KEYS.op("a", "x/ü}").endswith(":op:a:x%2F%C3%BC%7D")
    assert Keys("ares.x", 16).agent("a") != KEYS.agent("a")


def test_deadlines_name_what_they_are_for() -> None:
    """Kind, agent, and a name where one agent has several."""
    assert deadline_member(Deadline.LEASE, "a:b") == "lease|a:b"
    assert deadline_member(Deadline.TIMER, "a", "tea|4") == "timer|a|tea|4"
