"""Messages to agents: asking them, streaming their answers, and what could not be answered."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any, Final, cast

from ares_celery.errors import InvalidSettingError, ProcessTimeoutError, StoreUnavailableError, error_from_wire
from ares_celery.ids import AgentId, check_agent_id
from ares_celery.model.message import Chunk, DeadLetter
from ares_celery.runtime.callers import as_shown, check_flags, check_texts, check_timeout
from ares_celery.runtime.chunk_stream import OUTAGE_PAUSE, ChunkStream, OpenStreams
from ares_celery.runtime.handle import PROCESS_TIMEOUT
from ares_celery.runtime.loop_guard import refuse_event_loop
from ares_celery.runtime.queries import AgentQueries
from ares_celery.store.base import Reply, Store

__all__ = ["LETTERS", "AgentMessages", "check_seq", "checked_ids"]

#: Dead letters that are listed when nobody says how many.
LETTERS: Final = 100


class AgentMessages(AgentQueries):
    """What callers say to agents, and what they get back."""

    #: The streams that callers of this process read now.
    _open_streams: Final = OpenStreams()

    def process(
        self,
        agent_id: str,
        message: object,
        timeout: timedelta | float = PROCESS_TIMEOUT,
        message_id: str | None = None,
    ) -> Any:  # noqa: ANN401 - the JSON value that the agent answered
        """Asks an agent and returns its answer.

        Args:
            agent_id: Which agent.
            message: A JSON value.
            timeout: Longest wait for the answer.
            message_id: The same id again gets the first answer instead of asking twice; default a fresh one.

        Raises:
            ProcessTimeoutError: No answer in time; the message stays in the inbox.
            AgentFailedError: What the agent raised, with type, message and traceback text.
            AgentNotRunningError, AgentParkedError, AgentNotFoundError: At once, and also when it comes to rest while
                this waits: the message stays in its inbox.
            MessageIdReusedError: The id belongs to another message. MessagePoisonedError: The agent dies of it.
            MailboxFullError, EventTooLargeError, UnserialisableError.
        """
        refuse_event_loop("process")
        checked, sent = checked_ids(agent_id, message_id)
        store, seconds = self._ports.store, check_timeout(timeout).total_seconds()
        until = self._clock.monotonic() + seconds
        reply = store.send_and_wait(checked, message, message_id=sent, timeout=seconds)
        if reply is None:
            reply = self._await_reply(store, checked, sent, until)
        if reply is None:
            raise ProcessTimeoutError(agent_id=checked, message_id=sent, timeout=seconds)
        if reply.error is not None:
            raise error_from_wire(reply.error)
        return reply.value

    def _await_reply(self, store: Store, agent_id: AgentId, message_id: str, until: float) -> Reply | None:
        """Waits; while the store is away, until the time is over: the message is in, and its answer is kept."""
        while True:
            left = max(until - self._clock.monotonic(), 0)
            try:
                return store.wait_reply(agent_id, message_id, timeout=left)
            except StoreUnavailableError:
                if left <= 0:
                    raise
                self._clock.wait(self._never, OUTAGE_PAUSE)

    def send(self, agent_id: str, message: object, *, message_id: str | None = None) -> str:
        """Puts a message into an agent's inbox and returns its id; the answer is not waited for.

        What the agent raises on it makes it a dead letter.

        Raises:
            As for :meth:`process`, but for what the agent does with the message.
        """
        checked, sent = checked_ids(agent_id, message_id)
        self._ports.store.send(checked, message, message_id=sent, wants_reply=False)
        return sent

    def process_stream(
        self,
        agent_id: str,
        message: object,
        *,
        timeout: timedelta | float = PROCESS_TIMEOUT,
        message_id: str | None = None,
        detached: bool = False,
    ) -> ChunkStream:
        """Asks an agent and gives its answer piece by piece; the last chunk is ``final`` and carries the result.

        Leaving the iterator before its end ends the stream in the agent, unless it is detached; so does the death of
        this process, within about ten seconds.

        Args:
            agent_id: Which agent.
            message: A JSON value.
            timeout: Longest wait for each chunk.
            message_id: The same id again reads the same stream from its start; default a fresh one.
            detached: The stream goes on without its caller; read it again by its message id, or with
                :meth:`read_chunks`.

        Returns:
            An iterator of :class:`~ares_celery.model.message.Chunk`; a context manager too. It raises what
            :meth:`process` raises, and StreamGapError where chunks are no longer kept.

        Example:
            ``for chunk in manager.process_stream("writer-1", {"about": "rain"}): print(chunk.data)``
        """
        refuse_event_loop("process_stream")
        checked, sent = checked_ids(agent_id, message_id)
        check_flags(detached=detached)
        store, seconds = self._ports.store, check_timeout(timeout).total_seconds()
        store.send(checked, message, message_id=sent, wants_reply=True, stream=True, detached=detached)
        stream = ChunkStream(store, checked, sent, timeout=seconds, detached=detached, clock=self._clock)
        self._open_streams.watch(stream, self._clock)
        return stream

    def read_chunks(
        self,
        agent_id: str,
        message_id: str,
        after_seq: int = 0,
        timeout: timedelta | float = PROCESS_TIMEOUT,
    ) -> tuple[Chunk, ...]:
        """The chunks of a stream behind ``after_seq``, as soon as there are some; empty when none came in time.

        Also empty when there is nothing behind its end.

        Raises:
            MessageNotFoundError: No stream is known under this id, or no longer: ten minutes after its end.
            StreamGapError: The next chunks are no longer kept; its field ``last`` says where to go on.
            AgentFailedError and others: As for :meth:`process`.
        """
        refuse_event_loop("read_chunks")
        checked, sent = checked_ids(agent_id, message_id)
        after, seconds = check_seq(after_seq), check_timeout(timeout).total_seconds()
        return self._ports.store.read_chunks(checked, sent, after=after, timeout=seconds) or ()

    def cancel_stream(self, agent_id: str, message_id: str) -> None:
        """Ends a stream in the agent, as leaving its iterator does. One that is detached or over: no effect.

        Raises:
            InvalidAgentIdError, InvalidSettingError: An id is not acceptable.
        """
        refuse_event_loop("cancel_stream")
        check_texts(message_id=message_id)
        checked, sent = checked_ids(agent_id, message_id)
        self._ports.store.cancel(checked, sent)

    def dead_letters(self, agent_id: str | None = None, *, limit: int = LETTERS) -> list[DeadLetter]:
        """Messages that were given up on, of one agent or of all, newest first."""
        checked = None if agent_id is None else check_agent_id(agent_id)
        given = cast("object", limit)
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise InvalidSettingError(field="limit", value=as_shown(given), problem="must be a number from 1")
        return self._ports.store.dead_letters(checked, limit=given)


def check_seq(after_seq: object) -> int:
    """A place in a stream, or an error that names it."""
    if not isinstance(after_seq, int) or isinstance(after_seq, bool) or not 0 <= after_seq < 2**53:
        raise InvalidSettingError(field="after_seq", value=as_shown(after_seq), problem="must be a seq, from 0")
    return after_seq


def checked_ids(agent_id: str, message_id: str | None) -> tuple[AgentId, str]:
    """Both ids, or an error that names the wrong one; a fresh message id for None."""
    checked, sent = check_agent_id(agent_id), uuid.uuid4().hex if message_id is None else message_id
    check_texts(message_id=sent)
    if not 1 <= len(sent) <= _LONGEST_ID:
        problem = f"must have 1 to {_LONGEST_ID} characters; leave it out for a fresh one"
        raise InvalidSettingError(field="message_id", value=as_shown(sent), problem=problem)
    return checked, sent


#: Characters of a message id.
_LONGEST_ID: Final = 400
