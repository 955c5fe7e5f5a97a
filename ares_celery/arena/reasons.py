"""Why a run did not end as it had to, in sentences for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase, RunStatus

__all__ = ["reasons_of"]

_RAN = frozenset({Outcome.SUCCEEDED, Outcome.FAILED})


def reasons_of(
    status: RunStatus,
    activities: Sequence[ActivityReport],
    *,
    because: str = "",
    away: Sequence[str] = (),
    besides: frozenset[Phase] = frozenset(),
) -> tuple[str, ...]:
    """The reasons; none exactly when the run is ``completed``.

    Args:
        status: How it ended.
        activities: What was done.
        because: Why it ended before its end.
        away: Agents that are not well, in sentences.
        besides: Phases in which a failure is none of the run.
    """
    if status is RunStatus.COMPLETED:
        return ()
    failed = (one for one in activities if one.phase not in besides and not one.is_fine)
    found = [*([because] if because else ()), *_told(failed, is_partial=bool(because)), *away]
    return tuple(dict.fromkeys(found)) or (f"the run is {status.value}",)


def _told(failed: Iterator[ActivityReport], *, is_partial: bool) -> Iterator[str]:
    where = {
        Phase.BEFORE: "does not hold before",
        Phase.AFTER: "does not hold afterwards",
        Phase.ROLLBACK: "could not be set right",
    }
    for one in failed:
        # What a run that ended early has left out is told by why it did.
        if one.outcome in _RAN or not is_partial:
            what = f" {where[one.phase]}" if one.phase in where else ""
            yield f"{one.label or one.name}{what}: {one.why}"
