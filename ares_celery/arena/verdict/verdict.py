"""The verdict of a run as a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ares_celery.arena.verdict.history import Failover, Span
from ares_celery.arena.verdict.invariants import Checked
from ares_celery.arena.verdict.scores import NO_DATA, GoScore
from ares_celery.arena.verdict.times import RecoveryTimes

__all__ = ["FaultEffect", "Verdict"]


@dataclass(frozen=True, slots=True)
class FaultEffect:
    """What the events say of one action.

    Attributes:
        name: Of the action.
        fault: What kind of fault it was.
        target: The agent that it was about.
        at: When, by the clock of the store.
        outcome: How the action itself ended.
        cause: The class of the death that came of it; ``killed`` for who was killed together with others, which the
            runtime cannot tell from them; empty when it killed nobody.
        detected: Seconds until the death was found, of several the last; None: there was none.
        recovered: Seconds until all that had died ran again for good; None: one did not, or none had died.
        agents: Whom it was about, as far as they were judged: also those that a kill took along.
        deaths: How many of them died of it.
        relapses: How often they died again when they had just come back, until they stayed.
        backoff: Seconds of ``recovered`` that were waits before a first try, on purpose; of several agents the longest.
        lasted: Seconds that the fault was active; None: it is not over, or no fault that lasts.
        ended: How that ended: ``healed``, ``time``, ``count`` or ``replaced``.
        felt: Events that tell of a disturbance, by type, until the next action on the same agent: how many.
    """

    name: str
    fault: str
    target: str
    at: datetime
    outcome: str
    cause: str = ""
    detected: float | None = None
    recovered: float | None = None
    agents: tuple[str, ...] = ()
    deaths: int = 0
    relapses: int = 0
    backoff: float = 0.0
    lasted: float | None = None
    ended: str = ""
    felt: Mapping[str, int] = field(default_factory=dict[str, int])

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        told: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return {**told, "at": self.at.isoformat(), "agents": list(self.agents), "felt": dict(self.felt)}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the events of the agents say of a run.

    Attributes:
        agents: How many were judged.
        actions: Actions of the method.
        deaths: Failovers that nobody had asked for, triggered during the run; one with its relapses is one.
        recovered: Those after which the agent ran again and stayed up, for the ``steady`` of the report.
        relapses: Deaths of agents that had just come back, and did not stay up for that long.
        times: How long that took; None: nothing was recovered.
        availability: Per cent of the time that agents were up when they should have been; None: none should have been.
        consistency: Per cent of agents whose whole history is sound; None: there is none.
        invariants: What was checked in the histories.
        score: From 0 to 100; None: no action succeeded, or nothing happened that could be judged.
        go: What the original would say of the injections.
        effects: What came of each action.
        failovers: Those of the run, restores included.
        spans: When which agent was up, down or out.
        problems: Agents whose streams could not be read, and why.
    """

    agents: int = 0
    actions: int = 0
    deaths: int = 0
    recovered: int = 0
    relapses: int = 0
    times: RecoveryTimes | None = None
    availability: float | None = None
    consistency: float | None = None
    invariants: tuple[Checked, ...] = ()
    score: float | None = None
    grade: str = NO_DATA
    go: GoScore | None = None
    effects: tuple[FaultEffect, ...] = ()
    failovers: tuple[Failover, ...] = ()
    spans: tuple[Span, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Every invariant holds, and every stream could be read."""
        return all(one.holds for one in self.invariants) and not self.problems

    def reasons(self) -> tuple[str, ...]:
        """What is wrong, in sentences: who did not come back, what is not sound, what could not be read."""
        return (
            *(_away(one) for one in self.failovers if one.is_lost),
            *(_broken(one) for one in self.invariants if not one.holds),
            *(f"the history of {problem}" for problem in self.problems),
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values; ``no data`` where nothing happened."""
        return {
            "agents": self.agents,
            "actions": self.actions,
            "deaths": self.deaths,
            "recovered": self.recovered,
            "relapses": self.relapses,
            "mttr": NO_DATA if self.times is None else self.times.to_json(),
            "availability": _or_no_data(self.availability),
            "consistency": _or_no_data(self.consistency),
            "score": _or_no_data(self.score),
            "grade": self.grade,
            "go_score": None if self.go is None else self.go.score,
            "go_grade": None if self.go is None else self.go.grade,
            "invariants": [one.to_json() for one in self.invariants],
            "effects": [one.to_json() for one in self.effects],
            "failovers": [_failover(one) for one in self.failovers],
            "problems": list(self.problems),
        }


def _or_no_data(value: float | None) -> float | str:
    return NO_DATA if value is None else round(value, 4)


def _away(one: Failover) -> str:
    again = f" and again {one.relapses} times right after it came back" if one.relapses else ""
    last = "it had just come back when the run ended" if one.end == "unsteady" else "it did not come back for good"
    return f"{one.agent_id} died ({one.cause}){again}: {last}"


def _broken(one: Checked) -> str:
    more = f", and {one.count - 1} more" if one.count > 1 else ""
    return f"{one.name} is broken: {one.told[0] if one.told else one.meaning}{more}"


def _failover(one: Failover) -> dict[str, Any]:
    return {
        "agent_id": one.agent_id,
        "incarnation": one.incarnation,
        "cause": one.cause,
        "charged": one.charged,
        "triggered": one.triggered.isoformat(),
        "completed": one.completed.isoformat() if one.completed else None,
        "seconds": one.seconds,
        "end": one.end,
        "relapses": one.relapses,
        "backoff": one.backoff,
    }
