"""Messages to agents in Redis, as callers use them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from ares_celery.ids import AgentId
from ares_celery.model.message import Chunk, DeadLetter, MessageKind
from ares_celery.store.base import Reply
from ares_celery.store.redis import chunk_calls, letter_calls, mailbox_calls
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.mailbox_calls import Outgoing, Waiting

__all__ = ["RedisMailbox"]

#: Milliseconds that one call waits on the server: safely below the socket's timeout.
BLOCK_MS: Final = 2_000


class RedisMailbox(Part):
    """Implements :class:`~ares_celery.store.messages.Mailbox`."""

    def send(
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
        message = Outgoing.made(body, message_id=message_id, wants_reply=wants_reply, stream=stream, detached=detached)
        self._bound.client.run(self._send(agent_id, message))

    def _send(self, agent_id: AgentId, message: Outgoing) -> Call[None]:
        bound, config = self._bound, self._bound.config
        return mailbox_calls.send(
            bound.keys, agent_id=agent_id, message=message, limit=config.max_event_bytes, most=config.max_inbox
        )

    def send_and_wait(self, agent_id: AgentId, body: object, *, message_id: str, timeout: float) -> Reply | None:
        """Sends a message and waits for its answer, up to ``timeout`` seconds and two; None when there is none yet."""
        sending = self._send(agent_id, Outgoing(message_id, body, MessageKind.PROCESS))
        block_ms = min(int(timeout * 1000), BLOCK_MS)
        if block_ms <= 0:
            self._bound.client.run(sending)
            return None
        # Whatever mark is there ends the wait: then it is time to look whether the agent rests.
        wait = mailbox_calls.await_reply(
            self._bound.keys, agent_id=agent_id, message_id=message_id, mark="0-0", block_ms=block_ms
        )
        return self._bound.waiting.run_pair(sending, wait)

    def wait_reply(self, agent_id: AgentId, message_id: str, *, timeout: float) -> Reply | None:
        """The answer, or None when there is none within ``timeout`` seconds. Does not consume it."""
        bound = self._bound
        look = mailbox_calls.look(bound.keys, agent_id=agent_id, message_id=message_id)
        deadline = bound.clock.monotonic() + timeout
        while isinstance(found := bound.client.run(look), Waiting):
            left_ms = int((deadline - bound.clock.monotonic()) * 1000)
            if left_ms <= 0:
                return None
            wait = mailbox_calls.await_reply(
                bound.keys,
                agent_id=agent_id,
                message_id=message_id,
                mark=found.mark,
                block_ms=min(left_ms, BLOCK_MS),
            )
            if (reply := bound.waiting.run(wait)) is not None:
                return reply
        return found

    def read_chunks(
        self, agent_id: AgentId, message_id: str, *, after: int, timeout: float
    ) -> tuple[Chunk, ...] | None:
        """The chunks behind seq ``after``, as soon as there are some; None when none came in ``timeout`` seconds."""
        bound = self._bound
        read = chunk_calls.read_chunks(bound.keys, agent_id=agent_id, message_id=message_id, after=after)
        deadline = bound.clock.monotonic() + timeout
        while isinstance(found := bound.client.run(read), Waiting):
            left_ms = int((deadline - bound.clock.monotonic()) * 1000)
            if left_ms <= 0:
                return None
            wait = chunk_calls.await_chunks(
                bound.keys,
                agent_id=agent_id,
                message_id=message_id,
                after=after,
                mark=found.mark,
                block_ms=min(left_ms, BLOCK_MS),
            )
            bound.waiting.run(wait)
        return found

    def cancel(self, agent_id: AgentId, message_id: str) -> None:
        """The caller of a stream has left: it ends, unless it is detached or over. Idempotent."""
        self._bound.client.run(chunk_calls.cancel(self._bound.keys, agent_id=agent_id, message_id=message_id))

    def dead_letters(self, agent_id: AgentId | None = None, *, limit: int) -> list[DeadLetter]:
        """What was given up on, of one agent or of all, newest first."""
        keys = self._bound.keys
        kept = letter_calls.LETTERS_KEPT
        if agent_id is not None:
            shard = keys.shard_of(agent_id)
            found = self._bound.client.run(letter_calls.read_letters(keys, shard=shard, limit=kept))
            return [letter for letter in found if letter.agent_id == agent_id][:limit]
        of_shards = self._bound.client.run_many(
            letter_calls.read_letters(keys, shard=shard, limit=min(limit, kept)) for shard in range(keys.shards)
        )
        every = [letter for letters in of_shards for letter in letters]
        return sorted(every, key=lambda letter: letter.time, reverse=True)[:limit]

    def elect_postman(self, identity: str, *, ttl_ms: int) -> bool:
        """Takes or keeps the right to take letters to their handlers; True while this process holds it."""
        return self._bound.client.run(letter_calls.elect_postman(self._bound.keys, identity=identity, ttl_ms=ttl_ms))

    def settle_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Removes letters that were dealt with. Idempotent."""
        places: dict[int, list[str]] = defaultdict(list)
        for letter in letters:
            shard, _, entry = letter.id.partition(":")
            places[int(shard)].append(entry)
        self._bound.client.run_many(
            letter_calls.settle_letters(self._bound.keys, shard=shard, entries=entries)
            for shard, entries in places.items()
        )
