"""Calls about messages and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    EventTooLargeError,
    MailboxFullError,
)
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentState
from ares_celery.store.base import InboxMessage, Reply
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.json_values import decode_json, encode_json
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import entry_fields, fenced, instant, unknown_reply

__all__ = ["MOST_MESSAGES", "REPLY_TTL", "WAITING_TTL", "await_reply", "read_inbox", "read_reply", "reply", "send"]

#: Messages of an inbox: a sender that is that far ahead gets MailboxFullError instead of filling Redis.
MOST_MESSAGES: Final = 1_000
#: How long an answer is kept for a caller that asks again, and a consumed message id is recognised.
REPLY_TTL: Final = timedelta(minutes=10)
#: How long the id of a message that nobody has consumed is recognised: longer than any pause that is meant.
WAITING_TTL: Final = timedelta(days=7)


def send(keys: Keys, *, agent_id: AgentId, message_id: str, body: object, wants_reply: bool, limit: int) -> Call[None]:
    """Puts a message into an inbox, once for each message id.

    Raises:
        UnserialisableError: The body is no plain JSON; nothing was sent.
        EventTooLargeError: It has more than ``limit`` bytes.
    """
    data, _ = encode_json(body, what=f"message {message_id!r}", agent_id=agent_id)
    if len(data) > limit:
        raise EventTooLargeError(type="message", agent_id=agent_id, size=len(data), limit=limit)
    return Call(
        lambda answer: _parse_send(agent_id, answer),
        script="send",
        keys=(
            keys.agent(agent_id),
            keys.inbox(agent_id),
            keys.message(agent_id, message_id),
            keys.reply(agent_id, message_id),
        ),
        args=(
            agent_id,
            message_id,
            data,
            int(wants_reply),
            MOST_MESSAGES,
            int(WAITING_TTL.total_seconds()),
            keys.wake_prefix,
        ),
    )


def _parse_send(agent_id: AgentId, answer: Sequence[bytes]) -> None:
    match answer:
        case [b"done" | b"repeated"]:
            return
        case [b"missing"]:
            raise AgentNotFoundError(agent_id=agent_id)
        case [b"state", state, cause, reason] if state.decode() == AgentState.PARKED:
            raise AgentParkedError(agent_id=agent_id, cause=cause.decode(), reason=reason.decode(), operation="send")
        case [b"state", state, _, _]:
            raise AgentNotRunningError(agent_id=agent_id, state=state.decode(), operation="send")
        case [b"full"]:
            raise MailboxFullError(agent_id=agent_id, limit=MOST_MESSAGES)
        case _:
            raise unknown_reply("send", answer)


def read_inbox(keys: Keys, *, agent_id: AgentId, after: str, limit: int) -> Call[tuple[InboxMessage, ...]]:
    """Reads messages that were not consumed yet."""
    first = f"({after}" if after else "-"
    return Call(
        lambda answer: tuple(_parse_message(entry, entry_fields(fields)) for entry, fields in answer),
        args=("XRANGE", keys.inbox(agent_id), first, "+", "COUNT", limit),
    )


def _parse_message(entry: bytes, fields: dict[bytes, bytes]) -> InboxMessage:
    return InboxMessage(
        entry=entry.decode(),
        message_id=fields[b"m"].decode(),
        body=decode_json(fields[b"b"]),
        wants_reply=fields[b"r"] == b"1",
        time=instant(fields[b"t"]),
    )


def reply(keys: Keys, *, agent_id: AgentId, fence: str, message: InboxMessage, answer: Reply, limit: int) -> Call[None]:
    """Consumes a message and stores its answer.

    Raises:
        UnserialisableError: The answer is no plain JSON; nothing was sent.
        EventTooLargeError: It has more than ``limit`` bytes; an error always fits.
    """
    stored = b""
    if message.wants_reply:
        body = {"value": answer.value, "error": dict(answer.error) if answer.error is not None else None}
        stored, _ = encode_json(body, what=f"the answer to message {message.message_id!r}", agent_id=agent_id)
        if answer.error is None and len(stored) > limit:
            raise EventTooLargeError(type="answer", agent_id=agent_id, size=len(stored), limit=limit)
    return Call(
        lambda outcome: _parse_reply(agent_id, fence, outcome),
        script="reply",
        keys=(
            keys.agent(agent_id),
            keys.inbox(agent_id),
            keys.message(agent_id, message.message_id),
            keys.reply(agent_id, message.message_id),
        ),
        args=(fence, message.entry, stored, int(REPLY_TTL.total_seconds())),
    )


def _parse_reply(agent_id: AgentId, fence: str, outcome: Sequence[bytes]) -> None:
    match outcome:
        case [b"done" | b"repeated"]:
            return
        case [b"fenced"]:
            raise fenced(agent_id, fence)
        case _:
            raise unknown_reply("reply", outcome)


def await_reply(keys: Keys, *, agent_id: AgentId, message_id: str, block_ms: int) -> Call[bool]:
    """Waits on the server until there is an answer; True when there is. Needs a connection of its own."""
    return Call(bool, args=("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", keys.reply(agent_id, message_id), "0-0"))


def read_reply(keys: Keys, *, agent_id: AgentId, message_id: str) -> Call[Reply | None]:
    """Reads the answer to a message, without consuming it."""
    return Call(
        lambda answer: _parse_answer(message_id, answer),
        args=("XRANGE", keys.reply(agent_id, message_id), "-", "+", "COUNT", 1),
    )


def _parse_answer(message_id: str, answer: Sequence[Any]) -> Reply | None:
    if not answer:
        return None
    _, fields = answer[0]
    body = decode_json(entry_fields(fields)[b"v"])
    return Reply(message_id, value=body["value"], error=body["error"])
