"""What a sweep with nothing due costs, by how many agents are registered."""

from __future__ import annotations

import time
from dataclasses import dataclass

from ares_celery import AgentSpec
from ares_celery.config import ProcessSettings, RuntimeConfig
from ares_celery.ids import AgentId
from ares_celery.model.command import Register
from ares_celery.model.plan import Nudge
from ares_celery.runtime.commits import Committer
from ares_celery.store.redis.open import open_store
from ares_celery.supervision.sweep import Sweeper
from bench.figures import Spread, spread
from tests.redis_server import RedisServer

__all__ = ["SweepGrowth", "sweep_growth"]


class _Nobody:
    def launch(self, nudge: Nudge) -> None:
        """Sends nothing: nothing is started here."""

    def waiting(self, queue: str | None) -> int | None:
        """Nothing waits anywhere."""
        return 0


@dataclass(frozen=True, slots=True)
class SweepGrowth:
    """Milliseconds of a sweep with few and with many agents, and their ratio."""

    few: Spread
    many: Spread

    @property
    def ratio(self) -> float:
        """How much a sweep has grown."""
        return self.many.p50 / self.few.p50


def sweep_growth(few: int, many: int, sweeps: int = 200) -> SweepGrowth:
    """Measures a sweep with ``few`` agents, registers up to ``many``, and measures again."""
    with RedisServer() as redis:
        store = open_store(ProcessSettings(redis_url=redis.url, namespace="bench"), RuntimeConfig())
        committer = Committer(store, store.config, _Nobody())
        sweeper = Sweeper(store, committer, store.config)
        try:
            _register(committer, 0, few)
            first = _measure(sweeper, sweeps)
            _register(committer, few, many)
            return SweepGrowth(first, _measure(sweeper, sweeps))
        finally:
            store.close()


def _register(committer: Committer, first: int, end: int) -> None:
    for number in range(first, end):
        agent_id = AgentId(f"r{number}")
        committer.apply(agent_id, Register(spec=AgentSpec(id=agent_id, type="bench-idle")))


def _measure(sweeper: Sweeper, sweeps: int) -> Spread:
    taken: list[float] = []
    for _ in range(sweeps):
        began = time.perf_counter()
        sweeper.sweep_once(judge_leases=False)
        taken.append((time.perf_counter() - began) * 1000)
    return spread(taken)
