"""Messages in Redis as incarnations handle them, for threads and for an event loop: the same calls, awaited or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ares_celery.errors import EventTooLargeError, error_from_wire
from ares_celery.errors.wording import message_of
from ares_celery.ids import AgentId, Version
from ares_celery.model.event import RUNTIME_MODULE, EventType, NewEvent
from ares_celery.model.message import DeadReason
from ares_celery.store.base import InboxMessage, Reply
from ares_celery.store.redis import chunk_calls, letter_calls, mailbox_calls
from ares_celery.store.redis.batching import BatchingClient
from ares_celery.store.redis.bound import Bound, Part
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.client import AsyncRedisClient
from ares_celery.store.redis.finishing import Finish, finish
from ares_celery.store.redis.json_values import encode_json
from ares_celery.store.redis.letter_calls import Burial
from ares_celery.store.redis.replies import epoch_of
from ares_celery.store.redis.stored_events import encode_events, lifecycle_events

__all__ = ["AsyncRedisHostMailbox", "RedisHostMailbox"]

#: Characters of a letter's problem.
_LONGEST_PROBLEM: Final = 2_000
_EVENT_BYTES: Final = 1 << 20


def _encode(bound: Bound, agent_id: AgentId, message: InboxMessage, value: object) -> bytes:
    limit = bound.config.max_event_bytes
    data, _ = encode_json(value, what=f"a chunk of the answer to message {message.message_id!r}", agent_id=agent_id)
    if len(data) > limit:
        raise EventTooLargeError(type="chunk", agent_id=agent_id, size=len(data), limit=limit)
    return data


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who holds an agent's fence, and the calls that show it."""

    bound: Bound
    agent_id: AgentId
    fence: str

    def take(self, after: str, limit: int, begin: int) -> Call[tuple[InboxMessage, ...]]:
        epoch_of(self.agent_id, self.fence)
        return mailbox_calls.take(
            self.bound.keys, agent_id=self.agent_id, fence=self.fence, after=after, limit=limit, begin=begin
        )

    def give_back(self, entries: Sequence[str]) -> Call[None]:
        epoch_of(self.agent_id, self.fence)
        return mailbox_calls.give_back(self.bound.keys, agent_id=self.agent_id, fence=self.fence, entries=entries)

    def reply(
        self, message: InboxMessage, reply: Reply, chunks: int, then: str, finish: Finish | str
    ) -> Call[Version | None]:
        epoch_of(self.agent_id, self.fence)
        return mailbox_calls.reply(
            self.bound.keys,
            agent_id=self.agent_id,
            fence=self.fence,
            message=message,
            answer=reply,
            limit=self.bound.config.max_event_bytes,
            chunks=chunks,
            then=then,
            finish=finish,
        )

    def ending(self, finishes: str, unless: str, reply: Reply) -> Finish | str:
        """How the execution of a message ends, or the id of one that must not be unfinished."""
        if not finishes:
            return unless
        retention = self.bound.config.checkpoint_retention
        return finish(self.agent_id, finishes, fence=self.fence, error=reply.error, retention=retention)

    def write(self, message: InboxMessage, first: int, pieces: Sequence[bytes]) -> Call[int | None]:
        epoch_of(self.agent_id, self.fence)
        return chunk_calls.write_chunks(
            self.bound.keys, agent_id=self.agent_id, fence=self.fence, message=message, first=first, pieces=pieces
        )

    def bury(self, message: InboxMessage, reason: DeadReason, reply: Reply, finish: Finish | str) -> Call[bool]:
        epoch = epoch_of(self.agent_id, self.fence)
        payload = {
            "agent_id": self.agent_id,
            "message_id": message.message_id,
            "kind": message.kind.value,
            "reason": reason.value,
            "problem": message_of(error_from_wire(reply.error or {}))[:_LONGEST_PROBLEM],
        }
        said = NewEvent(EventType.MESSAGE_DEAD_LETTERED, payload, {"module": RUNTIME_MODULE})
        (event,) = encode_events(self.agent_id, lifecycle_events([said]), epoch=epoch, limit=_EVENT_BYTES)
        burial = Burial(message, reason, str(event.payload["problem"]), reply, event, finish)
        limit = self.bound.config.max_event_bytes
        return letter_calls.bury(self.bound.keys, agent_id=self.agent_id, fence=self.fence, burial=burial, limit=limit)


class RedisHostMailbox(Part):
    """Implements :class:`~ares_celery.store.messages.HostMailbox`."""

    def inbox(self, agent_id: AgentId, *, after: str = "", limit: int = 100) -> tuple[InboxMessage, ...]:
        """Messages that were not consumed yet, oldest first."""
        call = mailbox_calls.read_inbox(self._bound.keys, agent_id=agent_id, after=after, limit=limit)
        return self._bound.client.run(call)

    def take(
        self, agent_id: AgentId, fence: str, *, after: str = "", limit: int = 100, begin: int = 1
    ) -> tuple[InboxMessage, ...]:
        """The same, to be handled: the handling of the first ``begin`` of them begins now, as far as it has not."""
        return self._bound.client.run(_Holder(self._bound, agent_id, fence).take(after, limit, begin))

    def give_back(self, agent_id: AgentId, fence: str, entries: Sequence[str]) -> None:
        """Takes back that the handling of messages began: they were not the end of this incarnation."""
        self._bound.client.run(_Holder(self._bound, agent_id, fence).give_back(entries))

    def reply(  # noqa: PLR0913 - the parts of one write
        self,
        agent_id: AgentId,
        fence: str,
        message: InboxMessage,
        reply: Reply,
        *,
        chunks: int = 0,
        then: str = "",
        finishes: str = "",
        unless: str = "",
    ) -> Version | None:
        """Consumes a message and stores its answer, atomically."""
        holder = _Holder(self._bound, agent_id, fence)
        ending = holder.ending(finishes, unless, reply)
        return self._bound.client.run(holder.reply(message, reply, chunks, then, ending))

    def write_chunks(
        self, agent_id: AgentId, fence: str, message: InboxMessage, *, first: int, pieces: Sequence[bytes]
    ) -> int | None:
        """Stores encoded pieces of an answer from seq ``first`` on, those that are not stored yet; none: only asks."""
        return self._bound.client.run(_Holder(self._bound, agent_id, fence).write(message, first, pieces))

    def encode_piece(self, agent_id: AgentId, message: InboxMessage, value: Any) -> bytes:  # noqa: ANN401 - JSON
        """A piece of an answer as it is stored."""
        return _encode(self._bound, agent_id, message, value)

    def bury(  # noqa: PLR0913 - the parts of one write
        self,
        agent_id: AgentId,
        fence: str,
        message: InboxMessage,
        reason: DeadReason,
        reply: Reply,
        *,
        finishes: str = "",
        unless: str = "",
    ) -> bool:
        """Consumes a message and keeps it as a dead letter, with an event; False when it was consumed before."""
        holder = _Holder(self._bound, agent_id, fence)
        return self._bound.client.run(holder.bury(message, reason, reply, holder.ending(finishes, unless, reply)))


class AsyncRedisHostMailbox:
    """Implements :class:`~ares_celery.store.messages.AsyncHostMailbox`."""

    def __init__(self, bound: Bound, client: AsyncRedisClient) -> None:
        self._bound = bound
        self._client = client
        # Thousands of agents may stream at once: what they yield meanwhile leaves in one round trip, as each of them
        # alone would queue for a connection.
        self._chunks = BatchingClient(client)

    async def inbox(self, agent_id: AgentId, *, after: str = "", limit: int = 100) -> tuple[InboxMessage, ...]:
        """Messages that were not consumed yet, oldest first."""
        call = mailbox_calls.read_inbox(self._bound.keys, agent_id=agent_id, after=after, limit=limit)
        return await self._client.run(call)

    async def take(
        self, agent_id: AgentId, fence: str, *, after: str = "", limit: int = 100, begin: int = 1
    ) -> tuple[InboxMessage, ...]:
        """The same, to be handled: the handling of the first ``begin`` of them begins now, as far as it has not."""
        return await self._client.run(_Holder(self._bound, agent_id, fence).take(after, limit, begin))

    async def give_back(self, agent_id: AgentId, fence: str, entries: Sequence[str]) -> None:
        """Takes back that the handling of messages began: they were not the end of this incarnation."""
        await self._client.run(_Holder(self._bound, agent_id, fence).give_back(entries))

    async def reply(  # noqa: PLR0913 - the parts of one write
        self,
        agent_id: AgentId,
        fence: str,
        message: InboxMessage,
        reply: Reply,
        *,
        chunks: int = 0,
        then: str = "",
        finishes: str = "",
        unless: str = "",
    ) -> Version | None:
        """Consumes a message and stores its answer, atomically."""
        holder = _Holder(self._bound, agent_id, fence)
        ending = holder.ending(finishes, unless, reply)
        return await self._client.run(holder.reply(message, reply, chunks, then, ending))

    async def write_chunks(
        self, agent_id: AgentId, fence: str, message: InboxMessage, *, first: int, pieces: Sequence[bytes]
    ) -> int | None:
        """Stores encoded pieces of an answer from seq ``first`` on, those that are not stored yet; none: only asks."""
        return await self._chunks.run(_Holder(self._bound, agent_id, fence).write(message, first, pieces))

    def encode_piece(self, agent_id: AgentId, message: InboxMessage, value: Any) -> bytes:  # noqa: ANN401 - JSON
        """A piece of an answer as it is stored."""
        return _encode(self._bound, agent_id, message, value)

    async def bury(  # noqa: PLR0913 - the parts of one write
        self,
        agent_id: AgentId,
        fence: str,
        message: InboxMessage,
        reason: DeadReason,
        reply: Reply,
        *,
        finishes: str = "",
        unless: str = "",
    ) -> bool:
        """Consumes a message and keeps it as a dead letter, with an event; False when it was consumed before."""
        holder = _Holder(self._bound, agent_id, fence)
        return await self._client.run(holder.bury(message, reason, reply, holder.ending(finishes, unless, reply)))
