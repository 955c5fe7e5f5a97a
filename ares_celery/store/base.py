"""The ports: where state lives. Redis implements them; the core knows nothing else of it.

Every mutation takes an operation id (``op``): a repeat with the same id returns the first outcome and changes nothing.
Every method may raise StoreUnavailableError: whether the call took effect is then unknown, and repeating it is safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model.agent import AgentRecord, AgentState, Owner, RuntimeState
from ares_celery.model.event import Event, NewEvent, ReadOptions
from ares_celery.model.plan import Plan
from ares_celery.store.administration import AuditStore, SettingsStore
from ares_celery.store.arena import ArenaStore
from ares_celery.store.budgets import AsyncBudgetStore, BudgetStore
from ares_celery.store.family import FamilyStore
from ares_celery.store.faults import AsyncFaultStore, FaultDesk, FaultStore
from ares_celery.store.forks import ForkStore
from ares_celery.store.groups import GroupStore
from ares_celery.store.interrupts import AsyncInterruptStore, InterruptDesk, InterruptStore
from ares_celery.store.introspection import Introspection
from ares_celery.store.limits import AsyncLimitStore, LimitStore
from ares_celery.store.memory import MemoryManager
from ares_celery.store.messages import AsyncHostMailbox, AsyncMailbox, HostMailbox, Mailbox
from ares_celery.store.settling import SettlingStore
from ares_celery.store.states import NO_SCHEMAS, KeptSnapshots, SnapshotStore
from ares_celery.store.steps import AsyncStepStore, StepStore
from ares_celery.store.streams import EventReader, EventStore
from ares_celery.store.subscriptions import Subscription
from ares_celery.store.values import (
    AgentRead,
    Claimed,
    ClockStand,
    CommitConflict,
    Committed,
    DamagedSnapshot,
    DueDeadline,
    DueShard,
    InboxMessage,
    Lease,
    LeaseChange,
    Rebased,
    Renewal,
    Reply,
    RuntimeRead,
)

__all__ = [
    "NO_SCHEMAS",
    "AgentRead",
    "AgentStore",
    "AsyncIncarnationStore",
    "AsyncMailbox",
    "Claimed",
    "ClockStand",
    "CommitConflict",
    "Committed",
    "DamagedSnapshot",
    "DueDeadline",
    "DueShard",
    "EventReader",
    "EventStore",
    "InboxMessage",
    "IncarnationStore",
    "Introspection",
    "KeptSnapshots",
    "Lease",
    "LeaseChange",
    "Mailbox",
    "MemoryManager",
    "NamespaceAdmin",
    "Rebased",
    "Renewal",
    "Reply",
    "RuntimeRead",
    "SnapshotStore",
    "Store",
    "Subscription",
]


class AgentStore(Protocol):
    """Records, deadlines, leases: what decides lives."""

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        ...

    def read(self, agent_id: AgentId, *, op: str = "") -> AgentRead:
        """Reads an agent and Redis TIME in one atomic call; with ``op``, also the stored outcome of that operation.

        Raises:
            UnreadableRecordError: There is a record, and this version cannot read it.
        """
        ...

    def read_many(self, agent_ids: Sequence[AgentId]) -> list[AgentRead]:
        """Reads many agents in one round trip; each read is atomic, all together are not.

        One that cannot be read never hides the others: it has no record and says its ``problem``, which is also logged,
        once.
        """
        ...

    def commit(self, plan: Plan, read: AgentRead, *, op: str, guard: DueDeadline | None = None) -> Committed:
        """Applies a whole Plan or nothing. Atomic: record, deadlines, state index, events, counters, owner index.

        Args:
            plan: Decided on ``read``.
            read: Its revision and runtime generation are demanded.
            op: Operation id; remembered for an hour.
            guard: The deadline that caused the command: it must still stand at this score.

        Raises:
            CommitConflict: Something demanded has changed; nothing was written.
        """
        ...

    def confirm(self, agent_id: AgentId) -> None:
        """Returns when what was written before is where the namespace wants it before it counts.

        Raises:
            NotConfirmedError: It is not, within ``confirm_timeout``.
        """
        ...

    def claim(
        self,
        agent_id: AgentId,
        epoch: Epoch,
        *,
        token: str,
        owner: Owner,
        page: int,
        schemas: Mapping[str, int] = NO_SCHEMAS,
    ) -> Claimed:
        """Takes the fence of this epoch, and loads what recovery needs, in one atomic call.

        Args:
            agent_id: Which agent.
            epoch: Demanded to be the record's.
            token: The claimer's own; the same one again gets the same answer.
            owner: Who claims.
            page: Most events of the answer.
            schemas: The newest state schema that the claimer can load, by agent type.

        Raises:
            FencedError: Not claimable: field ``reason`` is epoch, owned, held (it waits for its group), not desired,
                early, deleted, or schema: its state was written by newer code, so that another worker has to take it.
        """
        ...

    def renew(self, leases: Sequence[Lease]) -> Renewal:
        """Renews leases, in one pipelined round trip; one whose fence is gone is reported, not renewed."""
        ...

    def due(self, *, limit: int = 100) -> list[DueShard]:
        """Deadlines that have passed, of every shard, in one pipelined round trip. Costs O(due)."""
        ...

    def hosted_by(self, identity: str) -> list[AgentId]:
        """The agents whose last known host is this process."""
        ...

    def list_ids(self, states: Iterable[AgentState] | None = None) -> list[AgentId]:
        """Ids of all agents, or of those in the given states, sorted."""
        ...

    def count_by_state(self) -> dict[AgentState, int]:
        """How many agents are in each state; states without agents are absent."""
        ...

    def counters(self) -> dict[str, int]:
        """The namespace's counters.

        Named deaths, restarts, manual_restarts, parked, completed, failed_attempts and clock_steps; summaries,
        summariser_failures and events_trimmed.
        """
        ...

    def delete(self, agent_id: AgentId, read: AgentRead, *, op: str) -> None:
        """Removes an agent and every key of it, the record last.

        Raises:
            CommitConflict: It changed since ``read``.
        """
        ...


class IncarnationStore(HostMailbox, StepStore, BudgetStore, LimitStore, InterruptStore, FaultStore, Protocol):
    """What one incarnation writes and reads; every write shows the fence."""

    def append(
        self, agent_id: AgentId, fence: str, events: Sequence[NewEvent], *, op: str, expected: Version
    ) -> tuple[Event, ...]:
        """Appends events of an incarnation; all or none; with contiguous versions.

        Args:
            agent_id: Whose stream.
            fence: Demanded to be equal to the record's.
            events: At least one.
            op: Batch id; a repeat returns the stored events.
            expected: The last version that the writer has seen. Other writers (the runtime) may have added events:
                the append still succeeds, above theirs. A *smaller* version in Redis means that the store came back
                older: VersionConflictError with field ``rolled_back`` true.

        Raises:
            FencedError: The incarnation is over.
            EventTooLargeError, UnserialisableError: Refused before anything is sent.
        """
        ...

    def save_snapshot(
        self,
        agent_id: AgentId,
        fence: str,
        state: Mapping[str, Any],
        *,
        version: Version,
        schema: int,
        origin: str = "",
    ) -> None:
        """Stores a snapshot, drops the oldest beyond ``snapshots_kept``. Raises FencedError, SnapshotTooLargeError.

        Nothing covers the damage that recovery is to find: MemoryCorruptedError while such a fault is active.

        Args:
            agent_id: Whose state.
            fence: Demanded to be equal to the record's.
            state: JSON values.
            version: The last event that it covers.
            schema: Of the state; from now on only who can load it may claim the agent.
            origin: What took it, see :func:`~ares_celery.model.snapshot.state_origin`.
        """
        ...

    def note_state(self, agent_id: AgentId, fence: str, *, origin: str, schema: int, saved: str = "") -> None:
        """Notes what a state is that is saved elsewhere. Raises FencedError, MemoryCorruptedError if about to be saved.

        Args:
            agent_id: Whose state.
            fence: Demanded to be equal to the record's.
            origin: As for :meth:`save_snapshot`.
            schema: As for :meth:`save_snapshot`.
            saved: ``<version>|<epoch>`` of the state that is safe there now; empty: it is about to be saved.
        """
        ...


class AsyncIncarnationStore(
    AsyncHostMailbox, AsyncStepStore, AsyncBudgetStore, AsyncLimitStore, AsyncInterruptStore, AsyncFaultStore, Protocol
):
    """The same as :class:`IncarnationStore`, awaitable, for agents on an event loop."""

    async def append(
        self, agent_id: AgentId, fence: str, events: Sequence[NewEvent], *, op: str, expected: Version
    ) -> tuple[Event, ...]:
        """See :meth:`IncarnationStore.append`."""
        ...

    async def save_snapshot(
        self,
        agent_id: AgentId,
        fence: str,
        state: Mapping[str, Any],
        *,
        version: Version,
        schema: int,
        origin: str = "",
    ) -> None:
        """See :meth:`IncarnationStore.save_snapshot`."""
        ...

    async def note_state(self, agent_id: AgentId, fence: str, *, origin: str, schema: int, saved: str = "") -> None:
        """See :meth:`IncarnationStore.note_state`."""
        ...

    async def send(self, agent_id: AgentId, body: object, *, message_id: str, wants_reply: bool) -> None:
        """See :meth:`Mailbox.send`."""
        ...

    async def read_record(self, agent_id: AgentId) -> AgentRecord | None:
        """See :meth:`FamilyStore.read_record`."""
        ...

    async def read(self, stream_id: str, options: ReadOptions) -> tuple[Event, ...]:
        """See :meth:`EventStore.read`."""
        ...

    async def server_time(self) -> Instant:
        """Redis TIME."""
        ...

    async def aclose(self) -> None:
        """Closes its connections; on the loop that used them."""
        ...


class NamespaceAdmin(Protocol):
    """The namespace itself: its settings and the state of its runtime."""

    @property
    def namespace(self) -> str:
        """The namespace's name."""
        ...

    def reopen(self) -> Instant:
        """Makes the namespace again if the server has lost all data; returns when it was made.

        Raises:
            NamespaceMismatchError: Somebody else has made it again with another layout.
        """
        ...

    def runtime(self) -> RuntimeRead:
        """The runtime's state."""
        ...

    def set_runtime(
        self, state: RuntimeState, *, only_from: Sequence[RuntimeState], reason: str, actor: str
    ) -> RuntimeRead:
        """Moves the runtime's state, in the home shard first, then copied to every shard with its generation.

        A caller that dies in between leaves the deadline ``reconcile|@runtime`` in the home shard; the sweep goes on.
        Returns the state afterwards; unchanged when it was in none of ``only_from``.
        """
        ...

    def copy_runtime(self) -> None:
        """Copies the home shard's runtime state to every shard that has an older generation; clears the deadline."""
        ...

    def count(self, by: Mapping[str, int], *, op: str) -> None:
        """Raises counters of the namespace by these numbers; a repeat with the same ``op`` counts nothing more."""
        ...

    def elect(self, identity: str, *, ttl_ms: int) -> bool:
        """Takes or keeps the sweeper's lease; True while this process holds it."""
        ...

    def report_sweep(self, identity: str) -> None:
        """Notes that a sweep was finished now; its age is part of readiness."""
        ...

    def sweep_age_ms(self) -> int:
        """Milliseconds since the last sweep by anybody; -1 when there was none."""
        ...

    def report_hosts(self, identity: str, worker: str) -> None:
        """Notes that this process hosts agents or watches others; forgotten when it is not repeated for a minute."""
        ...

    def hosts(self) -> Mapping[str, str]:
        """Identities of the processes that reported within a minute, with their worker names."""
        ...

    def report_background(self, identity: str, work: Mapping[str, int]) -> None:
        """Notes the detached work of a process, label to count; forgotten when it is not repeated for 5 s."""
        ...

    def background(self, *, without: str = "") -> Mapping[str, int]:
        """The detached work that processes reported, summed by label, but for that of one process."""
        ...

    def report_types(self, types: Mapping[str, Mapping[str, Any]]) -> None:
        """Notes the agent types that a worker can host, each with its factory's parameters (Registry.describe)."""
        ...

    def known_types(self) -> Mapping[str, Mapping[str, Any]]:
        """The agent types that any worker reported; empty when none ever did."""
        ...

    def server_time(self) -> Instant:
        """Redis TIME."""
        ...

    def clock(self) -> ClockStand:
        """Which steps of the server's clock the namespace has followed, and Redis TIME, in one atomic call."""
        ...

    def rebase(self, stand: ClockStand) -> Rebased:
        """Moves whatever is in Redis time along with a step of the server's clock; each shard once for each step.

        Deadlines move by the step, leases and waits for a lease's end begin anew with a whole ``lease_ttl``. The home
        shard comes first and counts the step as ``clock_steps``; then every shard that is behind follows it, also one
        that somebody else left behind.

        Args:
            stand: One generation and the step more than was known before the step; or the known stand itself, which
                only makes the shards follow that are behind.

        Returns:
            What the home shard said of this step.
        """
        ...

    def wipe(self) -> int:
        """Deletes every key of the namespace; for tests and demos. Returns how many."""
        ...


class Store(
    AgentStore,
    IncarnationStore,
    KeptSnapshots,
    Mailbox,
    NamespaceAdmin,
    SettingsStore,
    AuditStore,
    GroupStore,
    FamilyStore,
    InterruptDesk,
    Introspection,
    ForkStore,
    SettlingStore,
    FaultDesk,
    ArenaStore,
    Protocol,
):
    """Everything that one open namespace offers, in one object; safe to share between threads."""

    @property
    def events(self) -> EventStore:
        """Streams of events."""
        ...

    @property
    def snapshots(self) -> SnapshotStore:
        """Newest states."""
        ...

    @property
    def memory(self) -> MemoryManager:
        """What agents said and were told."""
        ...

    def wake_channel(self, identity: str) -> str:
        """The channel on which a hosting process is told to look at an agent now; the message is the agent's id."""
        ...

    def close(self) -> None:
        """Closes all connections; idempotent."""
        ...
