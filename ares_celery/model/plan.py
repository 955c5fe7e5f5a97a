"""What was decided about an agent; the store applies all of it or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Final

from ares_celery.ids import AgentId, Epoch, Instant
from ares_celery.model.agent import AgentRecord, AgentState, RuntimeState
from ares_celery.model.command import Command, Deadline
from ares_celery.model.event import NewEvent
from ares_celery.model.failure import Failure
from ares_celery.model.restart import LifecyclePolicy

__all__ = ["GROUP_LOOK", "NUDGE_SPACING", "Nudge", "Plan", "Situation", "nudge_for"]

#: Seconds until a message that nobody claimed is sent again; the last repeats.
NUDGE_SPACING: Final = (2, 5, 10, 20, 40, 60)
#: How often an agent that waits for its group asks whether it still has to: whatever becomes of the group, it goes on.
GROUP_LOOK: Final = timedelta(seconds=2)


def _no_deadlines() -> Mapping[Deadline, Instant | None]:
    return MappingProxyType({})


def _no_counts() -> Mapping[str, int]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision may look at.

    Attributes:
        record: The agent as read; None when it does not exist.
        now: Redis TIME of that same read.
        policy: The numbers for this agent.
        runtime: The shard's copy of the runtime's state.
        lease_until: When the owner's lease ends; 0 without one.
        namespace: For error texts.
    """

    record: AgentRecord | None
    now: Instant
    policy: LifecyclePolicy
    runtime: RuntimeState = RuntimeState.RUNNING
    lease_until: Instant = Instant(0)
    namespace: str = "ares"


@dataclass(frozen=True, slots=True)
class Nudge:
    """The message that tells a worker to look at an agent; it carries no truth.

    Attributes:
        resurrect: Sent as ``ares.resurrect_agent`` instead of ``ares.run_agent``.
        task_id: Celery's id of a retry; empty = a fresh one.
        retries: Celery's count of retries so far.
    """

    agent_id: AgentId
    epoch: Epoch
    incarnation: int
    queue: str | None
    resurrect: bool
    task_id: str = ""
    retries: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A decision, ready to be committed.

    Attributes:
        command: What was asked.
        before: The record it was decided on; its revision is demanded.
        after: The record as it shall be; None deletes it. Revision, version and times are the store's.
        events: Lifecycle events, in order.
        deadlines: Deadlines to set, or to clear where None.
        counters: Namespace counters to raise.
        nudge: Send the agent's message after the commit.
        wake_owner: Tell the hosting process to look now.
        on_lease: It relies on when the lease ends: a renewal since the read is a conflict.
        free_host: The owner no longer hosts it.
        ignored: Why nothing is to be done; then nothing is committed.
        failure: The failure after which it brings the agent back; recovery plug-ins are asked about it first.
        left_group: The group that the agent belongs to no longer; it is told so.
    """

    command: Command
    before: AgentRecord | None
    after: AgentRecord | None
    events: tuple[NewEvent, ...] = ()
    deadlines: Mapping[Deadline, Instant | None] = field(default_factory=_no_deadlines)
    counters: Mapping[str, int] = field(default_factory=_no_counts)
    nudge: bool = False
    wake_owner: bool = False
    on_lease: bool = False
    free_host: bool = False
    ignored: str = ""
    failure: Failure | None = None
    left_group: str = ""


def nudge_for(record: AgentRecord, *, fresh: bool = False) -> Nudge:
    """The message that the record's next incarnation needs.

    Args:
        record: A record in state starting or resurrecting.
        fresh: A repeat: use a new task id, as workers remember revoked ones for hours.
    """
    return Nudge(
        agent_id=record.id,
        epoch=record.epoch,
        incarnation=record.incarnation + 1,
        queue=record.spec.queue,
        resurrect=record.state is AgentState.RESURRECTING,
        task_id="" if fresh else record.task_id,
        retries=record.retries,
    )
