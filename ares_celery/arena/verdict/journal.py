"""What a run did and what came of it, as values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_jsonable_python
from typing_extensions import override

from ares_celery.errors import RunNotCompletedError

if TYPE_CHECKING:
    from ares_celery.arena.verdict.verdict import Verdict

__all__ = ["STEADY", "ActivityReport", "Outcome", "Phase", "RunStatus", "ScenarioReport", "plain"]

#: Seconds for which an agent has to stay up after a death, unless a run says otherwise.
STEADY: Final = 2.0
#: Characters of an activity's output that a report keeps.
_LONGEST: Final = 20_000


class RunStatus(StrEnum):
    """How a run ended."""

    #: All was as it had to be.
    COMPLETED = "completed"
    #: The hypothesis did not hold afterwards, or something did not end as expected.
    DEVIATED = "deviated"
    #: The hypothesis did not hold before; nothing was done.
    PRECONDITION = "precondition"
    #: It was ended before its end: by a person, its timeout, an error that stops it.
    INTERRUPTED = "interrupted"


class Outcome(StrEnum):
    """How an activity ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    #: What it waits for did not end as it had to.
    SKIPPED = "skipped"
    #: The run ended before it did.
    CANCELLED = "cancelled"


class Phase(StrEnum):
    """Where in a run an activity belongs."""

    BEFORE = "before"
    METHOD = "method"
    AFTER = "after"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class ActivityReport:
    """What became of one activity.

    Attributes:
        name: Its name; ``label`` is what the file calls it for people.
        outcome: How it ended.
        problem: Why it did not succeed; empty when it did.
        output: What its provider gave, as JSON.
        expected: ``success``, ``failure`` or ``""`` where the scenario says nothing.
        as_expected: It ended as expected; None where nothing was expected.
        target: The agent that it is about.
        fault: What kind of fault it was; empty for a probe.
        started: When it began, by the clock of the store, aware UTC, not later; None: it never did.
        duration: Seconds that it took.
    """

    name: str
    phase: Phase
    kind: str
    outcome: Outcome
    label: str = ""
    problem: str = ""
    output: Any = None
    expected: str = ""
    as_expected: bool | None = None
    target: str = ""
    fault: str = ""
    started: datetime | None = None
    duration: float = 0.0

    @property
    def is_fine(self) -> bool:
        """It ended as it had to: as expected, or with success where nothing was said."""
        return self.outcome is Outcome.SUCCEEDED if self.as_expected is None else self.as_expected

    @override
    def __str__(self) -> str:
        """One line for people: phase, name, outcome, and what was wrong."""
        return _line_of(self)

    @property
    def told(self) -> str:
        """Its outcome for people, who are told as well whether that is what it had to be."""
        if self.as_expected is None or self.as_expected is (self.outcome is Outcome.SUCCEEDED):
            return self.outcome.value
        if self.as_expected:
            return f"{self.outcome.value}, as expected"
        return "succeeded, should have failed"

    @property
    def why(self) -> str:
        """What is wrong with it, as a sentence; empty when it is fine."""
        if self.is_fine:
            return ""
        if self.outcome is Outcome.SUCCEEDED:
            return "it succeeded, and was expected to fail"
        return f"{self.problem} (expected to fail with another error)" if self.expected == "failure" else self.problem


@dataclass(frozen=True, slots=True)
class ScenarioReport:
    """What became of a run.

    Attributes:
        title: Of the scenario.
        status: How the run ended.
        reasons: Why it did not end as it had to, in sentences; empty exactly when it is ``completed``.
        partial: Not everything was done; ``partial_because`` says why.
        passed: Activities of the method that ended as they had to.
        failed: Those that did not.
        verified: Of what the scenario expects of its activities, nothing came otherwise; true when it expects nothing.
        activities: Everything that was done, in the order of its end within each phase.
        namespace: Where.
        started: When, by the clock of the store, aware UTC.
        ended: Until when.
        seed: Of a survival run: the same one draws the same faults and targets.
        steady: Seconds for which an agent has to stay up after a death, else it has not come back.
        verdict: What the agents' events say; None when nobody judged.
    """

    title: str
    status: RunStatus
    activities: tuple[ActivityReport, ...]
    namespace: str
    started: datetime
    ended: datetime
    partial: bool = False
    partial_because: str = ""
    form: str = ""
    seed: int | None = None
    steady: float = STEADY
    reasons: tuple[str, ...] = ()
    verdict: Verdict | None = None

    def of(self, phase: Phase) -> tuple[ActivityReport, ...]:
        """The activities of a phase."""
        return tuple(one for one in self.activities if one.phase is phase)

    @override
    def __str__(self) -> str:
        """A line for people, and one for each thing that was not as it had to be."""
        return _lines_of(self)

    def raise_for_status(self) -> ScenarioReport:
        """Fails a test unless the run is ``completed``, and says why in the message.

        Returns:
            The report itself.

        Raises:
            RunNotCompletedError: An AssertionError whose ``reasons`` name each thing that was not as it had to be.

        Example:
            ``arena.run("kill-agent", variables={"agent_id": "till-0"}).raise_for_status().verdict.recovered``
        """
        if self.status is not RunStatus.COMPLETED:
            raise RunNotCompletedError(
                title=self.title, status=self.status.value, seed=self.seed, reasons=_reasons_of(self), told=str(self)
            )
        return self

    @property
    def passed(self) -> int:
        """Activities of the method that ended as they had to."""
        return sum(one.is_fine for one in self.of(Phase.METHOD))

    @property
    def failed(self) -> int:
        """Activities of the method that ran and did not."""
        ran = (one for one in self.of(Phase.METHOD) if one.outcome in {Outcome.SUCCEEDED, Outcome.FAILED})
        return sum(not one.is_fine for one in ran)

    @property
    def verified(self) -> bool:
        """Of what the scenario expects of its activities, nothing came otherwise; true when it expects nothing."""
        return all(one.as_expected is not False for one in self.of(Phase.METHOD))

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values; instants as ISO 8601, durations as seconds."""
        told: dict[str, Any] = {
            "title": self.title,
            "status": self.status.value,
            "reasons": list(self.reasons),
            "partial": self.partial,
            "partial_because": self.partial_because,
            "passed": self.passed,
            "failed": self.failed,
            "verified": self.verified,
            "namespace": self.namespace,
            "started": self.started.isoformat(),
            "ended": self.ended.isoformat(),
            "form": self.form,
            "seed": self.seed,
            "steady": self.steady,
            "activities": [{**plain(asdict(one)), "told": one.told} for one in self.activities],
            "verdict": None if self.verdict is None else self.verdict.to_json(),
        }
        return told


def plain(value: Any) -> Any:  # noqa: ANN401 - JSON of whatever was given
    """The value as plain JSON, cut off where nobody would read on.

    Example:
        >>> plain({"a": (1, 2)}), plain(object)
        ({'a': [1, 2]}, "<class 'object'>")
    """
    try:
        made: Any = to_jsonable_python(value, fallback=repr)
        text = json.dumps(made)
    except Exception as error:  # noqa: BLE001 - of somebody else's function
        return f"(it cannot be shown: {type(error).__name__})"
    return made if len(text) <= _LONGEST else text[:_LONGEST] + "…"


# -- for people --------------------------------------------------------------------------------------------------------


def _line_of(one: ActivityReport) -> str:
    """What became of an activity, on one line."""
    name = f"{one.phase.value} {one.label or one.name!r} {one.outcome.value}"
    about = f" on {one.target}" if one.target and one.target not in one.problem else ""
    if one.is_fine:
        return f"{name}{about}" if not one.problem else f"{name}{about}, as expected: {_flat(one.problem)}"
    if one.expected == "failure":
        said = f", and was to fail with another error: {_flat(one.problem)}" if one.problem else ", and was to fail"
        return f"{name}{about}{said}"
    return f"{name}{about}: {_flat(one.problem)}"


def _lines_of(report: ScenarioReport) -> str:
    """What became of a run: a line, and one for each thing that was not as it had to be."""
    seed = "" if report.seed is None else f" (seed {report.seed})"
    head = f"{report.title!r} is {report.status.value}{seed}"
    return "\n  ".join([f"{head}:", *reasons]) if (reasons := _reasons_of(report)) else head


def _reasons_of(report: ScenarioReport) -> list[str]:
    """Each thing that was not as it had to be; nothing where the run is completed."""
    if report.status is RunStatus.COMPLETED:
        return []
    if report.reasons:
        return [_flat(one) for one in report.reasons]
    found = [_flat(report.partial_because)] if report.partial_because else []
    found += [_line_of(one) for one in report.activities if not one.is_fine]
    verdict = report.verdict
    if verdict is not None:
        gone = sorted({one.agent_id for one in verdict.failovers if one.is_death and one.completed is None})
        found += [f"{one} did not come back" for one in gone]
        found += [f"{one.name}: {_flat('; '.join(one.told))}" for one in verdict.invariants if not one.holds]
        found += [_flat(one) for one in verdict.problems]
    return found


def _flat(text: str) -> str:
    return " ".join(text.split())
