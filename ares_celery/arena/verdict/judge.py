"""Judges a run by the events of the agents: what died, what came back and when, and whether the history is sound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from ares_celery.arena.verdict.effects import SLACK, EffectReader, Felt, Targets, effects_of
from ares_celery.arena.verdict.history import Failover, Span, SpanReader
from ares_celery.arena.verdict.invariants import InvariantReader, Judged, Tally
from ares_celery.arena.verdict.journal import Outcome, Phase, RunStatus, ScenarioReport
from ares_celery.arena.verdict.recoveries import RecoveryReader
from ares_celery.arena.verdict.scores import NO_DATA, go_score, grade_of, weighted
from ares_celery.arena.verdict.times import recovery_times
from ares_celery.arena.verdict.verdict import Verdict
from ares_celery.errors import AresError
from ares_celery.model.agent import AgentInfo
from ares_celery.model.event import Event, ReadOptions

if TYPE_CHECKING:
    from ares_celery.manager import CoreManager

__all__ = ["judge", "judged", "unjudged"]

#: Events of one read: whole streams are judged, and only so many are held at a time.
_PAGE: Final = 250


def judged(manager: CoreManager, report: ScenarioReport, agents: Sequence[str] = ()) -> ScenarioReport:
    """The report with a verdict; a run deviates whose histories are not sound, or where a death has no return.

    Whatever it looked at itself: ``reasons`` gets what the events say in addition.

    Args:
        manager: Of the namespace.
        report: Of a run that is over.
        agents: Whom to judge; empty: all agents of the namespace.

    Raises:
        StoreUnavailableError.
    """
    verdict = judge(manager, report, agents)
    # Who did not come back was perhaps told already, with more than the events know.
    named = {
        one.agent_id for one in verdict.failovers if any(said.startswith(f"{one.agent_id} ") for said in report.reasons)
    }
    more = [said for said in verdict.reasons() if said.partition(" ")[0] not in named]
    status = RunStatus.DEVIATED if more and report.status is RunStatus.COMPLETED else report.status
    return replace(report, verdict=verdict, status=status, reasons=(*report.reasons, *more))


def unjudged(report: ScenarioReport, error: object) -> ScenarioReport:
    """The report of a run that nobody can judge, and that says so: it has not shown what it is for."""
    status = RunStatus.DEVIATED if report.status is RunStatus.COMPLETED else report.status
    return replace(report, status=status, reasons=(*report.reasons, f"its events could not be read: {error}"))


def judge(manager: CoreManager, report: ScenarioReport, agents: Sequence[str] = ()) -> Verdict:
    """What the events say of a run; see :func:`judged`. Streams are read page by page, one after the other."""
    infos = {info.id: info for info in manager.list_agents()}
    cap = manager.config.max_restarts_per_agent
    return verdict_of(report, (_of(manager, one, infos.get(one), cap) for one in agents or infos))


def _of(manager: CoreManager, agent_id: str, info: AgentInfo | None, cap: int) -> Judged:
    own = None if info is None else info.max_restarts

    def is_kept(version: int) -> bool:
        wanted = ReadOptions(from_version=version, to_version=version, limit=1, summaries=False)
        return bool(manager.events.read(agent_id, wanted))

    return Judged(agent_id, _events(manager, agent_id), info, cap if own is None else own, is_kept)


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
    steady: timedelta

    def holds(self, moment: datetime) -> bool:
        return self.start - SLACK <= moment <= self.end


@dataclass(slots=True)
class _Findings:
    """What the histories that were read so far say."""

    agents: int = 0
    failovers: list[Failover] = field(default_factory=list[Failover])
    spans: list[Span] = field(default_factory=list[Span])
    tally: Tally = field(default_factory=Tally)
    felt: dict[int, dict[str, Felt]] = field(default_factory=dict[int, dict[str, Felt]])

    def read(self, judged: Judged, window: _Window, targets: Targets) -> None:
        """Reads one history, once; of what it held, only what the verdict tells is kept."""
        spans = SpanReader(judged.agent_id, window.start, window.end)
        rules, effects = InvariantReader(judged), EffectReader(judged.agent_id, targets, window.end)

        def is_ordered(before: Failover, death: Failover) -> bool:
            # What went on before the run is not of the run.
            return window.holds(death.triggered) > window.holds(before.triggered) or effects.is_ordered(before, death)

        recoveries = RecoveryReader(judged.agent_id, window.steady, is_ordered)
        during: list[Failover] = []
        lived: list[Span] = []

        def note(one: Failover) -> None:
            if window.holds(one.triggered):
                during.append(one)
                if one.is_death:
                    effects.died(one)

        for event in judged.events:
            rules.see(event)
            effects.see(event)
            for one in recoveries.see(event):
                note(one)
            if (span := spans.see(event)) is not None:
                lived.append(span)
        rules.end()
        for one in recoveries.end(window.end):
            note(one)
        self.agents += 1
        self.failovers += during
        self.spans += lived if (last := spans.last()) is None else [*lived, last]
        self.tally.add(judged.agent_id, rules)
        for number, felt in effects.felt.items():
            self.felt.setdefault(number, {})[judged.agent_id] = felt


def verdict_of(report: ScenarioReport, agents: Iterable[Judged], problems: Iterable[str] = ()) -> Verdict:
    """The verdict of histories, each of which is read once."""
    window = _Window(report.started, report.ended, timedelta(seconds=report.steady))
    actions = [one for one in report.of(Phase.METHOD) if one.kind == "action" and one.started is not None]
    targets, found, unread = Targets(actions), _Findings(), list(problems)
    for judged in agents:
        try:
            found.read(judged, window, targets)
        except AresError as error:
            unread.append(f"{judged.agent_id}: {error}")
    deaths = [one for one in found.failovers if one.is_death]
    times = recovery_times(deaths)
    up, down = (math.fsum(one.seconds for one in found.spans if one.state == state) for state in ("up", "down"))
    availability = 100.0 * up / (up + down) if up + down else None
    checks = found.tally.checked()
    broken = {agent_id for one in checks for agent_id in one.agents}
    consistency = 100.0 * (found.agents - len(broken)) / found.agents if found.agents else None
    recovered = sum(one.completed is not None for one in deaths)
    # A mean of nothing is no fast recovery.
    mean = times.avg if times is not None else math.inf
    score = weighted(
        availability=availability,
        recovery=(100.0 * recovered / len(deaths), mean) if deaths else None,
        consistency=consistency,
    )
    succeeded = [one for one in actions if one.outcome is Outcome.SUCCEEDED]
    # Where nothing was done, whatever is well is no merit of anybody's.
    score = score if succeeded else None
    took = math.fsum(one.duration for one in succeeded) / len(succeeded) if succeeded else 0.0
    return Verdict(
        agents=found.agents,
        actions=len(actions),
        deaths=len(deaths),
        recovered=recovered,
        relapses=sum(one.relapses for one in deaths),
        times=times,
        availability=availability,
        consistency=consistency,
        invariants=checks,
        score=score,
        grade=NO_DATA if score is None else grade_of(score),
        go=go_score(total=len(actions), succeeded=len(succeeded), seconds=took),
        effects=tuple(effects_of(targets, found.felt)),
        failovers=tuple(found.failovers),
        spans=tuple(found.spans),
        problems=tuple(unread),
    )
