"""Agents that do not agree with the runtime's state: found also in shards that hear of a change late."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import AgentState, RuntimeState
from ares_celery.store.base import AgentRead
from ares_celery.supervision.reconcile import Reconciler
from tests.unit.supervision.fakes import ManualClock, record_of


class LateShard:
    """A namespace that has begun to run; the shard of its agents hears of it when a test says so."""

    def __init__(self, *agent_ids: str) -> None:
        self.ids = list(agent_ids)
        self.copied = 0
        self.looks = 0

    def runtime(self) -> Any:
        return SimpleNamespace(generation=1)

    def list_ids(self, states: Iterable[AgentState] | None = None) -> list[AgentId]:
        self.looks += 1
        return [AgentId(one) for one in self.ids]

    def read_many(self, agent_ids: Sequence[AgentId]) -> list[AgentRead]:
        state = RuntimeState.RUNNING if self.copied else RuntimeState.NEW
        records = [record_of(one, state=AgentState.REGISTERED) for one in agent_ids]
        return [AgentRead(record, Instant(1), state, self.copied, Instant(0)) for record in records]


class Launches:
    """Notes which agents were reconciled."""

    def __init__(self) -> None:
        self.ids: list[str] = []

    def apply(self, agent_id: AgentId, command: object, **_: object) -> Any:
        self.ids.append(agent_id)
        return SimpleNamespace(ignored="")


def test_agents_whose_shard_hears_late_of_a_start_are_launched_then() -> None:
    """Those looked at too early, and those that were made meanwhile; once all have heard, nobody looks again."""
    store, launches, clock = LateShard("early"), Launches(), ManualClock()
    reconciler = Reconciler(cast("Any", store), cast("Any", launches), clock=clock)
    for _ in range(3):
        reconciler.step()
        clock.advance(1.5)
    assert launches.ids == []
    store.ids.append("meanwhile")
    store.copied = 1
    for _ in range(4):
        reconciler.step()
        clock.advance(1.5)
    assert set(launches.ids) == {"early", "meanwhile"}
    looks = store.looks
    for _ in range(4):
        reconciler.step()
        clock.advance(1.5)
    assert store.looks == looks
