"""A clock turned by hand, and stores that answer what a test tells them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ares_celery.errors import StoreUnavailableError
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Desired, Owner, RuntimeState
from ares_celery.model.command import Command, Deadline, DeadlineDue
from ares_celery.model.plan import Plan
from ares_celery.runtime.commits import Applied
from ares_celery.store.base import AgentRead, ClockStand, Committed, DueDeadline, DueShard, Rebased, RuntimeRead

START = 1_000_000_000


class ManualClock:
    """Time that passes only when a test, or a wait, says so."""

    def __init__(self) -> None:
        self.now = 100.0
        #: Microseconds by which the server's clock stepped.
        self.stepped = 0

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> Instant:
        return self.server()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.now += seconds
        return event.is_set()

    def server(self) -> Instant:
        """What Redis TIME would be."""
        return Instant(START + round(self.now * 1_000_000) + self.stepped)


def deadline(kind: Deadline, agent_id: str, score: int = START) -> DueDeadline:
    """A deadline that has passed."""
    return DueDeadline(kind, AgentId(agent_id), "", Instant(score))


def record_of(
    agent_id: str,
    owner: Owner | None = None,
    *,
    desired: Desired = Desired.RUNNING,
    state: AgentState = AgentState.RUNNING,
    epoch: int = 7,
    fence: str | None = None,
) -> AgentRecord:
    """A record of a running agent, hosted when it has an owner."""
    held = f"{epoch}|t" if owner else ""
    return AgentRecord(
        AgentSpec(id=agent_id, type="t"),
        desired=desired,
        state=state,
        epoch=Epoch(epoch),
        fence=held if fence is None else fence,
        owner=owner,
    )


class FakeStore:
    """Answers from its fields; ``away`` makes every call fail."""

    namespace = "test"

    def __init__(self, clock: ManualClock) -> None:
        self.time = clock
        self.away = False
        self.waiting: list[DueDeadline] = []
        self.next_in: float | None = None
        self.records: dict[str, AgentRecord] = {}
        self.lease_until: dict[str, int] = {}
        #: Agents whose records cannot be read, and why.
        self.problems: dict[str, str] = {}
        self.runtime_state = RuntimeState.RUNNING
        self.generation = 1
        self.copied = 0
        self.elected = True
        self.sweep_age = 0
        self.sweeps = 0
        self.reported: dict[str, str] = {}
        self.background: list[tuple[str, dict[str, int]]] = []
        self.limits: list[int] = []
        self.clock_generation = 0
        self.clock_offset = 0
        self.rebase_fails = 0
        self.unproven = False

    def _answer(self) -> None:
        if self.away:
            raise StoreUnavailableError(url="test", problem="away")

    def due(self, *, limit: int = 100) -> list[DueShard]:
        self._answer()
        self.limits.append(limit)
        now = self.time.server()
        next_at = 0 if self.next_in is None else now + round(self.next_in * 1_000_000)
        return [DueShard(0, now, tuple(self.waiting[:limit]), Instant(next_at))]

    def read(self, agent_id: AgentId, *, op: str = "") -> AgentRead:
        self._answer()
        return AgentRead(
            self.records.get(agent_id),
            self.time.server(),
            self.runtime_state,
            self.generation,
            Instant(self.lease_until.get(agent_id, 0)),
            problem=self.problems.get(agent_id, ""),
        )

    def read_many(self, agent_ids: Sequence[AgentId]) -> list[AgentRead]:
        return [self.read(agent_id) for agent_id in agent_ids]

    def hosted_by(self, identity: str) -> list[AgentId]:
        self._answer()
        return [record.id for record in self.records.values() if record.owner and record.owner.identity == identity]

    def hosts(self) -> Mapping[str, str]:
        self._answer()
        return dict(self.reported)

    def report_hosts(self, identity: str, worker: str) -> None:
        self._answer()
        self.reported[identity] = worker

    def report_background(self, identity: str, work: Mapping[str, int]) -> None:
        self._answer()
        self.background.append((identity, dict(work)))

    def list_ids(self, states: Iterable[AgentState] | None = None) -> list[AgentId]:
        self._answer()
        wanted = set(AgentState if states is None else states)
        return sorted(record.id for record in self.records.values() if record.state in wanted)

    def count_by_state(self) -> dict[AgentState, int]:
        self._answer()
        return dict(Counter(record.state for record in self.records.values()))

    def runtime(self) -> RuntimeRead:
        self._answer()
        now = self.time.server()
        return RuntimeRead(self.runtime_state, self.generation, now, now)

    def copy_runtime(self) -> None:
        self._answer()
        self.copied += 1

    def elect(self, identity: str, *, ttl_ms: int) -> bool:
        self._answer()
        return self.elected

    def report_sweep(self, identity: str) -> None:
        self._answer()
        self.sweeps += 1

    def sweep_age_ms(self) -> int:
        self._answer()
        return self.sweep_age

    def clock(self) -> ClockStand:
        self._answer()
        return ClockStand(self.clock_generation, self.clock_offset, self.time.server())

    def rebase(self, stand: ClockStand) -> Rebased:
        self._answer()
        if self.rebase_fails:
            self.rebase_fails -= 1
            raise StoreUnavailableError(url="test", problem="lost")
        if stand.generation <= self.clock_generation:
            return Rebased.BEFORE
        if self.unproven:
            return Rebased.UNPROVEN
        self.clock_generation, self.clock_offset = stand.generation, stand.offset
        return Rebased.NOW

    def server_time(self) -> Instant:
        self._answer()
        return self.time.server()


class FakeCommitter:
    """Notes what was asked; removes the deadline that was behind it, as a commit does."""

    def __init__(self, store: FakeStore) -> None:
        self.store = store
        self.applied: list[tuple[str, Command]] = []
        self.fails: dict[str, Exception] = {}
        self.ignores: set[str] = set()
        self.queues: dict[str, int] = {}

    def apply(self, agent_id: AgentId, command: Command, **options: object) -> Applied:
        if self.store.away:
            raise StoreUnavailableError(url="test", problem="away")
        if agent_id in self.fails:
            raise self.fails[agent_id]
        self.applied.append((agent_id, command))
        self.store.waiting = [one for one in self.store.waiting if one != options.get("guard")]
        record = self.store.records.get(agent_id)
        ignored = "ignored" if agent_id in self.ignores else ""
        committed = None if ignored else Committed(Epoch(8), 1, Version(0), self.store.time.server())
        return Applied(Plan(command, record, record, ignored=ignored), committed)

    def waiting(self, queue: str | None) -> int | None:
        """Messages in a queue; unknown unless a test says so."""
        return self.queues.get(queue or "agents")

    def due(self) -> list[tuple[str, Deadline, int]]:
        """Agents, kinds and tenants of the deadlines that were applied."""
        return [
            (agent_id, command.kind, command.tenants)
            for agent_id, command in self.applied
            if isinstance(command, DeadlineDue)
        ]
