"""The supervisor of agents as others see it: the seed's interface, which every Manager has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ares_celery.model.agent import AgentSpec
from ares_celery.model.stats import RuntimeStats
from ares_celery.runtime.handle import AgentHandle

__all__ = ["Runtime"]


class Runtime(Protocol):
    """Owns the birth, death and resurrection of agents; take it where any Manager will do.

    Example:
        >>> def dismiss(runtime: Runtime, agent_id: str) -> int:
        ...     runtime.stop_agent(agent_id)
        ...     return runtime.stats().active_agents
    """

    def register_agent(self, agent: AgentSpec | object, factory: Callable[..., Any] | None = None, /) -> AgentHandle:
        """Makes an agent known; before the runtime runs it is launched by start(), afterwards by start_agent."""
        ...

    def start_agent(self, agent: AgentSpec | object | str, /) -> AgentHandle:
        """Wants an agent to run. Raises AgentAlreadyRegisteredError, RuntimeStoppedError, NilAgentError."""
        ...

    def stop_agent(self, agent_id: str, /) -> None:
        """Wants an agent not to run, whatever restarts. Raises AgentNotFoundError."""
        ...

    def restart_agent(self, agent_id: str, /) -> None:
        """Ends the incarnation in order and begins a new one. Raises AgentNotFoundError, RuntimeStoppedError."""
        ...

    def restore_agent(self, agent_id: str, factory: Callable[..., Any] | str | None = None, /) -> None:
        """Fails over on purpose. Raises NilFactoryError, AgentNotFoundError, VersionConflictError."""
        ...

    def notify_agent_dead(self, agent_id: str, reason: str, /) -> None:
        """Reports a death; late and doubled reports have no effect."""
        ...

    def start(self) -> None:
        """Makes the runtime run. Raises RuntimeAlreadyStartedError."""
        ...

    def stop(self) -> None:
        """Ends every agent in order, within overall_stop_timeout, and keeps all from starting until start()."""
        ...

    def stats(self) -> RuntimeStats:
        """The runtime in numbers."""
        ...
