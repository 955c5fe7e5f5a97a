"""How do many coroutines of one loop fare that ask agents at once, and what do they hold?

    python -m bench.async_callers [--callers 1000]

Starts a Redis server and one threads worker with 50 agents of its own. Every coroutine asks once, all at the same time;
the connections are those that this process has opened beyond those of starting the agents.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from ares_celery import AgentSpec, AsyncManager
from bench.figures import Spread, spread
from tests.fleet import AGENTS, CONTROL, SUPERVISION, Fleet
from tests.redis_server import RedisServer

AGENT_COUNT = 50


class Callers(NamedTuple):
    """What came out."""

    times: Spread
    seconds: float
    lost: int
    connections: int
    threads: int


def many_callers(callers: int = 1_000) -> Callers:
    """All at once; times in milliseconds."""
    with (
        RedisServer(appendonly=True, options={"appendfsync": "everysec"}) as server,
        tempfile.TemporaryDirectory() as folder,
        Fleet(server, f"bench-{os.getpid()}", Path(folder), {"START_TIMEOUT": "120s"}) as fleet,
    ):
        fleet.worker(
            "agents", [AGENTS, SUPERVISION, CONTROL], slots=AGENT_COUNT, env={"ARES_AGENT_MODULES": "bench.agents"}
        )
        return asyncio.run(_ask(fleet, callers))


async def _ask(fleet: Fleet, callers: int) -> Callers:
    names = [f"echo-{number}" for number in range(AGENT_COUNT)]
    async with AsyncManager(redis_url=fleet.redis.url, namespace=fleet.namespace) as manager:
        starts = (manager.start_agent(AgentSpec(id=name, type="bench-echo"), wait="running") for name in names)
        await asyncio.gather(*starts)
        threads = threading.active_count()
        before = _sockets()
        began = time.perf_counter()

        async def ask(number: int) -> tuple[bool, float]:
            asked = time.perf_counter()
            answer = await manager.process(names[number % AGENT_COUNT], number, timeout=60)
            return answer == {"echo": number}, (time.perf_counter() - asked) * 1e3

        calls = [asyncio.create_task(ask(number)) for number in range(callers)]
        most = before
        while not all(call.done() for call in calls):
            await asyncio.sleep(0.02)
            most = max(most, _sockets())
        answers = [call.result() for call in calls]
        took = time.perf_counter() - began
        lost = sum(not is_right for is_right, _ in answers)
        new = threading.active_count() - threads
        return Callers(spread([ms for _, ms in answers]), took, lost, most - before, new)


def _sockets() -> int:
    """Sockets that this process has open."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(entry).startswith("socket:")  # noqa: PTH115 - of what is no file
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callers", type=int, default=1_000)
    found = many_callers(parser.parse_args().callers)
    print(
        f"process() of coroutines at once (ms): {found.times}; all in {found.seconds:.2f} s, lost {found.lost}, "
        f"{found.connections} connections more than idle, {found.threads} threads more"
    )
