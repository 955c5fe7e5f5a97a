"""Runs the activities of a method: in their order, or side by side as far as they may."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Final

from ares_celery.arena.outcome import expected_of
from ares_celery.arena.ring import Ring
from ares_celery.arena.scenario import Activity, Policy
from ares_celery.arena.verdict.journal import ActivityReport, Outcome, Phase

__all__ = ["Method", "Perform"]

#: Does one activity, and tells what became of it; never raises.
Perform = Callable[[Activity], ActivityReport]
#: Seconds that what still runs may take to end, once the method is over.
_GRACE: Final = 10.0
#: Seconds; nothing is awaited but an end.
_LONG: Final = 3600.0


class Method:
    """One pass through the activities; :meth:`run` returns when all are over, or the method is to end."""

    def __init__(self, activities: Sequence[Activity], policy: Policy, ring: Ring, perform: Perform) -> None:
        """Prepares it.

        Args:
            activities: What is to be done, in the order of the file.
            policy: How.
            ring: Its ``stop`` ends the method.
            perform: Does one.
        """
        self._ring = ring
        self._policy = policy
        self._perform = perform
        self._pending = list(activities)
        self._names = {one.name for one in activities}
        self._background = {one.name for one in activities if one.background}
        self._ready_at: dict[str, float] = {}
        self._running: dict[str, tuple[Activity, threading.Thread]] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        #: Guarded by the lock: threads add to it.
        self._ended: dict[str, ActivityReport] = {}
        #: Why it ended before its end; empty when it did not.
        self.ended_because = ""

    def wake(self) -> None:
        """Lets the method notice at once that it is to stop."""
        self._changed.set()

    def run(self) -> tuple[ActivityReport, ...]:
        """Does what may be done; every activity is in the answer, in the order of their ends."""
        limit = self._policy.timeout.total_seconds()
        until = self._now() + limit if limit else None
        while self._pending or self._running:
            # Before the look: whoever stops it from now on wakes it.
            self._changed.clear()
            if self._is_over(until):
                break
            self._collect()
            if self._stops_on_error():
                break
            self._start_ready()
            if self._pending and not self._running and not self._is_any_due():
                self._skip_all("it waits for itself")
            if self._pending or self._running:
                self._ring.clock.wait(self._changed, self._until_next(until))
        if self._pending or self._running:
            self._leave()
        return tuple(self._ended.values())

    def _now(self) -> float:
        return self._ring.clock.monotonic()

    def _is_over(self, until: float | None) -> bool:
        if self._ring.stop.is_set():
            return True
        if until is not None and self._now() >= until:
            self.ended_because = f"its timeout of {self._policy.timeout.total_seconds():g} s is over"
            return True
        return False

    def _until_next(self, until: float | None) -> float:
        moments = [at for name, at in self._ready_at.items() if self._is_pending(name) and at > self._now()]
        if until is not None:
            moments.append(until)
        return min(moments, default=self._now() + _LONG) - self._now()

    def _is_pending(self, name: str) -> bool:
        return any(one.name == name for one in self._pending)

    def _collect(self) -> None:
        with self._lock:
            for name in list(self._running):
                if name in self._ended:
                    del self._running[name]

    def _stops_on_error(self) -> bool:
        if not self._policy.stop_on_error:
            return False
        with self._lock:
            wrong = next((one for one in self._ended.values() if not one.is_fine), None)
        if wrong is not None and (self._pending or self._running):
            self.ended_because = f"{wrong.name!r} did not end as it had to, and stop_on_error is set"
        return bool(self.ended_because)

    # -- starting -----------------------------------------------------------------------------------------------------

    def _start_ready(self) -> None:
        limit = (self._policy.max_concurrent or len(self._names)) if self._policy.parallel_actions else 1
        for activity in list(self._pending):
            # Background activities are beside the order: nobody waits for them.
            if len(self._running.keys() - self._background) >= limit:
                return
            state = self._state_of_waits(activity)
            if state is None:
                continue
            if state:
                self._skip(activity, state)
                continue
            due = self._ready_at.setdefault(activity.name, self._now() + activity.delay.total_seconds())
            if self._now() >= due:
                self._start(activity)
            elif not self._policy.parallel_actions:
                return

    def _state_of_waits(self, activity: Activity) -> str | None:
        """Empty: it may run; a text: it never will, and why; None: not yet."""
        with self._lock:
            for name in activity.depends_on:
                if name not in self._names:
                    return f"it waits for {name!r}, which does not exist"
                report = self._ended.get(name)
                if report is not None and not report.is_fine:
                    return f"it waits for {name!r}, which did not end as it had to"
            return "" if all(name in self._ended for name in activity.depends_on) else None

    def _is_any_due(self) -> bool:
        return any(one.name in self._ready_at or self._state_of_waits(one) is not None for one in self._pending)

    def _start(self, activity: Activity) -> None:
        self._pending.remove(activity)
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._do, activity), name=f"ares-arena-{activity.name}"[:60], daemon=True
        )
        self._running[activity.name] = activity, thread
        thread.start()

    def _do(self, activity: Activity) -> None:
        report = self._perform(activity)
        with self._lock:
            # The method may have given up on it meanwhile.
            self._ended.setdefault(activity.name, report)
        self._changed.set()

    # -- ends without having run --------------------------------------------------------------------------------------

    def _skip(self, activity: Activity, why: str, outcome: Outcome = Outcome.SKIPPED) -> None:
        if activity in self._pending:
            self._pending.remove(activity)
        expected = expected_of(activity)
        report = ActivityReport(
            name=activity.name,
            phase=Phase.METHOD,
            kind=activity.kind,
            outcome=outcome,
            label=activity.label,
            problem=why,
            expected=expected,
            # What never ran cannot have ended as expected, nor otherwise.
            as_expected=None,
            target=activity.target,
            fault=activity.fault,
        )
        with self._lock:
            self._ended.setdefault(activity.name, report)

    def _skip_all(self, why: str) -> None:
        for activity in list(self._pending):
            self._skip(activity, why)

    def _leave(self) -> None:
        """Ends before the end: waits a while for what runs, and tells of the rest."""
        self._ring.stop.set()
        until = self._now() + _GRACE
        for activity, thread in list(self._running.values()):
            # An end in real time: what it does outside of the clock takes as long as it takes.
            thread.join(max(0.0, until - self._now()))
            if thread.is_alive():
                self._skip(activity, "it still ran when the run ended", Outcome.CANCELLED)
        for activity in list(self._pending):
            self._skip(activity, "the run ended before it", Outcome.CANCELLED)
