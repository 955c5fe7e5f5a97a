"""How long until an agent's own code runs again after SIGKILL: its pool child, its whole worker, or the lease alone."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ares_celery import AgentSpec
from ares_celery.ids import AgentId
from ares_celery.store.redis.keys import Keys
from bench.figures import Spread, spread
from tests.fleet import Fleet, Process
from tests.redis_server import RedisServer
from tests.wait import wait_until

__all__ = ["by_lease", "child_killed", "stop_seen", "worker_killed"]

#: Contract defaults, but for what would make the second kill wait on purpose.
SETTINGS = {
    "HEARTBEAT_INTERVAL": "2s",
    "LEASE_TTL": "8s",
    "STABLE_AFTER": "1ms",
    "MAX_RESTARTS_PER_AGENT": "0",
    "SNAPSHOT_INTERVAL": "1h",
    "SHARDS": "16",
}


class Journal:
    """Where an agent writes when its code ran."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def runs(self) -> list[tuple[float, int]]:
        """Monotonic seconds and process of each run so far."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().splitlines()
        return [(float(line.split()[0]), int(line.split()[1])) for line in lines]

    def wait_for(self, count: int) -> tuple[float, int]:
        """Waits for so many runs; returns the last."""
        wait_until(lambda: len(self.runs()) >= count, f"run {count}", timeout=60, interval=0.005)
        return self.runs()[count - 1]


@contextmanager
def _fleet(**settings: str) -> Generator[tuple[Fleet, Journal]]:
    with (
        tempfile.TemporaryDirectory() as name,
        RedisServer(options={"appendfsync": "everysec"}, appendonly=True) as server,
    ):
        folder = Path(name)
        with Fleet(server, "bench", folder, {**SETTINGS, **settings, "AGENT_MODULES": "bench.agents"}) as fleet:
            yield fleet, Journal(folder / "journal")


def _start(fleet: Fleet, journal: Journal, agent_id: str = "f") -> None:
    fleet.manager.start_agent(
        AgentSpec(id=agent_id, type="bench-failover", config={"journal": str(journal.path)}), wait="running"
    )
    wait_until(lambda: fleet.manager.events.stream_version(agent_id) > 100, "100 events", timeout=20)


def child_killed(kills: int) -> Spread:
    """Milliseconds from SIGKILL of the hosting prefork child until the agent's code runs in another, idle child."""
    with _fleet() as (fleet, journal):
        fleet.worker("prefork", pool="prefork", slots=3)
        _start(fleet, journal)
        taken: list[float] = []
        for number in range(kills):
            _, pid = journal.wait_for(number + 1)
            fleet.until("f", "running", incarnation=number + 1)
            killed = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            ran, _ = journal.wait_for(number + 2)
            taken.append((ran - killed) * 1000)
            wait_until(lambda: len(fleet.processes[0].children()) >= 3, "a fresh child", timeout=20)
        return spread(taken)


def worker_killed(kills: int) -> Spread:
    """Milliseconds from SIGKILL of a threads worker until the agent's code runs in another worker of this machine."""
    with _fleet() as (fleet, journal):
        workers: list[Process] = [fleet.worker("w0"), fleet.worker("w1")]
        _start(fleet, journal)
        taken: list[float] = []
        for number in range(kills):
            _, pid = journal.wait_for(number + 1)
            fleet.until("f", "running", incarnation=number + 1)
            victim = next(worker for worker in workers if worker.pid == pid)
            killed = time.monotonic()
            victim.kill()
            ran, _ = journal.wait_for(number + 2)
            taken.append((ran - killed) * 1000)
            workers.remove(victim)
            workers.append(fleet.worker(f"w{number + 2}"))
        return spread(taken)


def by_lease(freezes: int, lease_ttl: float = 2.0) -> Spread:
    """Milliseconds from the end of a frozen worker's lease (no exit to be seen) until another runs the agent.

    Not from the signal on: the lease was renewed up to a heartbeat before that, and ends as much sooner.
    """
    with _fleet(LEASE_TTL=f"{lease_ttl}s", HEARTBEAT_INTERVAL="500ms") as (fleet, journal):
        workers: list[Process] = [fleet.worker("w0"), fleet.worker("w1")]
        _start(fleet, journal)
        taken: list[float] = []
        for number in range(freezes):
            _, pid = journal.wait_for(number + 1)
            fleet.until("f", "running", incarnation=number + 1)
            wait_until(_settled(lease_ttl * 2), "unbroken contact", timeout=30)
            victim = next(worker for worker in workers if worker.pid == pid)
            victim.freeze()
            over = _lease_end(fleet, "f")
            ran, _ = journal.wait_for(number + 2)
            taken.append((ran - over) * 1000)
            victim.kill()
            workers.remove(victim)
            workers.append(fleet.worker(f"w{number + 2}"))
        return spread(taken)


def _lease_end(fleet: Fleet, agent_id: str) -> float:
    """When the lease of an agent ends that nobody renews any more, in monotonic seconds."""
    # What the process had sent before it was frozen has arrived by then.
    wait_until(_settled(0.05), "the last renewal", timeout=5)
    keys, agent = Keys(fleet.namespace, fleet.config.shards), AgentId(agent_id)
    with fleet.redis.client() as client:
        ends: Any = client.zscore(keys.deadlines(keys.shard_of(agent)), f"lease|{agent_id}")
    left: float = (float(ends) - fleet.store.server_time()) / 1e6
    return time.monotonic() + left


def _settled(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() >= until


def stop_seen(stops: int) -> Spread:
    """Milliseconds from stop_agent until a sleeping agent of a threads worker has seen it."""
    with _fleet() as (fleet, journal):
        fleet.worker("w")
        taken: list[float] = []
        stopped = Path(f"{journal.path}.stopped")
        for number in range(stops):
            _start(fleet, journal, f"s{number}")
            asked = time.monotonic()
            fleet.manager.stop_agent(f"s{number}")
            taken.append((float(stopped.read_text().splitlines()[-1]) - asked) * 1000)
        return spread(taken)
