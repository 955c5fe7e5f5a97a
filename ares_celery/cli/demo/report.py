"""The demo's answer: one object for programs, a few clear sentences for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from ares_celery.cli.demo.checker import Findings, Kill
from ares_celery.cli.demo.counting import Counts

__all__ = ["Report", "make_report", "render"]

_TOP = 10


@dataclass(frozen=True, slots=True)
class Report:
    """What the demo found; times in milliseconds, None where nothing was killed.

    Attributes:
        agents: How many there were.
        files: Python sources that they shared out.
        names: Identifiers and keywords counted in them.
        kills: SIGKILLs, by what they hit.
        killed: Incarnations that these ended.
        recovered: Those of them whose agent ran again or had already completed.
        duplicates: Events that were there twice.
        lost_events: Events that were not there.
        epoch_falls: Writes of an older incarnation after those of a newer one.
        state_preserved: Snapshots and events of all agents, merged, equal the plain count.
        other_deaths: Deaths that the demo did not cause.
        seconds: The whole run.
        common_identifiers: The commonest ones with their counts.
        problems: A sentence for everything that is not as it should be.
    """

    agents: int
    files: int
    names: int
    kills: dict[str, int]
    killed: int
    recovered: int
    duplicates: int
    lost_events: int
    epoch_falls: int
    state_preserved: bool
    other_deaths: int
    detect_ms_p50: float | None
    detect_ms_max: float | None
    recover_ms_p50: float | None
    recover_ms_max: float | None
    seconds: float
    common_identifiers: tuple[tuple[str, int], ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Everything held."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {"ok": self.ok, **asdict(self)}


def make_report(  # noqa: PLR0913 - the parts of one report
    findings: Findings,
    kills: Sequence[Kill],
    *,
    agents: int,
    files: int,
    snapshots: Counts,
    events: Counts,
    plain: Counts,
    seconds: float,
    missed: Sequence[str] = (),
) -> Report:
    """Puts the findings together.

    Args:
        findings: Of the checker.
        kills: What was killed.
        agents: How many there were.
        files: How many they shared out.
        snapshots: The agents' own states, merged.
        events: The fold of all their events.
        plain: What a plain loop over the same files counted.
        seconds: The whole run.
        missed: What the demo meant to do and could not.
    """
    problems = [*missed, *findings.problems]
    if snapshots != plain:
        problems.append(f"the agents' states count {snapshots.names} names, a plain loop {plain.names}")
    if events != plain:
        problems.append(f"the agents' events count {events.names} names, a plain loop {plain.names}")
    if findings.recovered != findings.killed:
        problems.append(f"{findings.killed} incarnations were killed, {findings.recovered} of their agents recovered")
    return Report(
        agents=agents,
        files=files,
        names=events.names,
        kills={what: sum(kill.what == what for kill in kills) for what in ("process", "worker", "beat")},
        killed=findings.killed,
        recovered=findings.recovered,
        duplicates=findings.duplicates,
        lost_events=findings.lost_events,
        epoch_falls=findings.epoch_falls,
        state_preserved=snapshots == plain and events == plain,
        other_deaths=findings.other_deaths,
        detect_ms_p50=_p50(findings.detect_ms),
        detect_ms_max=max(findings.detect_ms, default=None),
        recover_ms_p50=_p50(findings.recover_ms),
        recover_ms_max=max(findings.recover_ms, default=None),
        seconds=round(seconds, 1),
        common_identifiers=tuple(events.identifiers.most_common(_TOP)),
        problems=tuple(problems),
    )


def _p50(values: Sequence[float]) -> float | None:
    return round(median(values), 1) if values else None


def render(report: Report) -> str:
    """The report for a person who saw none of it."""
    common = ", ".join(f"{name} {count:,}" for name, count in report.common_identifiers)
    same = "exactly what" if report.state_preserved else "NOT what"
    lines = [
        f"{report.agents} agents counted {report.names:,} names in {report.files} files of Python's standard library,",
        f"while {_kills(report)} got SIGKILL ({report.seconds:g} s in all).",
        "",
        f"  killed       {report.killed:>8}   incarnations (lives) of agents that a SIGKILL ended",
        f"  recovered    {report.recovered:>8}   of their agents came back and went on where they were",
        f"  duplicates   {report.duplicates:>8}   files counted twice",
        f"  lost         {report.lost_events:>8}   acknowledged events missing",
        f"  detection    {_ms(report.detect_ms_p50)}   {_until('the death was on record', report.detect_ms_max)}",
        f"  recovery     {_ms(report.recover_ms_p50)}   {_until('the agent ran again', report.recover_ms_max)}",
        "",
        f"The merged counts are {same} a plain loop over the same files gives. Commonest identifiers:",
        f"  {common}",
        "",
    ]
    if report.ok:
        lines.append("All of it held: every agent outlived its processes, with its state, one life at a time.")
    else:
        lines += ["It did NOT hold:", *(f"  - {problem}" for problem in report.problems)]
    return "\n".join(lines)


def _kills(report: Report) -> str:
    parts = [
        (report.kills["process"], "process that hosted one of them", "processes that hosted one of them"),
        (report.kills["worker"], "whole worker", "whole workers"),
        (report.kills["beat"], "beat", "beats"),
    ]
    said = [f"{count} {one if count == 1 else many}" for count, one, many in parts if count]
    return " and ".join([", ".join(said[:-1]), said[-1]]) if len(said) > 1 else "".join(said) or "nothing"


def _until(what: str, longest: float | None) -> str:
    return f"median time from a kill until {what} (longest {_ms(longest).strip()})"


def _ms(value: float | None) -> str:
    return f"{value:>5.0f} ms" if value is not None else "     -  "
