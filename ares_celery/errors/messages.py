"""Errors about messages to agents."""

from __future__ import annotations

from ares_celery.errors.base import AresError, NotFoundError

__all__ = [
    "MailboxFullError",
    "MessageIdReusedError",
    "MessageNotFoundError",
    "MessagePoisonedError",
    "ProcessTimeoutError",
    "StreamCancelledError",
    "StreamGapError",
]


class ProcessTimeoutError(AresError, TimeoutError):
    """No answer arrived in time; the message stays in the inbox, and the same message id asks for its answer again."""

    code = "process_timeout"
    template = (
        "agent {agent_id!r} did not answer message {message_id!r} within {timeout} s; it stays in the inbox: call "
        "again with the same message_id to get its answer"
    )


class MailboxFullError(AresError):
    """The agent's inbox holds as many messages as it may."""

    code = "mailbox_full"
    template = (
        "the inbox of agent {agent_id!r} holds {limit} messages, the most it may (max_inbox); send more slowly, or "
        "raise the limit with `ares config set max_inbox N`"
    )


class MessageIdReusedError(AresError, ValueError):
    """The message id was used for another message; nothing was sent."""

    code = "message_id_reused"
    template = (
        "message id {message_id!r} was used with agent {agent_id!r} already, {problem}; repeat it with what it was "
        "first sent with, or choose another id"
    )


class MessageNotFoundError(NotFoundError):
    """Nobody knows of a stream under this message id: it was never asked for, or ended more than ten minutes ago."""

    code = "message_not_found"
    template = (
        "no stream of message {message_id!r} to agent {agent_id!r} is known: it was never asked for by "
        "process_stream(), or is no longer kept; ask with process_stream() and this message_id"
    )


class MessagePoisonedError(AresError):
    """The agent died each time it handled this message, which is skipped from now on; the agent goes on."""

    code = "message_poisoned"
    template = (
        "agent {agent_id!r} died {deaths} times while it handled message {message_id!r}; the message is skipped: "
        "`ares dead ls` shows it"
    )


class StreamCancelledError(AresError):
    """The caller of this stream left before its end, so it was ended; nobody gets the rest."""

    code = "stream_cancelled"
    template = (
        "the stream of message {message_id!r} to agent {agent_id!r} was ended as its caller had left; ask with another "
        "message_id, and with detached=True for a stream that goes on alone"
    )


class StreamGapError(AresError):
    """Chunks that this reader had not read yet are no longer kept; reading goes on after them.

    Fields: ``first`` and ``last`` missing seq, and their ``count``.
    """

    code = "stream_gap"
    template = (
        "{count} chunks of message {message_id!r} to agent {agent_id!r} (seq {first} to {last}) are no longer kept; go "
        "on reading after seq {last}, or take the result from the final chunk"
    )
