"""What the runtime asks the plug-ins of a bus: may it come back, must a person allow it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import cast

from ares_celery.clock import Clock
from ares_celery.errors import PluginError
from ares_celery.model.failure import Failure
from ares_celery.plugins.announcer import Announcer
from ares_celery.plugins.contract import ApprovalWish, StepCall
from ares_celery.plugins.interrupt import wish_of
from ares_celery.plugins.members import Member
from ares_celery.plugins.raised import Raised

__all__ = ["Asking"]


class Asking:
    """The questions; the rest of a bus is in bus.py."""

    _clock: Clock
    _limit: timedelta
    _announcer: Announcer
    _lock: threading.Lock
    _members: dict[str, Member]

    @property
    def has_judges(self) -> bool:
        """Some registered plug-in wants to be asked before an agent comes back."""
        with self._lock:
            return any(one.about.recovery is not None and not one.has_failed for one in self._members.values())

    def refusal(self, failure: Failure, *, limit: timedelta) -> str:
        """Asks the recovery plug-ins in order; returns the name of the first that says no, empty when none does.

        One that raises, answers rubbish or takes longer than what is left of ``limit`` counts as yes.
        """
        until = self._clock.monotonic() + limit.total_seconds()
        with self._lock:
            judges = [one for one in self._members.values() if one.about.recovery is not None and one.is_started]
        for one in judges:
            try:
                if not self._answer(one, failure, timedelta(seconds=max(0.0, until - self._clock.monotonic()))):
                    return one.name
            except PluginError as error:
                self._announcer.note_failure(one.name, "should_recover", error)
        return ""

    @staticmethod
    def _answer(member: Member, failure: Failure, limit: timedelta) -> bool:
        judge = member.about.recovery
        assert judge is not None  # noqa: S101 - only such members are asked
        answer: object = member.caller.call("should_recover", lambda: judge.should_recover(failure), limit=limit)
        if not isinstance(answer, bool):
            rubbish = Raised("TypeError", f"it answered {type(answer).__name__}, not True or False")
            raise rubbish.error(member.name, "should_recover")
        return answer

    @property
    def has_interrupters(self) -> bool:
        """Some plug-in wants to be asked before a step runs."""
        return any(one.about.interrupts is not None and one.is_started for one in tuple(self._members.values()))

    def approval_wish(self, step: StepCall) -> ApprovalWish | None:
        """Asks the plug-ins that want a person's word, in order; the first wish, or None.

        Raises:
            PluginError: One raised, answered rubbish or took too long. The step must not run then.
        """
        with self._lock:
            members = [one for one in self._members.values() if one.about.interrupts is not None and one.is_started]
        for one in members:
            try:
                wish = one.caller.call("wants_approval", wish_of, one.plugin, step, limit=self._limit)
            except PluginError as error:
                self._announcer.note_failure(one.name, "wants_approval", error)
                raise
            if wish is not None:
                return cast("ApprovalWish", wish)
        return None

    def count_late_answer(self) -> None:
        """Somebody had no time left to ask."""
        self._announcer.count("plugin_timeouts")
