"""How an agent came to be that another one spawned."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Birth"]


@dataclass(frozen=True, slots=True)
class Birth:
    """How an agent came to be that another one spawned.

    Attributes:
        key: Names the call that spawned it, the same in every repeat of that call.
        number: Which child of its parent it is, counted as the parent takes them in.
        stops: How often the parent had been stopped by then: stopped once more, it takes its child along.
        starts: How often the parent had been started by then.
        reports: What becomes of it is told to the parent by a message.
    """

    key: str
    number: int
    stops: int
    starts: int
    reports: bool
