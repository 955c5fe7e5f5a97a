"""Looking after long streams: the part of a Manager that compacts them."""

from __future__ import annotations

from ares_celery.agents.summariser import Summariser
from ares_celery.model.summary import Summary
from ares_celery.runtime.compaction import CompactionReport, Compactor
from ares_celery.runtime.queries import Ports

__all__ = ["StreamCare"]


class StreamCare:
    """Summaries of streams, on request; hosting processes make them by themselves."""

    _ports: Ports

    def compact(self, stream_id: str, *, summariser: Summariser | None = None) -> Summary | None:
        """Summarises the events of a stream that no summary covers yet, but for the newest ``compaction_keep``.

        Args:
            stream_id: Which stream; an agent's has its id.
            summariser: Writes the text; default the one that this process has registered, else the runtime's own.

        Returns:
            The new summary; None when no more than ``compaction_threshold`` events wait for one.

        Raises:
            InvalidSettingError: The summariser cannot work. AresError: The store's; compacting again is safe.
        """
        return self._compactor(summariser).compact(stream_id)

    def compact_all(self, *, summariser: Summariser | None = None) -> CompactionReport:
        """Compacts every stream that is due, those of no agent too; goes on past errors, which the report tells."""
        return self._compactor(summariser).compact_all()

    def _compactor(self, summariser: Summariser | None) -> Compactor:
        return Compactor(self._ports.store.events, self._ports.config, summariser=summariser)
