"""What does a recorded step cost next to a bare XADD, and a recovery of an execution with very many of them?

    python -m bench.steps [--rounds 2000] [--bytes 1000]

Starts a Redis server of its own (append-only file, fsync every second) and hosts an agent in this process as a worker
does. The agent itself takes the turns, on its event loop: a bare ``xadd`` of redis-py's client for asyncio, on a
connection as the runtime makes them, with bytes that are there; a step of an async function that returns as many; a
step that is never repeated, which notes its intent before. Each records 1 kB and is told by an event.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, cast

import redis

from ares_celery import AgentContext, AgentSpec, step
from ares_celery.store.redis.connections import Connector
from bench.figures import Spread, spread
from tests.hosting import Runtime
from tests.redis_server import RedisServer

__all__ = ["Recovery", "StepCost", "recovery", "step_cost"]

#: The most that a step may cost of a bare XADD.
TARGET = 2.5
#: Rounds that only warm up.
WARM_UP = 200
#: Seconds that the agent may take for all of them.
LONGEST = 600


@dataclass(frozen=True, slots=True)
class StepCost:
    """Microseconds of each, in turns: a bare XADD, a step, a step with its intent before it."""

    bare: Spread
    step: Spread
    never: Spread

    @property
    def ratio(self) -> float:
        """What a step costs of a bare XADD."""
        return self.step.p50 / self.bare.p50

    @property
    def never_ratio(self) -> float:
        """What intent and outcome cost together of a bare XADD."""
        return self.never.p50 / self.bare.p50


@dataclass(frozen=True, slots=True)
class Recovery:
    """Milliseconds in which an execution is opened with all that it has recorded, and then gone through again."""

    opened: Spread
    entered_again: Spread


class _Left(Exception):
    """Leaves an execution as it is, to be gone on with."""


def _leave() -> None:
    raise _Left


async def _safe(text: str) -> dict[str, str]:
    return {"text": text}


@step(replay="never")
async def _never(text: str) -> dict[str, str]:
    return {"text": text}


class Stepper:
    """Does what it is asked to, and says how long each turn took."""

    url = ""

    def __init__(self, agent_id: str) -> None:
        self._number = 0

    async def process(self, ctx: AgentContext, message: dict[str, Any]) -> object:
        text = "x" * (message["bytes"] - len('{"text":""}'))
        if message["do"] == "turns":
            return await self._turns(ctx, text, message["rounds"])
        if message["do"] == "fill":
            with suppress(_Left):
                await self._fill(ctx, text, message["steps"])
            return None
        return await self._again(ctx, message["steps"])

    async def _fill(self, ctx: AgentContext, text: str, steps: int) -> None:
        async with ctx.execution("big"):
            for number in range(steps):
                await ctx.step(f"fetch:{number}", _safe, text)
            _leave()

    async def _turns(self, ctx: AgentContext, text: str, rounds: int) -> dict[str, list[float]]:
        client = cast("Any", Connector.to(self.url).async_driver())
        data = ('{"text":"' + text + '"}').encode()

        async def bare() -> None:
            await client.xadd("bare", {"d": data})

        async def safe() -> None:
            await ctx.step(f"safe:{self._number}", _safe, text)

        async def never() -> None:
            await ctx.step(f"never:{self._number}", _never, text)

        turns: dict[str, Callable[[], Awaitable[None]]] = {"bare": bare, "step": safe, "never": never}
        times: dict[str, list[float]] = {name: [] for name in turns}
        async with ctx.execution("turns"):
            for number in range(WARM_UP + rounds):
                self._number = number
                for name, turn in turns.items():
                    began = time.perf_counter()
                    await turn()
                    if number >= WARM_UP:
                        times[name].append((time.perf_counter() - began) * 1e6)
        await client.aclose()
        return times

    async def _again(self, ctx: AgentContext, steps: int) -> list[float]:
        async def unexpected(number: int) -> None:
            raise AssertionError(f"step {number} runs again")

        # Known by its name: a recorded step is asked for by the function that recorded it.
        unexpected.__qualname__ = _safe.__qualname__
        times: list[float] = [time.perf_counter()]
        with suppress(_Left):
            async with ctx.execution("big"):
                times.append(time.perf_counter())
                for number in range(steps):
                    await ctx.step(f"fetch:{number}", unexpected, number)
                times.append(time.perf_counter())
                _leave()
        return [(end - times[0]) * 1e3 for end in times[1:]]


class _Bench:
    """An agent in a runtime of its own."""

    def __init__(self, *, size: int) -> None:
        self._server = RedisServer(appendonly=True, options={"appendfsync": "everysec"})
        self._size = size

    def __enter__(self) -> Self:
        self._server.__enter__()
        Stepper.url = self._server.url
        # A lease and a start that outlast whatever the agent does on its loop without a pause.
        self._runtime = Runtime(self._server.url, "bench", lease_ttl="30s", heartbeat_interval="5s", hints=True)
        self._runtime.register("stepper", Stepper)
        self._runtime.manager.start()
        self._runtime.manager.start_agent(AgentSpec(id="s", type="stepper"), wait="running")
        return self

    def __exit__(self, *exc: object) -> None:
        self._runtime.manager.stop()
        self._runtime.close()
        self._server.__exit__(None, None, None)

    def ask(self, do: str, **more: int) -> Any:  # noqa: ANN401 - what the agent answers
        return self._runtime.manager.process("s", {"do": do, "bytes": self._size, **more}, timeout=LONGEST)

    def restart(self) -> None:
        self._runtime.manager.restart_agent("s")
        self._runtime.until("s", "running", incarnation=2, timeout=30)


def step_cost(rounds: int, *, size: int = 1_000) -> StepCost:
    """Takes turns between a bare XADD, a step, and a step with an intent."""
    with _Bench(size=size) as bench:
        times = bench.ask("turns", rounds=rounds)
    return StepCost(spread(times["bare"]), spread(times["step"]), spread(times["never"]))


def recovery(steps: int = 10_000, rounds: int = 10, *, size: int = 1_000) -> Recovery:
    """Records so many steps, and enters their execution again in later incarnations."""
    opened, entered = list[float](), list[float]()
    with _Bench(size=size) as bench:
        bench.ask("fill", steps=steps)
        bench.restart()
        for _ in range(rounds):
            first, second = bench.ask("again", steps=steps)
            opened.append(first)
            entered.append(second)
    return Recovery(spread(opened), spread(entered))


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--bytes", type=int, default=1_000, help="size of a result as JSON")
    arguments = parser.parse_args()
    print(f"redis-py {redis.__version__}, Python {platform.python_version()}, {arguments.bytes} B, AOF everysec;")
    cost = step_cost(arguments.rounds, size=arguments.bytes)
    print(f"bare xadd (µs): {cost.bare}")
    print(f"step (µs): {cost.step}  ratio {cost.ratio:.2f}, target {TARGET}")
    print(f"step that is never repeated (µs): {cost.never}  ratio {cost.never_ratio:.2f}")
    again = recovery(size=arguments.bytes)
    print(f"10,000 recorded steps: opened (ms): {again.opened}\nall of them skipped (ms): {again.entered_again}")


if __name__ == "__main__":
    main()
