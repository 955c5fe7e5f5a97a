"""What the demo kills, and when: always at a moment when agents are really in the middle of their work."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from ares_celery.cli.demo.watch import Row, View

__all__ = ["STEPS", "Step", "choose_victim", "choose_worker"]


@dataclass(frozen=True, slots=True)
class Step:
    """One SIGKILL that is to come.

    Attributes:
        at: The part of all files that must be done, 0 to 1.
        what: What is killed.
    """

    at: float
    what: Literal["process", "worker", "beat"]


#: By progress, not by time, so that a slow machine sees the same as a fast one.
STEPS: Final = (
    Step(0.08, "process"),
    Step(0.16, "process"),
    Step(0.24, "process"),
    Step(0.34, "process"),
    Step(0.46, "worker"),
    Step(0.64, "beat"),
    Step(0.72, "process"),
)


def choose_victim(view: View, spared: Collection[str], chance: random.Random) -> Row | None:
    """An agent in the middle of its work, one that was not hit before if possible; None when there is none now."""
    able = [row for row in view.rows if row.is_mid_work and row.worker]
    fresh = [row for row in able if row.agent_id not in spared]
    return chance.choice(fresh or able) if able else None


def choose_worker(view: View) -> str | None:
    """The worker with most agents in the middle of their work; None when there is none now."""
    busy = Counter(row.worker for row in view.rows if row.is_mid_work and row.worker)
    return busy.most_common(1)[0][0] if busy else None
