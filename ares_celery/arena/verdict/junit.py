"""A report as JUnit XML, which every CI shows."""

from __future__ import annotations

import re
from typing import Final
from xml.etree.ElementTree import Element, SubElement, tostring  # writes only; nothing of others is read

from ares_celery.arena.verdict.journal import Outcome, Phase, RunStatus, ScenarioReport

__all__ = ["junit"]

#: What XML cannot hold, in any spelling.
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: ScenarioReport) -> str:
    """One test suite for the run as a whole, one for each phase, and one for the invariants, with its declaration.

    Nothing in it has failed exactly when the run is completed. What did not succeed and is no fault of the run is
    skipped: faults that a survival run drew, and that could not be injected when their turn came.
    """
    suites = Element("testsuites", name=_clean(report.title))
    _whole(suites, report)
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
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + tostring(suites, encoding="unicode") + "\n"


def _whole(suites: Element, report: ScenarioReport) -> None:
    is_bad = report.status is not RunStatus.COMPLETED
    suite = SubElement(suites, "testsuite", name="run", tests="1", failures=str(int(is_bad)))
    case = SubElement(suite, "testcase", classname="run", name="ended as it had to")
    if is_bad:
        reasons = report.reasons or (report.partial_because or f"the run is {report.status.value}",)
        SubElement(case, "failure", message=_clean(reasons[0])).text = _clean("\n".join(reasons))


def _suite(suites: Element, report: ScenarioReport, phase: Phase) -> None:
    found = report.of(phase)
    if not found:
        return
    bad = [one for one in found if not one.is_fine]
    is_drawn = report.form == "survival" and phase is Phase.METHOD
    is_harmless = is_drawn or report.status is RunStatus.COMPLETED
    failed = [one for one in bad if not is_harmless and one.outcome in {Outcome.SUCCEEDED, Outcome.FAILED}]
    skipped = [one for one in bad if one not in failed]
    suite = SubElement(suites, "testsuite", name=phase.value, tests=str(len(found)), failures=str(len(failed)))
    suite.set("skipped", str(len(skipped)))
    suite.set("time", f"{sum(one.duration for one in found):.3f}")
    suite.set("timestamp", report.started.isoformat(timespec="seconds"))
    for one in found:
        case = SubElement(suite, "testcase", classname=phase.value, name=_clean(one.label or one.name))
        case.set("time", f"{one.duration:.3f}")
        if one in skipped:
            SubElement(case, "skipped", message=_clean(one.why))
        elif one in failed:
            SubElement(case, "failure", message=_clean(one.why))


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("�", text)
