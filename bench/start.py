"""What starting an agent costs next to a bare Celery task, in turns on one fleet."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from celery import Celery

from ares_celery import AgentSpec
from bench.figures import Spread, spread
from tests.fleet import Fleet
from tests.redis_server import RedisServer

__all__ = ["StartCost", "start_cost"]


@dataclass(frozen=True, slots=True)
class StartCost:
    """Milliseconds of a no-op task's round trip, of an agent's start until it runs, and their ratio."""

    noop: Spread
    start: Spread

    @property
    def ratio(self) -> float:
        """A start in no-op tasks."""
        return self.start.p50 / self.noop.p50


def start_cost(rounds: int) -> StartCost:
    """Takes turns: one bare task to its result, one agent until its code runs."""
    settings = {"HEARTBEAT_INTERVAL": "2s", "LEASE_TTL": "8s", "SHARDS": "16", "AGENT_MODULES": "bench.agents"}
    with (
        tempfile.TemporaryDirectory() as name,
        RedisServer() as redis,
        Fleet(redis, "bench", Path(name), settings) as fleet,
    ):
        fleet.worker("w", slots=rounds + 20)
        app = Celery("bench", broker=redis.url, backend=redis.url, set_as_current=False)
        noop: list[float] = []
        start: list[float] = []
        for number in range(rounds):
            began = time.perf_counter()
            sent = app.send_task("ares.get_agent", kwargs={"agent_id": "nobody"}, queue="bench.control")
            sent.get(timeout=20, interval=0.001)
            noop.append((time.perf_counter() - began) * 1000)
            began = time.perf_counter()
            fleet.manager.start_agent(AgentSpec(id=f"s{number}", type="bench-idle"), wait="running")
            start.append((time.perf_counter() - began) * 1000)
        app.close()
        return StartCost(spread(noop), spread(start))
