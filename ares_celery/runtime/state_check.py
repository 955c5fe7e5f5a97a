"""Would the stored states load into the code at hand? Tried on instances that are thrown away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ares_celery.agents.contract import StatefulAgent
from ares_celery.agents.registry import Registry
from ares_celery.errors import AresError, UnreadableRecordError
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentRecord
from ares_celery.model.command import Finding
from ares_celery.model.snapshot import Snapshot
from ares_celery.runtime.bounded import LOOKUP_LIMIT, BoundedCalls
from ares_celery.runtime.elsewhere import SnapshotsElsewhere
from ares_celery.runtime.recovery import StateCode, load_state
from ares_celery.store.base import DamagedSnapshot, Store

__all__ = ["StateCheck", "check_states"]

#: Where the namespace keeps its own.
_OWN = "namespace"


@dataclass(frozen=True, slots=True)
class StateCheck:
    """One stored state, and whether it would load.

    Attributes:
        agent_id: Whose.
        type: Its agent type.
        version: The last event that the state covers; None when nobody can tell.
        schema: Of the state; 0 when it was saved from outside.
        known: The schema of the code at hand; None when it does not know the type.
        place: ``namespace``, or the snapshot store of the user's own.
        problem: Why it would not load; empty when it would.
        tried: False when the code at hand does not know the type, so that nobody can tell.
    """

    agent_id: str
    type: str
    version: int | None
    schema: int | None
    known: int | None
    place: str
    problem: str = ""
    tried: bool = True

    @property
    def loads(self) -> bool:
        """It would load."""
        return not self.problem


def check_states(
    store: Store,
    registry: Registry,
    agent_ids: Iterable[AgentId],
    *,
    elsewhere: SnapshotsElsewhere | None = None,
    agent_type: str | None = None,
    limit: float = LOOKUP_LIMIT,
) -> Iterator[StateCheck]:
    """Tries every stored state: schema, upcasters, factory, ``restore_state``. Writes nothing, and replays nothing.

    Each try is made on a thread of its own; whatever the agent's code does, the next one is tried.

    Args:
        store: The namespace.
        registry: The code at hand.
        agent_ids: Whose states.
        elsewhere: A snapshot store of the user's own.
        agent_type: Only agents of this type.
        limit: Seconds that each try is given.
    """
    calls = BoundedCalls(limit)
    for agent_id in agent_ids:
        try:
            record = store.read(agent_id).record
        except UnreadableRecordError as error:
            yield StateCheck(agent_id, "?", None, None, None, _OWN, str(error))
            continue
        if record is None or agent_type not in (None, record.spec.type):
            continue
        for place, stored in _stored(store, record, elsewhere):
            yield _check(calls, registry, record, place, stored)


def _stored(
    store: Store, record: AgentRecord, elsewhere: SnapshotsElsewhere | None
) -> Iterator[tuple[str, Snapshot | DamagedSnapshot]]:
    for stored in store.stored_snapshots(record.id):
        yield _OWN, stored
    if elsewhere is None:
        return
    found: list[Finding] = []
    loaded = elsewhere.load(record, found)
    if loaded is not None:
        yield elsewhere.name, loaded
    elif found:
        yield elsewhere.name, DamagedSnapshot(str(found[-1].payload["problem"]), b"")


def _check(
    calls: BoundedCalls, registry: Registry, record: AgentRecord, place: str, stored: Snapshot | DamagedSnapshot
) -> StateCheck:
    known = registry.find(record.spec.type)
    schema = known.schema if known else None
    if isinstance(stored, DamagedSnapshot):
        return StateCheck(record.id, record.spec.type, None, None, schema, place, f"damaged: {stored.problem}")
    _, problem = calls.call(_try, registry, record, stored)
    return StateCheck(
        record.id, record.spec.type, stored.version, stored.schema, schema, place, problem, tried=known is not None
    )


def _try(registry: Registry, record: AgentRecord, snapshot: Snapshot) -> None:
    """Does what recovery does with the snapshot. Raises what recovery would."""
    spec = record.spec
    agent_type = registry.get(spec.type)
    code = StateCode(spec.type, agent_type.schema, agent_type.origin_of(spec), registry.upcasters)
    state = load_state(record.id, code, snapshot)
    agent = agent_type.create(spec)
    if not isinstance(agent, StatefulAgent):
        raise AresError(message="the agent has no restore_state, so the state would be ignored")
    if state:
        agent.restore_state(state)
