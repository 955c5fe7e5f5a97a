"""What the testing kit costs a test: `python -m bench.harness`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from ares_celery import AgentContext, Event
from ares_celery.testing import AgentHarness
from bench.figures import Spread, spread

__all__ = ["Costs", "costs"]

#: Milliseconds that each of these takes.
Costs = dict[str, Spread]


class Ticker:
    """An agent of the size of most: a loop, a state, an answer."""

    def __init__(self, agent_id: str) -> None:
        self.total = 0

    async def start(self, ctx: AgentContext) -> None:
        while not ctx.stop_requested:
            await ctx.emit("ticked", {"by": 1})
            await ctx.sleep(1)

    async def process(self, ctx: AgentContext, message: object) -> object:
        return self.total

    def apply(self, event: Event) -> None:
        self.total += 1

    def snapshot(self) -> dict[str, int]:
        return {"total": self.total}

    def restore_state(self, state: dict[str, int]) -> None:
        self.total = state["total"]


@contextmanager
def _timed(into: list[float]) -> Generator[None]:
    began = time.perf_counter()
    yield
    into.append((time.perf_counter() - began) * 1000)


def costs(rounds: int = 100) -> Costs:
    """The steps of a test, each many times, the first round left out."""
    names = ("start", "40 ticks", "ask", "crash and restart", "close")
    times: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds + 1):
        with _timed(times["start"]):
            harness = AgentHarness(Ticker)
        with _timed(times["40 ticks"]):
            harness.run_until("ticked", count=40)
        with _timed(times["ask"]):
            harness.ask("total")
        with _timed(times["crash and restart"]):
            harness.crash()
            harness.restart()
        with _timed(times["close"]):
            harness.close()
    return {name: spread(taken[1:]) for name, taken in times.items()}


def imports(code: str, rounds: int = 15) -> Spread:
    """Milliseconds that a fresh interpreter needs for some imports, its own start left out."""
    timed = f"import time, pytest; t = time.perf_counter()\n{code}\nprint((time.perf_counter() - t) * 1000)"
    found = [
        float(subprocess.run([sys.executable, "-c", timed], check=True, capture_output=True, text=True).stdout)
        for _ in range(rounds)
    ]
    return spread(found)


if __name__ == "__main__":
    for name, taken in costs().items():
        print(f"harness, {name} (ms): {taken}")
    print(f"plug-in in a suite that does not use it (ms): {imports('import ares_celery.testing.pytest_plugin')}")
