"""Does activities one by one, tells what became of each, and sets right what they did."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from ares_celery.arena.outcome import expected_of, is_as_expected
from ares_celery.arena.providers import call_provider
from ares_celery.arena.ring import Ring, Undo, entered
from ares_celery.arena.scenario import Activity
from ares_celery.arena.tolerance import is_tolerated
from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase, plain
from ares_celery.clock import Clock, to_datetime
from ares_celery.errors import AresError
from ares_celery.errors.wording import describe_error

if TYPE_CHECKING:
    from ares_celery.manager import CoreManager

__all__ = ["Listener", "Performer"]

log: Final = logging.getLogger(__name__)

#: Hears of each activity that has ended.
Listener = Callable[[ActivityReport], object]
#: Seconds that one rollback may take.
_ROLLBACK_LIMIT: Final = 60.0
#: How often the clock of the store is asked for, unless an answer came within so many seconds.
_TRIES: Final = 3
_QUICK: Final = 0.02


class Performer:
    """Performs activities of one run; nothing that they do or raise gets out."""

    def __init__(self, ring: Ring, allowed: Collection[str] = (), listener: Listener | None = None) -> None:
        """Reads the time of the store, by which everything is dated.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        self.ring = ring
        self._allowed = tuple(allowed)
        self._listener = listener
        manager: CoreManager = ring.manager
        #: When the run began: nothing of it is earlier by the clock of the store.
        self.began: datetime
        self.began, self._offset, self._least = _compared(manager, ring.clock)

    def now(self) -> datetime:
        """The time by the store's clock, as far as it was compared with ours."""
        return to_datetime(self.ring.clock.wall()) + self._offset

    def not_later(self) -> datetime:
        """What the store's clock shows at least: nothing that is done from now on is dated before."""
        return max(self.began, to_datetime(self.ring.clock.wall()) + self._least)

    def ended(self) -> datetime:
        """The end of the run: nothing of it is later by the clock of the store."""
        now = self.now()
        try:
            return max(now, self.ring.manager.introspect().time)
        except AresError:
            return now

    def perform(self, activity: Activity, phase: Phase, ring: Ring | None = None) -> ActivityReport:
        """Does an activity, with the pauses around it."""
        within = ring or self.ring
        if within.pause(activity.pauses.before.total_seconds()):
            report = _report(activity, phase, Outcome.CANCELLED, "the run ended before it", None)
        else:
            report = self._call(activity, phase, within)
            within.pause(activity.pauses.after.total_seconds())
        self._tell(report)
        return report

    def _call(self, activity: Activity, phase: Phase, ring: Ring) -> ActivityReport:
        started, began = self.not_later(), ring.clock.monotonic()
        output: object = None
        problem = ""
        try:
            output = call_provider(activity, ring, self._allowed)
            if not is_tolerated(activity.tolerance, output):
                problem = f"it gave {plain(output)!r:.200}, and the tolerance is {activity.tolerance!r:.200}"
        except AresError as error:
            problem, output = f"{type(error).__name__}: {error}", error.fields
        except BaseException as error:  # noqa: BLE001 - somebody else's code, on a thread of ours
            problem = describe_error(error)
        outcome = Outcome.FAILED if problem else Outcome.SUCCEEDED
        report = _report(activity, phase, outcome, problem, output)
        return replace(report, started=started, duration=round(ring.clock.monotonic() - began, 6))

    def _tell(self, report: ActivityReport) -> None:
        if self._listener is not None:
            try:
                self._listener(report)
            except Exception:
                log.exception("the listener of a run failed; the run goes on")

    # -- setting right ------------------------------------------------------------------------------------------------

    def set_right(self, rollbacks: Sequence[Activity] = ()) -> Iterator[ActivityReport]:
        """Undoes what actions did, newest first; then rolls back. Nothing keeps the next one from being tried."""
        ring = Ring(self.ring.manager, self.ring.clock, actor=self.ring.actor)
        for undo in reversed(self.ring.undone):
            yield self._roll_back(undo.name, partial(self._undo, undo), ring)
        for activity in rollbacks:
            yield self._roll_back(activity.name, partial(self.perform, activity, Phase.ROLLBACK, ring), ring)

    def _undo(self, undo: Undo) -> ActivityReport:
        began, started = self.ring.clock.monotonic(), self.now()
        problem = ""
        try:
            undo.call()
        except BaseException as error:  # noqa: BLE001 - the next one has to be tried all the same
            problem = describe_error(error)
        report = ActivityReport(
            undo.name,
            Phase.ROLLBACK,
            "action",
            Outcome.FAILED if problem else Outcome.SUCCEEDED,
            problem=problem,
            started=started,
            duration=round(self.ring.clock.monotonic() - began, 6),
        )
        self._tell(report)
        return report

    def _roll_back(self, name: str, do: Callable[[], ActivityReport], ring: Ring) -> ActivityReport:
        found: list[ActivityReport] = []

        def within() -> None:
            with entered(ring):
                found.append(do())

        thread = threading.Thread(target=within, name="ares-arena-rollback", daemon=True)
        thread.start()
        thread.join(_ROLLBACK_LIMIT)
        if found:
            return found[0]
        problem = f"it did not end within {_ROLLBACK_LIMIT:g} s; it may still run"
        return ActivityReport(name, Phase.ROLLBACK, "action", Outcome.FAILED, problem=problem)


def _compared(manager: CoreManager, clock: Clock) -> tuple[datetime, timedelta, timedelta]:
    """The time of the store at the beginning, and how far it is ahead of ours: by the fastest answer of a few.

    The second distance is the least that there can be: of several answers, each of which is late by an unknown part.
    """
    found: list[tuple[float, datetime, timedelta]] = []
    least: list[timedelta] = []
    while len(found) < _TRIES and not any(took <= _QUICK for took, _, _ in found):
        before, asked = clock.wall(), clock.monotonic()
        told = manager.introspect().time
        took = clock.monotonic() - asked
        # It was read somewhere in between.
        found.append((took, told, told - to_datetime(before) - timedelta(seconds=took / 2)))
        least.append(told - to_datetime(before) - timedelta(seconds=took))
    return found[0][1], min(found)[2], max(least)


def _report(activity: Activity, phase: Phase, outcome: Outcome, problem: str, output: object) -> ActivityReport:
    has_run = outcome in {Outcome.SUCCEEDED, Outcome.FAILED}
    fine = is_as_expected(activity, succeeded=outcome is Outcome.SUCCEEDED, problem=problem) if has_run else None
    return ActivityReport(
        name=activity.name,
        phase=phase,
        kind=activity.kind,
        outcome=outcome,
        label=activity.label,
        problem=problem,
        output=plain(output),
        expected=expected_of(activity),
        as_expected=fine,
        target=activity.target,
        fault=activity.fault,
    )
