"""What may be asked of an agent's life: each a value that ``lifecycle.decide`` turns into a Plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar, Literal

from ares_celery.ids import Epoch, Instant
from ares_celery.model.agent import AgentSpec, Owner
from ares_celery.model.birth import Birth
from ares_celery.model.event import EventType
from ares_celery.model.fork import ForkOrigin
from ares_celery.model.restart import DeathCause, Suspicion
from ares_celery.model.waits import Waiting

__all__ = [
    "AttemptFailed",
    "Claim",
    "Command",
    "Complete",
    "Deadline",
    "DeadlineDue",
    "Delete",
    "Die",
    "Finding",
    "Fork",
    "ForkDone",
    "GroupGo",
    "GroupPark",
    "GroupStop",
    "IfExists",
    "MarkRunning",
    "Operation",
    "OwnerExited",
    "Park",
    "Pause",
    "Reconcile",
    "Register",
    "Release",
    "Restart",
    "Restore",
    "Resume",
    "Spawn",
    "Start",
    "Stop",
    "Unpark",
    "Update",
    "Wait",
]

IfExists = Literal["error", "return", "restart", "update"]


class Operation(StrEnum):
    """The rows of the transition table."""

    REGISTER = "register"
    START = "start"
    SPAWN = "spawn"
    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    RESTART = "restart"
    RESTORE = "restore"
    UNPARK = "unpark"
    UPDATE = "update"
    DELETE = "delete"
    CLAIM = "claim"
    MARK_RUNNING = "mark_running"
    RELEASE = "release"
    COMPLETE = "complete"
    PARK = "park"
    WAIT = "wait"
    DIE = "die"
    ATTEMPT_FAILED = "attempt_failed"
    OWNER_EXITED = "owner_exited"
    LEASE_DUE = "lease_due"
    STOP_DUE = "stop_due"
    HANG_DUE = "hang_due"
    NUDGE_DUE = "nudge_due"
    ATTEMPT_DUE = "attempt_due"
    WAIT_DUE = "wait_due"
    RECONCILE = "reconcile"
    GROUP_STOP = "group_stop"
    GROUP_GO = "group_go"
    GROUP_PARK = "group_park"
    GROUP_DUE = "group_due"
    FORK = "fork"
    FORK_DONE = "fork_done"
    CHILDREN_DUE = "children_due"
    REPORT_DUE = "report_due"
    RESUME_DUE = "resume_due"


class Deadline(StrEnum):
    """What must happen by a time; the kind of a member in a shard's ``deadlines``."""

    LEASE = "lease"
    NUDGE = "nudge"
    ATTEMPT = "attempt"
    STOP = "stop"
    HANG = "hang"
    TIMER = "timer"
    APPROVAL = "approval"
    RECONCILE = "reconcile"
    #: An agent's news for its group, on the way to the group's home shard; or the group's own next step.
    GROUP = "group"
    #: What an agent's stop asks of those that it spawned; for one just spawned: whether its parent was stopped.
    CHILDREN = "children"
    #: What became of an agent, on its way to the parent's inbox.
    REPORT = "report"
    #: A fault is over, or the time for which faults are allowed.
    FAULT = "fault"
    #: A pause of a length is over.
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class Command:
    """Base of all commands; ``actor`` and ``reason`` are kept in the record.

    ``refused_by`` names the plug-in that, asked about this very failure, said that the agent shall not come back.
    """

    operation: ClassVar[Operation]
    reason: str = ""
    actor: str = ""
    refused_by: str = field(default="", kw_only=True)


@dataclass(frozen=True, slots=True)
class Register(Command):
    """Make the agent known."""

    operation: ClassVar = Operation.REGISTER
    spec: AgentSpec | None = None


@dataclass(frozen=True, slots=True)
class Start(Command):
    """It should run; with a spec, made when it does not exist."""

    operation: ClassVar = Operation.START
    spec: AgentSpec | None = None
    if_exists: IfExists = "error"


@dataclass(frozen=True, slots=True)
class Spawn(Command):
    """Another agent wants it to run; made when it does not exist, started again when it rests.

    Attributes:
        spec: Of the child; names the parent.
        birth: How it comes to be.
        root: The topmost ancestor.
        stillborn: The parent is asked to stop: it is made, and does not run.
    """

    operation: ClassVar = Operation.SPAWN
    spec: AgentSpec | None = None
    birth: Birth | None = None
    root: str = ""
    stillborn: bool = False


@dataclass(frozen=True, slots=True)
class Stop(Command):
    """It should not run, whatever restarts."""

    operation: ClassVar = Operation.STOP
    force: bool = False


@dataclass(frozen=True, slots=True)
class Pause(Command):
    """It should rest, with its state kept: for as long as it ``lasts``, or (None) until somebody resumes it."""

    operation: ClassVar = Operation.PAUSE
    lasts: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Resume(Command):
    """A paused one should run again."""

    operation: ClassVar = Operation.RESUME


@dataclass(frozen=True, slots=True)
class Restart(Command):
    """End the incarnation in order and begin a new one; also un-parks."""

    operation: ClassVar = Operation.RESTART


@dataclass(frozen=True, slots=True)
class Unpark(Command):
    """A person lets a parked agent try again, with a full budget.

    Attributes:
        accept_loss: What is missing or damaged of its history and state up to now is given up, for good.
    """

    operation: ClassVar = Operation.UNPARK
    accept_loss: bool = False


@dataclass(frozen=True, slots=True)
class Restore(Command):
    """Fail over on purpose: end the incarnation in order, recover in a new one; with a type, as that type."""

    operation: ClassVar = Operation.RESTORE
    type: str = ""


@dataclass(frozen=True, slots=True)
class Update(Command):
    """Replace the spec, or its config and budget alone; the next incarnation gets it.

    Attributes:
        spec: The whole new spec.
        config: The new config, while the rest of the spec stays as it is by then.
        merge: The config's keys are put into the one that is there by then, instead of replacing it.
        restart: An incarnation that runs is asked to end, so that the next one begins.
        budget: Limits to change, by name; None takes one away. A running incarnation goes by them soon.
    """

    operation: ClassVar = Operation.UPDATE
    spec: AgentSpec | None = None
    config: Mapping[str, Any] | None = None
    merge: bool = False
    restart: bool = False
    budget: Mapping[str, float | None] | None = None


@dataclass(frozen=True, slots=True)
class Delete(Command):
    """Forget the agent and all that is stored for it."""

    operation: ClassVar = Operation.DELETE


@dataclass(frozen=True, slots=True)
class Fork(Command):
    """Make an agent that begins with the history of another one; nothing of it starts before that is copied.

    Attributes:
        spec: Of the new agent.
        origin: Where its history comes from.
        start: It is meant to run once it is whole.
        accepted_version: Up to here that history may have gaps: somebody has accepted them.
    """

    operation: ClassVar = Operation.FORK
    spec: AgentSpec | None = None
    origin: ForkOrigin | None = None
    start: bool = True
    accepted_version: int = 0


@dataclass(frozen=True, slots=True)
class ForkDone(Command):
    """The history of a fork is copied.

    Attributes:
        start: It shall run.
    """

    operation: ClassVar = Operation.FORK_DONE
    start: bool = True


@dataclass(frozen=True, slots=True)
class Claim(Command):
    """A worker wants to host the incarnation of this epoch."""

    operation: ClassVar = Operation.CLAIM
    epoch: Epoch = Epoch(0)
    token: str = ""
    owner: Owner | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that recovery came across, and that people should know.

    Attributes:
        kind: Type of the event that says so.
        payload: Of that event, but for the agent's id.
        counter: The namespace's counter that it raises.
    """

    kind: EventType
    payload: Mapping[str, Any]
    counter: str


@dataclass(frozen=True, slots=True)
class Fenced(Command):
    """Base of what only the holder of the fence may say.

    Attributes:
        fence: Demanded to be the record's.
        found: What recovery came across on the way here; stored with what is decided.
    """

    fence: str = ""
    found: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class MarkRunning(Fenced):
    """State is recovered; the agent's own code begins."""

    operation: ClassVar = Operation.MARK_RUNNING


@dataclass(frozen=True, slots=True)
class Release(Fenced):
    """The incarnation ended in order, as it was asked to or because its worker drains.

    Attributes:
        rolled_back: It ended because the store came back older than what it had acknowledged.
        newer_state: It never began, as newer code has written the state: left to a worker that has this code.
    """

    operation: ClassVar = Operation.RELEASE
    rolled_back: bool = False
    newer_state: bool = False


@dataclass(frozen=True, slots=True)
class Complete(Fenced):
    """The agent has done its work; final."""

    operation: ClassVar = Operation.COMPLETE
    result: str = ""


@dataclass(frozen=True, slots=True)
class Park(Fenced):
    """The incarnation found what only a person can settle.

    Attributes:
        cause: The record's.
        rejected: The question to which a person said no; empty: that is not why.
    """

    operation: ClassVar = Operation.PARK
    cause: str = ""
    rejected: str = ""


@dataclass(frozen=True, slots=True)
class Wait(Fenced):
    """The incarnation ended in order and gives its slot back until a time has come, or somebody has decided."""

    operation: ClassVar = Operation.WAIT
    waiting: Waiting | None = None


@dataclass(frozen=True, slots=True)
class Die(Command):
    """An incarnation is reported dead.

    Attributes:
        epoch: Which one; None = the one now alive.
        proof: Its process was seen to exit, or it says so itself; without proof it is first asked to give up.
        itself: The incarnation says so itself. With steps of unknown outcome it may not: it has to park.
    """

    operation: ClassVar = Operation.DIE
    epoch: Epoch | None = None
    cause: DeathCause = DeathCause.CRASH
    proof: bool = False
    itself: bool = False


@dataclass(frozen=True, slots=True)
class AttemptFailed(Fenced):
    """Recovery failed before the agent ran; ``task_id`` and ``retries`` are those of Celery's coming retry."""

    operation: ClassVar = Operation.ATTEMPT_FAILED
    task_id: str = ""
    retries: int = 0
    cause: DeathCause = DeathCause.RESTORE_FAILED


@dataclass(frozen=True, slots=True)
class OwnerExited(Command):
    """The process ``identity`` was seen to exit; proof for whatever it hosted."""

    operation: ClassVar = Operation.OWNER_EXITED
    identity: str = ""
    cause: DeathCause = DeathCause.LOST
    #: Of the agent, when others were lost with it.
    suspicion: Suspicion = Suspicion.NONE


@dataclass(frozen=True, slots=True)
class DeadlineDue(Command):
    """A deadline of the agent has passed; the commit demands that it still stands at ``score``."""

    kind: Deadline = Deadline.RECONCILE
    score: Instant = Instant(0)
    #: For a lease: how many leases of the same process ran out together.
    tenants: int = 1
    #: For a lease of a process with several tenants: whether this one is suspected.
    suspicion: Suspicion = Suspicion.NONE
    #: For a nudge: its queue holds messages enough, so it is looked at again later and nothing is sent.
    crowded: bool = False
    #: For what takes several looks: in how long the next one is due; None = all is done.
    again: timedelta | None = None
    #: For a report: why nobody gets it.
    dropped: str = ""


@dataclass(frozen=True, slots=True)
class Reconcile(Command):
    """Desired or the runtime's state changed: make the record agree."""

    operation: ClassVar = Operation.RECONCILE


@dataclass(frozen=True, slots=True)
class GroupStop(Command):
    """Its group restarts: end in order, then wait for the group. Holds for the incarnation of ``epoch`` only."""

    operation: ClassVar = Operation.GROUP_STOP
    epoch: Epoch = Epoch(0)


@dataclass(frozen=True, slots=True)
class GroupGo(Command):
    """It need not wait for its group any longer."""

    operation: ClassVar = Operation.GROUP_GO
    epoch: Epoch = Epoch(0)


@dataclass(frozen=True, slots=True)
class GroupPark(Command):
    """Its group restarted too often: one that waits for the group is given up."""

    operation: ClassVar = Operation.GROUP_PARK
    epoch: Epoch = Epoch(0)
