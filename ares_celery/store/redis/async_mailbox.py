"""Messages to agents in Redis, as callers on an event loop use them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ares_celery.ids import AgentId
from ares_celery.model.message import Chunk, DeadLetter
from ares_celery.store.base import Reply
from ares_celery.store.redis import chunk_calls, letter_calls, mailbox_calls
from ares_celery.store.redis.batching import BatchingClient
from ares_celery.store.redis.bound import Bound
from ares_celery.store.redis.hints import HintedWaits
from ares_celery.store.redis.mailbox_calls import Outgoing

__all__ = ["AsyncRedisMailbox"]


class AsyncRedisMailbox:
    """Implements :class:`~ares_celery.store.messages.AsyncMailbox`: no wait holds a connection."""

    def __init__(
        self, bound: Bound, client: BatchingClient, waits: HintedWaits, *, refresh: Callable[[], Awaitable[None]]
    ) -> None:
        """Binds it.

        Args:
            bound: The namespace.
            client: For calls that are answered at once.
            waits: For answers.
            refresh: Sees to it that the settings are fresh.
        """
        self._refresh = refresh
        self._bound = bound
        self._client = client
        self._waits = waits

    async def send(
        self,
        agent_id: AgentId,
        body: object,
        *,
        message_id: str,
        wants_reply: bool,
        stream: bool = False,
        detached: bool = False,
    ) -> None:
        """Puts a message into the inbox, once for each message id, and tells the host to look."""
        caller = ""
        if wants_reply or stream:
            await self._waits.ready()
            caller = self._waits.channel
        message = Outgoing.made(
            body, message_id=message_id, wants_reply=wants_reply, stream=stream, detached=detached, caller=caller
        )
        await self._refresh()
        config = self._bound.config
        await self._client.run(
            mailbox_calls.send(
                self._bound.keys,
                agent_id=agent_id,
                message=message,
                limit=config.max_event_bytes,
                most=config.max_inbox,
            )
        )

    async def wait_reply(
        self,
        agent_id: AgentId,
        message_id: str,
        *,
        timeout: float,
    ) -> Reply | None:
        """The answer, or None when there is none within ``timeout`` seconds. Does not consume it."""
        look = mailbox_calls.look(
            self._bound.keys, agent_id=agent_id, message_id=message_id, caller=self._waits.channel
        )
        return await self._waits.until(agent_id, message_id, look, timeout=timeout)

    async def read_chunks(
        self,
        agent_id: AgentId,
        message_id: str,
        *,
        after: int,
        timeout: float,
    ) -> tuple[Chunk, ...] | None:
        """The chunks behind seq ``after``, as soon as there are some; None when none came in ``timeout`` seconds."""
        read = chunk_calls.read_chunks(
            self._bound.keys, agent_id=agent_id, message_id=message_id, after=after, caller=self._waits.channel
        )
        return await self._waits.until(agent_id, message_id, read, timeout=timeout)

    async def cancel(self, agent_id: AgentId, message_id: str) -> None:
        """The caller of a stream has left: it ends, unless it is detached or over. Idempotent."""
        await self._client.run(chunk_calls.cancel(self._bound.keys, agent_id=agent_id, message_id=message_id))

    async def dead_letters(self, agent_id: AgentId | None = None, *, limit: int) -> list[DeadLetter]:
        """What was given up on, of one agent or of all, newest first."""
        keys, kept = self._bound.keys, letter_calls.LETTERS_KEPT
        shards = range(keys.shards) if agent_id is None else [keys.shard_of(agent_id)]
        most = min(limit, kept) if agent_id is None else kept
        found = await self._client.run_many(
            [letter_calls.read_letters(keys, shard=shard, limit=most) for shard in shards]
        )
        every = [letter for letters in found for letter in letters if agent_id in (None, letter.agent_id)]
        return sorted(every, key=lambda letter: letter.time, reverse=True)[:limit]
