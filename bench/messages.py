"""What does asking an agent cost next to a bare round trip, and how do many callers and streams fare?

    python -m bench.messages [--agents 2000] [--seconds 10]

Starts a Redis server and one threads worker of its own. The round trip: `process()` of an idle agent in that worker, in
turns with a PING of redis-py over the same kind of connection. The crowd: every agent asked once by 50 threads at once.
The streams: every agent streams 20 chunks a second; the time from a chunk's `yield` to its reader, both read from the
machine's monotonic clock, and what Redis spent of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ares_celery import AgentSpec, AsyncManager
from bench.figures import Spread, spread
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.redis_server import RedisServer

#: Rounds that only warm up.
WARM_UP = 50
CALLERS = 50
RATE = 20


class RoundTrip(NamedTuple):
    """Medians in microseconds, and their ratio."""

    ping: float
    process: float

    @property
    def ratio(self) -> float:
        """How many bare round trips one question costs."""
        return self.process / self.ping


@contextmanager
def _fleet(slots: int) -> Generator[Fleet]:
    """A worker for so many agents, with the product's own intervals."""
    settings = {"HEARTBEAT_INTERVAL": "2s", "LEASE_TTL": "8s", "SNAPSHOT_INTERVAL": "60s", "START_TIMEOUT": "120s"}
    with (
        RedisServer(appendonly=True, options={"appendfsync": "everysec"}) as server,
        tempfile.TemporaryDirectory() as folder,
        Fleet(server, f"bench-{os.getpid()}", Path(folder), settings) as fleet,
    ):
        env = {"ARES_AGENT_MODULES": "bench.agents"}
        fleet.worker("agents", [AGENTS, SUPERVISION, CONTROL], slots=slots, env=env)
        yield fleet


def round_trip(rounds: int = 1_000) -> RoundTrip:
    """One caller asks one idle agent, in turns with a PING."""
    pings: list[float] = []
    asked: list[float] = []
    with _fleet(4) as fleet, fleet.redis.client() as opened:
        client: Any = opened
        fleet.manager.start_agent(AgentSpec(id="echo", type="bench-echo"), wait="running")
        for number in range(rounds + WARM_UP):
            before = time.perf_counter()
            client.ping()
            between = time.perf_counter()
            fleet.manager.process("echo", number)
            after = time.perf_counter()
            if number >= WARM_UP:
                pings.append((between - before) * 1e6)
                asked.append((after - between) * 1e6)
    return RoundTrip(statistics.median(pings), statistics.median(asked))


def _start(fleet: Fleet, agents: int) -> list[str]:
    ids = [f"echo-{number}" for number in range(agents)]

    def start(agent_id: str) -> None:
        fleet.manager.start_agent(AgentSpec(id=agent_id, type="bench-echo"))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(start, ids))
    fleet.wait(lambda: fleet.manager.stats().by_state.get("running", 0) == agents, "all agents", timeout=180)
    return ids


def crowd(agents: int) -> tuple[Spread, int]:
    """Every agent is asked once, by 50 callers at once: times in milliseconds, and how many answers were lost."""
    with _fleet(agents + 4) as fleet:
        ids = _start(fleet, agents)

        def ask(agent_id: str) -> float:
            before = time.perf_counter()
            answer = fleet.manager.process(agent_id, agent_id, timeout=60)
            return (time.perf_counter() - before) * 1e3 if answer["echo"] == agent_id else -1.0

        with ThreadPoolExecutor(CALLERS) as pool:
            times = list(pool.map(ask, ids))
    return spread([one for one in times if one >= 0]), sum(one < 0 for one in times)


class Streamed(NamedTuple):
    """Latency of chunks in milliseconds, how many of how many came, and what Redis spent of a core."""

    latency: Spread
    chunks: int
    wanted: int
    redis_percent: float


def streams(agents: int, seconds: int) -> Streamed:
    """Every agent streams 20 chunks a second to one process, over an event loop."""
    with _fleet(agents + 4) as fleet, fleet.redis.client() as client:
        ids = _start(fleet, agents)
        latencies: list[float] = []

        async def read(manager: AsyncManager, agent_id: str) -> None:
            message = {"chunks": RATE * seconds, "pause": 1 / RATE}
            async with manager.process_stream(agent_id, message, timeout=120) as chunks:
                latencies.extend([(time.monotonic() - chunk.data) * 1e3 async for chunk in chunks if not chunk.final])

        async def read_all() -> None:
            async with AsyncManager(redis_url=fleet.redis.url, namespace=fleet.namespace) as manager:
                await asyncio.gather(*(read(manager, agent_id) for agent_id in ids))

        before, began = _cpu(client), time.monotonic()
        asyncio.run(read_all())
        spent = (_cpu(client) - before) / (time.monotonic() - began)
    return Streamed(spread(latencies), len(latencies), agents * RATE * seconds, spent * 100)


def _cpu(client: Any) -> float:  # noqa: ANN401 - the driver's own client
    info = client.info("cpu")
    return float(info["used_cpu_sys"]) + float(info["used_cpu_user"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=2_000)
    parser.add_argument("--seconds", type=int, default=10)
    given = parser.parse_args()
    trip = round_trip()
    print(f"PING {trip.ping:.0f} µs, process() {trip.process:.0f} µs (p50), ratio {trip.ratio:.2f}")
    times, lost = crowd(given.agents)
    print(f"{given.agents} agents asked by {CALLERS} callers (ms): {times}; lost {lost}")
    found = streams(given.agents, given.seconds)
    print(
        f"{given.agents} agents × {RATE} chunks/s for {given.seconds} s: {found.chunks} of {found.wanted} chunks, "
        f"latency (ms) {found.latency}, Redis {found.redis_percent:.0f} % of a core"
    )
