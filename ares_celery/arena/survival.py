"""Faults by chance, one after the other, for a time: does the fleet survive? The same seed draws the same faults."""

from __future__ import annotations

import logging
import random
import secrets
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, cast

from ares_celery.arena.performing import Listener, Performer
from ares_celery.arena.preconditions import nobody_there, not_allowed
from ares_celery.arena.problems import Problems
from ares_celery.arena.reasons import reasons_of
from ares_celery.arena.ring import Ring, entered
from ares_celery.arena.runner import chaos_is_off
from ares_celery.arena.scenario import SETTLE, Activity, PythonProvider
from ares_celery.arena.seed_types import ACTIONS_MODULE
from ares_celery.arena.source import read_source
from ares_celery.arena.steadiness import Watch
from ares_celery.arena.values import as_mapping, is_list_of_texts
from ares_celery.arena.verdict.journal import STEADY, ActivityReport, Outcome, Phase, RunStatus, ScenarioReport
from ares_celery.clock import Clock, SystemClock
from ares_celery.errors import AgentNotFoundError, AresError, InvalidSettingError, StoreUnavailableError
from ares_celery.model.durations import format_duration, parse_duration
from ares_celery.model.fault import LLM_ERRORS
from ares_celery.model.fault_names import fault_action

if TYPE_CHECKING:
    from ares_celery.manager import CoreManager

__all__ = [
    "DEFAULT_DURATION",
    "DEFAULT_INTERVAL",
    "DRAWN_FAULTS",
    "SURVIVAL_FAULTS",
    "PlannedFault",
    "SurvivalRun",
    "check_survival_faults",
    "plan_survival",
    "survival_options",
]

log: Final = logging.getLogger(__name__)

DEFAULT_DURATION: Final = timedelta(minutes=30)
DEFAULT_INTERVAL: Final = timedelta(seconds=10)
#: Longest time that one fault lasts: the seed's.
_LASTS: Final = timedelta(seconds=5)
#: Seconds between two words to the store that the run goes on; a fifth of what it is believed for.
_KEEP: Final = 3.0
_LARGEST_SEED: Final = 2**53
_MOST_FAULTS: Final = 100_000

_OPTIONS: Final = ("seed", "duration", "interval", "agents", "faults", "force", "settle", "steady")

Arguments = Callable[[random.Random, str], dict[str, Any]]


def _lasting(**more: Any) -> Arguments:  # noqa: ANN401 - JSON
    return lambda _, lasts: {"duration": lasts, **more}


def _llm(chance: random.Random, lasts: str) -> dict[str, Any]:
    return {"duration": lasts, "error_type": _one_of(chance, LLM_ERRORS)}


#: What may be drawn, and its arguments.
SURVIVAL_FAULTS: Final[Mapping[str, Arguments]] = {
    "kill_agent": lambda _, __: {},
    "pause_agent": _lasting(),
    "slow_agent": _lasting(delay="500ms"),
    "tool_timeout": _lasting(timeout="500ms"),
    "partition_network": _lasting(),
    "corrupt_memory": _lasting(),
    "disconnect_mcp": _lasting(),
    "inject_llm_failure": _llm,
}


#: What is drawn where nobody says. A call of a tool that is cut off may have had its effect, so its agent may be parked
#: until a person has settled that: it does not come back, and the fleet is not to blame.
DRAWN_FAULTS: Final = tuple(one for one in SURVIVAL_FAULTS if one != "tool_timeout")
#: Actions that take the seed of a fault.
_SEEDED: Final = frozenset({"slow_agent", "tool_timeout", "corrupt_memory", "disconnect_mcp", "inject_llm_failure"})


def _one_of(chance: random.Random, values: Sequence[str]) -> str:
    # Of random() alone it is promised that a seed gives the same numbers in every version of Python.
    return values[int(chance.random() * len(values))]


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault of a survival run.

    Attributes:
        at: When, from the beginning.
        fault: An action of :mod:`ares_celery.arena.actions`.
        target: Which agent.
        arguments: Of the action, beside the agent.
    """

    at: timedelta
    fault: str
    target: str
    arguments: Mapping[str, Any]


def plan_survival(
    seed: int,
    agents: Sequence[str],
    *,
    duration: timedelta = DEFAULT_DURATION,
    interval: timedelta = DEFAULT_INTERVAL,
    faults: Sequence[str] = DRAWN_FAULTS,
) -> tuple[PlannedFault, ...]:
    """Draws the faults of a survival run: the same seed and agents, the same faults and targets.

    Args:
        seed: Decides.
        agents: Ids; their order does not matter.
        duration: Of the run.
        interval: Between two faults.
        faults: Which may be drawn, by any of their names.

    Example:
        >>> plan = plan_survival(7, ["a", "b"], duration=timedelta(minutes=1))
        >>> len(plan), plan == plan_survival(7, ["b", "a"], duration=timedelta(minutes=1))
        (6, True)
    """
    chance, targets = random.Random(seed), sorted(set(agents))  # noqa: S311 - drawn again on purpose
    faults = check_survival_faults(faults)
    lasts = format_duration(min(_LASTS, interval / 2))
    plan: list[PlannedFault] = []
    while targets and interval * len(plan) < duration:
        fault, target = _one_of(chance, faults), _one_of(chance, targets)
        arguments = SURVIVAL_FAULTS[fault](chance, lasts)
        if fault in _SEEDED:
            arguments["seed"] = int.from_bytes(sha256(f"{seed}:{len(plan)}".encode()).digest()[:4]) // 2
        plan.append(PlannedFault(interval * len(plan), fault, target, arguments))
    return tuple(plan)


def check_survival_faults(faults: Sequence[str]) -> tuple[str, ...]:
    """The actions that words mean, by any of their names.

    Raises:
        InvalidSettingError: One means none, or there are none.

    Example:
        >>> check_survival_faults(["kill", "mcp-disconnect"])
        ('kill_agent', 'disconnect_mcp')
    """
    unknown = [one for one in faults if not fault_action(one)]
    if unknown or not faults:
        problem = f"name some of {', '.join(SURVIVAL_FAULTS)}"
        raise InvalidSettingError(field="faults", value=", ".join(map(str, unknown)), problem=problem)
    return tuple(fault_action(one) for one in faults)


class SurvivalRun:
    """One survival run; the only one of its namespace while it lasts."""

    def __init__(  # noqa: PLR0913 - one parameter for each thing that may be said of a run
        self,
        manager: CoreManager,
        *,
        seed: int | None = None,
        duration: timedelta | float | str = DEFAULT_DURATION,
        interval: timedelta | float | str = DEFAULT_INTERVAL,
        agents: Sequence[str] = (),
        faults: Sequence[str] = DRAWN_FAULTS,
        force: bool = False,
        settle: timedelta | float | str = SETTLE,
        steady: timedelta | float | str = STEADY,
        reason: str = "",
        actor: str = "",
        clock: Clock | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Prepares the run; nothing is done yet.

        Args:
            manager: Of the namespace.
            seed: Decides faults and targets; None: drawn, and told in the report.
            duration: How long faults come.
            interval: Between two of them.
            agents: Whom they may hit; empty: the agents that run at the beginning.
            faults: Which may come, by any of their names; all but ``tool_timeout`` unless somebody says. That one
                may park an agent until a person settles what the tool has done.
            force: kill_agent may take along the other agents of a process.
            settle: How long agents may take to come back afterwards.
            steady: How long each of them has to stay up then, else it has not come back.
            reason: Kept in the audit stream.
            actor: Who runs it; default user@host.
            clock: Injected in tests.
            listener: Hears of each fault.

        Raises:
            InvalidSettingError: Names what cannot be.
        """
        self._manager = manager
        self.seed: int = _check_seed(seed)
        self._duration = _check_span("duration", duration)
        self._interval = _check_span("interval", interval)
        self._settle = _check_span("settle", settle)
        self._steady = _check_span("steady", steady)
        if self._duration / self._interval > _MOST_FAULTS:
            problem = f"within {format_duration(self._duration)} that is more than {_MOST_FAULTS} faults"
            raise InvalidSettingError(field="interval", value=str(interval), problem=problem)
        self._agents, self._faults, self._force = tuple(agents), check_survival_faults(faults), force
        self._why_said = (reason, actor)
        #: Id of this run.
        self.id: str = uuid.uuid4().hex
        self._ring = Ring(manager, clock or SystemClock(), actor=actor)
        self._listener = listener
        self._why = ""
        self._reports: list[ActivityReport] = []

    def stop(self, why: str = "it was stopped") -> None:
        """Ends the run; its faults are healed. Safe at any time, from any thread or a handler of signals."""
        self._why = self._why or why
        self._ring.stop.set()

    def hold(self) -> None:
        """Takes the arena, or keeps it; :meth:`run` does so by itself.

        Raises:
            ArenaBusyError: Another run has it.
        """
        info = {
            "seed": self.seed,
            "duration": self._duration.total_seconds(),
            "interval": self._interval.total_seconds(),
        }
        reason, actor = self._why_said
        held = self._manager.hold_arena(self.id, info, reason=reason, actor=actor)
        if held.stop:
            self.stop(held.stop)

    def run(self) -> ScenarioReport:
        """Runs it, once; a run that was ended early gives its part and says why.

        Raises:
            ArenaBusyError: Another run is under way in the namespace.
            StoreUnavailableError: The store does not answer at the beginning.
        """
        self.hold()
        try:
            return self._run()
        finally:
            # The store may be away; then it is free in a moment by itself, and the report is not lost for that.
            with suppress(StoreUnavailableError):
                self._manager.release_arena(self.id)

    def _run(self) -> ScenarioReport:
        performer = Performer(self._ring, (), self._listener)
        started = performer.began
        watch = Watch(self._ring, self._steady)
        targets = list(self._agents) or sorted(watch.running)
        drawn = plan_survival(self.seed, targets, duration=self._duration, interval=self._interval, faults=self._faults)
        plan = [(one, self._activity(number, one)) for number, one in enumerate(drawn)]
        cannot = self._cannot([activity for _, activity in plan])
        because, away = cannot, tuple[str, ...]()
        try:
            if not cannot:
                with entered(self._ring):
                    because = self._go(performer, plan)
        finally:
            for report in performer.set_right():
                self._reports.append(report)
                # Each may take its time, and nobody else is to begin meanwhile.
                self._keep()
        cannot = cannot or chaos_is_off(self._reports)
        if not because and not cannot:
            away = watch.away(sorted({*targets, *watch.running}), self._settle, self._keep)
            because = self._why
        status, because = self._status(cannot, because, away)
        return ScenarioReport(
            title=f"survival of {len(targets)} agent{'' if len(targets) == 1 else 's'}",
            status=status,
            activities=tuple(self._reports),
            namespace=self._manager.namespace,
            started=started,
            ended=performer.ended(),
            partial=bool(because),
            partial_because=because,
            form="survival",
            seed=self.seed,
            steady=self._steady.total_seconds(),
            reasons=reasons_of(status, self._reports, because=because, away=away, besides=frozenset({Phase.METHOD})),
        )

    def _cannot(self, plan: Sequence[Activity]) -> str:
        """Why it is not begun; empty when it can be."""
        unknown = nobody_there(self._manager, self._agents)
        return unknown or ("" if plan else "no agent runs") or not_allowed(self._manager, plan)

    def _status(self, cannot: str, because: str, away: Sequence[str]) -> tuple[RunStatus, str]:
        """How it ended, and why only a part was done."""
        if cannot or because:
            return (RunStatus.PRECONDITION if cannot else RunStatus.INTERRUPTED), cannot or because
        if away or not all(one.is_fine for one in self._reports if one.phase is Phase.ROLLBACK):
            return RunStatus.DEVIATED, ""
        done = [one for one in self._reports if one.phase is Phase.METHOD]
        if not any(one.outcome is Outcome.SUCCEEDED for one in done):
            # A fleet that met nothing has survived nothing.
            return RunStatus.PRECONDITION, f"no fault could be injected: {done[0].problem}"
        return RunStatus.COMPLETED, ""

    def demand_agents(self) -> None:
        """Looks for the agents that are named: a slip must not pass for a fleet that survives everything.

        Raises:
            AgentNotFoundError: One does not exist.
        """
        for agent_id in self._agents:
            if self._manager.get_agent_info(agent_id) is None:
                raise AgentNotFoundError(agent_id=agent_id)

    def _go(self, performer: Performer, plan: Sequence[tuple[PlannedFault, Activity]]) -> str:
        """Why it ended before its end."""
        clock = self._ring.clock
        began = clock.monotonic()
        for planned, activity in plan:
            if self._wait_until(began + planned.at.total_seconds()):
                return self._why
            self._reports.append(performer.perform(activity, Phase.METHOD))
            if chaos_is_off(self._reports):
                return self._why
        self._wait_until(began + self._duration.total_seconds())
        return self._why

    def _activity(self, number: int, planned: PlannedFault) -> Activity:
        arguments = {"agent_id": planned.target, **planned.arguments}
        if planned.fault == "kill_agent":
            arguments["force"] = self._force
        return Activity(
            kind="action",
            name=f"{number + 1}: {planned.fault} {planned.target}",
            provider=PythonProvider(ACTIONS_MODULE, planned.fault, arguments),
            target=planned.target,
            fault=planned.fault,
        )

    def _wait_until(self, moment: float) -> bool:
        """Waits, and keeps the arena meanwhile; True when the run is to end."""
        while self._keep():
            left = moment - self._ring.clock.monotonic()
            if left <= 0:
                return self._ring.stop.is_set()
            self._ring.pause(min(left, _KEEP))
        return True

    def _keep(self) -> bool:
        """Keeps the arena; False when the run is to end."""
        try:
            self.hold()
        except StoreUnavailableError as error:
            # Away for a while: the agents live through that, and so does the run.
            log.warning("the survival run goes on, though its arena cannot be kept: %s", error)
        except AresError as error:
            self.stop(str(error))
        return not self._ring.stop.is_set()


def survival_options(text: str | bytes, name: str = "survival") -> dict[str, Any]:
    """What a file says of a survival run: the arguments of :class:`SurvivalRun` that may stand there, such as ``seed``.

    Raises:
        InvalidScenarioError: A field is unknown, or the file cannot be read.
    """
    problems = Problems(name)
    source = read_source(text, problems)
    problems.lines = source.lines
    said = as_mapping(source.data)
    if source.data is None and not problems:
        problems.add((), "it is empty")
    elif source.data is not None and not isinstance(source.data, Mapping):
        problems.add((), "it is no mapping of fields to values")
    for field in sorted(set(said) - set(_OPTIONS)):
        problems.add((field,), f"there is no such field; there are {', '.join(_OPTIONS)}")
    for field in sorted({"agents", "faults"} & set(said)):
        if not is_list_of_texts(said[field]):
            problems.add((field,), f"{said[field]!r:.100} is no list of names, such as [counter-1, counter-2]")
    if not isinstance(said.get("force", False), bool):
        problems.add(("force",), f"{said['force']!r:.100} is neither true nor false")
    problems.demand_none()
    return dict(said)


def _check_seed(seed: int | None) -> int:
    if seed is None:
        return secrets.randbelow(2**31)
    if not isinstance(cast("object", seed), int) or isinstance(seed, bool) or not 0 <= seed < _LARGEST_SEED:
        problem = f"give a whole number from 0, below {_LARGEST_SEED}, or leave it out"
        raise InvalidSettingError(field="seed", value=str(seed), problem=problem)
    return seed


def _check_span(field: str, value: timedelta | float | str) -> timedelta:
    try:
        span = parse_duration(value)
    except ValueError as error:
        raise InvalidSettingError(field=field, value=str(value), problem=str(error)) from error
    if not timedelta(milliseconds=10) <= span <= timedelta(days=7):
        raise InvalidSettingError(field=field, value=str(value), problem="it is from 10ms to 7d")
    return span
