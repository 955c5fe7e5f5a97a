"""Calls about dead letters: messages that were given up on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ares_celery.clock import to_datetime
from ares_celery.ids import AgentId
from ares_celery.model.message import DeadLetter, DeadReason, MessageKind
from ares_celery.store.base import InboxMessage, Reply
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.event_calls import FEED_LENGTH
from ares_celery.store.redis.finishing import Finish, ended_by, left_over
from ares_celery.store.redis.json_values import decode_json
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.mailbox_calls import REPLY_TTL, encode_answer
from ares_celery.store.redis.replies import entry_fields, fenced, unknown_reply
from ares_celery.store.redis.stored_events import EncodedEvent

__all__ = [
    "LETTERS_KEPT",
    "LETTERS_TTL",
    "Burial",
    "bury",
    "elect_postman",
    "letter_bounds",
    "read_letters",
    "settle_letters",
]

#: Dead letters of one shard that are kept, the newest.
LETTERS_KEPT: Final = 1_000
#: How long a letter is kept that nobody deals with.
LETTERS_TTL: Final = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Burial:
    """A message that is given up on, and what is said of it.

    Attributes:
        message: It.
        reason: Why.
        problem: The same in words.
        answer: What a waiting caller gets.
        event: For the agent's stream.
        finish: How the execution of its steps ends; or the id of one that this incarnation has not begun.
    """

    message: InboxMessage
    reason: DeadReason
    problem: str
    answer: Reply
    event: EncodedEvent
    finish: Finish | str = ""


def letter_bounds() -> tuple[int, int]:
    """Most letters of a shard, and the milliseconds for which one is kept."""
    return LETTERS_KEPT, int(LETTERS_TTL.total_seconds() * 1000)


def bury(keys: Keys, *, agent_id: AgentId, fence: str, burial: Burial, limit: int) -> Call[bool]:
    """Consumes a message and keeps it as a dead letter; False when it was consumed before."""
    message, shard, finish = burial.message, keys.shard_of(agent_id), burial.finish
    ended, words = ended_by(keys, agent_id, finish)
    answer = b""
    if message.wants_reply:
        answer = encode_answer(agent_id, message.message_id, burial.answer, limit=limit)
    return Call(
        lambda outcome: _parse_bury(agent_id, fence, outcome, finish),
        script="bury",
        keys=(
            keys.agent(agent_id),
            keys.inbox(agent_id),
            keys.message(agent_id, message.message_id),
            keys.reply(agent_id, message.message_id),
            keys.chunks(agent_id, message.message_id),
            keys.handling(agent_id),
            keys.dead(shard),
            keys.counters(shard),
            keys.events(agent_id),
            keys.feed(shard),
            *ended,
        ),
        args=(
            fence,
            message.entry,
            answer,
            int(REPLY_TTL.total_seconds()),
            int(message.kind is MessageKind.STREAM),
            agent_id,
            message.message_id,
            burial.reason.value,
            burial.problem,
            *letter_bounds(),
            burial.event.data,
            burial.event.type,
            FEED_LENGTH,
            *((*finish.words(), *finish.fields()) if isinstance(finish, Finish) else words),
        ),
    )


def _parse_bury(agent_id: AgentId, fence: str, outcome: Sequence[bytes], finish: Finish | str) -> bool:
    match outcome:
        case [b"left"]:
            raise left_over(agent_id, finish)
        case [b"done"]:
            return True
        case [b"repeated"]:
            return False
        case [b"fenced"]:
            raise fenced(agent_id, fence)
        case _:
            raise unknown_reply("bury", outcome)


def read_letters(keys: Keys, *, shard: int, before: str = "+", limit: int) -> Call[list[DeadLetter]]:
    """Reads the letters of a shard, newest first."""
    return Call(
        lambda found: [_letter(shard, entry, entry_fields(fields)) for entry, fields in found],
        args=("XREVRANGE", keys.dead(shard), before, "-", "COUNT", limit),
    )


def _letter(shard: int, entry: bytes, fields: Mapping[bytes, bytes]) -> DeadLetter:
    def text(name: bytes) -> str:
        return fields[name].decode()

    body: Any = decode_json(fields[b"b"])
    return DeadLetter(
        id=f"{shard}:{entry.decode()}",
        agent_id=text(b"a"),
        message_id=text(b"m"),
        kind=MessageKind(text(b"k")),
        reason=DeadReason(text(b"r")),
        problem=text(b"p"),
        body=body,
        sent_at=to_datetime(int(fields[b"s"])),
        time=to_datetime(int(fields[b"t"])),
    )


def settle_letters(keys: Keys, *, shard: int, entries: Sequence[str]) -> Call[int]:
    """Removes letters of a shard."""
    return Call(int, args=("XDEL", keys.dead(shard), *entries))


def elect_postman(keys: Keys, *, identity: str, ttl_ms: int) -> Call[bool]:
    """Takes or keeps the right to take letters to their handlers."""
    return Call(bool, script="elect", keys=(keys.postman,), args=(identity, ttl_ms))
