"""The message that an agent's code handles right now, and what both kinds of agents do with messages."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from ares_celery.agents.guards import AGENT
from ares_celery.errors import MessagePoisonedError, OperationNotSupportedError, StreamCancelledError
from ares_celery.model.message import DeadReason, MessageKind
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.step_scope import SCOPE
from ares_celery.store.base import InboxMessage, Reply

__all__ = [
    "Begun",
    "Outcome",
    "begun_before",
    "current_message",
    "failed",
    "given_back",
    "handling",
    "id_of_sent",
    "is_later",
    "left",
    "poisoned",
    "unhandled",
]


class _Handling:
    """One handling of a message."""

    __slots__ = ("begun", "incarnation", "message_id", "sent")

    def __init__(self, incarnation: Incarnation, message: InboxMessage) -> None:
        self.incarnation = incarnation
        self.message_id = message.message_id
        self.begun = message.entry if message.began else ""
        self.sent = 0


_current: Final[ContextVar[_Handling | None]] = ContextVar("ares_handling", default=None)


@contextmanager
def handling(incarnation: Incarnation, message: InboxMessage) -> Generator[None]:
    """Whatever the block calls, and tasks that begin in it, handles this message, and none of the steps around it."""
    token = _current.set(_Handling(incarnation, message))
    outside, agent = SCOPE.set(None), AGENT.set(incarnation.agent_id)
    incarnation.at_hand += 1
    try:
        yield
    finally:
        incarnation.at_hand -= 1
        AGENT.reset(agent)
        SCOPE.reset(outside)
        _current.reset(token)


def current_message(incarnation: Incarnation) -> str | None:
    """The id of the message that the calling code of this incarnation handles; None when it handles none."""
    current = _current.get()
    return current.message_id if current is not None and current.incarnation is incarnation else None


def begun_before(incarnation: Incarnation) -> str:
    """The inbox entry of the message at hand if its handling began before without coming to an end; else empty."""
    current = _current.get()
    return current.begun if current is not None and current.incarnation is incarnation else ""


def id_of_sent(incarnation: Incarnation) -> tuple[str, bool]:
    """The id of a message that an agent sends now; True when it is the same if the handling is repeated.

    The n-th message that is sent while a message is handled has the same id in every handling of it; outside of that an
    id is a fresh one.
    """
    current = _current.get()
    if current is None or current.incarnation is not incarnation:
        return uuid.uuid4().hex, False
    current.sent += 1
    parts = (incarnation.agent_id, str(incarnation.record.created_at), str(current.sent), current.message_id)
    return sha256("|".join(parts).encode()).hexdigest()[:32], True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a message.

    Attributes:
        reply: For whoever waits.
        reason: Why it is given up on; None: it was handled.
        stays: It stays in the inbox, and is handled again by the next incarnation.
    """

    reply: Reply
    reason: DeadReason | None = None
    stays: bool = False


def poisoned(agent_id: str, message: InboxMessage) -> Outcome:
    """It is skipped, as the agent dies of it."""
    error = MessagePoisonedError(agent_id=agent_id, message_id=message.message_id, deaths=message.began)
    return Outcome(Reply(message.message_id, error=error.fields), DeadReason.POISON)


def left(agent_id: str, message: InboxMessage) -> Outcome:
    """The caller of its stream has left."""
    error = StreamCancelledError(agent_id=agent_id, message_id=message.message_id)
    return Outcome(Reply(message.message_id, error=error.fields), DeadReason.CALLER_LEFT)


def given_back(message: InboxMessage) -> Outcome:
    """It goes on when the agent does: the agent is being parked, and what its steps recorded is kept."""
    return Outcome(Reply(message.message_id), stays=True)


def failed(message: InboxMessage, reply: Reply) -> Outcome:
    """Its handling raised: whoever waits is told; else it becomes a dead letter, or nobody would ever know."""
    return Outcome(reply, DeadReason.FAILED if message.kind is MessageKind.SEND else None)


def unhandled(agent_id: str, agent_type: str, message: InboxMessage) -> Outcome:
    """The agent takes no messages."""
    refused = OperationNotSupportedError(
        operation=f"a message to agent {agent_id!r}",
        reason=f"type {agent_type!r} has neither process() nor process_stream()",
    )
    return failed(message, Reply(message.message_id, error=refused.fields))


class Begun:
    """Which messages this incarnation has begun to handle, as the store knows it, and which is the next to begin."""

    def __init__(self) -> None:
        """Begins with none."""
        self._open: dict[str, None] = {}
        self._next: deque[str] = deque()

    def took(self, messages: Iterable[InboxMessage], begin: int) -> None:
        """A page was read; the first ``begin`` of it are begun."""
        entries = [message.entry for message in messages]
        self._next = deque(entries[begin:])
        self._open.update(dict.fromkeys(entries[:begin]))

    def hinted(self, entry: str) -> None:
        """A message came with its hint, and was begun by that."""
        self._open[entry] = None

    def following(self) -> str:
        """The entry that begins with the next answer; empty: none."""
        return self._next[0] if self._next else ""

    def answered(self, entry: str, then: str) -> None:
        """A message is consumed, and another has begun."""
        self._open.pop(entry, None)
        if then:
            self._open[then] = None
            if self._next and self._next[0] == then:
                self._next.popleft()

    @property
    def entries(self) -> list[str]:
        """Those that are begun and not consumed."""
        return list(self._open)


def is_later(entry: str, other: str) -> bool:
    """Whether an inbox entry was added behind another one."""
    return _place(entry) > _place(other)


def _place(entry: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry.split("-"))
