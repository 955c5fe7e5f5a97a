"""Scores from 0 to 100: the original's formula, fed as the original feeds it, and fed with what the events say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["NO_DATA", "GoScore", "go_score", "grade_of", "speed_score", "weighted"]

#: Instead of a score where nothing happened.
NO_DATA: Final = "no data"
#: Least score of each grade.
_GRADES: Final = ((95.0, "A+"), (90.0, "A"), (80.0, "B"), (70.0, "C"), (60.0, "D"))
#: Seconds up to which a recovery is as fast as can be, and from which on it counts as none.
_FAST: Final = 1.0
_SLOW: Final = 10.0
_AVAILABILITY, _RECOVERY, _CONSISTENCY = 0.4, 0.3, 0.3
_RATE, _SPEED = 0.7, 0.3
#: Points that each two failures cost in the original's consistency.
_PER_PAIR: Final = 5.0


def grade_of(score: float) -> str:
    """The grade of a score.

    Example:
        >>> [grade_of(score) for score in (100, 91, 86.3, 30)]
        ['A+', 'A', 'B', 'F']
    """
    return next((grade for least, grade in _GRADES if score >= least), "F")


def speed_score(seconds: float) -> float:
    """100 up to a second, falling evenly to 0 at ten.

    Example:
        >>> speed_score(0.5), speed_score(5.5), speed_score(20)
        (100.0, 50.0, 0.0)
    """
    return 100.0 * max(0.0, min(1.0, (_SLOW - seconds) / (_SLOW - _FAST)))


@dataclass(frozen=True, slots=True)
class GoScore:
    """What the original says of a run.

    Attributes:
        score: 0 to 100.
        grade: Of that.
        availability: Injections that returned without an error, per cent.
        recovery: The same, with the mean time that an injection took.
        consistency: 100 without failures.
    """

    score: float
    grade: str
    availability: float
    recovery: float
    consistency: float


def go_score(*, total: int, succeeded: int, seconds: float = 0.0, consistency: float = 0.0) -> GoScore:
    """The original's resilience score, as it computes it: for comparison with its reports only.

    It judges injections, not agents: ``succeeded`` are those that returned without an error, and ``seconds`` is how
    long they took. What really came back is in the verdict's own score.

    Args:
        total: Actions.
        succeeded: Those without an error.
        seconds: Their mean time.
        consistency: 0 to 100, when it was measured; 0: taken from the failures.

    Example:
        >>> [go_score(total=10, succeeded=8, seconds=1).score, go_score(total=0, succeeded=0).score]
        [86.3, 30.0]
    """
    failed = total - succeeded
    availability = 100.0 * succeeded / total if total else 0.0
    recovery = _RATE * availability + _SPEED * speed_score(seconds) if total else 0.0
    if consistency <= 0:
        consistency = 100.0 if not failed else 100.0 - _PER_PAIR * max(1.0, failed / 2)
    score = _AVAILABILITY * availability + _RECOVERY * recovery + _CONSISTENCY * consistency
    score = round(score, 4)
    return GoScore(score, grade_of(score), availability, round(recovery, 4), consistency)


def weighted(
    *, availability: float | None, recovery: tuple[float, float] | None, consistency: float | None
) -> float | None:
    """The same weights over what the events say; a part without data has no weight, and without any there is no score.

    Args:
        availability: Per cent of the time that agents were up when they should have been.
        recovery: Per cent of deaths that were recovered, and the mean time of that in seconds.
        consistency: Per cent of agents whose history is sound.

    Example:
        >>> weighted(availability=90.0, recovery=(100.0, 1.0), consistency=100.0)
        96.0
    """
    returned = None if recovery is None else _RATE * recovery[0] + _SPEED * speed_score(recovery[1])
    parts = ((_AVAILABILITY, availability), (_RECOVERY, returned), (_CONSISTENCY, consistency))
    known = [(weight, value) for weight, value in parts if value is not None]
    if not known:
        return None
    return round(sum(weight * value for weight, value in known) / sum(weight for weight, _ in known), 1)
