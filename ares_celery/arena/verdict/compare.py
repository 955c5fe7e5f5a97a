"""Are the runs of a new version of an agent better or worse than those of the old one, or is it chance?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from math import comb
from statistics import median
from typing import Any, Final

from ares_celery.arena.values import as_mapping
from ares_celery.errors import InvalidSettingError, OperationNotSupportedError, TooFewReportsError

__all__ = ["METRICS", "Comparison", "compare"]

#: What may be compared, and whether more of it is better.
METRICS: Final[Mapping[str, bool]] = {
    "mttr": False,
    "availability": True,
    "consistency": True,
    "score": True,
}
#: Below it a difference is not taken for chance.
_ALPHA: Final = 0.05


@dataclass(frozen=True, slots=True)
class Comparison:
    """One number in the runs of two versions.

    Attributes:
        metric: Which.
        before: Runs of the old version that have it; ``after`` those of the new one.
        median_before: The middle of the old ones; None without any.
        p_value: How likely a difference like this is by chance (Mann-Whitney U, two-sided); None: too few runs.
        result: ``better``, ``worse``, ``no difference`` that chance could not make, or ``no data``: too few runs have
            this number for any difference to show.
    """

    metric: str
    before: int
    after: int
    median_before: float | None
    median_after: float | None
    p_value: float | None
    result: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__slots__}


def compare(
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
    *,
    metrics: Sequence[str] = tuple(METRICS),
    alpha: float = _ALPHA,
) -> tuple[Comparison, ...]:
    """Compares the reports of two versions, as ``ares arena run -o json`` prints them, by a test from scipy.

    Args:
        before: Reports of the old version: as many as it takes for a difference to show at all, which is four of each
            for the default ``alpha``.
        after: Reports of the new one.
        metrics: Which numbers of their verdicts.
        alpha: The p-value below which a difference counts.

    Raises:
        InvalidSettingError: A metric is unknown, or alpha is no probability.
        TooFewReportsError: However far apart they were, so few reports could show no difference in any of the metrics.
        OperationNotSupportedError: scipy is not installed.
    """
    unknown = [one for one in metrics if one not in METRICS]
    if unknown:
        problem = f"name some of {', '.join(METRICS)}"
        raise InvalidSettingError(field="metrics", value=", ".join(unknown), problem=problem)
    if not 0 < alpha < 1:
        raise InvalidSettingError(field="alpha", value=alpha, problem="give a number between 0 and 1")
    values = {one: (_values(before, one), _values(after, one)) for one in metrics}
    if values and not any(_can_differ(len(old), len(new), alpha) for old, new in values.values()):
        old, new = max(values.values(), key=lambda both: min(map(len, both)))
        needed = next(size for size in count(1) if _can_differ(size, size, alpha))
        raise TooFewReportsError(before=len(old), after=len(new), alpha=alpha, needed=needed)
    return tuple(_compared(one, old, new, alpha) for one, (old, new) in values.items())


def _can_differ(before: int, after: int, alpha: float) -> bool:
    """So many runs can show a difference: of all orders of them, the two in which all of one version come first.

    Example:
        >>> _can_differ(3, 3, 0.05), _can_differ(4, 4, 0.05), _can_differ(2, 40, 0.05)
        (False, True, True)
    """
    return before > 0 and after > 0 and 2 / comb(before + after, after) < alpha


def _values(reports: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    found: list[float] = []
    for report in reports:
        value = as_mapping(report.get("verdict")).get(metric)
        if metric == "mttr":
            value = as_mapping(value).get("avg")
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append(float(value))
    return found


def _compared(metric: str, before: Sequence[float], after: Sequence[float], alpha: float) -> Comparison:
    old, new = median(before) if before else None, median(after) if after else None
    if old is None or new is None or not _can_differ(len(before), len(after), alpha):
        return Comparison(metric, len(before), len(after), old, new, None, "no data")
    p_value = _p_value(before, after)
    result = "no difference"
    if p_value < alpha and old != new:
        result = "better" if (new > old) == METRICS[metric] else "worse"
    return Comparison(metric, len(before), len(after), old, new, p_value, result)


def _p_value(before: Sequence[float], after: Sequence[float]) -> float:
    if len({*before, *after}) == 1:
        # All the same: there is nothing to order.
        return 1.0
    try:
        stats: Any = import_module("scipy.stats")
    except ImportError as error:
        raise OperationNotSupportedError(
            operation="comparing runs", reason="scipy is not installed; `pip install 'ares-celery[arena]'`"
        ) from error
    return float(stats.mannwhitneyu(before, after, alternative="two-sided").pvalue)
