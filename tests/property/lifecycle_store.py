"""A store in a few lines of Python: what a commit promises, without a server, and a check of every commit."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta

from ares_celery.clock import micros
from ares_celery.config import default_config
from ares_celery.ids import Epoch, Instant, Version
from ares_celery.model.agent import AgentRecord, AgentState, Desired, Owner, RuntimeState
from ares_celery.model.command import Claim, Command, Deadline, DeadlineDue
from ares_celery.model.event import EventType, NewEvent
from ares_celery.model.lifecycle import TABLE, decide, operation_of
from ares_celery.model.plan import Nudge, Plan, Situation, nudge_for
from ares_celery.model.restart import LifecyclePolicy

#: Some moment of 2025, in microseconds.
BEGINNING = 1_750_000_000_000_000
CLOSERS = {EventType.FAILOVER_COMPLETED, EventType.FAILOVER_FAILED, EventType.FAILOVER_ABORTED}
CLAIMABLE = {AgentState.STARTING, AgentState.RESURRECTING}
LIVE = {*CLAIMABLE, AgentState.RUNNING, AgentState.STOPPING}


class Conflict(Exception):
    """What was read has changed: read again, decide again."""


def default_policy() -> LifecyclePolicy:
    """The numbers of a namespace that nobody configured."""
    return default_config().policy_for(None)


@dataclass
class LifecycleStore:
    """Records, deadlines, events, messages; every commit is audited before it counts."""

    policies: Mapping[str, LifecyclePolicy] = field(default_factory=dict[str, LifecyclePolicy])
    now: Instant = Instant(BEGINNING)
    runtime: RuntimeState = RuntimeState.RUNNING
    records: dict[str, AgentRecord] = field(default_factory=dict[str, AgentRecord])
    deadlines: dict[tuple[str, Deadline], Instant] = field(default_factory=dict[tuple[str, Deadline], Instant])
    events: defaultdict[str, list[NewEvent]] = field(default_factory=lambda: defaultdict[str, list[NewEvent]](list))
    hosts: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict[str, set[str]](set))
    messages: list[Nudge] = field(default_factory=list[Nudge])
    counters: Counter[str] = field(default_factory=Counter[str])

    def policy(self, agent_id: str) -> LifecyclePolicy:
        """The numbers of one agent."""
        return self.policies.get(agent_id) or default_policy()

    def read(self, agent_id: str) -> Situation:
        """The agent, the time and the lease, of one moment."""
        lease = self.deadlines.get((agent_id, Deadline.LEASE), Instant(0))
        return Situation(self.records.get(agent_id), self.now, self.policy(agent_id), self.runtime, lease, "test")

    def do(self, agent_id: str, command: Command) -> Plan:
        """Read, decide, commit."""
        read = self.read(agent_id)
        plan = decide(read, command, agent_id=agent_id)
        self.commit(agent_id, plan, read)
        return plan

    def commit(self, agent_id: str, plan: Plan, read: Situation) -> None:
        """Apply all of a plan or nothing.

        Raises:
            Conflict: The record, the runtime's state, the deadline acted on, or the lease of what is ended has changed.
        """
        if plan.ignored:
            return
        before, due = self.records.get(agent_id), plan.command
        ends = before is not None and before.hosted and (plan.after is None or plan.after.fence != before.fence)
        lease = self.deadlines.get((agent_id, Deadline.LEASE), Instant(0))
        changed = (
            not is_same(before, read.record) or read.runtime is not self.runtime or (ends and lease != read.lease_until)
        )
        if changed or (
            isinstance(due, DeadlineDue) and due.score and self.deadlines.get((agent_id, due.kind)) != due.score
        ):
            raise Conflict(agent_id)
        audit_plan(plan, read.now)
        self._write(agent_id, plan)
        audit_failovers(self.events[agent_id], self.records.get(agent_id))
        if agent_id in self.records:
            audit_record(self.records[agent_id], self.deadlines, self.policy(agent_id))

    def _write(self, agent_id: str, plan: Plan) -> None:
        before, after = plan.before, plan.after
        for kind, at in plan.deadlines.items():
            self.deadlines.pop((agent_id, kind), None)
            if at is not None:
                self.deadlines[agent_id, kind] = at
        self.counters.update(plan.counters)
        if plan.free_host and before and before.owner:
            self.hosts[before.owner.identity].discard(agent_id)
        if after is None:
            self.records.pop(agent_id, None)
            self.events.pop(agent_id, None)
            for kind in Deadline:
                self.deadlines.pop((agent_id, kind), None)
            return
        if after.owner:
            self.hosts[after.owner.identity].add(agent_id)
        self.events[agent_id].extend(plan.events)
        record = replace(
            after,
            revision=(before.revision if before else 0) + 1,
            version=Version(len(self.events[agent_id])),
            created_at=before.created_at if before else self.now,
            changed_at=self.now,
            intents=self.intents(agent_id),
        )
        self.records[agent_id] = record
        if plan.nudge:
            self.messages.append(nudge_for(record))

    def claim(self, agent_id: str, epoch: Epoch, token: str, owner: Owner) -> str:
        """Take the fence; returns it."""
        self.do(agent_id, Claim(epoch=epoch, token=token, owner=owner))
        return self.records[agent_id].fence

    def renew(self, agent_id: str, fence: str) -> Instant:
        """Renew the lease of whoever holds the fence; returns its end, 0 when the fence is gone."""
        if not self.accepts(agent_id, fence):
            return Instant(0)
        until = Instant(self.now + micros(self.policy(agent_id).lease_ttl))
        self.deadlines[agent_id, Deadline.LEASE] = until
        return until

    def accepts(self, agent_id: str, fence: str) -> bool:
        """Whether a write that shows this fence is stored."""
        record = self.records.get(agent_id)
        return record is not None and bool(fence) and record.fence == fence

    def intents(self, agent_id: str) -> int:
        """Steps of an agent whose outcome is unknown."""
        record = self.records.get(agent_id)
        return record.intents if record else 0

    def begin_step(self, agent_id: str, fence: str) -> bool:
        """Note that a step begins which is never repeated; as all of these, without a new revision."""
        return self.accepts(agent_id, fence) and self._count(agent_id, 1)

    def end_step(self, agent_id: str, fence: str) -> bool:
        """Note what came of it."""
        return self.accepts(agent_id, fence) and self._count(agent_id, -1)

    def settle(self, agent_id: str) -> bool:
        """A person says what came of a step of a parked agent; the last one leaves work for the sweep."""
        record = self.records.get(agent_id)
        if record is None or record.state is not AgentState.PARKED or not record.intents:
            return False
        if record.intents == 1:
            self.deadlines[agent_id, Deadline.RECONCILE] = self.now
        return self._count(agent_id, -1)

    def _count(self, agent_id: str, by: int) -> bool:
        record = self.records[agent_id]
        self.records[agent_id] = replace(record, intents=record.intents + by)
        assert self.records[agent_id].intents >= 0
        return True

    def due(self) -> list[tuple[str, DeadlineDue]]:
        """What has to happen by now, oldest first; leases with the number of those that ran out with them."""
        passed = sorted((at, agent_id, kind) for (agent_id, kind), at in self.deadlines.items() if at <= self.now)
        lost = Counter(self._host(agent_id) for _, agent_id, kind in passed if kind is Deadline.LEASE)
        return [
            (agent_id, DeadlineDue(kind=kind, score=at, tenants=lost[self._host(agent_id)] or 1))
            for at, agent_id, kind in passed
        ]

    def _host(self, agent_id: str) -> str:
        record = self.records.get(agent_id)
        return record.owner.identity if record and record.owner else ""

    def decide(self, agent_id: str) -> None:
        """Somebody decides what the agent has asked: one script, which raises the revision and brings it on."""
        record = self.records[agent_id]
        self.records[agent_id] = replace(record, revision=record.revision + 1, decisions=record.decisions + 1)
        if record.state is AgentState.WAITING:
            self.deadlines[agent_id, Deadline.APPROVAL] = self.now

    def advance(self, duration: timedelta) -> None:
        """Let time pass."""
        self.now = Instant(self.now + micros(duration))


def is_same(record: AgentRecord | None, read: AgentRecord | None) -> bool:
    """A commit demands the revision, which the number of open steps does not change."""
    if record is None or read is None:
        return record is read
    return replace(record, intents=0) == replace(read, intents=0)


def audit_plan(plan: Plan, now: Instant) -> None:
    """Every change of state is one that the table allows, and every end of an incarnation raises the epoch."""
    before, after = plan.before, plan.after
    if after is None:
        assert before is None or before.state not in LIVE, "only a resting agent is deleted"
        return
    if before is None:
        stillborn = after.desired is Desired.STOPPED and after.birth is not None
        assert after.state in ({AgentState.STOPPED} if stillborn else {AgentState.REGISTERED, AgentState.STARTING})
        assert after.epoch >= now, "the epoch of a new agent is not below the time"
        return
    operation = operation_of(plan.command)
    assert after.state in TABLE[operation][before.state].to, f"{operation}: {before.state} to {after.state}"
    assert after.epoch >= before.epoch, "epochs only rise"
    if before.hosted and after.fence != before.fence:
        assert not after.hosted, "a fence passes on by a claim alone"
        assert after.epoch > before.epoch, "ending an incarnation raises the epoch"
    if after.state is AgentState.RUNNING and before.state is not AgentState.RUNNING:
        assert not before.intents, "an agent runs although the outcome of a step is unknown"
    if after.hosted and not before.hosted:
        assert after.epoch == before.epoch, "a claim raises nothing"
        assert after.fence.startswith(f"{after.epoch}|")
        assert after.incarnation == before.incarnation + 1
    if not before.hosted and before.state not in CLAIMABLE and after.state in CLAIMABLE:
        assert after.epoch > before.epoch, "allowing an incarnation raises the epoch"


def audit_record(
    record: AgentRecord, deadlines: Mapping[tuple[str, Deadline], Instant], policy: LifecyclePolicy
) -> None:
    """What is true of every record at rest between two commits; above all: nothing waits without a deadline."""
    kinds = {kind for (agent_id, kind) in deadlines if agent_id == record.id}
    if record.hosted:
        assert record.state in LIVE
        assert Deadline.LEASE in kinds
        assert record.owner is not None
        assert not record.claimable_after
    else:
        assert record.state not in {AgentState.RUNNING, AgentState.STOPPING}
        assert Deadline.LEASE not in kinds
    if record.state in CLAIMABLE:
        wanted = {Deadline.HANG} if record.hosted else {Deadline.NUDGE, Deadline.ATTEMPT}
        if record.held:
            assert not record.hosted
            assert not kinds & wanted, "what waits for its group is not offered to anybody"
            wanted = {Deadline.GROUP}
        assert kinds & wanted, f"{record.state} waits for nothing"
        assert record.desired.value == "running"
    if record.state is AgentState.STOPPING:
        assert Deadline.STOP in kinds
        assert record.request
    if record.state not in CLAIMABLE:
        assert not record.held, "only what may be claimed one day waits for its group"
    if record.state is AgentState.WAITING:
        assert record.waiting is not None
        assert kinds & {Deadline.TIMER, Deadline.APPROVAL} or not record.waiting.until, "nothing brings it on"
        kinds -= {Deadline.TIMER, Deadline.APPROVAL}
    else:
        assert record.waiting is None
    if record.state not in LIVE:
        if record.state is AgentState.PARKED and record.cause == "reconcile" and not record.intents:
            assert Deadline.RECONCILE in kinds, "all is settled and nobody will let it go on"
        # News for its group and its family, and the last word of a person, are on their way whatever becomes of it.
        kinds -= {Deadline.GROUP, Deadline.CHILDREN, Deadline.REPORT, Deadline.RECONCILE, Deadline.RESUME}
        assert not kinds, f"{record.state} with deadlines {kinds}"
        assert not record.failover
    if policy.max_restarts:
        assert record.charged <= policy.max_restarts


def audit_failovers(events: list[NewEvent], record: AgentRecord | None) -> None:
    """Each failover.triggered follows its agent.stopped and is closed by exactly one; the record knows."""
    is_open = False
    for index, event in enumerate(events):
        if event.type == EventType.FAILOVER_TRIGGERED:
            assert not is_open, "a failover is triggered while another is open"
            assert index
            assert events[index - 1].type == EventType.AGENT_STOPPED
            is_open = True
        if event.type in CLOSERS:
            assert is_open, f"{event.type} closes nothing"
            is_open = False
    if record is not None:
        assert record.failover == is_open
