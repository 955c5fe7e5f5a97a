"""Waiting for a time or for people, for agents on the process's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar

from ares_celery.errors import AgentSignal, StopSignal, WaitSignal
from ares_celery.ids import Instant
from ares_celery.model.arguments import check_flags
from ares_celery.model.waits import Approval, Waiting
from ares_celery.plugins.contract import StepCall
from ares_celery.runtime.context import BaseContext
from ares_celery.runtime.stop_patience import LOOK_AT_STEPS
from ares_celery.runtime.waits import (
    LONGEST_WAIT,
    LOOK,
    Asking,
    approval_of,
    asking_of,
    check_moment,
    check_place,
    demand_yes,
    outcome_of,
    question_of,
    waiting_for,
)
from ares_celery.store.base import AsyncIncarnationStore
from ares_celery.store.interrupts import InterruptLook, Question

__all__ = ["AsyncWaiting"]

T = TypeVar("T")


class AsyncWaiting(BaseContext):
    """The waits of an :class:`~ares_celery.runtime.async_context.AsyncContext`."""

    _store: AsyncIncarnationStore
    _woken: asyncio.Event

    async def sleep_until(self, t: datetime, /, *, release_slot: bool = False) -> None:
        """Waits until a moment has come, by the clock of Redis."""
        until = check_moment(t)
        check_flags(release_slot=release_slot)
        check_place(release_slot=release_slot)
        await self._alive()
        now = await self._persist(self._store.server_time)
        sleeps = self._sleeps.begin(self._progress()) if release_slot else 0
        if until <= now:
            return
        if not release_slot:
            await self.settle()
            await self._sleep_here(until)
        elif self._sleeps.is_behind:
            self._warn_of_moment()
        else:
            await self._leave(Waiting(until=until, sleeps=sleeps))

    async def _sleep_here(self, until: Instant) -> None:
        now = await self._persist(self._store.server_time)
        while now < until:
            steps = self._incarnation.clock_steps
            end = self._clock.monotonic() + min((until - now) / 1_000_000, LONGEST_WAIT)
            while steps == self._incarnation.clock_steps and (left := end - self._clock.monotonic()) > 0:
                await self._wait_for_news(left)
            now = await self._persist(self._store.server_time)

    async def wait_for_approval(
        self,
        name: str,
        /,
        payload: object = None,
        timeout: timedelta | float | str | None = None,
        release_slot: bool = False,  # noqa: FBT001, FBT002 - the public name
    ) -> Approval:
        """Asks people and waits for their decision, which is recorded as a step."""
        asking = asking_of(name, payload, timeout, release_slot)
        outcome = await self._as_step(asking.step_id, lambda: self._ask(asking))
        return approval_of(asking, self.agent_id, outcome)

    async def _as_step(self, step_id: str, function: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401, ARG002
        return await function()

    async def _demand_word(self, step: StepCall) -> None:
        """Before a step runs: where a plug-in wants a person's word, it is waited for, and may keep it from running."""
        if not self._wishes.asks(step):
            return
        asking = await asyncio.to_thread(self._wishes.wish, step)
        if asking is None:
            return
        outcome = self._wishes.said(step)
        if outcome is None:
            outcome = await self._word_on(asking)
            self._wishes.note(step, outcome)
        demand_yes(asking, self.agent_id, step, outcome)

    async def _word_on(self, asking: Asking) -> Any:  # noqa: ANN401 - what was recorded
        """What people say, or have said; a no that has parked the agent is asked about anew."""
        outcome = await self._as_step(asking.step_id, partial(self._ask, asking))
        while self._wishes.is_over(outcome, asked_anew=self._has_step(asking.anew.step_id)):
            asking = asking.anew
            outcome = await self._as_step(asking.step_id, partial(self._ask, asking))
        return outcome

    def _has_step(self, step_id: str) -> bool:  # noqa: ARG002
        return False

    async def _ask(self, asking: Asking) -> dict[str, Any]:
        """Runs as the step."""
        await self._alive()
        await self.settle()
        question = question_of(asking, self._incarnation)
        look = await self._open(question)
        while look.decided is None:
            left = (look.expires_at - look.now) / 1_000_000 if look.expires_at else LOOK
            # What is too late by now is ended by the next look.
            if left > 0 and asking.release_slot:
                await self._leave(waiting_for(asking, look))
            if left > 0:
                await self._wait_for_news(min(left, LOOK))
            look = await self._look(question, look.id)
        return outcome_of(look.id, look.decided)

    async def _open(self, question: Question) -> InterruptLook:
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        look = await self._persist(lambda: self._store.open_interrupt(agent_id, fence, question))
        self._announce(look)
        return look

    async def _look(self, question: Question, interrupt_id: str) -> InterruptLook:
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        look = await self._persist(lambda: self._store.look_interrupt(agent_id, fence, question.name, interrupt_id))
        return look if look is not None else await self._open(question)

    async def _wait_for_news(self, seconds: float) -> None:
        """Until something has happened, at most so long; no wait outlasts the wish that the agent ends."""
        await self._go_on()
        self._woken.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        await self._go_on()

    async def _go_on(self) -> None:
        """Unlike a sleep, which ends early: what was waited for would be taken for true."""
        await self._alive()
        if self._should_stop():
            await self._refuse(StopSignal())

    async def _leave(self, waiting: Waiting) -> NoReturn:
        """Ends the incarnation in order; the next one begins when what it waits for is there.

        A step that must not be repeated comes to its end first, whoever runs it: the signal may cut off what runs
        beside the wait.
        """
        await asyncio.sleep(self._next_refusal())
        while self._incarnation.open_never:
            await self._wait_for_news(LOOK_AT_STEPS)
        self._incarnation.wait(waiting)
        # Nothing is awaited in between: no such step begins before the signal is on its way.
        raise WaitSignal

    # -- the context's own --------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        """A settled point."""
        raise NotImplementedError

    async def _alive(self) -> None:
        raise NotImplementedError

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        raise NotImplementedError

    async def _refuse(self, signal: AgentSignal) -> NoReturn:
        raise NotImplementedError
