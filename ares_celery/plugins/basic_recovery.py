"""A shipped plug-in: only what is on its list comes back after a failure."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ares_celery.errors import InvalidSettingError
from ares_celery.model.failure import Failure
from ares_celery.plugins.contract import Capability, EventBus, PluginContext

__all__ = ["BasicRecoveryPlugin"]


class BasicRecoveryPlugin:
    """An allow-list of agent types, agent ids and step ids.

    What nobody allowed is refused. What was said of an agent's id goes before what was said of its type. A failed step
    is looked up by its own id alone. The list lives in its process: give every worker the same.

    Args:
        allow: What is allowed from the start.
        name: For more than one list; every one of them must say yes.

    Example:
        >>> plugin = BasicRecoveryPlugin(allow=["counter"])
        >>> plugin.should_recover(Failure("counter-1", "counter")), plugin.should_recover(Failure("guest-1", "guest"))
        (True, False)
        >>> plugin.revoke("counter-1")
        >>> plugin.should_recover(Failure("counter-1", "counter"))
        False
    """

    capabilities = (Capability.RECOVERY,)

    def __init__(self, allow: Iterable[str] = (), *, name: str = "basic_recovery") -> None:
        if isinstance(allow, str):
            raise InvalidSettingError(field="allow", value=allow, problem="give a list of names, not one text")
        self.name = name
        self._lock = threading.Lock()
        self._verdicts: dict[str, bool] = dict.fromkeys(allow, True)

    def start(self, ctx: PluginContext, bus: EventBus) -> None:
        """Nothing to begin."""

    def stop(self) -> None:
        """Nothing to end."""

    def allow(self, key: str) -> None:
        """Lets an agent type, an agent or a step come back."""
        with self._lock:
            self._verdicts[key] = True

    def revoke(self, key: str) -> None:
        """Lets it come back no longer; an agent's id also where its type is allowed."""
        with self._lock:
            self._verdicts[key] = False

    def should_recover(self, failure: Failure) -> bool:
        """The most exact verdict there is; no without one."""
        keys = (failure.step_id,) if failure.step_id else (failure.agent_id, failure.agent_type)
        with self._lock:
            return next((self._verdicts[key] for key in keys if key in self._verdicts), False)
