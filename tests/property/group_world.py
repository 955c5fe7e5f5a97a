"""A group of agents in one process' memory: what the sweep does for it, one step at a time, with sweepers that die."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from ares_celery.errors import FencedError
from ares_celery.ids import Instant
from ares_celery.model.agent import AgentRecord, AgentSpec, AgentState, Owner, RestartType
from ares_celery.model.command import (
    Command,
    Deadline,
    DeadlineDue,
    Delete,
    Die,
    GroupGo,
    MarkRunning,
    Release,
    Start,
    Stop,
)
from ares_celery.model.group import (
    Group,
    Limits,
    Phase,
    Report,
    Strategy,
    View,
    report_of,
    take_report,
    view_of,
    walk,
)
from ares_celery.model.restart import DeathCause, LifecyclePolicy
from tests.property.lifecycle_store import BEGINNING, Conflict, LifecycleStore, default_policy

LIMITS = Limits(stop=timedelta(seconds=30), start=timedelta(seconds=60))
TICK = timedelta(milliseconds=100)


@dataclass
class StaleLook:
    """What a sweeper read before it was held up."""

    group: Group
    views: dict[str, View]


@dataclass
class GroupWorld:
    """One group, its members, one worker without a limit, and any number of sweepers."""

    strategy: Strategy
    max_restarts: int = 0
    period: timedelta = timedelta(minutes=1)
    store: LifecycleStore = field(default_factory=LifecycleStore)
    #: What happened to members, in order: ``stop a``, ``start b``, ``die c``, ``park d``.
    told: list[str] = field(default_factory=list[str])
    stale: list[StaleLook] = field(default_factory=list[StaleLook])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    claims: int = 0
    #: Nobody dies or is started by hand in the middle of a restart, so that all are started in order.
    is_orderly: bool = True

    def __post_init__(self) -> None:
        self.group: Group | None = Group("g", self.strategy, self.max_restarts, self.period)

    def begin(self, *agent_ids: str, **policies: LifecyclePolicy) -> GroupWorld:
        """Members that are started one after the other, and run."""
        self.store.policies = {**self.store.policies, **policies}
        for agent_id in agent_ids:
            self.add(agent_id)
        return self

    def add(self, agent_id: str, *, restart: RestartType | None = None) -> None:
        if restart is not None:
            policy = self.store.policy(agent_id)
            self.store.policies = {**self.store.policies, agent_id: replace(policy, restart=restart)}
        self.store.do(agent_id, Start(spec=AgentSpec(id=agent_id, type="t", group="g")))
        self.store.advance(TICK)
        self.calm(rounds=5)

    # -- looking --

    def record(self, agent_id: str) -> AgentRecord:
        return self.store.records[agent_id]

    def states(self) -> dict[str, str]:
        return {agent_id: record.state.value for agent_id, record in self.store.records.items()}

    @property
    def known(self) -> Group:
        assert self.group is not None
        return self.group

    # -- what happens to members --

    def do(self, agent_id: str, command: Command) -> None:
        before = len(self.store.events[agent_id])
        state = self.store.records[agent_id].state if agent_id in self.store.records else None
        with suppress(Conflict):
            self.store.do(agent_id, command)
        after = self.store.records.get(agent_id)
        if after is None:
            return
        for event in self.store.events[agent_id][before:]:
            if event.type == "agent.stopped" and event.payload["reason"] == "group":
                self.told.append(f"stop {agent_id}")
        if after.state is AgentState.PARKED and state is not AgentState.PARKED:
            self.told.append(f"park {agent_id}")

    def die(self, agent_id: str, cause: DeathCause = DeathCause.CRASH) -> None:
        """The incarnation crashes, if there is one."""
        record = self.record(agent_id)
        if record.hosted and record.state is not AgentState.STOPPING:
            self.told.append(f"die {agent_id}")
            self.do(agent_id, Die("boom", epoch=record.epoch, cause=cause, proof=True))

    def stop(self, agent_id: str) -> None:
        self.do(agent_id, Stop())

    def delete(self, agent_id: str) -> None:
        """The script leaves word for the group."""
        if self.record(agent_id).state is AgentState.STOPPED:
            self.do(agent_id, Delete())
            self.store.deadlines[agent_id, Deadline.GROUP] = self.store.now

    def work(self) -> None:
        """The worker takes what is offered, and ends what was asked to end."""
        messages, self.store.messages = self.store.messages, []
        for message in messages:
            self.claims += 1
            with suppress(FencedError):
                owner = Owner("p", "w", f"t{self.claims}")
                fence = self.store.claim(message.agent_id, message.epoch, f"k{self.claims}", owner)
                self.store.do(message.agent_id, MarkRunning(fence=fence))
                self.told.append(f"start {message.agent_id}")
                self.started(message.agent_id)
        for agent_id, record in list(self.store.records.items()):
            if record.hosted and record.request:
                self.do(agent_id, Release(fence=record.fence))

    def wait(self, seconds: float) -> None:
        """Time passes; whoever is hosted renews."""
        self.store.advance(timedelta(seconds=seconds))
        for agent_id, record in self.store.records.items():
            self.store.renew(agent_id, record.fence)

    def started(self, agent_id: str) -> None:
        """Whoever is started in a restart comes after all that were started before it."""
        group = self.group
        if group is not None and group.phase is Phase.STARTING and agent_id in group.victims and self.is_orderly:
            for earlier in group.victims[: group.victims.index(agent_id)]:
                record = self.store.records.get(earlier)
                assert record is None or not record.held, f"{agent_id} runs before {earlier} may"

    # -- the sweep --

    def sweep(self, *, dies_after: str = "") -> None:
        """Applies what is due; the sweeper dies after it has told the group, or after it has asked a member."""
        for agent_id, due in self.store.due():
            if due.kind is Deadline.GROUP and agent_id.startswith("@"):
                if self.group is None:
                    self._arm(None)
                    continue
                self._walk(self._look(), dies=dies_after == "ask")
                if dies_after == "ask":
                    return
            elif due.kind is Deadline.GROUP:
                self._carry(agent_id, due, dies=dies_after == "tell")
                if dies_after == "tell":
                    return
            else:
                self.do(agent_id, due)

    def look_only(self) -> None:
        """A sweeper reads and is held up."""
        if self.group is not None and self.group.phase is not Phase.IDLE:
            self.stale.append(self._look())

    def act_late(self) -> None:
        """It goes on with what it read then."""
        if self.stale:
            self._walk(self.stale.pop(0), dies=False)

    def _look(self) -> StaleLook:
        group = self.known
        views: dict[str, View] = {}
        for agent_id in (*group.left, *group.victims):
            read = self.store.read(agent_id)
            view = view_of(read.record, "g", read.runtime, read.now) if read.record else None
            if view is not None:
                views[agent_id] = view
        return StaleLook(group, views)

    def _walk(self, look: StaleLook, *, dies: bool) -> None:
        step = walk(look.group, look.views, self.store.now, LIMITS)
        if step.command is not None and step.agent_id in self.store.records:
            self.do(step.agent_id, step.command)
        if dies or self.group != look.group:
            return
        self.group = step.after
        self._arm(timedelta(0) if step.goes_on else TICK if step.agent_id else None)

    def _arm(self, wait: timedelta | None) -> None:
        key: Any = ("@g", Deadline.GROUP)
        self.store.deadlines.pop(key, None)
        if wait is not None:
            self.store.deadlines[key] = Instant(self.store.now + wait // timedelta(microseconds=1))

    def _carry(self, agent_id: str, due: DeadlineDue, *, dies: bool) -> None:
        record = self.store.records.get(agent_id)
        waits = False
        if self.group is not None:
            report = Report(agent_id, since=0) if record is None else report_of(record)
            reported = take_report(self.group, report, self.store.now)
            self.group, waits = reported.after, reported.waits
            for name, count in reported.counters.items():
                self.counters[name] = self.counters.get(name, 0) + count
            if reported.begins:
                self._arm(timedelta(0))
        if dies:
            return
        if record is None:
            self.store.deadlines.pop((agent_id, Deadline.GROUP))
        elif record.held and not waits:
            self.do(agent_id, GroupGo(epoch=record.epoch))
        else:
            self.do(agent_id, due)

    def calm(self, rounds: int = 600, *, until: Callable[[], bool] | None = None) -> None:
        """Lets the worker and the sweep go on until nothing more happens, or until something is so."""
        for _ in range(rounds):
            self.sweep()
            self.work()
            self.wait(TICK.total_seconds())
            if until is not None and until():
                return

    def is_settled(self) -> bool:
        """No restart is under way, and nobody waits."""
        idle = self.group is None or self.group.phase is Phase.IDLE
        between = {AgentState.STARTING, AgentState.RESURRECTING, AgentState.STOPPING}
        return idle and not any(record.state in between for record in self.store.records.values())


__all__ = ["BEGINNING", "GroupWorld", "default_policy"]
