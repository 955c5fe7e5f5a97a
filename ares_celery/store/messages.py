"""Messages to agents: the ports of those who send them and wait for answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ares_celery.ids import AgentId, Version
from ares_celery.model.message import Chunk, DeadLetter, DeadReason
from ares_celery.store.values import InboxMessage, Reply

__all__ = ["AsyncHostMailbox", "AsyncMailbox", "HostMailbox", "Mailbox"]


class Mailbox(Protocol):
    """Messages to agents, as callers use it."""

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
        """Puts a message into the inbox, once for each message id, and tells the host to look.

        Args:
            agent_id: Whose inbox.
            body: A JSON value. Equal values are the same body, whatever the order of their keys.
            message_id: A repeat puts nothing, also ten minutes after the message was handled.
            wants_reply: Somebody waits for the answer.
            stream: It comes in chunks.
            detached: The stream goes on when its caller has left.

        Raises:
            AgentNotFoundError, AgentNotRunningError (stopped, completed, registered), AgentParkedError,
            MailboxFullError, UnserialisableError, EventTooLargeError.
            MessageIdReusedError: The id was used with another body, or as another kind of call.
        """
        ...

    def send_and_wait(self, agent_id: AgentId, body: object, *, message_id: str, timeout: float) -> Reply | None:
        """Sends a message and waits for its answer, up to ``timeout`` seconds and two; None when there is none yet.

        Raises:
            As for :meth:`send`.
        """
        ...

    def wait_reply(self, agent_id: AgentId, message_id: str, *, timeout: float) -> Reply | None:
        """The answer, or None when there is none within ``timeout`` seconds. Does not consume it.

        Raises:
            AgentNotRunningError, AgentParkedError, AgentNotFoundError: There is no answer and the agent has come to
                rest, or was deleted; also while this waits. The message stays in the inbox of one that rests.
        """
        ...

    def read_chunks(
        self, agent_id: AgentId, message_id: str, *, after: int, timeout: float
    ) -> tuple[Chunk, ...] | None:
        """The chunks behind seq ``after``, as soon as there are some; None when none came in ``timeout`` seconds.

        Empty behind the end of the stream. Says as well that the caller of the stream is still there.

        Raises:
            MessageNotFoundError: No stream is known under this id, or no longer.
            StreamGapError: The next ones are no longer kept. AgentFailedError and others: What the stream ended with.
            AgentNotRunningError, AgentParkedError, AgentNotFoundError: As for :meth:`wait_reply`.
        """
        ...

    def cancel(self, agent_id: AgentId, message_id: str) -> None:
        """The caller of a stream has left: it ends, unless it is detached or over. Idempotent."""
        ...

    def dead_letters(self, agent_id: AgentId | None = None, *, limit: int) -> list[DeadLetter]:
        """What was given up on, of one agent or of all, newest first."""
        ...

    def elect_postman(self, identity: str, *, ttl_ms: int) -> bool:
        """Takes or keeps the right to take letters to their handlers; True while this process holds it."""
        ...

    def settle_letters(self, letters: Sequence[DeadLetter]) -> None:
        """Removes letters that were dealt with. Idempotent."""
        ...


class AsyncMailbox(Protocol):
    """The same as :class:`Mailbox`, awaitable."""

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
        """See :meth:`Mailbox.send`."""
        ...

    async def wait_reply(self, agent_id: AgentId, message_id: str, *, timeout: float) -> Reply | None:
        """See :meth:`Mailbox.wait_reply`."""
        ...

    async def read_chunks(
        self,
        agent_id: AgentId,
        message_id: str,
        *,
        after: int,
        timeout: float,
    ) -> tuple[Chunk, ...] | None:
        """See :meth:`Mailbox.read_chunks`."""
        ...

    async def cancel(self, agent_id: AgentId, message_id: str) -> None:
        """See :meth:`Mailbox.cancel`."""
        ...

    async def dead_letters(self, agent_id: AgentId | None = None, *, limit: int) -> list[DeadLetter]:
        """See :meth:`Mailbox.dead_letters`."""
        ...


class HostMailbox(Protocol):
    """Messages to an agent, as its incarnation handles them; all but reading the inbox raise FencedError."""

    def inbox(self, agent_id: AgentId, *, after: str = "", limit: int = 100) -> tuple[InboxMessage, ...]:
        """Messages that were not consumed yet, oldest first."""
        ...

    def take(
        self, agent_id: AgentId, fence: str, *, after: str = "", limit: int = 100, begin: int = 1
    ) -> tuple[InboxMessage, ...]:
        """The same, to be handled: the handling of the first ``begin`` of them begins now, as far as it has not."""
        ...

    def give_back(self, agent_id: AgentId, fence: str, entries: Sequence[str]) -> None:
        """Takes back that the handling of messages began: they were not the end of this incarnation."""
        ...

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
        """Consumes a message and stores its answer, atomically.

        Args:
            agent_id: Whose message.
            fence: Demanded to be equal to the record's.
            message: It.
            reply: The answer; of a stream its final chunk, too.
            chunks: Of a stream: how many chunks came before its end.
            then: The inbox entry whose handling begins now.
            finishes: The execution of the message's steps, which ends with it: completed, or failed where the answer is
                an error. One that this incarnation does not hold stays as it is.
            unless: Instead: the execution that the message's steps would have, and this incarnation has made none. When
                an earlier one has left it unfinished, the answer is refused, as nobody would end it any more.

        Returns:
            The version of the event that tells the end of that execution; None: nothing ended.

        Raises:
            UnserialisableError, EventTooLargeError: The answer itself is refused; nothing was stored.
            ExecutionStateError: The execution ``unless`` is unfinished; nothing was stored.
        """
        ...

    def write_chunks(
        self, agent_id: AgentId, fence: str, message: InboxMessage, *, first: int, pieces: Sequence[bytes]
    ) -> int | None:
        """Stores encoded pieces of an answer from seq ``first`` on, those that are not stored yet; none: only asks.

        Returns the last seq that is stored; None when the caller of the stream has left.
        """
        ...

    def encode_piece(self, agent_id: AgentId, message: InboxMessage, value: Any) -> bytes:  # noqa: ANN401 - JSON
        """A piece of an answer as it is stored. Raises UnserialisableError, EventTooLargeError."""
        ...

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
        """Consumes a message and keeps it as a dead letter, with an event; False when it was consumed before.

        Args:
            agent_id: Whose message.
            fence: Demanded to be equal to the record's.
            message: It.
            reason: Why it is given up on.
            reply: What a waiting caller gets: the wire dict of an error, whose text the letter tells too.
            finishes: As for :meth:`reply`.
            unless: As for :meth:`reply`.
        """
        ...


class AsyncHostMailbox(Protocol):
    """The same as :class:`HostMailbox`, awaitable."""

    async def inbox(self, agent_id: AgentId, *, after: str = "", limit: int = 100) -> tuple[InboxMessage, ...]:
        """See :meth:`HostMailbox.inbox`."""
        ...

    async def take(
        self, agent_id: AgentId, fence: str, *, after: str = "", limit: int = 100, begin: int = 1
    ) -> tuple[InboxMessage, ...]:
        """See :meth:`HostMailbox.take`."""
        ...

    async def give_back(self, agent_id: AgentId, fence: str, entries: Sequence[str]) -> None:
        """See :meth:`HostMailbox.give_back`."""
        ...

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
        """See :meth:`HostMailbox.reply`."""
        ...

    async def write_chunks(
        self, agent_id: AgentId, fence: str, message: InboxMessage, *, first: int, pieces: Sequence[bytes]
    ) -> int | None:
        """See :meth:`HostMailbox.write_chunks`."""
        ...

    def encode_piece(self, agent_id: AgentId, message: InboxMessage, value: Any) -> bytes:  # noqa: ANN401 - JSON
        """See :meth:`HostMailbox.encode_piece`."""
        ...

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
        """See :meth:`HostMailbox.bury`."""
        ...
