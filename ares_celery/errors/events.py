"""Errors about streams of events and those who read them."""

from __future__ import annotations

from ares_celery.errors.base import AresError

__all__ = ["EventGapError", "EventIntegrityError", "EventStoreClosedError", "InvalidCursorError"]


class EventIntegrityError(AresError):
    """The stored history has a gap or damaged bytes at a known position."""

    code = "event_integrity"
    template = "the history of agent {agent_id!r} is damaged at version {version}: {problem}"


class EventGapError(AresError):
    """Events that a subscriber had not read yet were trimmed; its next event is the first after them.

    Fields: ``stream_id``, ``first`` and ``last`` version, ``count``. For a stream that the cursor had not met before,
    ``count`` is the most that may be missing.
    """

    code = "event_gap"
    template = (
        "{count} events of stream {stream_id!r} (versions {first} to {last}) were trimmed before this subscriber read "
        "them; go on reading, and look at its summaries for what they said"
    )


class InvalidCursorError(AresError, ValueError):
    """A subscription cannot begin at this cursor."""

    code = "invalid_cursor"
    template = "this cursor cannot be used: {problem}; pass one that Subscription.cursor gave, BEGINNING, or None"


class EventStoreClosedError(AresError):
    """The store was closed; open a new one."""

    code = "event_store_closed"
    template = "the event store is closed"
