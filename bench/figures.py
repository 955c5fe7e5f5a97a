"""Medians with spread, and how they are printed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

__all__ = ["Spread", "spread"]


@dataclass(frozen=True, slots=True)
class Spread:
    """A set of measurements in few numbers."""

    count: int
    p50: float
    p99: float
    low: float
    high: float

    @override
    def __str__(self) -> str:
        """One line."""
        return f"p50 {self.p50:.1f}  p99 {self.p99:.1f}  min {self.low:.1f}  max {self.high:.1f}  n={self.count}"


def spread(values: Sequence[float]) -> Spread:
    """The median, the 99th percentile by rank, and the ends."""
    ordered = sorted(values)
    rank = min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))
    return Spread(len(ordered), statistics.median(ordered), ordered[rank], ordered[0], ordered[-1])
