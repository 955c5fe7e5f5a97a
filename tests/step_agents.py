"""Agents whose processes die between the parts of a step; workers of tests/fault/test_step_kills.py import them."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path
from typing import cast

from ares_celery import AgentContext, agent
from ares_celery.agents.steps import Replay


class _Life:
    """What this process does now; it hosts one agent at a time."""

    incarnation = 0
    phase = "outside"


def write(journal: str, line: str) -> None:
    """One write, so that a line is there as a whole or not at all, whenever its process is killed."""
    file = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def effect(journal: str, number: int, pause: float, idempotency_key: str = "") -> dict[str, int]:
    """A tool that appends to a file; `pause` seconds pass before the effect, and as many after it."""
    incarnation = _Life.incarnation
    _Life.phase = "before"
    write(journal, f"begin {number} {incarnation}")
    threading.Event().wait(pause)
    write(journal, f"effect {number} {incarnation} {idempotency_key}")
    _Life.phase = "after"
    threading.Event().wait(pause)
    _Life.phase = "returned"
    return {"number": number, "incarnation": incarnation}


def kills(journal: str) -> int:
    """How often its process was killed."""
    return Path(journal).read_text().count("killed") if is_there(journal) else 0


def is_there(path: str) -> bool:
    """A file exists."""
    return Path(path).exists()


def _die(journal: str, after: float) -> None:
    threading.Event().wait(after)
    write(journal, f"killed {_Life.incarnation} {_Life.phase}")
    os.kill(os.getpid(), signal.SIGKILL)


@agent("stepper")
class Stepper:
    """Does its steps one after the other; its first `lives` processes are killed at random times."""

    def __init__(  # noqa: PLR0913, PLR0917 - the knobs of a test
        self,
        agent_id: str,
        journal: str,
        replay: str,
        steps: int = 10,
        pause: float = 0.01,
        lives: int = 0,
        longest: float = 0.3,
        seed: int = 1,
        go: str = "",
    ) -> None:
        self.agent_id, self.journal, self.replay, self.steps, self.pause = agent_id, journal, replay, steps, pause
        self.lives, self.longest, self.seed, self.go = lives, longest, seed, go

    async def start(self, ctx: AgentContext) -> None:
        _Life.incarnation, _Life.phase = ctx.incarnation, "outside"
        if kills(self.journal) < self.lives:
            chance = random.Random(f"{self.seed} {self.agent_id} {ctx.incarnation}")
            after = chance.uniform(0, self.longest)
            threading.Thread(target=_die, args=(self.journal, after), daemon=True).start()
        while self.go and not is_there(self.go) and not ctx.stop_requested:
            await ctx.sleep(0.02)
        step = ctx.step.with_options(replay=cast("Replay", self.replay))
        async with ctx.execution("work"):
            for number in range(self.steps):
                result = await step(f"effect:{number}", effect, self.journal, number, self.pause)
                assert result["number"] == number
        await ctx.complete({"steps": self.steps})
