"""Running an async agent: its loop, its messages and its end, on the process's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from ares_celery.agents.contract import Agent
from ares_celery.agents.guards import AGENT
from ares_celery.agents.registry import AgentType
from ares_celery.clock import Clock
from ares_celery.config import RuntimeConfig
from ares_celery.errors import (
    FencedSignal,
    StopSignal,
    WaitSignal,
)
from ares_celery.model.restart import DeathCause
from ares_celery.runtime.async_context import AsyncContext
from ares_celery.runtime.async_serving import AsyncServing
from ares_celery.runtime.contained import ContainedExit, contained
from ares_celery.runtime.ends import (
    Completed,
    Crash,
    End,
    Fenced,
    ParkSignal,
    Yielded,
    agent_failed,
    crash,
    verdict_on_return,
    verdict_on_signal,
)
from ares_celery.runtime.faults import StateLostSignal
from ares_celery.runtime.health import HealthWatch
from ares_celery.runtime.incarnation import Incarnation
from ares_celery.runtime.loop_thread import LoopThread
from ares_celery.runtime.shared_things import SharedThings
from ares_celery.runtime.stop_patience import LOOK_AT_STEPS, StopPatience
from ares_celery.store.base import AsyncIncarnationStore, InboxMessage

__all__ = ["AsyncBody"]

log = logging.getLogger(__name__)
T = TypeVar("T")
#: Seconds between two cancellations of a task that caught the first, and before it is given up on.
_INSIST = 1.0


class AsyncBody:
    """One incarnation of an async agent."""

    def __init__(  # noqa: PLR0913 - the parts of one incarnation
        self,
        incarnation: Incarnation,
        agent: Agent,
        agent_type: AgentType,
        *,
        config: RuntimeConfig,
        clock: Clock,
        loop: LoopThread,
        store: AsyncIncarnationStore,
        report_ill: Callable[[Incarnation, str, DeathCause], None],
        shared: SharedThings | None = None,
    ) -> None:
        """Binds the parts; ``run`` does the work."""
        self._incarnation = incarnation
        self._agent: Any = agent
        self._type = agent_type
        self._config = config
        self._clock = clock
        self._loop = loop
        self._store = store
        self._report_ill = report_ill
        self._shared = shared
        hang_timeout = incarnation.record.spec.hang_timeout
        self._hang_limit = hang_timeout.total_seconds() if hang_timeout else 0.0
        self._health = HealthWatch(agent, config, clock.monotonic()) if HealthWatch.wanted(agent) else None
        self._done: Future[End] = Future()
        self._ctx: AsyncContext | None = None
        self._main: asyncio.Task[None] | None = None
        self._serving: AsyncServing | None = None
        self._patience = StopPatience(incarnation, config, clock)
        self._cancelled = 0
        self._ending = False

    @property
    def wants_pulse(self) -> bool:
        """The agent has a word on its health, or a limit to how long it may hang."""
        return self._health is not None or self._hang_limit > 0

    def run(self) -> End:
        """Runs the agent to its end; blocks the task's thread, holds nothing of the loop."""
        self._loop.loop.call_soon_threadsafe(self._begin)
        return self._loop.wait(self._done)

    def pulse(self, loop_age: float) -> None:
        """Asks the agent for its health, and reports it when the loop hangs too long for it; from any thread."""
        if 0 < self._hang_limit < loop_age:
            self._hang_limit = 0.0
            problem = f"hung: the event loop has not turned for {loop_age:.1f} s"
            self._report_ill(self._incarnation, problem, DeathCause.HUNG)
        elif self._health is not None:
            self._loop.loop.call_soon_threadsafe(self._ask_health)

    # -- on the loop ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._ctx = AsyncContext(
            self._incarnation,
            self._agent,
            self._type.schema,
            self._config,
            self._clock,
            store=self._store,
            shared=self._shared,
        )
        self._serving = AsyncServing(
            self._incarnation,
            self._agent,
            self._type,
            ctx=self._ctx,
            store=self._store,
            clock=self._clock,
            poison_after=self._config.poison_after,
            is_ending=lambda: self._cancelled > 0 or self._ending,
            on_failure=self._on_failed_message,
        )
        self._main = self._loop.loop.create_task(self._run())
        loop, serving = self._loop.loop, self._serving

        def wake() -> None:
            loop.call_soon_threadsafe(self._on_wake)

        def stop_asked() -> None:
            loop.call_soon_threadsafe(self._on_stop)

        def mail(hint: InboxMessage | str) -> None:
            loop.call_soon_threadsafe(serving.take_hint, hint)

        self._incarnation.on_change(wake, stop_asked)
        self._incarnation.on_mail(mail)
        self._on_wake()

    async def _run(self) -> None:
        AGENT.set(self._incarnation.agent_id)
        end: End | None = None
        try:
            end = await self._live()
            if not isinstance(end, Fenced):
                await self._until_steps_end()
            if not isinstance(end, (Fenced, Crash)):
                end = await self._orderly_end(end)
                await self._serves.give_back()
        except BaseException as error:
            # A bug of ours must not leave the task's thread waiting for ever.
            log.exception("agent %s: its end went wrong", self._incarnation.agent_id)
            end = Crash(agent_failed(self._incarnation.agent_id, error))
        finally:
            self._incarnation.on_change(_nothing, _nothing)
            self._incarnation.on_mail(None)
            self._ending = True
            if self._serving is not None and self._serving.task is not None:
                self._serving.task.cancel()
            if not self._done.done():
                self._done.set_result(Fenced() if end is None else end)

    @property
    def _serves(self) -> AsyncServing:
        assert self._serving is not None  # noqa: S101 - set before anything runs
        return self._serving

    def _on_failed_message(self) -> None:
        """Ends the agent's code; for a wait not before its steps are recorded that must not be repeated."""
        if self._main is None or self._main.done():
            return
        if isinstance(self._serves.failure, WaitSignal) and self._incarnation.open_never:
            self._loop.loop.call_later(LOOK_AT_STEPS, self._on_failed_message)
            return
        self._main.cancel()

    async def _live(self) -> End:
        try:
            returned: Any = None
            start = getattr(self._agent, "start", None)
            if start is not None:
                try:
                    returned = await contained(start(self._ctx))
                except WaitSignal:
                    # What is being answered comes to its end first; nothing new is begun.
                    return await self._after_messages(verdict_on_signal(self._incarnation))
            end = verdict_on_return(self._incarnation, serves=self._serves.handles, returned=returned)
            if end is None:
                await self._serve_until_asked()
                end = verdict_on_return(self._incarnation, serves=False)
            return await self._after_messages(end or Yielded())
        except asyncio.CancelledError as error:
            return self._on_cancelled(error)
        except BaseException as error:  # noqa: BLE001 - an agent's code may raise anything; nothing of it may escape
            end = self._on_error(error)
        # It raised because it is to be parked: whoever waits for an answer gets it first.
        try:
            return end if isinstance(end, (Fenced, Crash)) else await self._after_messages(end)
        except asyncio.CancelledError as error:
            return self._on_cancelled(error)

    async def _serve_until_asked(self) -> None:
        """Keeps an agent alive that only answers messages."""
        assert self._ctx is not None  # noqa: S101 - set before this task was made
        while not self._ctx.stop_requested and self._serves.failure is None:
            await self._ctx.sleep(self._config.snapshot_interval.total_seconds())
        if self._serves.failure is not None:
            raise self._serves.failure

    async def _after_messages(self, end: End) -> End:
        """Lets the message at hand be answered before the incarnation ends."""
        if self._serves.task is not None and not self._serves.task.done():
            await self._serves.task
        return self._on_error(self._serves.failure) if self._serves.failure is not None else end

    def _on_cancelled(self, error: asyncio.CancelledError) -> End:
        if self._incarnation.fenced:
            return Fenced()
        if self._serves.failure is not None:
            return self._on_error(self._serves.failure)
        if self._cancelled:
            return verdict_on_signal(self._incarnation)
        return crash(self._incarnation.agent_id, error)

    def _on_error(self, error: BaseException) -> End:
        if isinstance(error, FencedSignal):
            return Fenced()
        if isinstance(error, (StopSignal, WaitSignal)):
            return verdict_on_signal(self._incarnation)
        if isinstance(error, ParkSignal):
            return error.end
        if isinstance(error, (StateLostSignal, ContainedExit)):
            error = error.error
        elif self._incarnation.parking is not None:
            return Yielded()
        return crash(self._incarnation.agent_id, error)

    async def _until_steps_end(self) -> None:
        """Lets steps come to their end that must not be repeated, and that the agent's code has not waited for."""
        self._patience.begin()
        while self._patience.waits_for_steps:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(LOOK_AT_STEPS)

    async def _orderly_end(self, end: End) -> End:
        assert self._ctx is not None  # noqa: S101 - set before this task was made
        try:
            stop = getattr(self._agent, "stop", None)
            if stop is not None:
                await contained(stop(self._ctx))
        except asyncio.CancelledError:
            log.warning("agent %s: its stop() was cut off", self._incarnation.agent_id)
        except FencedSignal:
            return Fenced()
        except StateLostSignal as signal:
            return crash(self._incarnation.agent_id, signal.error)
        except BaseException as error:  # an agent's stop() may raise anything; it is over anyway
            self._ctx.logger.error("stop() failed", exc_info=error)  # noqa: TRY400 - also for what is no Exception
        try:
            await self._ctx.final_snapshot()
            if isinstance(end, Completed):
                await self._ctx.steps.end_main()
        except FencedSignal:
            return Fenced()
        except StateLostSignal as signal:
            return crash(self._incarnation.agent_id, signal.error)
        except (asyncio.CancelledError, StopSignal):
            log.warning("agent %s: its final snapshot was cut off", self._incarnation.agent_id)
        return end

    def _on_wake(self) -> None:
        if self._ctx is not None:
            self._ctx.wake()
        self._serves.look()

    def _on_stop(self) -> None:
        """Cancels the agent's code when it does not yield in time; at once when it is fenced."""
        self._patience.begin()
        self._loop.loop.call_later(0 if self._incarnation.fenced else self._patience.own_part, self._cancel)

    def _cancel(self) -> None:
        if self._main is None or self._main.done():
            return
        if self._patience.waits_for_steps:
            self._loop.loop.call_later(LOOK_AT_STEPS, self._cancel)
            return
        self._cancelled += 1
        for task in (self._serves.task, self._main):
            if task is not None:
                task.cancel()
        if self._incarnation.fenced and self._cancelled > 2:  # noqa: PLR2004 - asked, insisted, given up
            self._abandon()
        else:
            self._loop.loop.call_later(_INSIST, self._cancel)

    def _abandon(self) -> None:
        log.error(
            "agent %s: incarnation %s does not end; its slot is given up",
            self._incarnation.agent_id,
            self._incarnation.record.incarnation,
        )
        if not self._done.done():
            self._done.set_result(Fenced())

    def _ask_health(self) -> None:
        if self._health is not None and self._main is not None and not self._main.done():
            problem = self._health.ask(self._clock.monotonic())
            if problem is not None:
                self._report_ill(self._incarnation, problem, DeathCause.UNHEALTHY)


def _nothing() -> None:
    """Nobody is to be told any more."""
