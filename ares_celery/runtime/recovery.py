"""Bringing an agent's state back: the newest good snapshot, then the events after it, all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ares_celery.agents.contract import Agent, Applier, Replayer, StatefulAgent
from ares_celery.errors import AresError, EventIntegrityError
from ares_celery.ids import AgentId, Version
from ares_celery.model.event import Event, ReadOptions, is_runtime_event
from ares_celery.model.snapshot import Snapshot
from ares_celery.store.base import Claimed, DamagedSnapshot, EventStore

__all__ = [
    "PAGE",
    "Recovered",
    "RecoverySource",
    "ReplayPolicy",
    "recover_agent_state",
    "recover_snapshot_or_events",
    "replayable",
]

log = logging.getLogger(__name__)
#: Events read in one round trip: bounds memory, and costs about one call a thousand events.
PAGE = 1000


class NewerStateError(AresError):
    """The stored state was written by newer code than this worker's; it is left for a worker that can read it."""

    code = "newer_state"
    template = "agent {agent_id!r} has state of schema {found}, this worker knows {known}"


class RecoverySource(Protocol):
    """What recovery reads."""

    @property
    def events(self) -> EventStore:
        """The streams."""
        ...

    def stored_snapshots(self, agent_id: AgentId) -> list[Snapshot | DamagedSnapshot]:
        """All kept snapshots, newest first."""
        ...


@dataclass(frozen=True, slots=True)
class ReplayPolicy:
    """How the events after the snapshot are handed over.

    Attributes:
        lifecycle: The runtime's own events are handed over too.
        newest: At most so many, the newest; 0 = all of them, whatever their number.
        forgive: A gap is logged and passed over instead of ending the recovery.
    """

    lifecycle: bool = False
    newest: int = 0
    forgive: bool = False


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery did.

    Attributes:
        snapshot: The one that was used.
        replayed: Events handed to the agent.
        damaged: Snapshots that had to be passed over.
    """

    snapshot: Snapshot | None
    replayed: int
    damaged: int


def replayable(event: Event, *, lifecycle: bool) -> bool:
    """The agent gets this event: its own, or with ``lifecycle`` also the runtime's."""
    return lifecycle or not is_runtime_event(event)


def recover_agent_state(
    source: RecoverySource, claimed: Claimed, agent: Agent, *, schema: int, policy: ReplayPolicy
) -> Recovered:
    """Gives a new instance the state that its events say.

    A damaged snapshot is passed over for an older one, at last for the events alone; a gap in the events is never
    papered over. An agent that neither folds events nor takes snapshots is left as it is.

    Raises:
        EventIntegrityError: Events are missing or damaged; field ``version`` says where.
        NewerStateError: The snapshot was written by newer code.
    """
    snapshot, damaged = _newest_good(source, claimed, agent)
    if snapshot is not None:
        if snapshot.schema > schema:
            raise NewerStateError(agent_id=claimed.record.spec.id, found=snapshot.schema, known=schema)
        assert isinstance(agent, StatefulAgent)  # noqa: S101 - a snapshot is only looked for when it is
        agent.restore_state(dict(snapshot.state))
    if not isinstance(agent, (Applier, Replayer)):
        return Recovered(snapshot, 0, damaged)
    after = snapshot.version if snapshot else Version(0)
    used_claim = not damaged and (snapshot is not None or claimed.snapshot is None)
    if policy.newest and claimed.record.version - after > policy.newest:
        skipped = claimed.record.version - policy.newest - after
        log.warning("agent %s: %d older events are not replayed (replay_overflow)", claimed.record.id, skipped)
        after, used_claim = Version(claimed.record.version - policy.newest), False
    events = _events(source, claimed, after, first_page=claimed.events if used_claim else None, forgive=policy.forgive)
    wanted = (event for event in events if replayable(event, lifecycle=policy.lifecycle))
    return Recovered(snapshot, _fold(agent, wanted), damaged)


def _fold(agent: Applier | Replayer, events: Iterable[Event]) -> int:
    if isinstance(agent, Applier):
        count = 0
        for count, event in enumerate(events, 1):  # noqa: B007 - the last count is the answer
            agent.apply(event)
        return count
    everything = tuple(events)
    agent.replay_events(everything)
    return len(everything)


def _newest_good(source: RecoverySource, claimed: Claimed, agent: Agent) -> tuple[Snapshot | None, int]:
    if not isinstance(agent, StatefulAgent) or claimed.snapshot is None:
        return None, 0
    if isinstance(claimed.snapshot, Snapshot):
        return claimed.snapshot, 0
    damaged = 0
    for stored in source.stored_snapshots(claimed.record.id):
        if isinstance(stored, Snapshot):
            return stored, damaged
        damaged += 1
        log.error("agent %s: a snapshot is damaged (%s); an older one is used", claimed.record.id, stored.problem)
    return None, damaged


def _events(
    source: RecoverySource, claimed: Claimed, after: Version, *, first_page: Sequence[Event] | None, forgive: bool
) -> Iterator[Event]:
    """Events with versions after ``after`` up to that of the claim, page by page, each checked for gaps."""
    agent_id, last = claimed.record.id, claimed.record.version
    position = after
    page = first_page if first_page is not None else _page(source, agent_id, position, last)
    while position < last:
        if not page:
            _on_gap(agent_id, position + 1, last, forgive=forgive)
            return
        for event in page:
            if event.version != position + 1:
                _on_gap(agent_id, position + 1, event.version - 1, forgive=forgive)
            position = event.version
            yield event
        page = _page(source, agent_id, position, last) if position < last else ()


def _on_gap(agent_id: AgentId, first: int, last: int, *, forgive: bool) -> None:
    if not forgive:
        raise EventIntegrityError(agent_id=agent_id, version=first, problem="events are missing")
    log.error("agent %s: events %d to %d are missing; recovery goes on (integrity=warn)", agent_id, first, last)


def _page(source: RecoverySource, agent_id: AgentId, position: int, last: int) -> tuple[Event, ...]:
    return source.events.read(agent_id, ReadOptions(from_version=position + 1, to_version=last, limit=PAGE))


class _Loads(Protocol):
    def load(self, agent_id: str, /) -> Any:  # noqa: ANN401 - a user's own store may give any mapping
        """The newest state, or nothing."""
        ...


def recover_snapshot_or_events(
    store: _Loads | None, agent_id: str, events_fn: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The seed's helper: the stored snapshot when there is a non-empty one, else what ``events_fn`` gives.

    A store that raises counts as having none, with a log line.

    Example:
        >>> recover_snapshot_or_events(None, "a", lambda: {"from": "events"})
        {'from': 'events'}
    """
    state: Any = None
    if store is not None:
        try:
            state = store.load(agent_id)
        except Exception:
            log.exception("agent %s: its snapshot could not be loaded; events are used", agent_id)
    return dict(state) if state else events_fn()
