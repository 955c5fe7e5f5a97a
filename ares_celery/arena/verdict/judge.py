"""Judges a run by the events of the agents: what died, what came back and when, and whether the history is sound."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ares_celery.arena.verdict.history import Failover, failovers, spans
from ares_celery.arena.verdict.invariants import Judged, check_invariants
from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase, RunStatus, ScenarioReport
from ares_celery.arena.verdict.scores import NO_DATA, go_score, grade_of, weighted
from ares_celery.arena.verdict.times import recovery_times
from ares_celery.arena.verdict.verdict import FaultEffect, Verdict
from ares_celery.errors import AresError
from ares_celery.model.event import Event, ReadOptions

if TYPE_CHECKING:
    from ares_celery.manager import CoreManager

__all__ = ["judge", "judged"]

#: Events of one read.
_PAGE: Final = 1_000
#: Seconds before an action to which a death may belong: clocks of who injects and who stores agree as well as that.
_SLACK: Final = timedelta(milliseconds=50)


def judged(manager: CoreManager, report: ScenarioReport, agents: Sequence[str] = ()) -> ScenarioReport:
    """The report with a verdict; a run whose histories are not sound deviates, whatever it looked at itself.

    Args:
        manager: Of the namespace.
        report: Of a run that is over.
        agents: Whom to judge; empty: all agents of the namespace.

    Raises:
        StoreUnavailableError.
    """
    verdict = judge(manager, report, agents)
    broken = report.status is RunStatus.COMPLETED and not verdict.is_sound
    return replace(report, verdict=verdict, status=RunStatus.DEVIATED if broken else report.status)


def judge(manager: CoreManager, report: ScenarioReport, agents: Sequence[str] = ()) -> Verdict:
    """What the events say of a run; see :func:`judged`."""
    infos = {info.id: info for info in manager.list_agents()}
    cap = manager.config.max_restarts_per_agent
    found: list[Judged] = []
    problems: list[str] = []
    for agent_id in agents or infos:
        try:
            events = tuple(_events(manager, agent_id))
        except AresError as error:
            problems.append(f"{agent_id}: {error}")
            continue
        info = infos.get(agent_id)
        own = None if info is None else info.max_restarts
        found.append(Judged(agent_id, events, info, cap if own is None else own))
    return verdict_of(report, found, problems)


def _events(manager: CoreManager, agent_id: str) -> Iterator[Event]:
    after = 0
    while True:
        page = manager.events.read(agent_id, ReadOptions(from_version=after + 1, limit=_PAGE, summaries=False))
        yield from page
        if len(page) < _PAGE:
            return
        after = int(page[-1].version)


@dataclass(frozen=True, slots=True)
class _Window:
    start: datetime
    end: datetime

    def holds(self, moment: datetime) -> bool:
        return self.start - _SLACK <= moment <= self.end


def verdict_of(report: ScenarioReport, agents: Sequence[Judged], problems: Sequence[str] = ()) -> Verdict:
    """The verdict of histories that were read already."""
    window = _Window(report.started, report.ended)
    every = [one for agent in agents for one in failovers(agent.agent_id, agent.events)]
    during = [one for one in every if window.holds(one.triggered)]
    deaths = [one for one in during if one.is_death]
    times = recovery_times(deaths)
    lived = [span for one in agents for span in spans(one.agent_id, one.events, window.start, window.end)]
    up, down = (math.fsum(one.seconds for one in lived if one.state == state) for state in ("up", "down"))
    availability = 100.0 * up / (up + down) if up + down else None
    checks = check_invariants(agents)
    broken = {agent_id for one in checks for agent_id in one.agents}
    consistency = 100.0 * (len(agents) - len(broken)) / len(agents) if agents else None
    actions = [one for one in report.of(Phase.METHOD) if one.kind == "action" and one.started is not None]
    recovered = sum(one.completed is not None for one in deaths)
    # A mean of nothing is no fast recovery.
    mean = times.avg if times is not None else math.inf
    score = weighted(
        availability=availability,
        recovery=(100.0 * recovered / len(deaths), mean) if deaths else None,
        consistency=consistency,
    )
    score = score if actions else None
    succeeded = [one for one in actions if one.outcome is Outcome.SUCCEEDED]
    took = math.fsum(one.duration for one in succeeded) / len(succeeded) if succeeded else 0.0
    return Verdict(
        agents=len(agents),
        actions=len(actions),
        deaths=len(deaths),
        recovered=recovered,
        times=times,
        availability=availability,
        consistency=consistency,
        invariants=checks,
        score=score,
        grade=NO_DATA if score is None else grade_of(score),
        go=go_score(total=len(actions), succeeded=len(succeeded), seconds=took),
        effects=tuple(_effects(actions, deaths)),
        failovers=tuple(during),
        spans=tuple(lived),
        problems=tuple(problems),
    )


def _effects(actions: Sequence[ActivityReport], deaths: Sequence[Failover]) -> Iterator[FaultEffect]:
    """Each action with the first death of its target between it and the next action on the same agent."""
    left = sorted(deaths, key=lambda one: one.triggered)
    begun = sorted(((one.started, one) for one in actions if one.started is not None), key=lambda pair: pair[0])
    for started, action in begun:
        later = (moment for moment, other in begun if other.target == action.target and moment > started)
        until = min(later, default=None)
        death = next((one for one in left if _is_of(one, action.target, started, until)), None)
        effect = FaultEffect(action.label or action.name, action.fault, action.target, started, action.outcome.value)
        if death is not None:
            left.remove(death)
            effect = replace(
                effect,
                cause=death.cause,
                detected=max(0.0, (death.triggered - started).total_seconds()),
                recovered=None if death.completed is None else (death.completed - started).total_seconds(),
            )
        yield effect


def _is_of(death: Failover, target: str, started: datetime, until: datetime | None) -> bool:
    """The death came between an action on the agent and the next one."""
    is_before_next = until is None or death.triggered < until - _SLACK
    return death.agent_id == target and death.triggered >= started - _SLACK and is_before_next
