"""The port through which one agent's history is copied to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ares_celery.ids import AgentId, Epoch, Version
from ares_celery.model.fork import ForkMark
from ares_celery.model.snapshot import Snapshot

__all__ = ["ForkCopy", "ForkStore"]


@dataclass(frozen=True, slots=True)
class ForkCopy:
    """One history on its way.

    Attributes:
        source: Whose; only read.
        target: The fork.
        epoch: Of the fork's record; each write demands it, and that the fork is not whole yet.
        needed_after: Events after this version are what the fork's state is made of: none of them may be missing.
        elsewhere: Version of a state of the source that the namespace does not have, so cannot copy; 0: there is none.
        accepted: What is missing or damaged up to this version is accepted.
    """

    source: AgentId
    target: AgentId
    epoch: Epoch
    needed_after: Version = Version(0)
    elsewhere: Version = Version(0)
    accepted: Version = Version(0)


class ForkStore(Protocol):
    """Copies what is stored as it is stored, byte by byte. Every step may be repeated, by several callers at once."""

    def first_version(self, agent_id: AgentId) -> Version:
        """Version of the oldest event that is kept; 0 when none is."""
        ...

    def copy_snapshot(self, copy: ForkCopy, mark: ForkMark, snapshot: Snapshot) -> None:
        """Gives the fork its first snapshot, unless it has one, or the source does not have this one any more.

        Raises:
            VersionConflictError: It is no such fork any more.
        """
        ...

    def copy_events(self, copy: ForkCopy, mark: ForkMark) -> ForkMark:
        """Copies the next events; returns how far the copying is now, by whomever.

        Raises:
            EventIntegrityError: Needed events are missing or damaged; field ``version`` says where.
            VersionConflictError: It is no such fork any more, or somebody else's events are in its stream.
        """
        ...
