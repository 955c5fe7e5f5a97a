"""Budgets: what agents may spend, what they have spent, and when that is too much. Pure.

Money is counted in millionths of a dollar, so sums are exact whatever their order.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final, cast

from ares_celery.errors import InvalidSettingError
from ares_celery.model.arguments import as_shown

__all__ = [
    "BUDGETS",
    "MILLION",
    "NOTHING",
    "NO_LIMITS",
    "Exceeded",
    "Limits",
    "Spending",
    "Spent",
    "changed_budget",
    "check_budget",
    "check_changes",
    "check_charge",
    "exceeded_by",
    "readable_budget",
]

#: What a budget may limit, in the order in which it is looked at.
BUDGETS: Final = ("tokens", "usd", "steps")
MILLION: Final = 1_000_000
#: The most of one charge, and of a budget: sums of far more charges than an agent can make stay exact in Lua.
_MOST_CHARGED: Final = {"tokens": 10**9, "usd": 10**6, "steps": 10**9}
_MOST_ALLOWED: Final = {"tokens": 10**15, "usd": 10**9, "steps": 10**15}


@dataclass(frozen=True, slots=True)
class Spent:
    """What was spent.

    Attributes:
        tokens: Of language models.
        usd: Millionths of a dollar.
        steps: Recorded steps, and those that were charged.

    Example:
        >>> (Spent(tokens=5) + Spent(usd=300_000)).told()
        {'tokens': 5, 'usd': 0.3, 'steps': 0}
    """

    tokens: int = 0
    usd: int = 0
    steps: int = 0

    def __add__(self, other: Spent) -> Spent:
        """Both together."""
        return Spent(self.tokens + other.tokens, self.usd + other.usd, self.steps + other.steps)

    def __bool__(self) -> bool:
        """Something was spent."""
        return bool(self.tokens or self.usd or self.steps)

    def told(self) -> dict[str, int | float]:
        """As people read it: money in dollars."""
        return {"tokens": self.tokens, "usd": _told("usd", self.usd), "steps": self.steps}


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be spent; None: as much as comes. Money in millionths of a dollar."""

    tokens: int | None = None
    usd: int | None = None
    steps: int | None = None

    @classmethod
    def of(cls, budget: Mapping[str, float] | None) -> Limits:
        """Those of a spec.

        Example:
            >>> Limits.of({"usd": 0.3})
            Limits(tokens=None, usd=300000, steps=None)
        """
        if not budget:
            return NO_LIMITS
        return cls(**{name: _whole(name, value) for name, value in budget.items()})

    def __bool__(self) -> bool:
        """There is one."""
        return self != NO_LIMITS

    def told(self) -> dict[str, int | float] | None:
        """As people read them: only those that there are, money in dollars; None without any."""
        found = {name: getattr(self, name) for name in BUDGETS}
        return {name: _told(name, limit) for name, limit in found.items() if limit is not None} or None


NOTHING: Final = Spent()
NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Spending:
    """How an agent stands, as its shard knows it.

    Attributes:
        own: What it has spent itself.
        children: What the members of its tree below it have, as far as they have told.
        limits: Its own budget, which holds for both together.
    """

    own: Spent = NOTHING
    children: Spent = NOTHING
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True)
class Exceeded:
    """A budget that is used up.

    Attributes:
        budget: tokens, usd or steps.
        spent: How much of it; dollars for usd.
        limit: How much of it there is.
        whose: The agent whose budget it is.
    """

    budget: str
    spent: float
    limit: float
    whose: str


def exceeded_by(spending: Spending, whose: str) -> Exceeded | None:
    """The first budget that is used up: as much was spent as there is, or more; None while there is some left.

    Example:
        >>> exceeded_by(Spending(Spent(usd=100_000), Spent(usd=200_000), Limits(usd=300_000)), "a")
        Exceeded(budget='usd', spent=0.3, limit=0.3, whose='a')
    """
    if not spending.limits:
        return None
    total = spending.own + spending.children
    for name in BUDGETS:
        limit: int | None = getattr(spending.limits, name)
        spent: int = getattr(total, name)
        if limit is not None and spent >= limit:
            return Exceeded(name, _told(name, spent), _told(name, limit), whose)
    return None


def check_charge(*, tokens: object = 0, usd: object = 0, steps: object = 0) -> Spent:
    """What an agent says that it has spent, each number checked.

    Money is rounded to the millionth of a dollar; anything above zero counts as one at least, so that no number of tiny
    charges comes to nothing.

    Raises:
        InvalidSettingError: A number that cannot be; it is named, and nothing is recorded.

    Example:
        >>> check_charge(tokens=1200, usd=0.1 + 0.2)
        Spent(tokens=1200, usd=300000, steps=0)
    """
    given = {"tokens": tokens, "usd": usd, "steps": steps}
    problems = ((name, _problem(name, value, _MOST_CHARGED[name])) for name, value in given.items())
    for name, problem in problems:
        if problem:
            raise InvalidSettingError(field=name, value=as_shown(given[name]), problem=problem)
    return Spent(**{name: _whole(name, cast("float", value)) for name, value in given.items()})


def check_budget(given: object) -> dict[str, float] | None:
    """A budget as a spec may have it; an empty one is none.

    Raises:
        ValueError: The text names the part that cannot be.

    Example:
        >>> check_budget({"tokens": 100_000, "usd": 5})
        {'tokens': 100000.0, 'usd': 5.0}
    """
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ValueError(f"give a mapping of {', '.join(BUDGETS)} to numbers, or None for no limit")  # noqa: TRY004 - what validators raise
    values = cast("Mapping[object, object]", given)
    for name, value in values.items():
        if not isinstance(name, str) or name not in BUDGETS:
            raise ValueError(f"there is no budget {as_shown(name)!r}; there are {', '.join(BUDGETS)}")
        problem = _problem(name, value, _MOST_ALLOWED[name])
        if problem:
            raise ValueError(f"{name}={as_shown(value)!r} {problem}")
    return {name: float(cast("float", values[name])) for name in BUDGETS if name in values} or None


def changed_budget(budget: Mapping[str, float] | None, changes: Mapping[str, float | None]) -> dict[str, float] | None:
    """A budget with some limits changed; None takes one away.

    Example:
        >>> changed_budget({"tokens": 10.0, "usd": 5.0}, {"tokens": 20, "usd": None})
        {'tokens': 20.0}
    """
    whole = {**(budget or {}), **changes}
    return check_budget({name: value for name, value in whole.items() if value is not None})


def check_changes(changes: object) -> dict[str, float | None]:
    """Changes of a budget, as a caller gives them.

    Raises:
        InvalidSettingError: One that cannot be; it is named.

    Example:
        >>> check_changes({"tokens": 20, "usd": None})
        {'tokens': 20.0, 'usd': None}
    """
    given, taken = _without_none(changes)
    try:
        limits = check_budget(given) or {}
    except ValueError as error:
        raise InvalidSettingError(field="budget", value=as_shown(changes), problem=str(error)) from error
    return {name: None if name in taken else limit for name, limit in limits.items()}


def _without_none(changes: object) -> tuple[object, set[object]]:
    """The changes with zero for each None, and where those were."""
    if not isinstance(changes, Mapping):
        return changes, set()
    named = cast("Mapping[object, object]", changes)
    taken = {name for name, limit in named.items() if limit is None}
    return {name: 0 if name in taken else limit for name, limit in named.items()}, taken


def readable_budget(stored: object) -> dict[str, float] | None:
    """What is left of a budget that an older or newer version has stored: those parts that this one knows."""
    if not isinstance(stored, Mapping):
        return None
    kept = cast("Mapping[str, Any]", stored)
    return {
        name: float(kept[name])
        for name in BUDGETS
        if name in kept and not _problem(name, kept[name], _MOST_ALLOWED[name])
    } or None


def _problem(name: str, value: object, most: int) -> str:
    """Why a number cannot be; empty when it can."""
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        return "must be a number"
    if not isinstance(value, int) and not _is_finite(value):
        return "must be a finite number"
    if value < 0:
        return "must not be below zero"
    if name != "usd" and value != int(value):
        return "must be a whole number"
    return f"must be at most {most}" if value > most else ""


def _is_finite(value: float | Decimal) -> bool:
    return value.is_finite() if isinstance(value, Decimal) else math.isfinite(value)


def _whole(name: str, value: float | Decimal) -> int:
    """The number as it is counted."""
    if name != "usd":
        return int(value)
    millionths = int((Decimal(str(value)) * MILLION).to_integral_value(ROUND_HALF_UP))
    return max(millionths, 1) if value > 0 else 0


def _told(name: str, value: int) -> int | float:
    return value / MILLION if name == "usd" else value
