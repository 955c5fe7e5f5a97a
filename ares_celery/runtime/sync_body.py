"""Running a plain agent in the task's own thread; messages are handed over at its context calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeVar

from ares_celery.agents.contract import Agent
from ares_celery.agents.guards import AGENT
from ares_celery.agents.registry import AgentType
from ares_celery.clock import Clock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    FencedError,
    FencedSignal,
    StopSignal,
    WaitSignal,
)
from ares_celery.model.restart import DeathCause
from ares_celery.runtime.ends import (
    Completed,
    Crash,
    End,
    Fenced,
    ParkSignal,
    Yielded,
    crash,
    verdict_on_return,
    verdict_on_signal,
)
from ares_celery.runtime.faults import StateLostSignal
from ares_celery.runtime.health import HealthWatch
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.interrupts import Interrupts
from ares_celery.runtime.shared_things import SharedThings
from ares_celery.runtime.step_scope import HERE
from ares_celery.runtime.stop_patience import StopPatience
from ares_celery.runtime.sync_context import SyncContext
from ares_celery.runtime.sync_serving import SyncServing
from ares_celery.store.base import Store

__all__ = ["SyncBody"]

log = logging.getLogger(__name__)
T = TypeVar("T")


class SyncBody:
    """One incarnation of a plain agent."""

    def __init__(  # noqa: PLR0913 - the parts of one incarnation
        self,
        incarnation: Incarnation,
        agent: Agent,
        agent_type: AgentType,
        *,
        config: RuntimeConfig,
        clock: Clock,
        store: Store,
        report_ill: Callable[[Incarnation, str, DeathCause], None],
        shared: SharedThings | None = None,
    ) -> None:
        """Binds the parts; ``run`` does the work."""
        self._incarnation = incarnation
        self._agent: Any = agent
        self._type = agent_type
        self._config = config
        self._clock = clock
        self._store = store
        self._report_ill = report_ill
        hang_timeout = incarnation.record.spec.hang_timeout
        self._hang_limit = hang_timeout.total_seconds() if hang_timeout else 0.0
        self._health = HealthWatch(agent, config, clock.monotonic()) if HealthWatch.wanted(agent) else None
        self._ctx = SyncContext(
            incarnation,
            agent,
            agent_type.schema,
            config,
            clock,
            store=store,
            hand_over=self._hand_over,
            shared=shared,
        )
        self._serving = SyncServing(
            incarnation,
            agent,
            agent_type,
            ctx=self._ctx,
            store=store,
            clock=clock,
            poison_after=config.poison_after,
        )
        self._in_message = False
        self._interrupts = Interrupts()
        self._patience = StopPatience(incarnation, config, clock)

    @property
    def wants_pulse(self) -> bool:
        """Every plain agent is looked at each beat: it may have to be interrupted."""
        return True

    def run(self) -> End:
        """Runs the agent to its end in the calling thread."""
        self._incarnation.on_change(self._ctx.wake, self._on_stop)
        self._incarnation.on_mail(self._serving.take_hint)
        here, agent = HERE.set(self._incarnation), AGENT.set(self._incarnation.agent_id)
        try:
            return self._to_its_end()
        finally:
            AGENT.reset(agent)
            HERE.reset(here)

    def _to_its_end(self) -> End:
        end = self._live()
        if not isinstance(end, (Fenced, Crash)):
            end = self._orderly_end(end)
            self._serving.give_back()
        self._incarnation.on_change(_nothing, _nothing)
        self._incarnation.on_mail(None)
        return end

    def pulse(self, loop_age: float) -> None:  # noqa: ARG002 - it does not run on the loop
        """Reports code that hangs too long, interrupts code that does not yield in time; from the keeper's thread.

        An interrupt reaches Python code at its next bytecode; a call that blocks outside Python is not reached: its
        incarnation is fenced by its deadline, and in prefork its process is ended.
        """
        silence = self._ctx.silence()
        if 0 < self._hang_limit < silence:
            self._hang_limit = 0.0
            self._report_ill(self._incarnation, f"hung: no context call for {silence:.1f} s", DeathCause.HUNG)
        if self._patience.is_over:
            self._interrupts.send(FencedSignal if self._incarnation.fenced else StopSignal)

    # -- in the task's thread ---------------------------------------------------------------------------------------

    def _live(self) -> End:
        try:
            returned: Any = None
            start = getattr(self._agent, "start", None)
            if start is not None:
                returned = self._user_code(start, self._ctx)
            end = verdict_on_return(self._incarnation, serves=self._serving.handles, returned=returned)
            if end is not None:
                return end
            while not self._ctx.stop_requested:
                self._ctx.sleep(self._config.snapshot_interval.total_seconds())
            return verdict_on_return(self._incarnation, serves=False) or Yielded()
        except BaseException as error:  # noqa: BLE001 - an agent's code may raise anything; nothing of it may escape
            return self._on_error(error)

    def _user_code(self, function: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401 - whatever it returns
        """Calls user code; only inside it may an interrupt arrive."""
        with self._interrupts.allowed():
            return function(*args)

    def _on_error(self, error: BaseException) -> End:
        if isinstance(error, (FencedSignal, FencedError)):
            return Fenced()
        if isinstance(error, (StopSignal, WaitSignal)):
            return verdict_on_signal(self._incarnation)
        if isinstance(error, ParkSignal):
            return error.end
        if isinstance(error, StateLostSignal):
            error = error.error
        elif self._incarnation.parking is not None:
            return Yielded()
        return crash(self._incarnation.agent_id, error)

    def _orderly_end(self, end: End) -> End:
        try:
            stop = getattr(self._agent, "stop", None)
            if stop is not None:
                self._user_code(stop, self._ctx)
            self._ctx.final_snapshot()
            if isinstance(end, Completed):
                self._ctx.steps.end_main()
        except FencedSignal:
            return Fenced()
        except StateLostSignal as signal:
            return crash(self._incarnation.agent_id, signal.error)
        except StopSignal:
            log.warning("agent %s: no final snapshot, as the store does not answer", self._incarnation.agent_id)
        except BaseException as error:  # an agent's stop() may raise anything; it is over anyway
            self._ctx.logger.error("stop() failed", exc_info=error)  # noqa: TRY400 - also for what is no Exception
        return end

    def _on_stop(self) -> None:
        self._patience.begin()
        self._ctx.wake()

    # -- messages ---------------------------------------------------------------------------------------------------

    def _hand_over(self) -> None:
        """Answers what waits, and asks for the agent's health: both between its own lines of code."""
        if self._in_message:
            return
        if self._health is not None:
            problem = self._health.ask(self._clock.monotonic())
            if problem is not None:
                self._report_ill(self._incarnation, problem, DeathCause.UNHEALTHY)
        if self._incarnation.open_never:
            # Inside of a step that must not be repeated nothing may end the incarnation, as a message might.
            return
        self._in_message = True
        try:
            self._serving.serve()
        finally:
            self._in_message = False


def _nothing() -> None:
    """Nobody is to be told any more."""
