"""The port for what is known of a namespace as a whole: registered DAGs, and who did what last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ares_celery.ids import Instant
from ares_celery.model.audit import AuditNote
from ares_celery.model.introspection import Activity
from ares_celery.store.checkpoints import CheckpointAccess

__all__ = ["Introspection"]


class Introspection(CheckpointAccess, Protocol):
    """DAGs by key, executions, and the parts of a snapshot of the runtime that no other port knows."""

    def put_dag(self, key: str, value: object, *, note: AuditNote) -> None:
        """Stores a JSON value under a key, in place of what was there; a change is noted in the audit stream.

        Raises:
            DagRefusedError: The key or the value cannot be stored; what was there stays.
        """
        ...

    def dag(self, key: str) -> Any:  # noqa: ANN401 - JSON
        """The value under a key; None when there is none."""
        ...

    def dag_keys(self) -> Sequence[str]:
        """The keys that have a DAG, sorted."""
        ...

    def number_snapshot(self) -> tuple[int, Instant]:
        """The number of the next snapshot of the runtime, greater than every earlier one, and Redis TIME."""
        ...

    def activity(self, *, limit: int) -> Sequence[Activity]:
        """The last events of all agents, newest first."""
        ...
