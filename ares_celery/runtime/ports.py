"""What the runtime needs of its surroundings. Celery implements these; `testing/` has versions without a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from ares_celery.ids import AgentId
from ares_celery.model.event import Event
from ares_celery.model.failure import Failure
from ares_celery.model.plan import Nudge
from ares_celery.plugins.contract import ApprovalWish, StepCall, StepResult
from ares_celery.store.base import InboxMessage

__all__ = ["ApprovalWishes", "EventListener", "Launcher", "RecoveryJudge", "StepHooks", "Wakeups"]


class Launcher(Protocol):
    """Sends the message that makes some worker look at an agent."""

    def launch(self, nudge: Nudge) -> None:
        """Publishes the nudge. May raise: a deadline in the store sends it again, so callers only log."""
        ...

    def waiting(self, queue: str | None) -> int | None:
        """How many messages wait in a queue of the namespace (None = that of all agents); None = unknown. May raise."""
        ...


class RecoveryJudge(Protocol):
    """Asks the plug-ins of this process whether what failed shall come back."""

    def refusal(self, failure: Failure) -> str:
        """The name of the plug-in that says no; empty = it comes back. Bounded in time; never raises."""
        ...


class EventListener(Protocol):
    """Is told of the events that this process has stored; what it does with them is its own business."""

    @property
    def wants_events(self) -> bool:
        """Somebody listens; else nothing needs to be told."""
        ...

    def publish(self, events: Sequence[Event]) -> None:
        """Takes events that are stored, in the order of their stream. Never blocks, never raises."""
        ...


@runtime_checkable
class StepHooks(Protocol):
    """Tells plug-ins of an agent's steps and tools; a listener that has this is told of them, too."""

    @property
    def hooks(self) -> list[str]:
        """Who would be told now; empty: nobody needs to be."""
        ...

    def before_step(self, step: StepCall, /) -> object:
        """Something is about to run. Bounded in time; never raises."""
        ...

    def after_step(self, step: StepCall, result: StepResult, /) -> object:
        """It has run. Bounded in time; never raises."""
        ...


@runtime_checkable
class ApprovalWishes(Protocol):
    """Plug-ins that want a person's word before some steps; a listener that has this is asked before each step."""

    @property
    def has_interrupters(self) -> bool:
        """Some plug-in would be asked now."""
        ...

    def approval_wish(self, step: StepCall, /) -> ApprovalWish | None:
        """Who wants a word, and how; None: nobody. Bounded in time.

        Raises:
            PluginError: One could not be asked; the step must not run then.
        """
        ...


class Wakeups(Protocol):
    """Hints from the store that an agent of this process should be looked at now; losing one costs a heartbeat."""

    def listen(
        self,
        callback: Callable[[AgentId], None],
        mail: Callable[[str, InboxMessage | str], bool] | None = None,
    ) -> None:
        """Starts to deliver hints on a thread of its own; reconnects by itself.

        Args:
            callback: Takes the id of an agent to look at.
            mail: Takes, for the holder of a fence, a message that came with its hint, or the inbox entry of a stream
                that its caller has left; False: nobody here holds that fence, look at the agent.
        """
        ...

    def close(self) -> None:
        """Ends the thread."""
        ...
