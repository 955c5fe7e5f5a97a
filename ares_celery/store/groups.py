"""The port for supervision groups: each a record in a home shard of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Protocol

from ares_celery.errors import AresError
from ares_celery.ids import Instant
from ares_celery.model.audit import AuditNote
from ares_celery.model.group import Group

__all__ = ["GroupConflict", "GroupRead", "GroupStore", "NextStep"]


class GroupConflict(AresError):
    """The group changed since it was read: read again, decide again."""

    code = "group_conflict"
    template = "group {name!r} changed while it was decided on; decide again"


class NextStep(Enum):
    """What becomes of the group's deadline, where no time is given."""

    #: It stays as it is.
    KEEP = "keep"
    #: There is nothing to do for the group.
    NONE = "none"


@dataclass(frozen=True, slots=True)
class GroupRead:
    """One atomic read of a group.

    Attributes:
        group: None when it does not exist.
        revision: What a commit demands; empty when it does not exist.
        now: Redis TIME of the read.
        steady: The same without the steps of the clock: the time that groups are told in.
        problem: Why what is stored cannot be read as a group; empty when it can.
    """

    group: Group | None
    revision: str
    now: Instant
    steady: int
    problem: str = ""


class GroupStore(Protocol):
    """Groups, their members, and how far a restart of them came."""

    def read_group(self, name: str, *, damaged_too: bool = False) -> GroupRead:
        """Reads a group and Redis TIME in one atomic call; never raises for one that does not exist.

        Args:
            name: Of the group.
            damaged_too: Answer with a problem instead of raising.

        Raises:
            UnreadableGroupError: What is stored is no group that this version can read.
        """
        ...

    def commit_group(  # noqa: PLR0913 - the parts of one write
        self,
        name: str,
        after: Group | None,
        read: GroupRead,
        *,
        op: str,
        next_step: timedelta | NextStep = NextStep.KEEP,
        counters: Mapping[str, int] | None = None,
        note: AuditNote | None = None,
    ) -> None:
        """Writes a group as it was decided on ``read``, in one atomic step; None deletes it.

        Args:
            name: Of the group.
            after: The group as it shall be.
            read: Its revision is demanded.
            op: Operation id; remembered for an hour.
            next_step: In how long the sweep looks at the group, by the deadline ``group|@<name>``.
            counters: Namespace counters to raise.
            note: For the audit stream.

        Raises:
            GroupConflict: It has changed; nothing was written.
        """
        ...

    def group_names(self) -> list[str]:
        """The names of all groups, sorted."""
        ...
