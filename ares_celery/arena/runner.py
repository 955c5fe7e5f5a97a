"""Runs a scenario: hypothesis, method, hypothesis, and what sets things right, whatever happens."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from ares_celery.arena.method import Method
from ares_celery.arena.performing import Listener, Performer
from ares_celery.arena.preconditions import nobody_there, not_allowed
from ares_celery.arena.reasons import reasons_of
from ares_celery.arena.ring import Ring, entered
from ares_celery.arena.scenario import Policy, Scenario
from ares_celery.arena.steadiness import Watch
from ares_celery.arena.values import as_mapping
from ares_celery.arena.verdict.effects import Targets
from ares_celery.arena.verdict.journal import ActivityReport, Phase, RunStatus, ScenarioReport
from ares_celery.clock import Clock, SystemClock

if TYPE_CHECKING:
    from ares_celery.manager import CoreManager

__all__ = ["ScenarioRun", "chaos_is_off", "run_scenario"]


class ScenarioRun:
    """One run of a scenario; :meth:`stop` ends it early, from any thread or a handler of signals."""

    def __init__(
        self,
        manager: CoreManager,
        scenario: Scenario,
        *,
        allow_modules: Collection[str] = (),
        actor: str = "",
        clock: Clock | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Prepares the run; nothing is done yet.

        Args:
            manager: Of the namespace; only public methods of it are called.
            scenario: What to do.
            allow_modules: More modules that python providers may call.
            actor: Who runs it, for events and audit; default user@host.
            clock: Injected in tests.
            listener: Hears of each activity that has ended, on the thread that did it.
        """
        self._manager = manager
        self._scenario = scenario
        self._allowed = tuple(allow_modules)
        self._listener = listener
        self._ring = Ring(manager, clock or SystemClock(), actor=actor)
        self._method: Method | None = None
        self._why = ""
        self._reports: list[ActivityReport] = []
        self._watch: Watch | None = None

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
        performer = Performer(self._ring, self._allowed, self._listener)
        started = performer.began
        status, because = RunStatus.INTERRUPTED, ""
        try:
            with entered(self._ring):
                status, because = self._go(performer)
        finally:
            # Also when the thread itself is to end: then nobody gets the report, and things are set right all the same.
            self._reports += performer.set_right(self._scenario.rollbacks if self._watch else ())
        away = self._settled(status)
        if self._why and not because:
            status, because = RunStatus.INTERRUPTED, self._why
        rolled = all(one.is_fine for one in self._reports if one.phase is Phase.ROLLBACK)
        if status is RunStatus.COMPLETED and (away or not rolled):
            status = RunStatus.DEVIATED
        return ScenarioReport(
            title=self._scenario.title,
            status=status,
            activities=tuple(self._reports),
            namespace=self._manager.namespace,
            started=started,
            ended=performer.ended(),
            partial=bool(because),
            partial_because=because,
            form=self._scenario.form,
            steady=self._scenario.policy.steady.total_seconds(),
            reasons=reasons_of(status, self._reports, because=because, away=away),
        )

    def _settled(self, status: RunStatus) -> tuple[str, ...]:
        """Who is not well at the end, of those that the run judges and that were up before, or that it disturbed."""
        watch, named = self._watch, self._scenario.agents
        if watch is None or status not in {RunStatus.COMPLETED, RunStatus.DEVIATED}:
            return ()
        disturbed = Targets([one for one in self._reports if one.phase is Phase.METHOD]).agents
        watched = sorted(one for one in watch.up | disturbed if not named or one in named)
        # Where it deviates anyway nobody waits for returns, but those that are back are to be judged.
        settle = self._scenario.policy.settle if status is RunStatus.COMPLETED else self._scenario.policy.steady
        return watch.away(watched, settle)

    def _go(self, performer: Performer) -> tuple[RunStatus, str]:
        """How it ended, and why before its end."""
        policy, manager = self._scenario.policy, self._manager
        cannot = nobody_there(manager, self._scenario.agents) or not_allowed(manager, self._scenario.method)
        if cannot:
            return RunStatus.PRECONDITION, cannot
        self._watch = Watch(self._ring, policy.steady)
        if not self._holds(performer, Phase.BEFORE):
            told = self._stopped_because()
            unmet = "its hypothesis does not hold before"
            return (RunStatus.INTERRUPTED, told) if told else (RunStatus.PRECONDITION, unmet)
        self._ring.pause(policy.warmup.total_seconds())
        held = False
        because = self._do_method(performer, policy) or self._stopped_because()
        if off := chaos_is_off(self._reports):
            return RunStatus.PRECONDITION, off
        if not because:
            self._ring.pause(policy.cooldown.total_seconds())
            self._ring.await_notice()
            held = self._holds(performer, Phase.AFTER)
            because = self._stopped_because()
        # A run that was cut short says nothing of how the system ends up: what it left is not set right yet.
        if because:
            return RunStatus.INTERRUPTED, because
        fine = held and all(one.is_fine for one in self._reports if one.phase is Phase.METHOD)
        return (RunStatus.COMPLETED if fine else RunStatus.DEVIATED), ""

    def _stopped_because(self) -> str:
        """Why somebody stopped it; empty when nobody did."""
        return self._why

    def _do_method(self, performer: Performer, policy: Policy) -> str:
        method = Method(
            self._scenario.method, policy, self._ring, lambda activity: performer.perform(activity, Phase.METHOD)
        )
        self._method = method
        self._reports += method.run()
        return method.ended_because

    def _holds(self, performer: Performer, phase: Phase) -> bool:
        hypothesis = self._scenario.hypothesis
        for probe in hypothesis.probes if hypothesis else ():
            if self._ring.stop.is_set():
                return False
            report = performer.perform(probe, phase)
            self._reports.append(report)
            if not report.is_fine:
                return False
        return True


def chaos_is_off(reports: Sequence[ActivityReport]) -> str:
    """Why a run could not do what it is for: faults are not allowed; empty when none was refused for that."""
    for one in reports:
        output: Any = as_mapping(one.output)
        if not one.is_fine and output.get("code") == "chaos_disabled":
            return str(output.get("message"))
    return ""


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
