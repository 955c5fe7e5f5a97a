"""Snapshots in a store that a user brought along: checked on load, fenced on save, never trusted to be there."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from typing import Any, Final, cast

from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import AresError, FencedError
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model.agent import AgentRecord
from ares_celery.model.command import Finding
from ares_celery.model.event import RUNTIME_MODULE, EventType, NewEvent
from ares_celery.model.snapshot import Snapshot
from ares_celery.runtime.bounded import LOOKUP_LIMIT, BoundedCalls
from ares_celery.runtime.wrapped_state import unwrap_state, wrap_state
from ares_celery.store.base import AsyncIncarnationStore, DamagedSnapshot, EventStore, SnapshotStore, Store

__all__ = ["AsyncSavesElsewhere", "SavesElsewhere", "SnapshotsElsewhere", "saved_elsewhere"]

log = logging.getLogger(__name__)
#: Seconds for which a store that failed to save is not asked again.
_REST: Final = 30.0
#: Agents whose last problem is remembered, so that it is said once.
_MOST_REMEMBERED: Final = 10_000


class SnapshotsElsewhere:
    """Calls somebody's snapshot store for a limited time, and says what it did wrong; safe to share between threads."""

    def __init__(
        self, store: SnapshotStore, events: EventStore, *, limit: float = LOOKUP_LIMIT, clock: Clock | None = None
    ) -> None:
        """Binds the store; nothing is called yet.

        Args:
            store: The user's.
            events: Where failures to save are said.
            limit: Seconds that each call may take.
            clock: Injected in tests.
        """
        self.name = f"{type(store).__module__}.{type(store).__qualname__}"
        self._store = store
        self._events = events
        self._calls = BoundedCalls(limit)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._resting: tuple[float, str] = (0.0, "")
        self._said: dict[str, str] = {}

    # -- loading ----------------------------------------------------------------------------------------------------

    def load(self, record: AgentRecord, found: list[Finding]) -> Snapshot | DamagedSnapshot | None:
        """The newest state there, if it can be used.

        A mapping that this runtime did not save counts as the state at the agent's newest event. One that an older
        incarnation has put over a newer state, and one that is ahead of the agent's events, is not used.
        """
        answer, problem = self._calls.call(self._read, record.spec.id)
        if problem or answer is None:
            if problem:
                self._say(problem, found)
            return None
        given, snapshot = answer
        if isinstance(given, str):
            self._say(given, found)
            return None
        if snapshot is None:
            self._say(f"its state is a foreign one; it counts as that of version {record.version}", found)
            return Snapshot(given, record.version, Epoch(0), 0, Instant(0))
        problem = _unusable(snapshot, record) if isinstance(snapshot, Snapshot) else ""
        if problem:
            self._say(problem, found)
            return None
        return snapshot

    def _read(self, agent_id: str) -> tuple[dict[str, Any] | str, Snapshot | DamagedSnapshot | None] | None:
        """What is there, read on the call's own thread, as a mapping of somebody's own may be anything; or why not."""
        given = cast("object", self._store.load(agent_id))
        if given is None:
            return None
        if not isinstance(given, Mapping):
            return f"it returned a {type(given).__name__}, not a mapping", None
        state = dict(cast("Mapping[str, Any]", given))
        return (state, unwrap_state(state)) if state else None

    def _say(self, problem: str, found: list[Finding]) -> None:
        log.error("snapshot store %s: load: %s", self.name, problem)
        payload = {"part": "snapshot_store", "name": self.name, "operation": "load", "problem": problem}
        found.append(Finding(EventType.RECOVERY_DEGRADED, payload, "snapshot_store_failures"))

    # -- saving -----------------------------------------------------------------------------------------------------

    def save(self, agent_id: AgentId, wrapped: Mapping[str, Any]) -> str:
        """Saves a state; returns what went wrong, empty when it is safe."""
        with self._lock:
            until, problem = self._resting
            if problem and self._clock.monotonic() < until:
                return problem
        _, problem = self._calls.call(self._store.save, agent_id, wrapped)
        with self._lock:
            self._resting = (self._clock.monotonic() + _REST, problem)
        return problem

    def say_failed(self, agent_id: AgentId, problem: str) -> None:
        """Says by an event that the namespace has the state instead; once for each agent and problem."""
        with self._lock:
            if self._said.get(agent_id) == problem:
                return
            if len(self._said) >= _MOST_REMEMBERED:
                self._said.clear()
            self._said[agent_id] = problem
        log.error(
            "snapshot store %s: save: %s; the namespace keeps the state of agent %s", self.name, problem, agent_id
        )
        payload = {
            "agent_id": agent_id,
            "problem": f"snapshot store {self.name}: {problem}",
            "kept_in": "the namespace",
        }
        try:
            said = NewEvent(EventType.SNAPSHOT_FAILED, payload, {"module": RUNTIME_MODULE})
            self._events.append(agent_id, [said])
        except AresError as error:
            log.warning("agent %s: it could not be said that its snapshot failed elsewhere: %s", agent_id, error)

    def clear_failed(self, agent_id: AgentId) -> None:
        """A state is safe again: the same problem would be news."""
        with self._lock:
            self._said.pop(agent_id, None)


def _unusable(snapshot: Snapshot, record: AgentRecord) -> str:
    """Why a whole state of ours is not the one to go on from; empty when it is."""
    if snapshot.version > record.version:
        return f"its state is of version {snapshot.version}, the agent's last event of {record.version}"
    version, epoch = saved_elsewhere(record)
    if (snapshot.epoch, snapshot.version) < (epoch, version):
        return "an older incarnation has put its state over a newer one"
    if not record.state_saved and snapshot.epoch < record.created_at:
        return "its state is that of an agent of the same id that was deleted"
    return ""


def saved_elsewhere(record: AgentRecord) -> tuple[int, int]:
    """Version and epoch of the newest state that is known to be safe in a store of the user's own; zeros: none."""
    version, bar, epoch = record.state_saved.partition("|")
    return (int(version), int(epoch)) if bar else (0, 0)


class _Saving:
    """One state on its way."""

    def __init__(self, agent_id: AgentId, fence: str, state: Mapping[str, Any], about: Snapshot) -> None:
        self.agent_id, self.fence, self.about = agent_id, fence, about
        self.wrapped = wrap_state(agent_id, state, about)

    @property
    def saved(self) -> str:
        return f"{self.about.version}|{self.about.epoch}"


def _about(agent_id: AgentId, fence: str, version: Version, schema: int, origin: str) -> Snapshot:
    epoch, bar, _ = fence.partition("|")
    if not bar:
        raise FencedError(agent_id=agent_id, epoch=epoch)
    return Snapshot({}, version, Epoch(int(epoch)), schema, Instant(0), origin)


class SavesElsewhere:
    """A store whose ``save_snapshot`` goes elsewhere, and into the namespace when that fails; all else is the store's.

    The fence is shown before a state is saved, and after: what an older incarnation saves late is known to be old.
    """

    def __init__(self, store: Store, elsewhere: SnapshotsElsewhere) -> None:
        """Wraps a store."""
        self._store = store
        self._elsewhere = elsewhere

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        """Everything else."""
        return getattr(self._store, name)

    def save_snapshot(
        self,
        agent_id: AgentId,
        fence: str,
        state: Mapping[str, Any],
        *,
        version: Version,
        schema: int,
        origin: str = "",
    ) -> None:
        """See :meth:`~ares_celery.store.base.IncarnationStore.save_snapshot`."""
        saving = _Saving(agent_id, fence, state, _about(agent_id, fence, version, schema, origin))
        self._store.note_state(agent_id, fence, origin=origin, schema=schema)
        problem = self._elsewhere.save(agent_id, saving.wrapped)
        if not problem:
            self._store.note_state(agent_id, fence, origin=origin, schema=schema, saved=saving.saved)
            self._elsewhere.clear_failed(agent_id)
            return
        self._store.save_snapshot(agent_id, fence, state, version=version, schema=schema, origin=origin)
        self._elsewhere.say_failed(agent_id, problem)


class AsyncSavesElsewhere:
    """The same for agents on an event loop: the user's store is called on a thread."""

    def __init__(self, store: AsyncIncarnationStore, elsewhere: SnapshotsElsewhere) -> None:
        """Wraps a store."""
        self._store = store
        self._elsewhere = elsewhere

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        """Everything else."""
        return getattr(self._store, name)

    async def save_snapshot(
        self,
        agent_id: AgentId,
        fence: str,
        state: Mapping[str, Any],
        *,
        version: Version,
        schema: int,
        origin: str = "",
    ) -> None:
        """See :meth:`~ares_celery.store.base.IncarnationStore.save_snapshot`."""
        saving = _Saving(agent_id, fence, state, _about(agent_id, fence, version, schema, origin))
        await self._store.note_state(agent_id, fence, origin=origin, schema=schema)
        problem = await asyncio.to_thread(self._elsewhere.save, agent_id, saving.wrapped)
        if not problem:
            await self._store.note_state(agent_id, fence, origin=origin, schema=schema, saved=saving.saved)
            self._elsewhere.clear_failed(agent_id)
            return
        await self._store.save_snapshot(agent_id, fence, state, version=version, schema=schema, origin=origin)
        await asyncio.to_thread(self._elsewhere.say_failed, agent_id, problem)
