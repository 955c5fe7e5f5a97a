"""Runs a scenario: hypothesis, method, hypothesis, and what sets things right, whatever happens."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from ares_celery.arena.journal import ActivityReport, Outcome, Phase, RunStatus, ScenarioReport, plain
from ares_celery.arena.method import Method
from ares_celery.arena.outcome import expected_of, is_as_expected
from ares_celery.arena.providers import call_provider
from ares_celery.arena.ring import Ring, Undo, entered
from ares_celery.arena.scenario import Activity, Policy, Scenario
from ares_celery.arena.tolerance import is_tolerated
from ares_celery.clock import Clock, SystemClock, to_datetime
from ares_celery.errors import AresError
from ares_celery.errors.wording import describe_error

if TYPE_CHECKING:
    from ares_celery.manager import CoreManager

__all__ = ["Listener", "ScenarioRun", "run_scenario"]

log: Final = logging.getLogger(__name__)

#: Hears of each activity that has ended.
Listener = Callable[[ActivityReport], object]
#: Seconds that one rollback may take.
_ROLLBACK_LIMIT: Final = 60.0


class ScenarioRun:
    """One run of a scenario; :meth:`stop` ends it early, from any thread or a handler of signals."""

    def __init__(
        self,
        manager: CoreManager,
        scenario: Scenario,
        *,
        allow_modules: Collection[str] = (),
        clock: Clock | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Prepares the run; nothing is done yet.

        Args:
            manager: Of the namespace; only public methods of it are called.
            scenario: What to do.
            allow_modules: More modules that python providers may call.
            clock: Injected in tests.
            listener: Hears of each activity that has ended, on the thread that did it.
        """
        self._manager = manager
        self._scenario = scenario
        self._allowed = tuple(allow_modules)
        self._clock = clock or SystemClock()
        self._listener = listener
        self._ring = Ring(manager, self._clock)
        self._method: Method | None = None
        self._why = ""
        self._reports: list[ActivityReport] = []
        self._offset = timedelta(0)

    def stop(self, why: str = "it was stopped") -> None:
        """Ends the method; rollbacks still run. Safe at any time, and more than once."""
        self._why = self._why or why
        self._ring.stop.set()
        method = self._method
        if method is not None:
            method.wake()

    def run(self) -> ScenarioReport:
        """Runs it, once.

        Returns:
            What was done. A run that was ended early gives its part, with ``partial`` set, and says why.

        Raises:
            StoreUnavailableError: The store does not answer at the beginning.
        """
        self._offset = self._manager.introspect().time - to_datetime(self._clock.wall())
        started = self._now()
        status, because = RunStatus.INTERRUPTED, ""
        try:
            with entered(self._ring):
                status, because = self._go()
        finally:
            # Also when the thread itself is to end: then nobody gets the report, and things are set right all the same.
            self._set_right()
        return ScenarioReport(
            title=self._scenario.title,
            status=status,
            activities=tuple(self._reports),
            namespace=self._manager.namespace,
            started=started,
            ended=self._now(),
            partial=bool(because),
            partial_because=because,
            form=self._scenario.form,
        )

    def _now(self) -> datetime:
        """The time by the store's clock."""
        return to_datetime(self._clock.wall()) + self._offset

    def _go(self) -> tuple[RunStatus, str]:
        """How it ended, and why before its end."""
        policy = self._scenario.policy
        if not self._holds(Phase.BEFORE):
            told = self._stopped_because()
            return (
                (RunStatus.INTERRUPTED, told)
                if told
                else (RunStatus.PRECONDITION, "its hypothesis does not hold before")
            )
        self._ring.pause(policy.warmup.total_seconds())
        held = False
        because = self._do_method(policy) or self._stopped_because()
        if not because:
            self._ring.pause(policy.cooldown.total_seconds())
            held = self._holds(Phase.AFTER)
            because = self._stopped_because()
        # A run that was cut short says nothing of how the system ends up: what it left is not set right yet.
        if because:
            return RunStatus.INTERRUPTED, because
        fine = held and all(one.is_fine for one in self._reports if one.phase is Phase.METHOD)
        return (RunStatus.COMPLETED if fine else RunStatus.DEVIATED), ""

    def _stopped_because(self) -> str:
        """Why somebody stopped it; empty when nobody did."""
        return self._why

    def _do_method(self, policy: Policy) -> str:
        method = Method(
            self._scenario.method, policy, self._ring, lambda activity: self._perform(activity, Phase.METHOD)
        )
        self._method = method
        # Whoever stopped it before now has had nothing to wake.
        self._reports += method.run()
        return method.ended_because

    def _holds(self, phase: Phase) -> bool:
        hypothesis = self._scenario.hypothesis
        for probe in hypothesis.probes if hypothesis else ():
            if self._ring.stop.is_set():
                return False
            report = self._perform(probe, phase)
            self._reports.append(report)
            if not report.is_fine:
                return False
        return True

    # -- one activity -------------------------------------------------------------------------------------------------

    def _perform(self, activity: Activity, phase: Phase, ring: Ring | None = None) -> ActivityReport:
        within = ring or self._ring
        if within.pause(activity.pauses.before.total_seconds()):
            report = self._report(activity, phase, Outcome.CANCELLED, "the run ended before it", None)
        else:
            report = self._call(activity, phase, within)
            within.pause(activity.pauses.after.total_seconds())
        self._tell(report)
        return report

    def _call(self, activity: Activity, phase: Phase, ring: Ring) -> ActivityReport:
        started, began = self._now(), self._clock.monotonic()
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
        report = self._report(activity, phase, outcome, problem, output)
        return _timed(report, started, self._clock.monotonic() - began)

    def _report(
        self, activity: Activity, phase: Phase, outcome: Outcome, problem: str, output: object
    ) -> ActivityReport:
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

    def _tell(self, report: ActivityReport) -> None:
        if self._listener is not None:
            try:
                self._listener(report)
            except Exception:
                log.exception("the listener of a run failed; the run goes on")

    # -- setting right ------------------------------------------------------------------------------------------------

    def _set_right(self) -> None:
        """What actions have done is undone, newest first; then the file's rollbacks. Nothing keeps the next from it."""
        ring = Ring(self._manager, self._clock)
        for undo in reversed(self._ring.undone):
            self._roll_back(undo.name, partial(self._undo, undo), ring)
        for activity in self._scenario.rollbacks:
            self._roll_back(activity.name, partial(self._perform, activity, Phase.ROLLBACK, ring), ring)

    def _undo(self, undo: Undo) -> ActivityReport:
        began, started = self._clock.monotonic(), self._now()
        problem = ""
        try:
            undo.call()
        except BaseException as error:  # noqa: BLE001 - the next one has to be tried all the same
            problem = describe_error(error)
        outcome = Outcome.FAILED if problem else Outcome.SUCCEEDED
        report = ActivityReport(undo.name, Phase.ROLLBACK, "action", outcome, problem=problem)
        report = _timed(report, started, self._clock.monotonic() - began)
        self._tell(report)
        return report

    def _roll_back(self, name: str, do: Callable[[], ActivityReport], ring: Ring) -> None:
        found: list[ActivityReport] = []

        def within() -> None:
            with entered(ring):
                found.append(do())

        thread = threading.Thread(target=within, name="ares-arena-rollback", daemon=True)
        thread.start()
        thread.join(_ROLLBACK_LIMIT)
        late = ActivityReport(
            name,
            Phase.ROLLBACK,
            "action",
            Outcome.FAILED,
            problem=f"it did not end within {_ROLLBACK_LIMIT:g} s; it may still run",
        )
        self._reports.append(found[0] if found else late)


def _timed(report: ActivityReport, started: datetime, duration: float) -> ActivityReport:
    return replace(report, started=started, duration=round(duration, 6))


def run_scenario(
    manager: CoreManager,
    scenario: Scenario,
    *,
    allow_modules: Collection[str] = (),
    clock: Clock | None = None,
    listener: Listener | None = None,
) -> ScenarioReport:
    """Runs a scenario and says what came of it; see :class:`ScenarioRun`.

    Example:
        ``run_scenario(manager, load_scenario("kill-agent", variables={"agent_id": "counter-1"})).status``
    """
    return ScenarioRun(manager, scenario, allow_modules=allow_modules, clock=clock, listener=listener).run()
