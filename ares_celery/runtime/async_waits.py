"""Waiting for a time or for people, for agents on the process's event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

from ares_celery.errors import AgentSignal, StopSignal, WaitSignal
from ares_celery.model.arguments import check_flags
from ares_celery.model.waits import Approval, Waiting, WaitKind
from ares_celery.plugins.contract import StepCall
from ares_celery.runtime.awaited import awaited
from ares_celery.runtime.context import BaseContext
from ares_celery.runtime.stop_patience import LOOK_AT_STEPS
from ares_celery.runtime.waits import (
    LONGEST_WAIT,
    LOOK,
    Asking,
    HeldWait,
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
#: Turns of the loop in which code that was woken comes to its next call.
_TURNS: Final = 5


class AsyncWaiting(BaseContext):
    """The waits of an :class:`~ares_celery.runtime.async_context.AsyncContext`."""

    _store: AsyncIncarnationStore
    _woken: asyncio.Event

    @awaited
    async def sleep_until(self, t: datetime, /, *, release_slot: bool = False) -> None:
        """Waits until a moment has come, by the clock of Redis."""
        until = check_moment(t)
        check_flags(release_slot=release_slot)
        check_place(release_slot=release_slot)
        if release_slot:
            self._sleeps.begin(self._progress())
        with self._waits.held(Waiting(until=until, sleeps=int(release_slot))) as held:
            await self._alive()
            while True:
                # What happens from here on ends the next wait at once.
                steps, now = self._incarnation.clock_steps, await self._persist(self._store.server_time)
                if until <= now or await self._sleep_on(held, (until - now) / 1_000_000, steps):
                    break
        if release_slot:
            self._sleeps.over += 1

    async def _sleep_on(self, held: HeldWait, left: float, steps: int) -> bool:
        """Until a time has passed, or the clock of Redis has stepped; True: it was woken after this very wait."""
        leaves = held.waiting.sleeps > 0
        if not held.is_there and not leaves:
            await self.settle()
        held.is_there = True
        end = self._clock.monotonic() + min(left, LONGEST_WAIT)
        while steps == self._incarnation.clock_steps and (left := end - self._clock.monotonic()) > 0:
            if leaves and await self._leave(held):
                self._warn_of_moment()
                return True
            await self._wait_for_news(self._news, min(left, LOOK_AT_STEPS) if leaves else left)
        return False

    @awaited
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
        with self._waits.held(Waiting()):
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
        with self._waits.held(Waiting(WaitKind.APPROVAL, asking.name)) as held:
            await self._alive()
            await self.settle()
            question, news = question_of(asking, self._incarnation), self._news
            look = await self._open(question)
            while look.decided is None:
                held.waiting, held.is_there = waiting_for(asking, look), True
                left = (look.expires_at - look.now) / 1_000_000 if look.expires_at else LOOK
                # What is too late by now is ended by the next look.
                await self._until_news(news, min(left, LOOK), held, leaves=asking.release_slot)
                news, look = self._news, await self._look(question, look.id)
        return outcome_of(look.id, look.decided)

    async def _until_news(self, news: object, seconds: float, held: HeldWait, *, leaves: bool) -> None:
        """Until something has happened, at most so long, or until the agent gives its slot back."""
        end = self._clock.monotonic() + seconds
        while news is self._news and (left := end - self._clock.monotonic()) > 0:
            if leaves:
                await self._leave(held)
            await self._wait_for_news(news, min(left, LOOK_AT_STEPS) if leaves else left)

    async def _open(self, question: Question) -> InterruptLook:
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        look = await self._persist(lambda: self._store.open_interrupt(agent_id, fence, question))
        self._announce(look)
        return look

    async def _look(self, question: Question, interrupt_id: str) -> InterruptLook:
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        look = await self._persist(lambda: self._store.look_interrupt(agent_id, fence, question.name, interrupt_id))
        return look if look is not None else await self._open(question)

    async def _wait_for_news(self, news: object, seconds: float) -> None:
        """Until something else has happened, at most so long; no wait outlasts the wish that the agent ends."""
        await self._go_on()
        if news is self._news:
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

    async def _leave(self, held: HeldWait) -> bool:
        """Ends the incarnation in order, unless its code does something beside its waits.

        The next one begins when something that it waits for is there. The signal cuts off what runs beside the wait: so
        steps come to their end first, and other waits to where they wait.

        Returns:
            True: it is the wait that this incarnation was woken after. False: not now.
        """
        if not self._is_idle():
            return False
        await asyncio.sleep(self._next_refusal())
        for _ in range(_TURNS):
            # What has come to its end just now has its turn, and may go on to the next step.
            await asyncio.sleep(0)
        if not self._is_idle():
            return False
        next_sleep = self._waits.next_sleep
        if self._sleeps.is_behind and next_sleep is not None:
            return next_sleep is held
        self._sleeps.begin(self._progress())
        self._incarnation.wait(self._waits.together(self._sleeps.over))
        # Nothing is awaited in between: no such step begins before the signal is on its way.
        raise WaitSignal

    def _is_idle(self) -> bool:
        """All that its code does through its context is to wait."""
        return not self._incarnation.open_never and not self._is_busy and self._waits.are_there

    @property
    def _is_busy(self) -> bool:
        raise NotImplementedError

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
