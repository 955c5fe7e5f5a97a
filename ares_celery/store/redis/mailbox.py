"""Messages to agents in Redis, as callers use them."""

from __future__ import annotations

from typing import Final

from ares_celery.ids import AgentId
from ares_celery.store.base import Reply
from ares_celery.store.redis import mailbox_calls
from ares_celery.store.redis.bound import Part

__all__ = ["RedisMailbox"]

#: Milliseconds that one call waits on the server: safely below the socket's timeout.
BLOCK_MS: Final = 2_000


class RedisMailbox(Part):
    """Implements :class:`~ares_celery.store.base.Mailbox`."""

    def send(self, agent_id: AgentId, body: object, *, message_id: str, wants_reply: bool) -> None:
        """Puts a message into the inbox, once for each message id, and tells the host to look."""
        self._bound.client.run(
            mailbox_calls.send(
                self._bound.keys,
                agent_id=agent_id,
                message_id=message_id,
                body=body,
                wants_reply=wants_reply,
                limit=self._bound.config.max_event_bytes,
            )
        )

    def wait_reply(self, agent_id: AgentId, message_id: str, *, timeout: float) -> Reply | None:
        """The answer, or None when there is none within ``timeout`` seconds. Does not consume it."""
        bound = self._bound
        read = mailbox_calls.read_reply(bound.keys, agent_id=agent_id, message_id=message_id)
        deadline = bound.clock.monotonic() + timeout
        while (reply := bound.client.run(read)) is None:
            left_ms = int((deadline - bound.clock.monotonic()) * 1000)
            if left_ms <= 0:
                return None
            wait = mailbox_calls.await_reply(
                bound.keys, agent_id=agent_id, message_id=message_id, block_ms=min(left_ms, BLOCK_MS)
            )
            bound.waiting.run(wait)
        return reply
