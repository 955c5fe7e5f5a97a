"""Many idle async agents in one threads worker: memory each, time to start, CPU at rest."""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from ares_celery import AgentSpec, AgentState
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet, Process
from tests.redis_server import RedisServer
from tests.wait import wait_until

__all__ = ["Density", "density"]

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Density:
    """What was measured."""

    agents: int
    agent_kb: float
    start_seconds: float
    idle_percent: float


def density(agents: int, *, settle: float = 60.0) -> Density:
    """Starts so many agents from one caller and looks at the worker alone.

    Args:
        agents: How many.
        settle: Seconds after the last start until memory is read; CPU is measured over the last ten of them.
    """
    settings = {"HEARTBEAT_INTERVAL": "2s", "LEASE_TTL": "8s", "SHARDS": "16", "AGENT_MODULES": "bench.agents"}
    with (
        tempfile.TemporaryDirectory() as name,
        RedisServer() as redis,
        Fleet(redis, "bench", Path(name), settings) as fleet,
    ):
        worker = fleet.worker("dense", [AGENTS], slots=agents + 50)
        fleet.worker("supervision", [SUPERVISION, CONTROL])
        _warm(fleet)
        before = _rss_kb(worker)
        began = time.monotonic()
        for number in range(agents):
            fleet.manager.start_agent(AgentSpec(id=f"d{number}", type="bench-idle"))
        wait_until(lambda: _running(fleet) >= agents + 1, "all to run", timeout=120, interval=0.05)
        taken = time.monotonic() - began
        _pause(settle - 10)
        cpu, at = _cpu(worker), time.monotonic()
        _pause(10)
        percent = (_cpu(worker) - cpu) / (time.monotonic() - at) * 100
        return Density(agents, (_rss_kb(worker) - before) / agents, taken, percent)


def _warm(fleet: Fleet) -> None:
    """One agent first, so that imports, loop and connections are not counted."""
    fleet.manager.start_agent(AgentSpec(id="warm", type="bench-idle"), wait="running")


def _running(fleet: Fleet) -> int:
    return fleet.manager.stats().by_state.get(AgentState.RUNNING.value, 0)


def _rss_kb(worker: Process) -> int:
    for line in Path(f"/proc/{worker.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise RuntimeError("the worker is gone")


def _cpu(worker: Process) -> float:
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _pause(seconds: float) -> None:
    until = time.monotonic() + max(0.0, seconds)
    wait_until(lambda: time.monotonic() >= until, "rest", timeout=seconds + 10, interval=0.2)
