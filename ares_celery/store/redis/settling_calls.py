"""Calls about steps whose outcome a person settles."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from ares_celery.ids import AgentId
from ares_celery.model.audit import AuditNote
from ares_celery.model.command import Deadline
from ares_celery.model.settlement import Settlement, decode_settlement, encode_settlement, not_parked
from ares_celery.store.base import CommitConflict
from ares_celery.store.redis.agent_calls import OUTCOME_TTL
from ares_celery.store.redis.audit_calls import audit_words
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.event_calls import FEED_LENGTH
from ares_celery.store.redis.keys import Keys, deadline_member
from ares_celery.store.redis.replies import instant, unknown_reply
from ares_celery.store.redis.step_calls import intent_field, step_field
from ares_celery.store.redis.stored_events import EncodedEvent

__all__ = ["MOST_SETTLEMENTS", "read_intent", "read_settlements", "settle_intent"]

#: Settlements of an agent that are kept: whoever comes second comes soon.
MOST_SETTLEMENTS: Final = 100


def read_intent(keys: Keys, *, agent_id: AgentId, execution_id: str, step_id: str) -> Call[bytes | None]:
    """Reads one intent as it is stored; None without one."""
    return Call(lambda reply: reply, args=("HGET", keys.intents(agent_id), intent_field(execution_id, step_id)))


def read_settlements(keys: Keys, *, agent_id: AgentId) -> Call[tuple[Settlement, ...]]:
    """Reads what was settled lately, newest first."""
    return Call(_parse_settlements, args=("LRANGE", keys.settled(agent_id), 0, -1))


def _parse_settlements(reply: Sequence[bytes]) -> tuple[Settlement, ...]:
    return tuple(decode_settlement(data) for data in reply)


def settle_intent(  # noqa: PLR0913 - the parts of one write
    keys: Keys,
    *,
    agent_id: AgentId,
    stored: bytes,
    settlement: Settlement,
    record: bytes,
    event: EncodedEvent,
    note: AuditNote,
    retention: timedelta,
) -> Call[Settlement]:
    """Settles one step, if its intent is as it was read; with an empty ``record`` it runs again."""
    shard, execution_id, step_id = keys.shard_of(agent_id), settlement.execution, settlement.step
    return Call(
        lambda reply: _parse_settled(agent_id, settlement, reply),
        script="settle_intent",
        keys=(
            keys.agent(agent_id),
            keys.checkpoint(agent_id, execution_id),
            keys.intents(agent_id),
            keys.settled(agent_id),
            keys.deadlines(shard),
            keys.events(agent_id),
            keys.feed(shard),
            keys.audit(shard),
        ),
        args=(
            agent_id,
            intent_field(execution_id, step_id),
            stored,
            step_field(step_id),
            record,
            encode_settlement(settlement),
            MOST_SETTLEMENTS,
            int(max(retention, OUTCOME_TTL).total_seconds()),
            event.data,
            event.type,
            FEED_LENGTH,
            *audit_words(note),
            deadline_member(Deadline.RECONCILE, agent_id),
        ),
    )


def _parse_settled(agent_id: AgentId, settlement: Settlement, reply: Sequence[Any]) -> Settlement:
    match reply:
        case [b"done", now]:
            return msgspec.structs.replace(settlement, time=instant(now))
        case [b"conflict"]:
            raise CommitConflict(agent_id=agent_id, changed="intent")
        case [b"state", state]:
            raise not_parked(agent_id, state.decode())
        case _:
            raise unknown_reply("settle_intent", reply)
