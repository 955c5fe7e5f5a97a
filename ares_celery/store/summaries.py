"""The port of those who shorten streams: summaries, and the removal of what they cover."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ares_celery.ids import Version
from ares_celery.model.summary import Summary

__all__ = ["SummaryStore"]


class SummaryStore(Protocol):
    """What is kept of events in fewer words; for readers, never for recovery."""

    def summaries(self, stream_id: str) -> tuple[Summary, ...]:
        """The kept summaries of a stream, oldest first; damaged ones are logged and left out."""
        ...

    def summarised_version(self, stream_id: str) -> Version:
        """The last version that a summary covers; 0 when there is none."""
        ...

    def save_summary(self, summary: Summary, *, after: Version) -> Summary:
        """Stores a summary and drops the oldest beyond ``summaries_kept``; gives it with the time of its making.

        Args:
            summary: Its events follow those of the newest summary.
            after: The last version that was summarised before; compared in the same step that stores.

        Raises:
            VersionConflictError: Somebody else has summarised meanwhile; nothing was stored. The same summary once
                more is no conflict, and is there once.
            StreamNotFoundError: The stream does not reach that far; it was deleted meanwhile.
        """
        ...

    def prune_summaries(self, stream_id: str) -> int:
        """Drops summaries older than ``summary_ttl``, but never the newest; gives how many."""
        ...

    def trim_before(self, stream_id: str, version: int) -> int:
        """Removes the events up to a version, inclusive; gives how many.

        Of an agent, events above its oldest kept snapshot stay, and all of them while it has none: recovery may need
        them. Versions go on as before. A repeat removes nothing more.
        """
        ...

    def streams(self) -> Mapping[str, Version]:
        """All streams with their last versions, sorted by id."""
        ...
