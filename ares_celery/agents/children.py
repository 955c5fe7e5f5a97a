"""What an agent's context offers for agents of its own: children that it spawns, and that stop with it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from ares_celery.model.agent import AgentInfo, AgentSpec

__all__ = ["ChildHandle", "Spawning", "SyncChildHandle", "SyncSpawning"]


class ChildHandle(Protocol):
    """A child, as the ``async`` agent that spawned it holds it."""

    @property
    def id(self) -> str:
        """The child's id; ``ctx.send(child.id, …)`` sends it a message."""
        ...

    async def info(self) -> AgentInfo:
        """What is known of it now. Raises AgentNotFoundError: it was deleted."""
        ...

    async def result(self, timeout: timedelta | float | str | None = None) -> Any:  # noqa: ANN401 - its JSON value
        """Waits until the child has completed, and gives its result. Ends at once when the agent is to stop.

        Args:
            timeout: Longest wait; None = as long as it takes. A child that is paused, or waits, is waited for.

        Raises:
            AgentNotRunningError: The child was stopped. AgentParkedError: It was given up on.
            AgentNotFoundError: It was deleted. WaitTimeoutError: It goes on, longer than ``timeout``.
        """
        ...


class SyncChildHandle(Protocol):
    """A child, as the plain agent that spawned it holds it; the same names."""

    @property
    def id(self) -> str:
        """See :attr:`ChildHandle.id`."""
        ...

    def info(self) -> AgentInfo:
        """See :meth:`ChildHandle.info`."""
        ...

    def result(self, timeout: timedelta | float | str | None = None) -> Any:  # noqa: ANN401 - its JSON value
        """See :meth:`ChildHandle.result`. Messages are answered meanwhile."""
        ...


class Spawning(Protocol):
    """The part of an ``async`` agent's context that makes other agents."""

    async def spawn(self, spec: AgentSpec, /, *, report: bool | None = None) -> ChildHandle:
        """Starts another agent as this one's child; a step ``spawn:<child id>``, so that no repeat starts it twice.

        The child lives a life of its own: on any worker, restarted by its own policy, and going on when this agent
        dies, is restarted, paused, drained or completes. Only when this agent is stopped, it is stopped, too, and its
        own children with it; one that is spawned after the stop is born stopped.

        Args:
            spec: Of the child; ``parent`` is filled in. Its id is new, or that of an earlier child that rests, which is
                then started again.
            report: Tell this agent by a message when the child has come to its end: ``{"child": id, "state":
                "completed", "result": …}``, ``{"child": id, "state": "parked", "cause": …, "reason": …}`` or
                ``{"child": id, "state": "stopped", "reason": …}``. Default: when this agent has ``process``.

        Raises:
            AgentAlreadyRegisteredError: The id is that of another agent, or of a child that goes on.
            AgentParkedError: The earlier child of this id waits for a person.
            ChildLimitError: This agent has too many children that were not deleted.
            UnknownAgentTypeError, InvalidConfigError, GroupNotFoundError: The spec does not fit.
            RuntimeStoppedError: Nothing is started at the moment.
        """
        ...


class SyncSpawning(Protocol):
    """The part of a plain agent's context that makes other agents; the same names."""

    def spawn(self, spec: AgentSpec, /, *, report: bool | None = None) -> SyncChildHandle:
        """See :meth:`Spawning.spawn`."""
        ...
