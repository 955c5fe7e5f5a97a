"""What an agent may implement. Everything is optional but the constructor; the runtime calls what is there."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from ares_celery.agents.context import AgentContext
from ares_celery.model.event import Event

__all__ = [
    "Agent",
    "AgentFactory",
    "Applier",
    "Heartbeater",
    "MessageHandler",
    "Replayer",
    "StatefulAgent",
    "StreamHandler",
]


class Agent(Protocol):
    """Any object that a factory gives: a long-lived, named unit of work.

    Methods that the runtime looks for, all optional. The first four are all ``async`` or all plain:

    - ``start(ctx)``: the main loop; its return means done, unless it was asked to stop.
    - ``process(ctx, message)``: answers one message.
    - ``process_stream(ctx, message)``: answers in chunks.
    - ``stop(ctx)``: called once at an orderly end, after ``start`` has ended.
    - ``apply(event)`` or ``replay_events(events)``: changes state by what was emitted, live and on recovery.
    - ``snapshot()`` and ``restore_state(state)``: the state as JSON values, to recover without the whole history.
    - ``heartbeat()``, ``is_alive()``, ``status``: the agent's own word on its health.
    """


class AgentFactory(Protocol):
    """A class or function, called for every incarnation; the spec's config arrives as keywords."""

    def __call__(self, agent_id: str, /, **config: Any) -> Agent:  # noqa: ANN401 - JSON values of the spec
        """Makes the agent, without side effects outside it."""
        ...


@runtime_checkable
class StatefulAgent(Protocol):
    """An agent whose state can be taken and given back."""

    def snapshot(self) -> Mapping[str, Any]:
        """The state as JSON values; called at settled points only."""
        ...

    def restore_state(self, state: dict[str, Any]) -> None:
        """Takes the state back; called once, before any event is applied."""
        ...


@runtime_checkable
class Applier(Protocol):
    """An agent that folds its own events."""

    def apply(self, event: Event) -> None:
        """Changes state by one event; must have no outside effect and read neither clock nor chance."""
        ...


@runtime_checkable
class Replayer(Protocol):
    """The seed's form of folding: all events after the snapshot at once."""

    def replay_events(self, events: Sequence[Event]) -> None:
        """Rebuilds state from events in order of their versions."""
        ...


@runtime_checkable
class Heartbeater(Protocol):
    """An agent that knows whether it is well."""

    def heartbeat(self) -> None:
        """Called at every health check, between its other calls."""
        ...

    def is_alive(self) -> bool:
        """False, more than `allowed_misses` times in a row, is a death."""
        ...


@runtime_checkable
class MessageHandler(Protocol):
    """An agent that answers messages."""

    async def process(self, ctx: AgentContext, message: Any) -> Any:  # noqa: ANN401 - JSON values
        """Answers one message; an exception reaches the caller as AgentFailedError."""
        ...


@runtime_checkable
class StreamHandler(Protocol):
    """An agent that answers in chunks."""

    def process_stream(self, ctx: AgentContext, message: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - JSON values
        """Yields the pieces of an answer, and its result at the end as ``StreamResult(value)``.

        A plain generator may return the result instead. When the caller has left, the generator is closed: it gets
        GeneratorExit at its next ``yield``, or CancelledError where it awaits something.
        """
        ...
