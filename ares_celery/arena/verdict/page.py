"""A report as one page of HTML with its timeline as a picture: nothing is loaded, and nothing in it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from html import escape
from typing import Final

from ares_celery.arena.verdict.history import Span
from ares_celery.arena.verdict.journal import ActivityReport, Phase, ScenarioReport
from ares_celery.arena.verdict.scores import NO_DATA
from ares_celery.arena.verdict.verdict import FaultEffect, Verdict

__all__ = ["page"]

#: Points of the picture.
_WIDTH: Final = 1000
_LEFT: Final = 180
_ROW: Final = 22
#: Agents that the picture shows: first those that were down.
_MOST_ROWS: Final = 60
#: Agents that are named of one action.
_MOST_NAMED: Final = 5
#: What the picture and the availability do not show.
_UP: Final = (
    "Up: an incarnation runs, by the events of the agent. Whether it gets anything done is not looked at: an agent "
    "that waits for its store, its model or a tool is up."
)
_COLOURS: Final = {"up": "#2e7d32", "down": "#c62828", "out": "#cfd8dc"}
_STYLE: Final = """
body{font:14px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:68rem;padding:0 1rem;color:#222;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%}
th,td{text-align:left;padding:.25rem .6rem;border-bottom:1px solid #e0e0e0;vertical-align:top}
.completed,.succeeded,.holds{color:#2e7d32}.deviated,.failed,.broken{color:#c62828}
.precondition,.interrupted,.skipped,.cancelled{color:#b26a00}
.numbers{display:flex;flex-wrap:wrap;gap:1.5rem}.numbers div{min-width:7rem}.numbers b{display:block;font-size:1.4rem}
svg{width:100%;height:auto;font:12px system-ui,sans-serif}
@media (prefers-color-scheme:dark){body{background:#151515;color:#ddd}th,td{border-color:#333}svg text{fill:#ddd}}
"""
#: The page may show itself, and nothing else.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(report: ScenarioReport) -> str:
    """The whole page; every word of it that comes from elsewhere is escaped."""
    # Half of a surrogate pair is no text that a file can hold.
    return "".join(_page(report)).encode(errors="replace").decode()


def _page(report: ScenarioReport) -> Iterator[str]:
    yield '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{escape(report.title)}</title><style>{_STYLE}</style></head><body>"
    yield f'<h1>{escape(report.title)} <span class="{report.status.value}">{report.status.value}</span></h1>'
    yield f"<p>Namespace {escape(report.namespace)}, {_moment(report.started)} to {_moment(report.ended)}"
    yield "" if report.seed is None else f", seed {report.seed}"
    yield ".</p>"
    if report.partial:
        yield f'<p class="interrupted">Only a part was done: {escape(report.partial_because)}.</p>'
    if report.reasons:
        told = "".join(f"<li>{escape(one)}</li>" for one in report.reasons)
        yield f'<ul class="{report.status.value}">{told}</ul>'
    if report.verdict is not None:
        yield from _numbers(report, report.verdict)
        yield from _timeline(report, report.verdict)
        yield from _effects(report.verdict)
        yield from _invariants(report.verdict)
    for phase in Phase:
        yield from _activities(phase, report.of(phase))
    yield "</body></html>\n"


def _moment(moment: datetime) -> str:
    return escape(moment.isoformat(sep=" ", timespec="milliseconds"))


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f} s"


def _numbers(report: ScenarioReport, verdict: Verdict) -> Iterator[str]:
    times = verdict.times
    shown = (
        ("Score", NO_DATA if verdict.score is None else f"{verdict.score:g} ({verdict.grade})"),
        ("Passed", f"{report.passed} of {report.passed + report.failed}"),
        ("Deaths", str(verdict.deaths)),
        ("Recovered", str(verdict.recovered)),
        ("Relapses", str(verdict.relapses)),
        ("MTTR", _seconds(times.avg) if times else NO_DATA),
        ("Fastest, 95 %, slowest", f"{times.min:.3f}, {times.p95:.3f}, {times.max:.3f} s" if times else NO_DATA),
        ("Availability", NO_DATA if verdict.availability is None else f"{verdict.availability:.2f} %"),
        ("Consistency", NO_DATA if verdict.consistency is None else f"{verdict.consistency:.0f} %"),
        ("go_score", "–" if verdict.go is None else f"{verdict.go.score:g} ({verdict.go.grade})"),
    )
    cells = "".join(f"<div>{name}<b>{escape(value)}</b></div>" for name, value in shown)
    yield f'<div class="numbers">{cells}</div>'
    for problem in verdict.problems:
        yield f'<p class="failed">{escape(problem)}</p>'


def _timeline(report: ScenarioReport, verdict: Verdict) -> Iterator[str]:
    whole = (report.ended - report.started).total_seconds()
    rows = _rows(verdict.spans)
    if not rows or whole <= 0:
        return
    scale = (_WIDTH - _LEFT - 10) / whole

    def at(moment: datetime) -> float:
        return _LEFT + max(0.0, min(whole, (moment - report.started).total_seconds())) * scale

    height = _ROW * (len(rows) + 2)
    yield "<h2>Timeline</h2>"
    yield f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="When which agent was up or down">'
    for row, (agent_id, lived) in enumerate(rows.items()):
        top = row * _ROW + 4
        yield f'<text x="0" y="{top + 12}">{escape(agent_id[:26])}</text>'
        for span in lived:
            left, width = at(span.start), max(0.5, at(span.end) - at(span.start))
            yield f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="14" fill="{_COLOURS[span.state]}">'
            yield f"<title>{escape(agent_id)}: {span.state} for {span.seconds:.3f} s</title></rect>"
    bottom = len(rows) * _ROW
    for effect in verdict.effects:
        x = at(effect.at)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{bottom}" stroke="#b26a00" stroke-dasharray="3 3">'
        yield f"<title>{escape(effect.name)}</title></line>"
    for part in range(5):
        x = _LEFT + part / 4 * (_WIDTH - _LEFT - 10)
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"  # noqa: PLR2004 - first and last
        yield f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{part / 4 * whole:.1f} s</text>'
    yield "</svg><p>Green: up. Red: down. Grey: at rest on purpose. Dashed: an action.</p>"
    yield f"<p>{_UP}</p>"


def _rows(lived: Sequence[Span]) -> dict[str, list[Span]]:
    rows: dict[str, list[Span]] = {}
    for span in lived:
        rows.setdefault(span.agent_id, []).append(span)
    hurt = sorted(rows, key=lambda agent_id: all(span.state != "down" for span in rows[agent_id]))
    return {agent_id: rows[agent_id] for agent_id in hurt[:_MOST_ROWS]}


def _effects(verdict: Verdict) -> Iterator[str]:
    if not verdict.effects:
        return
    yield "<h2>Fault → detected → recovered</h2><table><tr><th>Action</th><th>Agent</th><th>Outcome</th>"
    yield "<th>Death</th><th>Detected in</th><th>Recovered in</th><th>Of which backoff</th>"
    yield "<th>Lasted</th><th>Met meanwhile</th></tr>"
    for one in verdict.effects:
        yield f"<tr><td>{escape(one.name)}</td><td>{escape(_whom(one))}</td>"
        yield f'<td class="{one.outcome}">{one.outcome}</td><td>{escape(one.cause) or "–"}</td>'
        yield f"<td>{_seconds(one.detected)}</td><td>{_seconds(one.recovered)}{_relapses(one)}</td>"
        yield f"<td>{_seconds(one.backoff) if one.deaths else '–'}</td>"
        yield f"<td>{_seconds(one.lasted)}{f', {escape(one.ended)}' if one.ended else ''}</td>"
        yield f"<td>{escape(', '.join(f'{name} × {count}' for name, count in one.felt.items()) or '–')}</td></tr>"
    yield "</table>"


def _relapses(effect: FaultEffect) -> str:
    return f", {effect.relapses} relapses" if effect.relapses else ""


def _whom(effect: FaultEffect) -> str:
    named = (effect.target,) if effect.target else effect.agents[:_MOST_NAMED]
    more = len(effect.agents) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _invariants(verdict: Verdict) -> Iterator[str]:
    yield "<h2>Invariants over the whole history</h2><table>"
    for one in verdict.invariants:
        state = "holds" if one.holds else "broken"
        told = "".join(f"<br>{escape(said)}" for said in one.told)
        yield f'<tr><td>{one.name}</td><td>{escape(one.meaning)}{told}</td><td class="{state}">{state}</td></tr>'
    yield "</table>"


def _activities(phase: Phase, found: Sequence[ActivityReport]) -> Iterator[str]:
    if not found:
        return
    yield f"<h2>{phase.value.capitalize()}</h2><table><tr><th>Activity</th><th>Outcome</th><th>Expected</th>"
    yield "<th>Took</th><th>Problem</th></tr>"
    for one in found:
        state = one.outcome.value
        yield f'<tr><td>{escape(one.label or one.name)}</td><td class="{state}">{one.told}</td>'
        yield f"<td>{one.expected or '–'}</td><td>{one.duration:.3f} s</td><td>{escape(one.problem)}</td></tr>"
    yield "</table>"
