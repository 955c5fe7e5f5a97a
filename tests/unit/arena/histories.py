"""Histories of agents, as their streams would tell them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase, RunStatus, ScenarioReport
from ares_celery.ids import Version
from ares_celery.model.event import Event

START = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """So many seconds after the beginning."""
    return START + timedelta(seconds=seconds)


class Stream:
    """Adds events, each with the next version."""

    def __init__(self, agent_id: str = "a") -> None:
        self.agent_id = agent_id
        self.events: list[Event] = []

    def add(self, seconds: float, kind: str, *, epoch: int = 0, version: int = 0, **payload: Any) -> Stream:
        """One event; epoch 0 is the runtime's own."""
        number = version or (self.events[-1].version + 1 if self.events else 1)
        event = Event(f"e{number}", self.agent_id, Version(number), kind, payload, at(seconds), epoch)
        self.events.append(event)
        return self

    def death(self, seconds: float, back: float | None, *, cause: str = "crash", incarnation: int = 1) -> Stream:
        """A death, and the return after so many seconds, if there is one."""
        self.add(seconds, "agent.stopped", auto_restore=True, cause=cause)
        self.add(seconds, "failover.triggered", cause=cause, charged=True, incarnation=incarnation)
        if back is not None:
            self.add(seconds + back, "failover.completed", incarnation=incarnation + 1)
        return self


def action(
    name: str, seconds: float, *, target: str = "a", fails: bool = False, duration: float = 0.1
) -> ActivityReport:
    """An action of a method that took so long."""
    outcome = Outcome.FAILED if fails else Outcome.SUCCEEDED
    return ActivityReport(
        name, Phase.METHOD, "action", outcome, target=target, fault="kill_agent", started=at(seconds), duration=duration
    )


def report(*activities: ActivityReport, seconds: float = 100, **more: Any) -> ScenarioReport:
    """A run of so many seconds."""
    return ScenarioReport("t", RunStatus.COMPLETED, activities, "n", START, at(seconds), **more)
