"""Messages to agents, as their callers see them: the pieces of a streamed answer, and what could not be answered."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

__all__ = ["Chunk", "DeadLetter", "DeadReason", "MessageKind", "StreamResult"]


class MessageKind(StrEnum):
    """How a message was given to the agent; one message id belongs to one of them."""

    SEND = "send"
    PROCESS = "process"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a streamed answer.

    Attributes:
        seq: Its place in the stream, from 1, without gaps.
        data: A JSON value: what ``process_stream`` yielded; of the final chunk the result of the whole.
        final: It is the last one.

    Example:
        >>> Chunk(1, "Hello", final=False)
        Chunk(seq=1, data='Hello', final=False)
    """

    seq: int
    data: Any
    final: bool


@dataclass(frozen=True, slots=True)
class StreamResult:
    """Yielded last by ``process_stream``: the durable result of the whole, which the final chunk carries.

    A plain generator may return its result instead; an async one cannot.

    Example:
        >>> StreamResult({"words": 2}).value
        {'words': 2}
    """

    value: Any = None


class DeadReason(StrEnum):
    """Why a message will never be handled to its end."""

    #: The caller of a stream left before its end.
    CALLER_LEFT = "caller_left"
    #: The agent died again and again while it handled the message.
    POISON = "poison"
    #: Nobody waited for its answer, and its handling raised.
    FAILED = "failed"
    #: The agent was deleted with the message in its inbox.
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up on.

    Attributes:
        id: Names the letter in its namespace.
        agent_id: Whose message it was.
        message_id: Its id.
        kind: How it was given to the agent.
        reason: Why it was given up on.
        problem: The same in words.
        body: What it said.
        sent_at: When it was put into the inbox, aware UTC.
        time: When it was given up on, aware UTC.
    """

    id: str
    agent_id: str
    message_id: str
    kind: MessageKind
    reason: DeadReason
    problem: str
    body: Any
    sent_at: datetime
    time: datetime
