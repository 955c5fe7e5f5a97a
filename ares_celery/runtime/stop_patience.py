"""How long an agent's code may go on after it was asked to end; longer while a step runs that must not be repeated."""

from __future__ import annotations

from typing import Final

from ares_celery.clock import Clock
from ares_celery.config import RuntimeConfig
from ares_celery.runtime.incarnation import Incarnation

__all__ = ["LOOK_AT_STEPS", "StopPatience"]

#: Part of the shorter limit that the agent's own code may use; the rest is for its snapshot and release.
_OWN_PART: Final = 0.7
#: Part of a stop's or drain's whole limit after which a step that must not be repeated is given up, too.
_NEARLY_ALL: Final = 0.9
#: Seconds between two looks whether such steps have ended.
LOOK_AT_STEPS: Final = 0.05


class StopPatience:
    """Counts from the moment at which an incarnation was asked to end.

    Code that does not yield is cut off well before the limit, so that its snapshot and release fit in. A ``never`` step
    that is cut off costs a person's time, so it may use nearly all of it. No new one is begun then: code that makes one
    after the other would else always be cut off in the middle of one.

    Args:
        incarnation: Which one.
        config: Has the limits.
        clock: Monotonic time.
    """

    def __init__(self, incarnation: Incarnation, config: RuntimeConfig, clock: Clock) -> None:
        self._incarnation = incarnation
        self._config = config
        self._clock = clock
        self._asked_at: float | None = None

    @property
    def own_part(self) -> float:
        """Seconds for the agent's own code, as a rule."""
        return min(self._config.agent_stop_timeout, self._config.drain_timeout).total_seconds() * _OWN_PART

    def begin(self) -> None:
        """It was asked to end just now; again: no effect."""
        if self._asked_at is None:
            self._asked_at = self._clock.monotonic()
            self._incarnation.no_never_after = self._asked_at + self.own_part

    @property
    def is_over(self) -> bool:
        """Its code has to be cut off now."""
        if self._incarnation.fenced:
            return True
        return self._asked_at is not None and self._since > self.own_part and not self.waits_for_steps

    @property
    def waits_for_steps(self) -> bool:
        """A step runs that must not be repeated, and there is time left for it."""
        if self._incarnation.fenced or not self._incarnation.open_never:
            return False
        drains = self._incarnation.stopping_reason == "drain"
        limit = self._config.drain_timeout if drains else self._config.agent_stop_timeout
        return self._since < limit.total_seconds() * _NEARLY_ALL

    @property
    def _since(self) -> float:
        return 0.0 if self._asked_at is None else self._clock.monotonic() - self._asked_at
