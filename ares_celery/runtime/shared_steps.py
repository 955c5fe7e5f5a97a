"""What is known of the steps of a plain agent, which several threads of it may change."""

from __future__ import annotations

import threading

from typing_extensions import override

from ares_celery.model.step import StepIntent, StepRecord
from ares_celery.runtime.step_work import Work
from ares_celery.runtime.steps import StepParts, Steps
from ares_celery.store.steps import Begun, Recorded

__all__ = ["SharedSteps"]


class SharedSteps(Steps):
    """Steps may run side by side, in threads that the agent has begun: what is known of them, one at a time changes."""

    def __init__(self, parts: StepParts) -> None:
        super().__init__(parts)
        self._knowing = threading.RLock()

    @override
    def _free(self, work: Work) -> None:
        with self._knowing:
            super()._free(work)

    @override
    def _begin(self, work: Work) -> None:
        with self._knowing:
            super()._begin(work)

    @override
    def _end(self, work: Work) -> None:
        with self._knowing:
            super()._end(work)

    @override
    def _settled(self, work: Work, recorded: Recorded) -> StepRecord:
        with self._knowing:
            return super()._settled(work, recorded)

    @override
    def _noted(self, begun: Begun, intent: StepIntent) -> None:
        with self._knowing:
            super()._noted(begun, intent)

    @override
    def _lose(self, work: Work, error: BaseException | None) -> None:
        with self._knowing:
            super()._lose(work, error)
