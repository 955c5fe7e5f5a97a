"""Bringing an agent's state back: the newest good snapshot, then the events after it, all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ares_celery.agents.contract import Agent, Applier, Replayer, StatefulAgent
from ares_celery.agents.upcasting import Upcasters
from ares_celery.errors import EventIntegrityError, NewerStateError, SnapshotStoreError
from ares_celery.ids import AgentId, Version
from ares_celery.model.agent import AgentRecord
from ares_celery.model.command import Finding
from ares_celery.model.event import Event, EventType, is_runtime_event
from ares_celery.model.snapshot import Snapshot, changed_since
from ares_celery.runtime.cognition import SESSION_CREATED, Cognition, build_cognitive_state
from ares_celery.runtime.elsewhere import SnapshotsElsewhere, saved_elsewhere
from ares_celery.runtime.replay import History, Patience, ReplayPolicy, at_once, replay_events, replayable
from ares_celery.store.base import Claimed, DamagedSnapshot, EventReader

__all__ = [
    "Recovered",
    "Recovery",
    "RecoverySource",
    "StateCode",
    "load_state",
    "recover_agent_state",
    "recover_snapshot_or_events",
]

log = logging.getLogger(__name__)


class RecoverySource(Protocol):
    """What recovery reads, and where it puts damaged snapshots."""

    @property
    def events(self) -> EventReader:
        """The streams."""
        ...

    def stored_snapshots(self, agent_id: AgentId) -> list[Snapshot | DamagedSnapshot]:
        """All kept snapshots, newest first."""
        ...

    def set_aside(
        self, agent_id: AgentId, fence: str, damaged: Sequence[DamagedSnapshot], *, copies: bool = False
    ) -> int:
        """Keeps damaged snapshots from being pushed out by later ones."""
        ...


_NO_UPCASTERS: Final = Upcasters()


@dataclass(frozen=True, slots=True)
class StateCode:
    """The code that a state is for.

    Attributes:
        type: The agent type.
        schema: The state schema that it knows.
        origin: See :func:`~ares_celery.model.snapshot.state_origin`.
        upcasters: Bring older states to that schema.
    """

    type: str
    schema: int = 1
    origin: str = ""
    upcasters: Upcasters = _NO_UPCASTERS


@dataclass(slots=True)
class Recovery:
    """One try to recover one agent.

    Attributes:
        source: Where its state is.
        claimed: What the claim gave.
        code: The code at hand.
        policy: How events are handed over.
        patience: How calls of the store are made.
        cognition: Asked for its conversation when there is no snapshot.
        elsewhere: A snapshot store of the user's own.
        found: Gets what people should know, also of a try that fails.
    """

    source: RecoverySource
    claimed: Claimed
    code: StateCode
    policy: ReplayPolicy = field(default_factory=ReplayPolicy)
    patience: Patience = at_once
    cognition: Cognition | None = None
    elsewhere: SnapshotsElsewhere | None = None
    found: list[Finding] = field(default_factory=list[Finding])

    @property
    def agent_id(self) -> AgentId:
        """Whose."""
        return self.claimed.record.id


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


def recover_agent_state(recovery: Recovery, agent: Agent) -> Recovered:
    """Gives a new instance the state that its events say.

    A damaged snapshot is passed over for an older one, at last for the events alone; a gap in the events is never
    papered over, unless somebody has accepted the loss. Without any snapshot the agent gets what is known of its
    conversation. An agent that neither folds events nor takes snapshots is left as it is.

    Raises:
        EventIntegrityError: Events are missing or damaged, or every snapshot of an agent that folds none; field
            ``version`` says where.
        NewerStateError: The snapshot was written by newer code.
        StateUpcastError: It was written by older code, and cannot be brought to the schema of this one.
        SnapshotStoreError: The only state is in a store that does not give it.
    """
    record, folds = recovery.claimed.record, isinstance(agent, (Applier, Replayer))
    history = History(
        recovery.source.events,
        recovery.agent_id,
        record.version,
        forgiven=record.version if recovery.policy.forgive else record.accepted_version,
        patience=recovery.patience,
    )
    snapshot, damaged = None, 0
    if isinstance(agent, StatefulAgent):
        snapshot, damaged = _choose(recovery, folds=folds)
        if snapshot is not None:
            state = load_state(recovery.agent_id, recovery.code, snapshot, recovery.found)
        else:
            session = _session(recovery, history)
            state = build_cognitive_state(recovery.agent_id, session, recovery.cognition, recovery.found)
        if state:
            agent.restore_state(state)
    replayed = 0
    if isinstance(agent, (Applier, Replayer)):
        events = _events(recovery, history, snapshot)
        wanted = (event for event in events if replayable(event, lifecycle=recovery.policy.lifecycle))
        replayed = replay_events(agent, wanted)
        recovery.found.extend(history.findings())
    return Recovered(snapshot, replayed, damaged)


# -- the snapshot -----------------------------------------------------------------------------------------------------


def _choose(recovery: Recovery, *, folds: bool) -> tuple[Snapshot | None, int]:
    """The newest good snapshot, here or elsewhere; and how many were damaged."""
    own, damaged = _newest_good(recovery)
    other = _from_elsewhere(recovery)
    chosen = _newer(own, other, recovery.claimed.record)
    if not folds and (chosen is None or chosen is not other):
        _refuse_lost_state(recovery, chosen, damaged)
        if chosen is None and recovery.claimed.record.begin_anew:
            _say_state_lost(recovery)
    if damaged:
        # Only now: what is the last trace of a state stays in its place.
        recovery.patience(lambda: recovery.source.set_aside(recovery.agent_id, recovery.claimed.record.fence, damaged))
    return chosen, len(damaged)


def _newer(own: Snapshot | None, other: Snapshot | None, record: AgentRecord) -> Snapshot | None:
    """The one to go on from; of two of one event the one elsewhere when it is noted as safe, so was saved later."""
    if own is None or other is None:
        return own or other
    if _age(own) == _age(other):
        return other if saved_elsewhere(record) == _age(other) else own
    return max(own, other, key=_age)


def _age(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.version, snapshot.epoch


def _newest_good(recovery: Recovery) -> tuple[Snapshot | None, list[DamagedSnapshot]]:
    newest = recovery.claimed.snapshot
    if newest is None or isinstance(newest, Snapshot):
        return newest, []
    damaged: list[DamagedSnapshot] = []
    for stored in recovery.patience(lambda: recovery.source.stored_snapshots(recovery.agent_id)):
        if isinstance(stored, Snapshot):
            return stored, damaged
        _say_damaged(recovery, stored, "namespace")
        damaged.append(stored)
    return None, damaged


def _say_damaged(recovery: Recovery, damaged: DamagedSnapshot, place: str) -> None:
    log.error("agent %s: a snapshot is damaged (%s); an older one is used", recovery.agent_id, damaged.problem)
    payload = {"problem": damaged.problem, "bytes": len(damaged.raw), "place": place}
    recovery.found.append(Finding(EventType.SNAPSHOT_DAMAGED, payload, "snapshots_damaged"))


def _say_state_lost(recovery: Recovery) -> None:
    accepted = recovery.claimed.record.accepted_version
    log.error("agent %s: its snapshots are lost, which was accepted; it begins from nothing", recovery.agent_id)
    lost = {"kind": "state", "from_version": 1, "to_version": accepted}
    recovery.found.append(
        Finding(EventType.INTEGRITY_VIOLATED, {"count": 1, "violations": [lost]}, "integrity_violations")
    )


def _from_elsewhere(recovery: Recovery) -> Snapshot | None:
    if recovery.elsewhere is None:
        return None
    loaded = recovery.elsewhere.load(recovery.claimed.record, recovery.found)
    if isinstance(loaded, DamagedSnapshot):
        _say_damaged(recovery, loaded, recovery.elsewhere.name)
        copy, fence = loaded, recovery.claimed.record.fence
        recovery.patience(lambda: recovery.source.set_aside(recovery.agent_id, fence, [copy], copies=True))
        return None
    return loaded


def _refuse_lost_state(recovery: Recovery, chosen: Snapshot | None, damaged: Sequence[DamagedSnapshot]) -> None:
    """An agent whose only state is its snapshots begins neither from nothing nor from less than is known to be safe."""
    record, elsewhere = recovery.claimed.record, recovery.elsewhere
    if chosen is None and damaged and not record.begin_anew:
        raise EventIntegrityError(
            agent_id=recovery.agent_id,
            version=record.version,
            problem=f"all {len(damaged)} snapshots are damaged, and the agent folds no events",
        )
    if not record.state_saved or (chosen is not None and not _is_older(chosen, saved_elsewhere(record))):
        return
    what = "it does not give it" if elsewhere is not None else "this process has no snapshot store but the namespace's"
    raise SnapshotStoreError(
        operation="load",
        store=elsewhere.name if elsewhere is not None else "of the user's own",
        agent_id=recovery.agent_id,
        problem=f"it has the newest state, as the agent folds no events, and {what}; to do without, delete the "
        "agent's snapshots in the namespace",
    )


def _is_older(chosen: Snapshot, safe: tuple[int, int]) -> bool:
    """Also of the same event, as nothing was kept here since; what was saved from outside has no epoch."""
    return chosen.version < safe[0] or (chosen.version == safe[0] and 0 < chosen.epoch <= safe[1])


def load_state(
    agent_id: AgentId, code: StateCode, snapshot: Snapshot, found: list[Finding] | None = None
) -> dict[str, Any]:
    """The snapshot's state as the code at hand wants it; says when it was taken by other code or for another config.

    Raises:
        NewerStateError, StateUpcastError.
    """
    changed = changed_since(snapshot.origin, code.origin)
    upcasts = 0 < snapshot.schema < code.schema and "type" not in changed
    if found is not None and (changed or upcasts):
        log.warning("agent %s: its snapshot was taken with another %s", agent_id, ", ".join(changed) or "schema")
        payload: dict[str, Any] = {
            "changed": [*changed, *(["schema"] if upcasts else [])],
            "snapshot_version": snapshot.version,
        }
        if upcasts:
            payload.update(from_schema=snapshot.schema, to_schema=code.schema)
        found.append(Finding(EventType.AGENT_CONFIG_CHANGED, payload, "config_changes"))
    if "type" in changed:
        return dict(snapshot.state)
    if snapshot.schema > code.schema:
        raise NewerStateError(agent_id=agent_id, type=code.type, found=snapshot.schema, known=code.schema)
    if not upcasts:
        return dict(snapshot.state)
    return code.upcasters.upcast(
        snapshot.state, agent_id=agent_id, agent_type=code.type, found=snapshot.schema, wanted=code.schema
    )


# -- the events -------------------------------------------------------------------------------------------------------


def _events(recovery: Recovery, history: History, snapshot: Snapshot | None) -> Iterator[Event]:
    """The events after the snapshot; with ``replay_overflow`` newest the last of them alone, and that is said."""
    claimed, newest = recovery.claimed, recovery.policy.newest
    after = snapshot.version if snapshot else Version(0)
    first_page = claimed.events if snapshot is claimed.snapshot else None
    skipped = claimed.record.version - after - newest
    if newest and skipped > 0:
        log.warning("agent %s: %d older events are not replayed (replay_overflow)", recovery.agent_id, skipped)
        after, first_page = Version(after + skipped), None
        payload = {"skipped": skipped, "kept": newest, "from_version": after + 1}
        recovery.found.append(Finding(EventType.REPLAY_TRUNCATED, payload, "replays_truncated"))
    return history.after(after, first_page)


def _session(recovery: Recovery, history: History) -> str | None:
    """The session that the agent's own events name last."""
    claimed = recovery.claimed
    if not claimed.record.version:
        return None
    if claimed.snapshot is None and not claimed.more:
        own = [event for event in claimed.events if event.type == SESSION_CREATED and not is_runtime_event(event)]
        event = own[-1] if own else None
    else:
        try:
            event = history.newest_of(SESSION_CREATED)
        except EventIntegrityError as error:
            # The replay comes to the same place, and decides what it means.
            log.warning("agent %s: its session is not known: %s", recovery.agent_id, error)
            return None
    session: object = event.payload.get("session_id") if event else None
    return session if isinstance(session, str) and session else None


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
