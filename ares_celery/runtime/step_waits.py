"""What steps wait for, of the context that they belong to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from ares_celery.ids import Version
from ares_celery.model.event import Event, NewEvent

__all__ = ["AsyncStepWaits", "Coming", "SyncStepWaits"]


@dataclass(frozen=True, slots=True)
class AsyncStepWaits:
    """What steps wait for, of their context.

    Attributes:
        persist: Repeats a call until the store answers or the incarnation is over.
        alive: Waits while suspended; raises FencedSignal once the incarnation is over.
        say: Stores events of the runtime's own.
        emit_by: Has events of the agent stored, and applies them.
        pause: Waits so many seconds; raises StopSignal when the incarnation is asked to end.
        tell: Passes on the event of a version that the store has written, to those who listen in this process.
    """

    persist: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]
    alive: Callable[[], Awaitable[None]]
    say: Callable[[list[NewEvent]], Awaitable[object]]
    emit_by: Callable[[Callable[[Version], Awaitable[tuple[Event, ...]]]], Awaitable[tuple[Event, ...]]]
    pause: Callable[[float], Awaitable[None]]
    tell: Callable[[Version], Awaitable[None]]


class Coming:
    """Blocks in which steps are on their way to where they run."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        """One more."""
        self.count += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is there."""
        self.count -= 1


@dataclass(frozen=True, slots=True)
class SyncStepWaits:
    """What steps wait for, of their context.

    Attributes:
        persist: Repeats a call until the store answers or the incarnation is over.
        alive: Waits while suspended; raises FencedSignal once the incarnation is over.
        say: Stores events of the runtime's own.
        emit_by: Has events of the agent stored, and applies them.
        pause: Waits so many seconds; raises StopSignal when the incarnation is asked to end.
        tell: Passes on the event of a version that the store has written, to those who listen in this process.
    """

    persist: Callable[[Callable[[], Any]], Any]
    alive: Callable[[], None]
    say: Callable[[list[NewEvent]], object]
    emit_by: Callable[[Callable[[Version], tuple[Event, ...]]], tuple[Event, ...]]
    pause: Callable[[float], None]
    tell: Callable[[Version], None]
