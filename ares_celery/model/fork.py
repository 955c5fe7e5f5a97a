"""A fork: a new agent that begins with the history of another one, up to some version. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from typing_extensions import override

from ares_celery.errors import ForkVersionError
from ares_celery.ids import AgentId, Instant, Version
from ares_celery.model.snapshot import Snapshot

__all__ = ["ForkMark", "ForkOrigin", "demand_restorable", "first_restorable", "snapshot_for"]


@dataclass(frozen=True, slots=True)
class ForkOrigin:
    """Where the history of a fork comes from.

    Attributes:
        source: The agent it is forked from.
        at: The last event that both have.
        born: When the source was made: an agent of the same id that is made later is another one.

    Example:
        >>> str(ForkOrigin(AgentId("counter-1"), Version(42), Instant(7)))
        'counter-1|42|7'
        >>> ForkOrigin.parse("counter-1|42|7").at
        42
    """

    source: AgentId
    at: Version
    born: Instant

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what a record says."""
        source, at, born = text.split("|")
        return cls(AgentId(source), Version(int(at)), Instant(int(born)))

    @override
    def __str__(self) -> str:
        """As a record holds it."""
        return f"{self.source}|{self.at}|{self.born}"


@dataclass(frozen=True, slots=True)
class ForkMark:
    """How far the copying of a fork's history is; each page that is written demands the mark as it was read.

    Attributes:
        at: The last version that belongs to it.
        copied: All that the source has up to this version is there.

    Example:
        >>> ForkMark.parse("42|10").copied, str(ForkMark(Version(42), Version(0)))
        (10, '42|0')
    """

    at: Version
    copied: Version = Version(0)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what a record says."""
        at, _, copied = text.partition("|")
        return cls(Version(int(at)), Version(int(copied)))

    @override
    def __str__(self) -> str:
        """As a record holds it."""
        return f"{self.at}|{self.copied}"


def snapshot_for(at: int, snapshots: Iterable[Snapshot]) -> Snapshot | None:
    """The newest snapshot that covers nothing after a version; None when there is none."""
    return max(
        (one for one in snapshots if one.version <= at),
        key=lambda one: (one.version, one.epoch, one.time),
        default=None,
    )


def first_restorable(first_event: int, version: int, snapshots: Iterable[Snapshot]) -> int | None:
    """The lowest version whose state can still be brought back; None when no version's can.

    Args:
        first_event: Version of the oldest event that is kept; 0: none is.
        version: The stream's last version.
        snapshots: Those that are intact.

    Example:
        >>> first_restorable(1, 9, []), first_restorable(5, 9, [])
        (0, None)
    """
    if first_event == 1 or version == 0:
        return 0
    oldest = first_event - 1 if first_event else version
    return min((one.version for one in snapshots if one.version >= oldest), default=None)


def demand_restorable(source: AgentId, at: int, version: int, first: int | None) -> None:
    """Refuses a version that the source has not reached, or whose state nothing brings back any more.

    Raises:
        ForkVersionError: Names the lowest and the highest possible version.
    """
    if first is not None and first <= at <= version:
        return
    if first is None:
        problem = (
            "its older events are gone and no intact snapshot stands in for them, so no version of it can be restored"
        )
    elif at > version:
        problem = f"it has not got there; its newest version is {version}, the lowest possible is {first}"
    else:
        problem = f"its events from there on were trimmed; the lowest possible version is {first}, the newest {version}"
    raise ForkVersionError(agent_id=source, at=at, lowest=first, newest=version, problem=problem)
