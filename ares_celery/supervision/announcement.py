"""What a worker tells a namespace of itself, again whenever the namespace has forgotten all."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from ares_celery.ids import Instant
from ares_celery.model.agent import RuntimeState
from ares_celery.store.base import NamespaceAdmin

__all__ = ["Announcement"]

log: Final = logging.getLogger(__name__)


class Announcement:
    """Makes a namespace run that hosts agents for the first time, also after its server lost all data.

    Args:
        store: The namespace.
        worker: The node name of this process's worker.
        types: The agent types that it can host, each with its factory's parameters.
    """

    def __init__(
        self, store: NamespaceAdmin, worker: str, types: Callable[[], Mapping[str, Mapping[str, Any]]]
    ) -> None:
        self._store = store
        self._worker = worker
        self._types = types
        self._made_at: Instant | None = None

    def look(self) -> None:
        """Announces this worker if it has not done so since the namespace was made.

        Raises:
            StoreUnavailableError: The store did not answer; the next look tries again.
            NamespaceMismatchError: Somebody has made the namespace anew with another layout: restart this worker.
        """
        made_at = self._store.reopen()
        if made_at == self._made_at:
            return
        if self._made_at is not None:
            log.critical(
                "the store lost all data of namespace %r, agents and their histories included; it is made anew and "
                "runs. Restore a backup of Redis while all workers are stopped, or start the agents again",
                self._store.namespace,
            )
        self._store.report_types(self._types())
        self._store.set_runtime(
            RuntimeState.RUNNING,
            only_from=(RuntimeState.NEW,),
            reason="first agents worker of the namespace",
            actor=self._worker,
        )
        self._made_at = made_at
