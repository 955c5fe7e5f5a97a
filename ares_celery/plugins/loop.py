"""A shipped plug-in: says whether a loop goes into another round."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

from ares_celery.errors import InvalidSettingError
from ares_celery.model.arguments import as_shown
from ares_celery.plugins.contract import Capability, EventBus, PluginContext
from ares_celery.plugins.raised import Raised

__all__ = ["LoopPlugin"]


class LoopPlugin:
    """Counts rounds and ends the loop after so many, or when a condition holds. The first round always runs.

    Args:
        max_iterations: Most rounds; 0 = no limit, which needs a condition.
        until: Ends the loop when it returns True for the state of the round that has ended.
        name: For more than one loop.

    Raises:
        InvalidSettingError: The loop could never end, or a value is wrong.

    Example:
        >>> loop = LoopPlugin(max_iterations=3)
        >>> rounds = 0
        >>> while loop.next_round():
        ...     rounds += 1
        >>> rounds
        3
        >>> LoopPlugin()
        Traceback (most recent call last):
        ares_celery.errors.InvalidSettingError: ...
    """

    capabilities = (Capability.LOOP,)

    def __init__(
        self, *, max_iterations: int = 0, until: Callable[[Any], bool] | None = None, name: str = "loop"
    ) -> None:
        given = cast("object", max_iterations)
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            problem = "give a whole number of rounds, or 0 for no limit"
            raise InvalidSettingError(field="max_iterations", value=as_shown(given), problem=problem)
        if until is not None and not callable(until):
            raise InvalidSettingError(field="until", value=as_shown(until), problem="give a function of the state")
        if max_iterations == 0 and until is None:
            problem = "the loop would never end; give max_iterations above 0, or until"
            raise InvalidSettingError(field="max_iterations", value=0, problem=problem)
        self.name = name
        self._most = max_iterations
        self._until = until
        self._lock = threading.Lock()
        self._rounds: dict[str, int] = {}

    def start(self, ctx: PluginContext, bus: EventBus) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Forgets all rounds: every loop begins anew."""
        with self._lock:
            self._rounds.clear()

    def next_round(self, key: str = "", state: object = None) -> bool:
        """Says whether another round follows; after a False the loop of this key begins anew.

        Args:
            key: Which loop, for example an agent's id; each counts for itself.
            state: For the condition.

        Raises:
            PluginError: The condition raised, or did not answer True or False; the loop keeps its round.
        """
        with self._lock:
            done = self._rounds.get(key, 0)
        goes_on = done == 0 or not self._is_over(done, state)
        with self._lock:
            if goes_on:
                self._rounds[key] = done + 1
            else:
                self._rounds.pop(key, None)
        return goes_on

    def rounds(self, key: str = "") -> int:
        """How many rounds of this loop have begun."""
        with self._lock:
            return self._rounds.get(key, 0)

    def _is_over(self, done: int, state: object) -> bool:
        if self._most and done >= self._most:
            return True
        if self._until is None:
            return False
        try:
            answer = cast("object", self._until(state))
        except Exception as error:
            raise Raised.of(error).error(self.name, "until") from error
        if not isinstance(answer, bool):
            rubbish = Raised("TypeError", f"it answered {type(answer).__name__}, not True or False")
            raise rubbish.error(self.name, "until")
        return answer
