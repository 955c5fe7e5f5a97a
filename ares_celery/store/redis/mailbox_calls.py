"""Calls about messages and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final

import msgspec

from ares_celery.errors import (
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    AresError,
    EventTooLargeError,
    MailboxFullError,
    MessageIdReusedError,
)
from ares_celery.ids import AgentId, Instant, Version
from ares_celery.model.agent import AgentState
from ares_celery.model.message import MessageKind
from ares_celery.store.base import InboxMessage, Reply
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.event_calls import FEED_LENGTH
from ares_celery.store.redis.finishing import Finish, ended_by, left_over
from ares_celery.store.redis.json_values import decode_json, encode_json, exact_json, unserialisable
from ares_celery.store.redis.keys import Keys
from ares_celery.store.redis.replies import entry_fields, fenced, instant, unknown_reply

__all__ = [
    "REPLY_TTL",
    "WAITING_TTL",
    "Outgoing",
    "Waiting",
    "await_reply",
    "encode_answer",
    "give_back",
    "look",
    "parse_answer",
    "read_hint",
    "read_inbox",
    "reply",
    "resting",
    "send",
    "take",
]

#: How long an answer is kept for a caller that asks again, and a consumed message id is recognised.
REPLY_TTL: Final = timedelta(minutes=10)
#: How long the id of a message that nobody has consumed is recognised: longer than any pause that is meant.
WAITING_TTL: Final = timedelta(days=7)
#: Bytes of a message that its hint carries along, so that an idle host need not fetch it.
HINTED_BYTES: Final = 16 << 10
#: What a message was used as, in words.
_USES: Final = {"send": "by send()", "process": "by process()", "stream": "by process_stream()"}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message as its sender made it.

    Attributes:
        message_id: Names it for its agent.
        body: A JSON value.
        kind: How it is sent.
        detached: A stream that goes on without its caller.
        caller: Channel on which the caller waits for hints; empty: it looks itself.
    """

    message_id: str
    body: object
    kind: MessageKind = MessageKind.SEND
    detached: bool = False
    caller: str = ""

    @classmethod
    def made(
        cls, body: object, *, message_id: str, wants_reply: bool, stream: bool, detached: bool, caller: str = ""
    ) -> Outgoing:
        """From the arguments of the port's method."""
        kind = MessageKind.STREAM if stream else MessageKind.PROCESS if wants_reply else MessageKind.SEND
        return cls(message_id, body, kind, detached, caller)


@dataclass(frozen=True, slots=True)
class Waiting:
    """There is nothing yet: wait for news of the agent behind this mark."""

    mark: str


def send(keys: Keys, *, agent_id: AgentId, message: Outgoing, limit: int, most: int) -> Call[None]:
    """Puts a message into an inbox of at most ``most`` messages, once for each message id.

    Raises:
        UnserialisableError: The body is no plain JSON; nothing was sent.
        EventTooLargeError: It has more than ``limit`` bytes.
    """
    message_id = message.message_id
    data, value = encode_json(message.body, what=f"message {message_id!r}", agent_id=agent_id)
    if len(data) > limit:
        raise EventTooLargeError(type="message", agent_id=agent_id, size=len(data), limit=limit)
    return Call(
        lambda answer: _parse_send(agent_id, message_id, most, answer),
        script="send",
        keys=(
            keys.agent(agent_id),
            keys.inbox(agent_id),
            keys.message(agent_id, message_id),
            keys.reply(agent_id, message_id),
            keys.chunks(agent_id, message_id),
            keys.handling(agent_id),
        ),
        args=(
            agent_id,
            message_id,
            data,
            message.kind.value,
            _digest(data, value),
            most,
            int(WAITING_TTL.total_seconds()),
            keys.wake_prefix,
            int(message.detached),
            message.caller,
            HINTED_BYTES,
        ),
    )


def _digest(data: bytes, value: object) -> str:
    """The same for equal values: the order of keys, which callers do not choose on purpose, does not count."""
    is_ordered = b"{" not in data
    return sha256(data if is_ordered else msgspec.json.encode(value, order="deterministic")).hexdigest()[:32]


def _parse_send(agent_id: AgentId, message_id: str, most: int, answer: Sequence[bytes]) -> None:
    match answer:
        case [b"done" | b"repeated"]:
            return
        case [b"reused", kind, what]:
            used = _USES.get(kind.decode(), kind.decode())
            problem = f"{used}, with another body" if what == b"body" else used
            raise MessageIdReusedError(agent_id=agent_id, message_id=message_id, problem=problem)
        case [b"full", *_]:
            raise MailboxFullError(agent_id=agent_id, limit=most)
        case _:
            raise resting("send", agent_id, answer)


def resting(script: str, agent_id: AgentId, answer: Sequence[bytes]) -> AresError:
    """Why an agent answers nobody now."""
    match answer:
        case [b"missing"]:
            return AgentNotFoundError(agent_id=agent_id)
        case [b"state", state, cause, reason] if state.decode() == AgentState.PARKED:
            return AgentParkedError(agent_id=agent_id, cause=cause.decode(), reason=reason.decode(), operation="send")
        case [b"state", state, _, _]:
            told = _no_messages if script == "send" else _no_answer
            word = state.decode()
            return AgentNotRunningError(
                agent_id=agent_id, state=word, operation="send", message=told(agent_id, AgentState(word))
            )
        case _:
            return unknown_reply(script, answer)


def _no_messages(agent_id: AgentId, state: AgentState) -> str:
    if state is AgentState.REGISTERED:
        return (
            f"agent {agent_id!r} is registered and has not run yet, so it takes no messages: start_agent starts it, "
            "as soon as an agents worker runs"
        )
    return f"agent {agent_id!r} is {state.value}, so it takes no messages; start_agent starts it"


def _no_answer(agent_id: AgentId, state: AgentState) -> str:
    return (
        f"agent {agent_id!r} is {state.value}, so nobody answers now; your message stays in its inbox: start_agent "
        "starts it, and the same message_id asks for the answer again"
    )


def read_hint(payload: bytes) -> tuple[str, InboxMessage | str] | None:
    """The fence and the message that a hint carries, or the inbox entry of a stream that its caller left.

    None for a hint that only says "look".
    """
    kind, _, rest = payload.partition(b"\n")[2].partition(b"\n")
    if kind == b"left":
        fence, _, entry = rest.partition(b"\n")
        return fence.decode(), entry.decode()
    if kind == b"message":
        # As callers of older versions put it.
        fence, entry, how, sent, rest = rest.split(b"\n", 4)
        signal = b"0"
    elif kind == b"mail":
        fence, entry, how, sent, signal, rest = rest.split(b"\n", 5)
    else:
        return None
    length, _, text = rest.partition(b"\n")
    message_id, body = text[: int(length)], text[int(length) :]
    return fence.decode(), _message(entry, message_id, body, how.decode(), instant(sent), signal=int(signal))


def read_inbox(keys: Keys, *, agent_id: AgentId, after: str, limit: int) -> Call[tuple[InboxMessage, ...]]:
    """Reads messages that were not consumed yet."""
    first = f"({after}" if after else "-"
    return Call(
        lambda answer: tuple(_parse_message(entry, entry_fields(fields)) for entry, fields in answer),
        args=("XRANGE", keys.inbox(agent_id), first, "+", "COUNT", limit),
    )


def take(
    keys: Keys, *, agent_id: AgentId, fence: str, after: str, limit: int, begin: int
) -> Call[tuple[InboxMessage, ...]]:
    """Reads messages to handle; the handling of the first ``begin`` of them begins now."""
    return Call(
        lambda answer: _parse_take(agent_id, fence, answer),
        script="take",
        keys=(keys.agent(agent_id), keys.inbox(agent_id), keys.handling(agent_id)),
        args=(fence, f"({after}" if after else "-", limit, begin),
    )


def _parse_take(agent_id: AgentId, fence: str, answer: Sequence[Any]) -> tuple[InboxMessage, ...]:
    match answer:
        case [b"done", found, began]:
            return tuple(
                _parse_message(entry, entry_fields(fields), began=times)
                for (entry, fields), times in zip(found, began, strict=True)
            )
        case [b"fenced"]:
            raise fenced(agent_id, fence)
        case _:
            raise unknown_reply("take", answer)


def _parse_message(entry: bytes, fields: dict[bytes, bytes], *, began: int = 0) -> InboxMessage:
    # A message of an older version does not say how it was sent.
    kind = fields.get(b"k") or (b"process" if fields[b"r"] == b"1" else b"send")
    return _message(entry, fields[b"m"], fields[b"b"], kind.decode(), instant(fields[b"t"]), began=began)


def _message(  # noqa: PLR0913 - the fields of one message
    entry: bytes, message_id: bytes, body: bytes, kind: str, time: Instant, *, began: int = 0, signal: int = 0
) -> InboxMessage:
    return InboxMessage(
        entry=entry.decode(),
        message_id=message_id.decode(),
        body=decode_json(body),
        wants_reply=kind != MessageKind.SEND,
        time=time,
        kind=MessageKind(kind),
        began=began,
        signal=signal,
    )


def give_back(keys: Keys, *, agent_id: AgentId, fence: str, entries: Sequence[str]) -> Call[None]:
    """Takes back that the handling of messages began."""
    return Call(
        lambda outcome: _parse_written("give_back", agent_id, fence, outcome),
        script="give_back",
        keys=(keys.agent(agent_id), keys.handling(agent_id)),
        args=(fence, *entries),
    )


def encode_answer(agent_id: AgentId, message_id: str, answer: Reply, *, limit: int) -> bytes:
    """An answer as it is stored.

    Raises:
        UnserialisableError: The answer is no plain JSON; nothing was sent.
        EventTooLargeError: It has more than ``limit`` bytes; an error always fits.
    """
    body = {"value": answer.value, "error": dict(answer.error) if answer.error is not None else None}
    encoded = exact_json(body)
    if encoded is None:
        raise unserialisable(answer.value, what=f"the answer to message {message_id!r}", agent_id=agent_id)
    stored, _ = encoded
    if answer.error is None and len(stored) > limit:
        raise EventTooLargeError(type="answer", agent_id=agent_id, size=len(stored), limit=limit)
    return stored


def reply(  # noqa: PLR0913 - the parts of one write
    keys: Keys,
    *,
    agent_id: AgentId,
    fence: str,
    message: InboxMessage,
    answer: Reply,
    limit: int,
    chunks: int = 0,
    then: str = "",
    finish: Finish | str = "",
) -> Call[Version | None]:
    """Consumes a message and stores its answer; see :func:`encode_answer` for what is refused.

    Args:
        keys: Of the namespace.
        agent_id: Whose message.
        fence: Demanded to be equal to the record's.
        message: It.
        answer: What the agent said.
        limit: Most bytes of an answer.
        chunks: Of a stream: how many chunks came before its end.
        then: The inbox entry whose handling begins now.
        finish: How the execution of the message ends; or the id of one that this incarnation has not begun.

    Returns:
        The version of the event that tells that end; None: nothing ended.
    """
    ended, words = ended_by(keys, agent_id, finish)
    if isinstance(finish, Finish):
        ended = (*ended, *keys.appended(agent_id)[1:])
        words = (*finish.words(), agent_id, FEED_LENGTH, *finish.fields())
    stored = encode_answer(agent_id, message.message_id, answer, limit=limit) if message.wants_reply else b""
    return Call(
        lambda outcome: _parse_reply(agent_id, fence, outcome, finish),
        script="reply",
        keys=(
            keys.agent(agent_id),
            keys.inbox(agent_id),
            keys.message(agent_id, message.message_id),
            keys.reply(agent_id, message.message_id),
            keys.chunks(agent_id, message.message_id),
            keys.handling(agent_id),
            *ended,
        ),
        args=(
            fence,
            message.entry,
            stored,
            int(REPLY_TTL.total_seconds()),
            chunks + 1 if message.kind is MessageKind.STREAM else 0,
            f"{agent_id}|{message.message_id}",
            then,
            *words,
        ),
    )


def _parse_reply(agent_id: AgentId, fence: str, outcome: Sequence[bytes], finish: Finish | str) -> Version | None:
    match outcome:
        case [b"left"]:
            raise left_over(agent_id, finish)
        case [b"done", version]:
            return Version(int(version)) if version else None
        case _:
            _parse_written("reply", agent_id, fence, outcome)
            return None


def _parse_written(script: str, agent_id: AgentId, fence: str, outcome: Sequence[bytes]) -> None:
    match outcome:
        case [b"done" | b"repeated"]:
            return
        case [b"fenced"]:
            raise fenced(agent_id, fence)
        case _:
            raise unknown_reply(script, outcome)


def look(keys: Keys, *, agent_id: AgentId, message_id: str, caller: str = "") -> Call[Reply | Waiting]:
    """Reads the answer to a message, without consuming it; raises when none may come as the agent rests."""
    return Call(
        lambda answer: _parse_look(agent_id, message_id, answer),
        script="look",
        keys=(
            keys.agent(agent_id),
            keys.message(agent_id, message_id),
            keys.reply(agent_id, message_id),
            keys.rest(agent_id),
        ),
        args=(caller,),
    )


def _parse_look(agent_id: AgentId, message_id: str, answer: Sequence[bytes]) -> Reply | Waiting:
    match answer:
        case [b"answer", stored]:
            return parse_answer(message_id, stored)
        case [b"wait", mark]:
            return Waiting(mark.decode())
        case _:
            raise resting("look", agent_id, answer)


def parse_answer(message_id: str, stored: bytes) -> Reply:
    """A stored answer."""
    body = decode_json(stored)
    return Reply(message_id, value=body["value"], error=body["error"])


def await_reply(keys: Keys, *, agent_id: AgentId, message_id: str, mark: str, block_ms: int) -> Call[Reply | None]:
    """Waits on the server until there is an answer, or news of the agent: then None. Needs a connection of its own."""
    answers = keys.reply(agent_id, message_id)
    return Call(
        lambda found: _parse_awaited(message_id, answers, found),
        args=("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", answers, keys.rest(agent_id), "0-0", mark),
    )


def _parse_awaited(message_id: str, answers: str, found: Any) -> Reply | None:  # noqa: ANN401 - what the driver gave
    for name, entries in found or ():
        if name == answers.encode():
            return parse_answer(message_id, entry_fields(entries[0][1])[b"v"])
    return None
