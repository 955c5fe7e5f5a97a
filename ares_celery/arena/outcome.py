"""How an activity ended, and whether that is what the scenario expects."""

from __future__ import annotations

from ares_celery.arena.scenario import Activity

__all__ = ["expected_of", "is_as_expected"]


def expected_of(activity: Activity) -> str:
    """``success``, ``failure``, or nothing."""
    if activity.expect_failure:
        return "failure"
    return "success" if activity.expect_success else ""


def is_as_expected(activity: Activity, *, succeeded: bool, problem: str = "") -> bool | None:
    """The four combinations of what was expected and what came; None where nothing was expected.

    Args:
        activity: What was expected of it.
        succeeded: It did not fail, and gave what it had to give.
        problem: The failure, as text: an expected failure may have to say something.

    Example:
        >>> from ares_celery.arena.scenario import PythonProvider
        >>> doubted = Activity("action", "a", PythonProvider("m", "f"), expect_failure="not found")
        >>> [is_as_expected(doubted, succeeded=False, problem=said) for said in ("agent not found", "chaos is off")]
        [True, False]
    """
    if activity.expect_success:
        return succeeded
    if activity.expect_failure is True:
        return not succeeded
    if activity.expect_failure:
        return not succeeded and str(activity.expect_failure) in problem
    return None
