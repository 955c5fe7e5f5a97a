"""A report as JUnit XML, which every CI shows."""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring  # writes only; nothing of others is read

from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase, ScenarioReport

__all__ = ["junit"]

#: What XML cannot hold, in any spelling.
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: ScenarioReport) -> str:
    """One test suite for each phase of the run, and one for the invariants; a text with its declaration."""
    suites = Element("testsuites", name=_clean(report.title))
    for phase in Phase:
        _suite(suites, report, phase)
    if report.verdict is not None and report.verdict.invariants:
        broken = [one for one in report.verdict.invariants if not one.holds]
        suite = SubElement(suites, "testsuite", name="invariants", tests=str(len(report.verdict.invariants)))
        suite.set("failures", str(len(broken)))
        for one in report.verdict.invariants:
            case = SubElement(suite, "testcase", classname="invariants", name=one.name)
            if not one.holds:
                SubElement(case, "failure", message=_clean(one.meaning)).text = _clean("\n".join(one.told))
    if report.partial:
        suite = SubElement(suites, "testsuite", name="run", tests="1", failures="1")
        case = SubElement(suite, "testcase", classname="run", name="came to its end")
        SubElement(case, "failure", message=_clean(report.partial_because))
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _suite(suites: Element, report: ScenarioReport, phase: Phase) -> None:
    found = report.of(phase)
    if not found:
        return
    skipped = [one for one in found if one.outcome in {Outcome.SKIPPED, Outcome.CANCELLED}]
    failed = [one for one in found if not one.is_fine and one not in skipped]
    suite = SubElement(suites, "testsuite", name=phase.value, tests=str(len(found)), failures=str(len(failed)))
    suite.set("skipped", str(len(skipped)))
    suite.set("time", f"{sum(one.duration for one in found):.3f}")
    suite.set("timestamp", report.started.isoformat(timespec="seconds"))
    for one in found:
        case = SubElement(suite, "testcase", classname=phase.value, name=_clean(one.label or one.name))
        case.set("time", f"{one.duration:.3f}")
        if one in skipped:
            SubElement(case, "skipped", message=_clean(one.problem))
        elif one in failed:
            SubElement(case, "failure", message=_clean(_why(one)))


def _why(one: ActivityReport) -> str:
    if one.outcome is Outcome.SUCCEEDED:
        return "it succeeded, and was expected to fail"
    return f"{one.problem} (expected to fail with another error)" if one.expected == "failure" else one.problem


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("�", text)
