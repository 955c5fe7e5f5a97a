"""Errors of the arena: scenarios that cannot be, and runs that may not begin."""

from __future__ import annotations

from typing import Any

from ares_celery.errors.base import AresError, NotFoundError

__all__ = [
    "ActivityFailedError",
    "ArenaBusyError",
    "InvalidScenarioError",
    "RunNotCompletedError",
    "ScenarioNotFoundError",
    "TooFewReportsError",
]


class InvalidScenarioError(AresError, ValueError):
    """A scenario cannot be run; field ``problems`` lists every fault of it, each with its ``place``."""

    code = "invalid_scenario"
    template = "scenario {name!r} cannot be run; {listed}"

    @classmethod
    def of(cls, name: str, problems: list[dict[str, Any]]) -> InvalidScenarioError:
        """The error for a list of ``place`` and ``problem``."""
        lines = [f"{one['place']}: {one['problem']}" for one in problems]
        listed = lines[0] if len(lines) == 1 else "\n  ".join([f"{len(lines)} faults:", *lines])
        return cls(name=name, problems=problems, listed=listed)


class ScenarioNotFoundError(NotFoundError):
    """There is neither a file nor a ready scenario of this name."""

    code = "scenario_not_found"
    template = "there is no file {name!r} and no ready scenario of that name; `ares arena list` shows those"


class ArenaBusyError(AresError):
    """A survival run is under way in the namespace; two would spoil each other's verdict."""

    code = "arena_busy"
    template = (
        "a survival run of {owner} is under way in namespace {namespace!r} (seed {seed}); `ares arena stop` ends it, "
        "and it ends by itself when its process is gone"
    )


class RunNotCompletedError(AresError, AssertionError):
    """A run was not completed; field ``reasons`` lists each thing that was not as it had to be."""

    code = "run_not_completed"
    template = "the run {told}"


class TooFewReportsError(AresError):
    """So few reports show no difference between two versions, however large it is."""

    code = "too_few_reports"
    template = (
        "{before} reports before and {after} after cannot show a difference at alpha {alpha}, however large it is; "
        "give {needed} or more of each that have the numbers to compare"
    )


class ActivityFailedError(AresError):
    """An activity of a scenario did not do what it is for."""

    code = "activity_failed"
    template = "{name!r} failed: {problem}"
