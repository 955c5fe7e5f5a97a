"""Waiting for a time or for people, for plain agents; messages are answered meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn, TypeVar

from ares_celery.errors import AgentSignal, StopSignal, WaitSignal
from ares_celery.model.arguments import check_flags
from ares_celery.model.waits import Approval, Waiting, WaitKind
from ares_celery.plugins.contract import StepCall
from ares_celery.runtime.context import BaseContext
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
from ares_celery.store.base import Store
from ares_celery.store.interrupts import InterruptLook, Question

__all__ = ["SyncWaiting"]

T = TypeVar("T")


class SyncWaiting(BaseContext):
    """The waits of a :class:`~ares_celery.runtime.sync_context.SyncContext`."""

    _store: Store
    _woken: threading.Event

    def sleep_until(self, t: datetime, /, *, release_slot: bool = False) -> None:
        """Waits until a moment has come, by the clock of Redis."""
        until = check_moment(t)
        check_flags(release_slot=release_slot)
        check_place(release_slot=release_slot)
        if release_slot:
            self._sleeps.begin(self._progress())
        with self._waits.held(Waiting(until=until, sleeps=int(release_slot))):
            self._alive()
            while True:
                # What happens from here on ends the next wait at once.
                steps, now = self._incarnation.clock_steps, self._persist(self._store.server_time)
                if until <= now:
                    break
                if release_slot and self._sleeps.is_behind:
                    self._warn_of_moment()
                    break
                if release_slot:
                    self._leave()
                self.settle()
                self._sleep_on((until - now) / 1_000_000, steps)
        if release_slot:
            self._sleeps.over += 1

    def _sleep_on(self, left: float, steps: int) -> None:
        """Until a time has passed, or the clock of Redis has stepped."""
        end = self._clock.monotonic() + min(left, LONGEST_WAIT)
        while steps == self._incarnation.clock_steps and (left := end - self._clock.monotonic()) > 0:
            self._wait_for_news(self._news, left)

    def wait_for_approval(
        self,
        name: str,
        /,
        payload: object = None,
        timeout: timedelta | float | str | None = None,
        release_slot: bool = False,  # noqa: FBT001, FBT002 - the public name
    ) -> Approval:
        """Asks people and waits for their decision, which is recorded as a step."""
        asking = asking_of(name, payload, timeout, release_slot)
        outcome = self._as_step(asking.step_id, lambda: self._ask(asking))
        return approval_of(asking, self.agent_id, outcome)

    def _as_step(self, step_id: str, function: Callable[[], Any]) -> Any:  # noqa: ANN401, ARG002
        return function()

    def _demand_word(self, step: StepCall) -> None:
        """Before a step runs: where a plug-in wants a person's word, it is waited for, and may keep it from running."""
        if not self._wishes.asks(step):
            return
        asking = self._wishes.wish(step)
        if asking is None:
            return
        outcome = self._wishes.said(step)
        if outcome is None:
            outcome = self._word_on(asking)
            self._wishes.note(step, outcome)
        demand_yes(asking, self.agent_id, step, outcome)

    def _word_on(self, asking: Asking) -> Any:  # noqa: ANN401 - what was recorded
        """What people say, or have said; a no that has parked the agent is asked about anew."""
        outcome = self._as_step(asking.step_id, partial(self._ask, asking))
        while self._wishes.is_over(outcome, asked_anew=self._has_step(asking.anew.step_id)):
            asking = asking.anew
            outcome = self._as_step(asking.step_id, partial(self._ask, asking))
        return outcome

    def _has_step(self, step_id: str) -> bool:  # noqa: ARG002
        return False

    def _ask(self, asking: Asking) -> dict[str, Any]:
        """Runs as the step."""
        with self._waits.held(Waiting(WaitKind.APPROVAL, asking.name)) as held:
            self._alive()
            self.settle()
            question, news = question_of(asking, self._incarnation), self._news
            look = self._open(question)
            while look.decided is None:
                held.waiting = waiting_for(asking, look)
                left = (look.expires_at - look.now) / 1_000_000 if look.expires_at else LOOK
                # What is too late by now is ended by the next look.
                if left > 0 and asking.release_slot:
                    self._leave()
                if left > 0:
                    self._wait_for_news(news, min(left, LOOK))
                news, look = self._news, self._look(question, look.id)
        return outcome_of(look.id, look.decided)

    def _open(self, question: Question) -> InterruptLook:
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        look = self._persist(lambda: self._store.open_interrupt(agent_id, fence, question))
        self._announce(look)
        return look

    def _look(self, question: Question, interrupt_id: str) -> InterruptLook:
        agent_id, fence = self._incarnation.agent_id, self._incarnation.fence
        look = self._persist(lambda: self._store.look_interrupt(agent_id, fence, question.name, interrupt_id))
        return look if look is not None else self._open(question)

    def _wait_for_news(self, news: object, seconds: float) -> None:
        """Until something else has happened, at most so long; no wait outlasts the wish that the agent ends."""
        self._answer_messages()
        self._go_on()
        self._woken.clear()
        # Also what happened while a message was answered.
        if news is self._news:
            self._idle(seconds)
        self._go_on()

    def _go_on(self) -> None:
        """Unlike a sleep, which ends early: what was waited for would be taken for true."""
        self._alive()
        if self._should_stop():
            self._refuse(StopSignal())

    def _leave(self) -> NoReturn:
        """Ends the incarnation in order; the next one begins when something that it waits for is there."""
        self._sleeps.begin(self._progress())
        self._incarnation.wait(self._waits.together(self._sleeps.over))
        self._refuse(WaitSignal())

    # -- the context's own --------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """A settled point."""
        raise NotImplementedError

    def _alive(self) -> None:
        raise NotImplementedError

    def _persist(self, call: Callable[[], T]) -> T:
        raise NotImplementedError

    def _refuse(self, signal: AgentSignal) -> NoReturn:
        raise NotImplementedError

    def _answer_messages(self) -> None:
        raise NotImplementedError

    def _idle(self, seconds: float) -> None:
        raise NotImplementedError
