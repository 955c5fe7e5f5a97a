"""What drives an agent under test: its namespace, its process, and the only hand that moves the clock."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

from ares_celery.agents.registry import REGISTRY, Registry
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    AgentFailedError,
    AgentParkedError,
    AgentStuckError,
    AgentTypeError,
    AresError,
    AwaitMissingError,
    OperationNotSupportedError,
)
from ares_celery.ids import AgentId
from ares_celery.manager import CoreManager
from ares_celery.model.agent import AgentInfo, AgentRecord, AgentSpec, AgentState, RuntimeState
from ares_celery.model.command import Deadline, DeadlineDue, Die
from ares_celery.model.info import agent_info
from ares_celery.model.plan import Nudge
from ares_celery.model.restart import DeathCause
from ares_celery.runtime.commits import Committer
from ares_celery.runtime.ends import WAIT
from ares_celery.runtime.outcome import Crashed, Ended, RetryLater
from ares_celery.runtime.shared_things import Registries
from ares_celery.runtime.worker_hooks import StateSources
from ares_celery.store.base import Store
from ares_celery.store.redis.store import RedisStore
from ares_celery.supervision.sweep import Sweeper
from ares_celery.testing.beats import Beats
from ares_celery.testing.bystanders import Bystanders
from ares_celery.testing.clock import ManualClock
from ares_celery.testing.disturbances import Disturbances
from ares_celery.testing.memory_server import open_memory_store
from ares_celery.testing.process import AgentProcess, NamingStore, World
from ares_celery.testing.whereabouts import stack_of, waits_at

__all__ = ["ACTOR", "Bench"]

#: Who asks, in events and audit.
ACTOR: Final = "test"
#: Turns of an agent that never waits: beyond, simulated time cannot go on.
_MOST_TURNS: Final = 10_000
#: Simulated seconds between two looks at an agent that is asked to end.
_ENDING_LOOK: Final = 0.5
#: Looks until an incarnation runs, and until one has ended; each is at a deadline, so these many are a bug of ours.
_MOST_LOOKS: Final = 200


class _Pending:
    """Implements :class:`~ares_celery.runtime.ports.Launcher`: keeps the message until somebody wants it delivered."""

    def __init__(self, agent_id: AgentId) -> None:
        self.nudge: Nudge | None = None
        self._agent_id = agent_id

    def launch(self, nudge: Nudge) -> None:
        """Keeps the newest; agents that this one spawned do not run."""
        if nudge.agent_id == self._agent_id:
            self.nudge = nudge

    def waiting(self, queue: str | None) -> int | None:  # noqa: ARG002 - the port's signature
        """Nothing waits in a queue."""
        return 0

    def take(self) -> Nudge | None:
        """What is to be delivered now."""
        nudge, self.nudge = self.nudge, None
        return nudge


@dataclass(frozen=True, slots=True)
class _Ports:
    """What a manager works with."""

    store: Store
    committer: Committer
    config: RuntimeConfig

    def close(self) -> None:
        """Left to the bench."""


class Bench:
    """One namespace with one agent; drives whatever process hosts it."""

    def __init__(
        self,
        spec: AgentSpec,
        config: RuntimeConfig,
        *,
        sources: StateSources,
        instead: Mapping[str, Mapping[str, Any]],
        patience: float,
        begins: datetime | None = None,
    ) -> None:
        self.agent_id = AgentId(spec.id)
        self.patience = patience
        self.clock = ManualClock(self._on_wait, begins=begins)
        self._bystanders = Bystanders(self.clock)
        self.registry = Registry(REGISTRY.upcasters)
        self.instance: Any = None
        self.is_closed = False
        self._store: RedisStore = open_memory_store(self.clock, "harness", config)
        self._pending = _Pending(self.agent_id)
        self.world = World(self._store, self.clock, self.registry, sources, self._pending, Registries(instead=instead))
        named = cast("Store", NamingStore(self.world))
        self.committer = Committer(named, lambda: self._store.config, self._pending, clock=self.clock)
        self._sweeper = Sweeper(named, self.committer, lambda: self._store.config, clock=self.clock)
        ports = _Ports(named, self.committer, self.store.config)
        self.manager = CoreManager(ports, registry=self.registry, clock=self.clock, hosts_here=True)
        self.process: AgentProcess | None = None
        self._processes: list[AgentProcess] = []
        self.disturbances = Disturbances(self)
        self._due = (self.disturbances, Beats(self))
        self.numbers = itertools.count(1)
        self.store.set_runtime(RuntimeState.RUNNING, only_from=[RuntimeState.NEW], reason="", actor=ACTOR)

    # -- the agent's code -------------------------------------------------------------------------------------------

    def use(self, name: str, factory: Callable[..., Any]) -> None:
        """Makes the factory that of the agent's type from its next incarnation on; what it gives is kept to look at.

        Raises:
            AgentTypeError: It breaks the contract of an agent.
        """
        known = REGISTRY.find(REGISTRY.name_of(factory) or name)
        if inspect.isclass(factory):
            Registry().register(name, factory)

        @functools.wraps(factory, updated=())
        def make(*args: Any, **config: Any) -> Any:  # noqa: ANN401 - whatever the factory gives
            self.instance = factory(*args, **config)
            return self.instance

        options = {"concurrency": known.concurrency, "schema": known.schema} if known else {}
        old = self.registry.find(name)
        if old is not None:
            self.registry.replace(name, make)
        self.registry.register(name, make, **options)

    @property
    def store(self) -> RedisStore:
        """Where everything is. Raises OperationNotSupportedError: the harness is closed."""
        self._demand_open()
        return self._store

    # -- the record -------------------------------------------------------------------------------------------------

    @property
    def record(self) -> AgentRecord:
        """The agent as the store has it."""
        found = self.store.read(self.agent_id).record
        if found is None:
            raise OperationNotSupportedError(operation="this call", reason="the agent was deleted")
        return found

    @property
    def info(self) -> AgentInfo:
        """The agent as people see it."""
        return agent_info(self.record)

    # -- time -------------------------------------------------------------------------------------------------------

    def drive(self, until: float, condition: Callable[[], object] | None = None) -> bool:
        """Lets the agent run, and time pass, until the condition holds, the moment has come, or its process is over.

        Raises:
            AgentStuckError: It does not come to rest.
        """
        self._demand_open()
        process = self.process
        if process is not None and process.lives:
            process.look()
        turns = in_no_time = 0
        while True:
            if condition is not None and condition():
                return True
            if process is None or not process.lives:
                if self._wake(until):
                    process = self.process
                    continue
                if condition is None and not (turns and self.failure() is not None):
                    self.clock.move_to(until)
                return False
            agent_at, others_at = process.stage.next_at, self._bystanders.next_at
            next_at = min(agent_at, others_at, *(one.next_at for one in self._due))
            if next_at > until:
                self.clock.move_to(until)
                return bool(condition is not None and condition())
            turns, in_no_time = turns + 1, in_no_time + 1 if next_at <= self.clock.monotonic() else 0
            self._demand_rest(in_no_time, process)
            self.clock.move_to(next_at)
            if self._meet(next_at):
                process = self.process
                continue
            if agent_at <= others_at:
                self.give_turn(process)
            self._bystanders.settle(self.patience)

    def _meet(self, moment: float) -> bool:
        """Lets happen what is due by then, and is neither the agent's nor its neighbours'."""
        for one in self._due:
            if one.next_at <= moment:
                one.meet()
                return True
        return False

    def _wake(self, until: float) -> bool:
        """Brings on an agent that waits without its slot, when what it waits for is there by then; moves the clock."""
        while self.has_left and self._pending.nudge is None:
            record = self.record
            if record.state is not AgentState.WAITING:
                return False
            report = self._sweeper.sweep_once(judge_leases=False)
            if report.applied or report.more:
                continue
            next_at = math.inf if report.next_in is None else self.clock.monotonic() + report.next_in.total_seconds()
            if next_at > until:
                return False
            self.clock.move_to(max(next_at, self.clock.monotonic() + 1e-6))
        return self._begin()

    def _begin(self) -> bool:
        """Hosts what waits for a worker; a failed recovery is told by :meth:`failure`."""
        nudge = self._pending.take() if self.has_left else None
        if nudge is None:
            return False
        self._host(nudge)
        return True

    def give_turn(self, process: AgentProcess) -> None:
        """One turn.

        Raises:
            AgentStuckError: It does not come back from it.
            AwaitMissingError: The agent's code has dropped a call of its ctx.
        """
        if process.stage.give_turn(self.patience):
            if process.failure is not None:
                raise process.failure
            forgotten = process.take_forgotten()
            if forgotten:
                raise AwaitMissingError(agent_id=self.agent_id, call=forgotten)
            return
        stack = stack_of(process.stage.frame())
        process.is_dead = True
        process.host.fence_all()
        problem = f"within {self.patience:g} real seconds"
        if not process.stage.interrupt():
            problem += ", and cannot be ended, as it blocks outside of Python"
        raise AgentStuckError(agent_id=self.agent_id, problem=problem, stack=stack)

    def _demand_rest(self, turns: int, process: AgentProcess) -> None:
        if turns > _MOST_TURNS:
            problem = f"within {_MOST_TURNS:,} steps: it goes on without ever sleeping, so no simulated time can pass"
            raise AgentStuckError(agent_id=self.agent_id, problem=problem, stack=self.whereabouts(process))

    def _on_wait(self, event: threading.Event, until: float) -> bool:
        """A wait of the clock, in the agent's thread or in the test's."""
        process = self.process
        for one in self._processes:
            if one.stage.is_here:
                return one.stage.wait(event, until)
        if self._bystanders.is_one():
            return self._bystanders.wait(event, until)
        if process is not None and process.lives:
            self.drive(until, event.is_set)
        self.clock.move_to(until)
        return event.is_set()

    # -- lives ------------------------------------------------------------------------------------------------------

    def bring_up(self) -> None:
        """Delivers what waits until an incarnation of the agent runs; time passes as its backoff says.

        Raises:
            AresError: What its recovery raised. AgentParkedError: Nobody starts it any more.
        """
        for _ in range(_MOST_LOOKS):
            nudge = self._pending.take()
            if nudge is None:
                report = self._sweeper.sweep_once(judge_leases=False)
                if self._pending.nudge is None and not report.more:
                    if report.next_in is None or self.record.state not in (
                        AgentState.STARTING,
                        AgentState.RESURRECTING,
                    ):
                        break
                    self.clock.move_to(self.clock.monotonic() + max(report.next_in.total_seconds(), 1e-6))
                continue
            if self._host(nudge):
                return
        record = self.record
        if record.state is AgentState.PARKED:
            raise AgentParkedError(
                agent_id=self.agent_id, cause=record.cause, reason=record.reason, operation="restart"
            )

    def _host(self, nudge: Nudge) -> bool:
        """Begins an incarnation; True when its code runs, or has run already."""
        process = AgentProcess(self.world, nudge, number=len(self._processes) + 1)
        self._processes.append(process)
        self.process = process
        self.give_turn(process)
        outcome = process.outcome
        if isinstance(outcome, (RetryLater, Crashed)) and not process.has_run:
            raise with_traceback(outcome.error)
        return process.has_run

    def settle_end(self) -> None:
        """Waits until the incarnation that was asked to end has ended, at most as long as the namespace allows."""
        process = self.process
        for _ in range(_MOST_LOOKS):
            if process is None or not process.lives:
                return
            if not self.drive(self.clock.monotonic() + _ENDING_LOOK, lambda: not process.lives):
                process.host.press()
                self._sweeper.sweep_once(judge_leases=False)
                if not self.record.hosted:
                    # Fenced by its deadline: whatever it still does counts for nothing.
                    process.is_dead = True

    def look_at_deadlines(self) -> None:
        """Does what is due, but for leases."""
        self._sweeper.sweep_once(judge_leases=False)

    def judge_lease(self) -> None:
        """Its lease has run out: what a sweep does that has had contact for long enough."""
        self.committer.apply(self.agent_id, DeadlineDue(kind=Deadline.LEASE, score=self.clock.wall()))

    def kill(self) -> None:
        """The process dies, as by SIGKILL."""
        if self.process is not None:
            self.process.is_dead = True

    def bury(self) -> None:
        """The death becomes known, as it does when a worker's exit is seen."""
        record = self.record
        if record.hosted:
            died = Die("its process was killed", actor=ACTOR, epoch=record.epoch, cause=DeathCause.LOST, proof=True)
            self.committer.apply(self.agent_id, died)

    @property
    def may_go_on(self) -> bool:
        """Its process runs, or the agent waits without one."""
        return self.has_left or (self.process is not None and self.process.lives)

    @property
    def has_left(self) -> bool:
        """Its last process ended as the agent gave its slot back."""
        outcome = self.process.outcome if self.process is not None else None
        return isinstance(outcome, Ended) and outcome.reason == WAIT

    @property
    def has_crashed(self) -> bool:
        """The test has killed its process, and nothing has come after that."""
        return self.process is not None and self.process.is_dead and self.record.hosted

    def failure(self) -> AresError | None:
        """What ended the process's code, if it raised."""
        outcome = self.process.outcome if self.process is not None else None
        return outcome.error if isinstance(outcome, (Crashed, RetryLater)) else None

    # -- looking ----------------------------------------------------------------------------------------------------

    def whereabouts(self, process: AgentProcess) -> str:
        """The line of the agent's code that waits; empty when nobody knows."""
        return waits_at(process.stage.frame(), process.host.own_loop)

    # -- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> list[str]:
        """Ends the code of all processes and forgets the namespace; gives the stacks of what does not end."""
        if self.is_closed:
            return []
        self.is_closed = True
        self._bystanders.close()
        stuck = [text for process in self._processes if (text := self._end(process))]
        self._store.close()
        return stuck

    def _end(self, process: AgentProcess) -> str:
        process.is_dead = True
        process.host.fence_all()
        process.stage.poke()
        for _ in range(_MOST_LOOKS):
            if process.stage.is_over or process.stage.is_loose:
                break
            self.clock.move_to(process.stage.next_at if process.stage.next_at < math.inf else 0.0)
            if not process.stage.give_turn(self.patience) and not process.stage.interrupt():
                break
            process.stage.poke()
        if process.stage.is_over:
            process.stage.join(self.patience)
            return ""
        # It stays parked: by force, the garbage collector would close its coroutines, and they may eat that as well.
        return self.whereabouts(process) or stack_of(process.stage.frame())

    def _demand_open(self) -> None:
        if self.is_closed:
            raise OperationNotSupportedError(
                operation="this call", reason="the harness is closed; use it inside its block"
            )


def with_traceback(error: AresError) -> AresError:
    """The error with the agent's own traceback as a note, which a failing test shows."""
    text = error.fields.get("traceback") if isinstance(error, AgentFailedError) else None
    if text and not getattr(error, "__notes__", None):
        error.add_note(f"in the agent:\n{text}")
    return error


def type_of(factory: Callable[..., Any] | str) -> tuple[str, Callable[..., Any]]:
    """The type's name and its factory.

    Raises:
        UnknownAgentTypeError: No module that was imported registers it. AgentTypeError: It is neither.
    """
    if isinstance(factory, str):
        return factory, REGISTRY.get(factory).factory
    if not callable(cast("object", factory)):
        raise AgentTypeError(type=repr(factory), problem="pass an agent class, a factory, or the name of a type")
    name = REGISTRY.name_of(factory) or getattr(factory, "__name__", None) or type(factory).__name__
    return name, factory


def spec_for(name: str, agent_id: str, config: Mapping[str, Any] | None, more: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec as a mapping, for the one that reads specs."""
    return {"id": agent_id, "type": name, "config": dict(config or {}), **more}
