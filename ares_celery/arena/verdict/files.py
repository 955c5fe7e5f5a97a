"""A report as files: what other programs read, what a CI shows, and what people look at."""

from __future__ import annotations

import json as json_of
from pathlib import Path

from ares_celery.arena.verdict.journal import ScenarioReport
from ares_celery.arena.verdict.junit import junit as as_junit
from ares_celery.arena.verdict.page import page

__all__ = ["write_report"]


def write_report(
    report: ScenarioReport, *, json: Path | None = None, junit: Path | None = None, html: Path | None = None
) -> None:
    """Writes a report to those files that are named.

    Args:
        report: Of a run.
        json: What ``ares arena compare`` reads.
        junit: JUnit XML, for the page of a CI.
        html: One page with a timeline, which loads nothing.

    Raises:
        OSError: A file cannot be written.
    """
    if json is not None:
        json.write_text(json_of.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    if junit is not None:
        junit.write_text(as_junit(report), encoding="utf-8")
    if html is not None:
        html.write_text(page(report), encoding="utf-8")
