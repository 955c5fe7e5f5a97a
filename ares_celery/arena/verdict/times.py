"""How long recoveries took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ares_celery.arena.verdict.history import Failover

__all__ = ["RecoveryTimes", "percentile", "recovery_times"]


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """Seconds from the trigger of a failover until the agent ran again.

    Attributes:
        count: Recoveries.
        min: The fastest.
        avg: Their mean: MTTR.
        p95: 95 of 100 were no slower.
        max: The slowest.
        last: The one that ended last.
    """

    count: int
    min: float
    avg: float
    p95: float
    max: float
    last: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in ("count", "min", "avg", "p95", "max", "last")}


def recovery_times(failovers: Sequence[Failover]) -> RecoveryTimes | None:
    """The times of those that were completed; None when none was."""
    done = sorted((one.completed, one.seconds) for one in failovers if one.completed and one.seconds is not None)
    if not done:
        return None
    times = [seconds for _, seconds in done]
    return RecoveryTimes(
        count=len(times),
        min=min(times),
        avg=math.fsum(times) / len(times),
        p95=percentile(times, 95),
        max=max(times),
        last=times[-1],
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many per cent of them do not exceed.

    Example:
        >>> percentile([3, 1, 2, 4], 50), percentile([3, 1, 2, 4], 95)
        (2, 4)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]
