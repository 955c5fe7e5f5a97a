"""How an incarnation's time in a task ended; the task turns it into Celery's words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from ares_celery.errors import AresError
from ares_celery.ids import Epoch
from ares_celery.model.agent import AgentState

__all__ = ["Crashed", "Delivery", "Ended", "Noop", "Outcome", "RetryLater"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The message that brought the incarnation: Celery's task id, its retries so far, the worker's node name."""

    task_id: str
    retries: int
    worker: str


@dataclass(frozen=True, slots=True)
class Noop:
    """The message was late, doubled or stale; nothing was run."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The incarnation ran and ended in order; the state that its commit led to."""

    state: AgentState
    incarnation: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Crashed:
    """The agent's own code failed, or a first start did; the verdict is committed already."""

    error: AresError
    state: AgentState


@dataclass(frozen=True, slots=True)
class RetryLater:
    """A resurrection failed; its next attempt is a deadline in the store already, under ``next_epoch``."""

    error: AresError
    next_epoch: Epoch
    delay: timedelta


Outcome = Noop | Ended | Crashed | RetryLater
