"""What the ports take and give: frozen values, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ares_celery.errors import AresError
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model.agent import AgentRecord, Desired, Request, RuntimeState
from ares_celery.model.command import Deadline
from ares_celery.model.event import Event
from ares_celery.model.message import MessageKind
from ares_celery.model.snapshot import Snapshot

__all__ = [
    "AgentRead",
    "Claimed",
    "ClockStand",
    "CommitConflict",
    "Committed",
    "DamagedSnapshot",
    "DueDeadline",
    "DueShard",
    "InboxMessage",
    "Lease",
    "LeaseChange",
    "Rebased",
    "Renewal",
    "Reply",
    "RuntimeRead",
]


class CommitConflict(AresError):
    """The record, its deadline or the runtime's generation changed since it was read: read again, decide again."""

    code = "commit_conflict"
    template = "agent {agent_id!r} changed while it was decided on; decide again"


@dataclass(frozen=True, slots=True)
class AgentRead:
    """One atomic read of an agent.

    Attributes:
        record: None when it does not exist, or cannot be read.
        now: Redis TIME of the read.
        runtime: The shard's copy of the runtime's state.
        generation: The generation of that copy; a commit demands it.
        lease_until: When the owner's lease ends; 0 without one.
        outcome: The outcome stored under the op id that was asked about; None when that op has not happened.
        problem: Why the record that is there cannot be read; empty for one that can, and for none.
    """

    record: AgentRecord | None
    now: Instant
    runtime: RuntimeState
    generation: int
    lease_until: Instant
    outcome: Committed | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Committed:
    """The outcome of a commit.

    Attributes:
        epoch: Of the record after the commit; 0 when it was deleted.
        revision: Of the record after the commit.
        version: Last event of the stream after the commit.
        now: Redis TIME of the commit.
        repeated: This op had happened before; nothing was changed now.
        operation: What the op was for; empty where a version before this one has done it.
    """

    epoch: Epoch
    revision: int
    version: Version
    now: Instant
    repeated: bool = False
    operation: str = ""


@dataclass(frozen=True, slots=True)
class DamagedSnapshot:
    """A stored snapshot whose bytes do not fit its checksum; kept as they are."""

    problem: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Claimed:
    """What one round trip gives to a claimer.

    Attributes:
        record: After the claim: with fence, owner, incarnation.
        now: Redis TIME of the claim.
        snapshot: The newest one, if any.
        events: The first page of events after the snapshot (of all events without one).
        more: There are events beyond that page.
        repeated: The same claimer had claimed before (a lost reply).
    """

    record: AgentRecord
    now: Instant
    snapshot: Snapshot | DamagedSnapshot | None
    events: tuple[Event, ...]
    more: bool
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class Lease:
    """One lease to renew, with the last signal that its incarnation saw.

    Attributes:
        agent_id: Whose lease.
        fence: Demanded.
        signal: The last one seen.
        step: The step that the agent is in; empty: in none.
        step_micros: For how long, in microseconds.
    """

    agent_id: AgentId
    fence: str
    signal: int
    step: str = ""
    step_micros: int = 0


@dataclass(frozen=True, slots=True)
class LeaseChange:
    """What a renewal found: the fence is gone, or something new was asked (also: messages came, faults changed)."""

    agent_id: AgentId
    fence: str
    fenced: bool
    signal: int = 0
    request: Request = Request.NONE
    desired: Desired = Desired.RUNNING
    reason: str = ""
    #: How many faults on purpose are active.
    faults: int = 0


@dataclass(frozen=True, slots=True)
class Renewal:
    """One renewal of many leases: only those with news are listed."""

    now: Instant
    changes: tuple[LeaseChange, ...]


@dataclass(frozen=True, slots=True)
class DueDeadline:
    """A deadline that has passed, with the score that a commit has to demand."""

    kind: Deadline
    agent_id: AgentId
    name: str
    score: Instant


@dataclass(frozen=True, slots=True)
class DueShard:
    """What one shard has due.

    Attributes:
        shard: Its number.
        now: Redis TIME of the read.
        due: Oldest first; at most the limit asked for.
        next_at: The earliest deadline that is not due yet; 0 when there is none.
    """

    shard: int
    now: Instant
    due: tuple[DueDeadline, ...]
    next_at: Instant


@dataclass(frozen=True, slots=True)
class RuntimeRead:
    """The state of the namespace's runtime, from its home shard."""

    state: RuntimeState
    generation: int
    since: Instant
    now: Instant
    reason: str = ""
    actor: str = ""
    first_started: Instant = Instant(0)
    started_at: Instant = Instant(0)
    stopped_at: Instant = Instant(0)


@dataclass(frozen=True, slots=True)
class ClockStand:
    """How far a namespace has followed the steps of its server's clock.

    Attributes:
        generation: How many steps it has followed.
        offset: Their sum in microseconds; negative when the clock went back.
        now: Redis TIME of the read.
    """

    generation: int
    offset: int
    now: Instant


class Rebased(StrEnum):
    """What became of a step of the clock that somebody noticed."""

    #: The deadlines were moved now.
    NOW = "now"
    #: Somebody else had noticed it, and moved them.
    BEFORE = "before"
    #: Others swept on without a break: the clock did not step, the one who noticed stood still.
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """A message in an agent's inbox.

    Attributes:
        entry: Its place in the inbox; what a reply consumes.
        message_id: Chosen by the caller; a repeat is the same message.
        body: JSON value.
        wants_reply: Somebody waits for the answer.
        time: When it was put there.
        kind: How it was sent.
        began: How often its handling began before, without coming to an end.
        signal: Its number among what its agent was told, where it came with its hint; 0: unknown.
    """

    entry: str
    message_id: str
    body: Any
    wants_reply: bool
    time: Instant
    kind: MessageKind = MessageKind.PROCESS
    began: int = 0
    signal: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a message: a value, or the wire dict of an error."""

    message_id: str
    value: Any = None
    error: Mapping[str, Any] | None = None
