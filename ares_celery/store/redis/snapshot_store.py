"""The newest state of an agent in Redis, behind the port that a user may implement otherwise."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from ares_celery.ids import Epoch, Version
from ares_celery.store.base import DamagedSnapshot
from ares_celery.store.redis import event_calls, namespace_calls, state_calls
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.stored_snapshots import encode_snapshot, encode_state

__all__ = ["RedisSnapshotStore"]

_log: Final = logging.getLogger(__name__)


class RedisSnapshotStore(Part):
    """Implements :class:`~ares_celery.store.base.SnapshotStore`, on the same snapshots that incarnations save."""

    def save(self, agent_id: str, state: Mapping[str, Any]) -> None:
        """Stores a copy as the state at the stream's newest version; the last write wins. Nothing is not stored.

        Raises:
            UnserialisableError, SnapshotTooLargeError: The previous one stays.
        """
        if not agent_id or not state:
            return
        bound = self._bound
        version = Version(max(bound.client.run_many(event_calls.read_version(bound.keys, stream_id=agent_id))))
        encoded = encode_state(agent_id, state, version=version, epoch=Epoch(0), schema=0)
        now = bound.client.run(namespace_calls.server_time())
        bound.client.run(
            state_calls.save_snapshot(
                bound.keys,
                agent_id=agent_id,
                fence=None,
                state=encoded,
                blob=encode_snapshot(encoded, now),
                kept=bound.config.snapshots_kept,
            )
        )

    def load(self, agent_id: str) -> Mapping[str, Any] | None:
        """The newest state that is intact; None when there is none."""
        for snapshot in self._bound.client.run(state_calls.read_snapshots(self._bound.keys, agent_id=agent_id)):
            if not isinstance(snapshot, DamagedSnapshot):
                return snapshot.state
            _log.warning("a snapshot of agent %s is damaged (%s); an older one is used", agent_id, snapshot.problem)
        return None

    def delete(self, agent_id: str) -> None:
        """Forgets all of them; of nothing is no error."""
        self._bound.client.run(state_calls.delete_snapshots(self._bound.keys, agent_id=agent_id))
