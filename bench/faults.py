"""What do the checks for faults cost an agent that nobody disturbs: a recorded step, and a heartbeat?

    python -m bench.faults [--rounds 150] [--agents 200]

Hosts agents in this process, with a Redis server of its own. The checks are really taken out for the comparison: the
methods that have them are compiled again without, and put in place in turns, within one run. They are timed alone, too,
as the difference of the two times drowns in the noise of a busy machine.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from types import SimpleNamespace
from typing import Any

from typing_extensions import override

from ares_celery import AgentContext, AgentSpec
from ares_celery.runtime.async_context import AsyncContext
from ares_celery.runtime.async_steps import AsyncSteps
from ares_celery.runtime.lease_keeper import LeaseKeeper
from bench.figures import Spread, spread
from tests.hosting import Runtime
from tests.redis_server import RedisServer

__all__ = ["Cost", "fault_costs"]

#: The most that the checks may cost.
TARGET = 1.02
#: Steps, or heartbeats, between two changes of the methods.
BLOCK = 20
LONGEST = 600


@dataclass(frozen=True, slots=True)
class Cost:
    """Microseconds of one thing with the checks and without them, and the nanoseconds of its checks alone."""

    checked: Spread
    unchecked: Spread
    ratio: float
    alone_ns: float

    @property
    def share(self) -> float:
        """What the checks alone are of the whole, in percent."""
        return self.alone_ns / 10 / self.checked.p50

    @override
    def __str__(self) -> str:
        """One line."""
        return (
            f"p50 {self.checked.p50:.1f} µs with, {self.unchecked.p50:.1f} µs without, ratio {self.ratio:.4f} (at most "
            f"{TARGET}); the checks alone {self.alone_ns:.0f} ns, {self.share:.3f} %"
        )


class _Bare(ast.NodeTransformer):
    """Takes out what looks at faults."""

    taken = 0

    @override
    def visit_If(self, node: ast.If) -> ast.AST | None:
        test = ast.unparse(node.test)
        if ".faults" in test or test == "disturbed":
            self.taken += 1
            return None
        return self.generic_visit(node)

    @override
    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        if ast.unparse(node).startswith("disturbed = "):
            self.taken += 1
            return None
        return self.generic_visit(node)


def unchecked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function without its checks; fails when it has none."""
    inner = inspect.unwrap(function)
    tree = ast.parse(textwrap.dedent(inspect.getsource(inner)))
    bare = _Bare()
    made = ast.fix_missing_locations(bare.visit(tree))
    if not bare.taken:
        raise AssertionError(f"{inner.__qualname__} has no check")
    (definition,) = made.body
    definition.decorator_list = []
    scope = dict(vars(sys.modules[inner.__module__]))
    exec(compile(made, inner.__qualname__, "exec"), scope)  # noqa: S102 - our own code
    bare_function: Callable[..., Any] = scope[inner.__name__]
    return bare_function


@contextmanager
def without(*methods: tuple[type[Any], str]) -> Generator[tuple[Callable[[], None], Callable[[], None]]]:
    """Two functions: one puts the checks in place, the other takes them out."""
    kept = [(owner, name, vars(owner)[name]) for owner, name in methods]
    bare = [(owner, name, unchecked(function)) for owner, name, function in kept]

    def put(chosen: Iterable[tuple[type[Any], str, Any]]) -> None:
        for owner, name, function in chosen:
            setattr(owner, name, function)

    try:
        yield lambda: put(kept), lambda: put(bare)
    finally:
        put(kept)


async def _safe(number: int) -> int:
    return number


class Stepper:
    """Takes turns between steps with the checks and without."""

    async def process(self, ctx: AgentContext, message: dict[str, int]) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {"checked": [], "unchecked": []}
        number = 0
        with without((AsyncSteps, "_used"), (AsyncContext, "_persist")) as (put, take):
            for turn in range(2 * message["rounds"]):
                # First one, then the other, then the other way round: a drift favours neither.
                name = ("checked", "unchecked", "unchecked", "checked")[turn % 4]
                (put if name == "checked" else take)()
                async with ctx.execution(f"turn:{turn}"):
                    for _ in range(BLOCK):
                        number += 1
                        began = time.perf_counter()
                        await ctx.step(f"s:{number}", _safe, number)
                        times[name].append((time.perf_counter() - began) * 1e6)
        return times

    def __init__(self, agent_id: str) -> None: ...


def _alone(look: Callable[[], object], times: int) -> float:
    """Nanoseconds of so many looks at an undisturbed incarnation; the call of an empty function left out."""

    def each(function: Callable[[], object]) -> float:
        best = float("inf")
        for _ in range(7):
            began = time.perf_counter_ns()
            for _ in range(20_000):
                function()
            best = min(best, (time.perf_counter_ns() - began) / 20_000)
        return best

    return max(0.0, each(look) - each(lambda: None)) * times


def _cost(times: dict[str, list[float]], alone_ns: float) -> Cost:
    """The ratio is that of the medians of neighbouring blocks: what slows the machine slows both."""
    blocks = {
        name: [median(taken[i : i + BLOCK]) for i in range(0, len(taken), BLOCK)] for name, taken in times.items()
    }
    ratios = [a / b for a, b in zip(blocks["checked"], blocks["unchecked"], strict=True)]
    return Cost(spread(times["checked"]), spread(times["unchecked"]), median(ratios), alone_ns)


def fault_costs(rounds: int = 150, agents: int = 200) -> dict[str, Cost]:
    """A step, and a heartbeat of a process with so many agents."""
    owner = SimpleNamespace(incarnation=SimpleNamespace(faults=None))
    many = [owner.incarnation] * agents
    one_look = _alone(lambda: owner.incarnation.faults is not None, 1)
    all_looks = _alone(lambda: [one for one in many if one.faults is not None], 1)
    with RedisServer() as server:
        runtime = Runtime(server.url, "bench", lease_ttl="60s", heartbeat_interval="20s", hints=True)
        runtime.register("stepper", Stepper)
        runtime.manager.start()
        runtime.manager.start_agent(AgentSpec(id="s", type="stepper"), wait="running")
        # A step looks in front of itself and at its one write.
        steps = _cost(runtime.manager.process("s", {"rounds": rounds}, timeout=LONGEST), 2 * one_look)
        for number in range(agents - 1):
            runtime.manager.start_agent(AgentSpec(id=f"i{number}", type="stepper"), wait="running")
        beats = _cost(_beats(runtime, rounds), all_looks)
        runtime.manager.stop()
        runtime.close()
    return {"step": steps, f"heartbeat of {agents} agents": beats}


def _beats(runtime: Runtime, rounds: int) -> dict[str, list[float]]:
    # What is measured is nobody's to call from outside.
    host: Any = runtime.host
    keeper, times = host._keeper, dict[str, list[float]](checked=[], unchecked=[])  # noqa: SLF001 - as said
    with without((LeaseKeeper, "_renew")) as (put, take):
        for turn in range(2 * rounds):
            name = ("checked", "unchecked", "unchecked", "checked")[turn % 4]
            (put if name == "checked" else take)()
            for _ in range(BLOCK):
                hosted = host._hosted.all()  # noqa: SLF001 - as above
                began = time.perf_counter()
                keeper._renew(hosted)  # noqa: SLF001 - as above
                times[name].append((time.perf_counter() - began) * 1e6)
    return times


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=150, help=f"blocks of {BLOCK} of each kind")
    parser.add_argument("--agents", type=int, default=200)
    arguments = parser.parse_args()
    for name, cost in fault_costs(arguments.rounds, arguments.agents).items():
        print(f"{name}: {cost}")


if __name__ == "__main__":
    main()
