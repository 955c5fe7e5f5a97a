"""Messages to agents, awaitable: asking them, streaming their answers, and what could not be answered."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from ares_celery.async_manager.calls import Calls
from ares_celery.async_manager.chunk_stream import AsyncChunkStream
from ares_celery.errors import ProcessTimeoutError, StoreUnavailableError, error_from_wire
from ares_celery.ids import AgentId
from ares_celery.model.message import Chunk, DeadLetter
from ares_celery.runtime.callers import check_flags, check_texts, check_timeout
from ares_celery.runtime.chunk_stream import OUTAGE_PAUSE
from ares_celery.runtime.handle import PROCESS_TIMEOUT
from ares_celery.runtime.messages import LETTERS, check_seq, checked_ids
from ares_celery.store.base import Reply
from ares_celery.store.messages import AsyncMailbox

__all__ = ["AsyncMessages"]


class AsyncMessages:
    """What coroutines say to agents, and what they get back. A wait uses no thread and no connection of its own."""

    _calls: Calls

    async def process(
        self,
        agent_id: str,
        message: object,
        timeout: timedelta | float = PROCESS_TIMEOUT,
        message_id: str | None = None,
    ) -> Any:  # noqa: ANN401 - the JSON value that the agent answered
        """Asks an agent and returns its answer; see :meth:`Manager.process`.

        A caller that is cancelled leaves the message in the inbox: the agent handles it, and the answer is kept for ten
        minutes. With a ``message_id`` of your own, ``process(..., message_id=the same)`` gets it.

        Args:
            agent_id: Which agent.
            message: A JSON value.
            timeout: Longest wait for the answer.
            message_id: The same id again gets the first answer instead of asking twice; default a fresh one.

        Raises:
            ProcessTimeoutError: No answer in time; the message stays in the inbox.
            AgentFailedError and others: As for :meth:`Manager.process`.
        """
        checked, sent = checked_ids(agent_id, message_id)
        seconds = check_timeout(timeout).total_seconds()
        until = self._calls.clock.monotonic() + seconds
        await (await self._mailbox()).send(checked, message, message_id=sent, wants_reply=True)
        reply = await self._await_reply(checked, sent, until)
        if reply is None:
            raise ProcessTimeoutError(agent_id=checked, message_id=sent, timeout=seconds)
        if reply.error is not None:
            raise error_from_wire(reply.error)
        return reply.value

    async def _await_reply(self, agent_id: AgentId, message_id: str, until: float) -> Reply | None:
        """Waits; while the store is away, until the time is over: the message is in, and its answer is kept."""
        while True:
            # Asked for again each time: a manager that was closed meanwhile says so.
            mailbox = await self._mailbox()
            left = max(until - self._calls.clock.monotonic(), 0)
            try:
                return await mailbox.wait_reply(agent_id, message_id, timeout=left)
            except StoreUnavailableError:
                if left <= 0:
                    raise
                await asyncio.sleep(OUTAGE_PAUSE)

    async def send(self, agent_id: str, message: object, *, message_id: str | None = None) -> str:
        """Puts a message into an agent's inbox and returns its id; the answer is not waited for."""
        checked, sent = checked_ids(agent_id, message_id)
        await (await self._mailbox()).send(checked, message, message_id=sent, wants_reply=False)
        return sent

    def process_stream(
        self,
        agent_id: str,
        message: object,
        *,
        timeout: timedelta | float = PROCESS_TIMEOUT,
        message_id: str | None = None,
        detached: bool = False,
    ) -> AsyncChunkStream:
        """Asks an agent and gives its answer piece by piece; see :meth:`Manager.process_stream`.

        The agent is asked when the stream is entered or first read. Leaving it, and cancelling the task that reads it,
        end it in the agent, unless it is detached.

        Example:
            ``async for chunk in manager.process_stream("writer-1", {"about": "rain"}): print(chunk.data)``
        """
        checked, sent = checked_ids(agent_id, message_id)
        check_flags(detached=detached)
        seconds = check_timeout(timeout).total_seconds()
        return AsyncChunkStream(
            self._calls.access, checked, message, message_id=sent, timeout=seconds, detached=detached
        )

    async def read_chunks(
        self,
        agent_id: str,
        message_id: str,
        after_seq: int = 0,
        timeout: timedelta | float = PROCESS_TIMEOUT,
    ) -> tuple[Chunk, ...]:
        """The chunks of a stream behind ``after_seq``, as soon as there are some; see :meth:`Manager.read_chunks`."""
        checked, sent = checked_ids(agent_id, message_id)
        after = check_seq(after_seq)
        seconds = check_timeout(timeout).total_seconds()
        return await (await self._mailbox()).read_chunks(checked, sent, after=after, timeout=seconds) or ()

    async def cancel_stream(self, agent_id: str, message_id: str) -> None:
        """Ends a stream in the agent, as leaving its iterator does; see :meth:`Manager.cancel_stream`."""
        check_texts(message_id=message_id)
        checked, sent = checked_ids(agent_id, message_id)
        await (await self._mailbox()).cancel(checked, sent)

    async def dead_letters(self, agent_id: str | None = None, *, limit: int = LETTERS) -> list[DeadLetter]:
        """Messages that were given up on, of one agent or of all, newest first."""
        return await self._calls.run(self._calls.core.dead_letters, agent_id, limit=limit)

    async def _mailbox(self) -> AsyncMailbox:
        return (await self._calls.access()).mailbox
