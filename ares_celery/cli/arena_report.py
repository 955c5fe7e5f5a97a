"""What ``ares arena`` tells of a run: while it goes on, at its end, and in files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from ares_celery.cli.apps import Session
from ares_celery.cli.exit_codes import ExitCode
from ares_celery.cli.output import clean, print_facts, print_json, say

if TYPE_CHECKING:
    from ares_celery.arena.verdict.journal import ActivityReport, ScenarioReport

__all__ = ["REPORT_FILES", "finish", "report_options", "tell"]

F = TypeVar("F", bound=Callable[..., Any])

_CODES: Final[Mapping[str, ExitCode]] = {
    "completed": ExitCode.OK,
    "deviated": ExitCode.FAILED,
    "interrupted": ExitCode.FAILED,
    "precondition": ExitCode.PRECONDITION,
}


_NAMES: Final = {"--html": "html", "--junit": "junit", "--report": "report_file"}
#: Arguments of a command with these options.
REPORT_FILES: Final = tuple(_NAMES.values())


def report_options(function: F) -> F:
    """Where the report goes beside the terminal."""
    path = click.Path(dir_okay=False, writable=True, path_type=Path)

    def in_a_folder(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
        # Now, and not when the run of an hour is over.
        if value is not None and not (value.parent.is_dir() and os.access(value.parent, os.W_OK)):
            raise click.BadParameter(f"there is no folder {str(value.parent)!r} to write to", ctx, param)
        return value

    for name, what in (("--html", "one page with a timeline"), ("--junit", "JUnit XML"), ("--report", "JSON")):
        said = f"Also write the report there, as {what}."
        function = click.option(name, _NAMES[name], type=path, metavar="PATH", callback=in_a_folder, help=said)(
            function
        )
    told = "Judge the run by the events of the agents.  [default: yes]"
    return click.option("--verdict/--no-verdict", default=True, help=told)(function)


def tell(report: ActivityReport) -> None:
    """What became of an activity, on a line of its own."""
    name = report.label or report.name
    problem = f": {clean(report.problem)}" if report.problem else ""
    say(f"{report.phase.value:<8}  {report.told:<9}  {report.duration:7.3f} s  {clean(name)}{problem}")


def finish(  # noqa: PLR0913 - one parameter for each form of a report
    session: Session,
    report: ScenarioReport,
    output: str,
    agents: Sequence[str],
    *,
    report_file: Path | None,
    junit: Path | None,
    html: Path | None,
    verdict: bool,
) -> None:
    """Judges, prints, writes, and ends with the exit code; what cannot be had does not take the rest along."""
    from ares_celery.arena.verdict.files import write_report
    from ares_celery.arena.verdict.judge import judged, unjudged
    from ares_celery.errors import AresError

    failure: AresError | None = None
    if verdict:
        try:
            report = judged(session.manager, report, agents)
        except AresError as error:
            failure, report = error, unjudged(report, error)
    told = report.to_json()
    if output == "json":
        print_json(told)
    else:
        shown = ("title", "status", "reasons", "passed", "failed", "seed", "started", "ended")
        facts = {name: told[name] for name in shown if told[name] not in (None, "", [])}
        if report.reasons:
            facts["reasons"] = "; ".join(report.reasons)
        print_facts({**facts, **_said_of(told["verdict"])})
    write_report(report, json=report_file, junit=junit, html=html)
    if failure is not None:
        say("the run is over and reported, but its events could not be read: there is no verdict")
        raise failure
    code = _CODES[report.status.value]
    if code:
        raise click.exceptions.Exit(code)


def _said_of(verdict: Mapping[str, Any] | None) -> dict[str, Any]:
    """The verdict in a few lines."""
    if verdict is None:
        return {}
    names = (
        "agents",
        "deaths",
        "recovered",
        "relapses",
        "availability",
        "consistency",
        "score",
        "grade",
        "go_score",
        "go_grade",
    )
    mttr = verdict["mttr"]
    times = mttr if isinstance(mttr, str) else ", ".join(f"{name} {value:.3f}" for name, value in mttr.items())
    broken = [said for one in verdict["invariants"] for said in one["violations"]] + verdict["problems"]
    return {**{name: verdict[name] for name in names}, "mttr": times, "broken": "; ".join(broken)}
