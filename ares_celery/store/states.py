"""The ports to stored states: the seed's, which a user may implement otherwise, and the namespace's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

from ares_celery.ids import AgentId
from ares_celery.model.snapshot import Snapshot
from ares_celery.store.values import DamagedSnapshot

__all__ = ["NO_SCHEMAS", "KeptSnapshots", "SnapshotStore"]

#: A claimer that knows of no schema is refused none.
NO_SCHEMAS: Final[Mapping[str, int]] = MappingProxyType({})


class SnapshotStore(Protocol):
    """The seed's port: the newest state of an agent. A user may bring another one."""

    def save(self, agent_id: str, state: Mapping[str, Any]) -> None:
        """Stores a deep copy; the last write wins."""
        ...

    def load(self, agent_id: str) -> Mapping[str, Any] | None:
        """The newest state that is intact; None when there is none."""
        ...

    def delete(self, agent_id: str) -> None:
        """Forgets; of nothing is no error."""
        ...


class KeptSnapshots(Protocol):
    """The snapshots that incarnations took, with all that is known of them."""

    def stored_snapshots(self, agent_id: AgentId) -> list[Snapshot | DamagedSnapshot]:
        """All kept snapshots, newest first, damaged ones included."""
        ...

    def set_aside(
        self, agent_id: AgentId, fence: str, damaged: Sequence[DamagedSnapshot], *, copies: bool = False
    ) -> int:
        """Moves damaged snapshots where later ones do not push them out; returns how many. Raises FencedError.

        A few are kept, the newest; :meth:`damaged_snapshots` shows them, only delete removes them. ``copies`` come from
        a store of the user's own, and are added once.
        """
        ...

    def damaged_snapshots(self, agent_id: AgentId) -> list[DamagedSnapshot]:
        """The damaged snapshots that recoveries have set aside, newest first."""
        ...
