"""Everything that can happen to two agents: workers, operators, the sweep, lost and doubled messages, frozen processes.

The world keeps its own account of who may act, apart from fences and epochs, and compares. A move does nothing where
it is not possible, so that any order of moves is a story.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from ares_celery.clock import micros
from ares_celery.errors import (
    AgentAlreadyRegisteredError,
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    FencedError,
    OperationNotSupportedError,
    RuntimeStoppedError,
    StepsUnsettledError,
    VersionConflictError,
)
from ares_celery.ids import Epoch, Instant
from ares_celery.model.agent import AgentRecord, AgentState, Desired, Owner, RuntimeState
from ares_celery.model.command import (
    AttemptFailed,
    Command,
    Complete,
    Deadline,
    Die,
    GroupGo,
    GroupPark,
    GroupStop,
    MarkRunning,
    OwnerExited,
    Park,
    Reconcile,
    Release,
    Start,
    Wait,
)
from ares_celery.model.lifecycle import decide
from ares_celery.model.plan import Nudge, Plan, Situation
from ares_celery.model.restart import DeathCause, LifecyclePolicy
from ares_celery.model.waits import Waiting, WaitKind
from tests.property.lifecycle_actors import ASKED, Incarnation, Process, spec_of
from tests.property.lifecycle_store import Conflict, LifecycleStore

T = TypeVar("T")

#: The first agent is met more often: what goes wrong needs several things to happen to the same one.
WHOM: Final = ("a", "a", "b", "b")
#: What an operator may hear; anything else is a bug.
REFUSALS: Final = (
    AgentAlreadyRegisteredError,
    AgentNotFoundError,
    AgentNotRunningError,
    AgentParkedError,
    OperationNotSupportedError,
    RuntimeStoppedError,
    VersionConflictError,
)
BETWEEN: Final = {AgentState.STARTING, AgentState.RESURRECTING, AgentState.STOPPING}
HEARTBEAT: Final = timedelta(seconds=2)
#: Rounds of a heartbeat each; enough for the longest backoff and the longest wait between two messages.
ROUNDS: Final = 300
TIMES: Final = (0.1, 0.5, 1.0, 2.0, 2.0, 5.0, 9.0, 31.0)


@dataclass
class World:
    """Two agents, any number of processes, one store."""

    store: LifecycleStore = field(default_factory=LifecycleStore)
    processes: list[Process] = field(default_factory=lambda: [Process("p0"), Process("p1")])
    incarnations: list[Incarnation] = field(default_factory=list[Incarnation])
    #: Who claimed last and was not ended since: the only one that may write.
    owners: dict[str, Incarnation] = field(default_factory=dict[str, Incarnation])
    pending: list[tuple[str, Plan, Situation]] = field(default_factory=list[tuple[str, Plan, Situation]])
    to_reconcile: list[str] = field(default_factory=list[str])
    epochs: dict[str, int] = field(default_factory=dict[str, int])
    tokens: int = 0

    def begin(self, policies: dict[str, LifecyclePolicy], runtime: RuntimeState) -> None:
        """Both agents are started, and one worker has brought up what it could."""
        self.store.policies, self.store.runtime = policies, runtime
        for agent_id in sorted(policies):
            self.do(agent_id, Start(spec=spec_of(agent_id)))
        self.bring_up(0, 0)

    # -- the account --

    def do(self, agent_id: str, command: Command) -> Plan:
        plan = self.store.do(agent_id, command)
        self.account(agent_id)
        return plan

    def account(self, agent_id: str) -> None:
        """Whose time is over after a commit: that of an owner whose fence the record no longer shows."""
        record, owner = self.store.records.get(agent_id), self.owners.get(agent_id)
        if owner and (record is None or record.fence != owner.fence):
            del self.owners[agent_id]
        if record is None:
            self.epochs.pop(agent_id, None)
            for incarnation in self.of(agent_id):
                incarnation.orphan = True
            return
        assert record.epoch >= self.epochs.get(agent_id, 0), "epochs only rise"
        self.epochs[agent_id] = record.epoch

    def of(self, agent_id: str) -> list[Incarnation]:
        return [each for each in self.incarnations if each.agent_id == agent_id]

    def acting(self) -> list[Incarnation]:
        return [each for each in self.incarnations if each.turns]

    def healthy(self) -> list[Process]:
        return [each for each in self.processes if each.turns]

    def say(self, incarnation: Incarnation, command: Command) -> None:
        """An incarnation speaks; only the owner is heard."""
        owner = self.owners.get(incarnation.agent_id)
        try:
            self.do(incarnation.agent_id, command)
        except FencedError:
            assert owner is not incarnation, "the owner was refused"
            incarnation.over = True
        except StepsUnsettledError:
            assert owner is incarnation
            assert self.store.intents(incarnation.agent_id)
            self.park(incarnation)
        else:
            assert owner is incarnation, f"{command} of an incarnation that is over was accepted"

    def park(self, incarnation: Incarnation) -> None:
        """It has to, as nobody knows what became of a step; perhaps the step comes to its end just now."""
        if incarnation.open_steps > 1 and self.store.end_step(incarnation.agent_id, incarnation.fence):
            incarnation.open_steps -= 1
        self.say(incarnation, Park("look what happened", fence=incarnation.fence, cause="reconcile"))
        incarnation.over = True

    # -- workers --

    def deliver(self, who: int, how: int) -> None:
        """One message arrives; perhaps once more later."""
        nudge = pick(self.store.messages, who)
        host = pick(self.healthy(), how)
        if nudge and host:
            if how % 3:
                self.store.messages.remove(nudge)
            self.claim(nudge, host)

    def bring_up(self, who: int, _how: int) -> None:
        """A free worker takes all messages and brings what it gets to its own code."""
        host = pick(self.healthy(), who)
        if host is None:
            return
        messages, self.store.messages = self.store.messages, []
        for nudge in messages:
            self.claim(nudge, host)
        for incarnation in self.acting():
            if incarnation.process is host and incarnation.recovering:
                self.step(incarnation)

    def claim(self, nudge: Nudge, process: Process) -> None:
        self.tokens += 1
        agent_id = nudge.agent_id
        owner = Owner(process.identity, f"w@{process.identity}", f"t{self.tokens}")
        try:
            fence = self.store.claim(agent_id, nudge.epoch, f"k{self.tokens}", owner)
        except FencedError:
            return
        assert agent_id not in self.owners, "claimed while somebody owns it"
        until = Instant(self.store.now + micros(self.store.policy(agent_id).lease_ttl))
        incarnation = Incarnation(agent_id, fence, process, until)
        self.incarnations.append(incarnation)
        self.owners[agent_id] = incarnation
        self.account(agent_id)

    def lose_message(self, who: int, _how: int) -> None:
        nudge = pick(self.store.messages, who)
        if nudge:
            self.store.messages.remove(nudge)

    def go_on(self, who: int, _how: int) -> None:
        """The runner's next step: it obeys a request, begins, or writes."""
        incarnation = pick(self.acting(), who)
        if incarnation:
            self.step(incarnation)

    def all_go_on(self, _who: int, _how: int) -> None:
        for incarnation in self.acting():
            self.step(incarnation)

    def step(self, incarnation: Incarnation) -> None:
        record = self.store.records.get(incarnation.agent_id)
        if record and record.request and record.fence == incarnation.fence:
            self.say(incarnation, Release(fence=incarnation.fence))
            incarnation.over = True
        elif incarnation.recovering:
            self.say(incarnation, MarkRunning(fence=incarnation.fence))
            incarnation.recovering = False
        elif incarnation.open_steps % 2:
            self.end_step(incarnation)
        else:
            self.write(incarnation)

    def write(self, incarnation: Incarnation) -> None:
        accepted = self.store.accepts(incarnation.agent_id, incarnation.fence)
        assert accepted == (self.owners.get(incarnation.agent_id) is incarnation), (
            "exactly the owner's writes are stored"
        )
        incarnation.over = not accepted

    def begin_step(self, who: int, _how: int) -> None:
        """A step begins that is never repeated: at most once for each intent that is stored."""
        incarnation = pick(self.acting(), who)
        if incarnation and not incarnation.recovering:
            accepted = self.store.begin_step(incarnation.agent_id, incarnation.fence)
            assert accepted == (self.owners.get(incarnation.agent_id) is incarnation)
            incarnation.open_steps += accepted
            incarnation.over = not accepted

    def end_step(self, incarnation: Incarnation) -> None:
        accepted = self.store.end_step(incarnation.agent_id, incarnation.fence)
        assert accepted == (self.owners.get(incarnation.agent_id) is incarnation)
        incarnation.open_steps -= accepted
        incarnation.over = not accepted

    def end(self, who: int, how: int) -> None:
        """An incarnation ends, by itself or by its code; one that crashes may do so unseen."""
        incarnation = pick(self.acting(), who)
        if incarnation is None:
            return
        fence = incarnation.fence
        endings: tuple[Command | None, ...] = (
            Release(fence=fence),
            Complete(fence=fence),
            Park("ask a person", fence=fence, cause="manual"),
            AttemptFailed("no", fence=fence),
            AttemptFailed("no", fence=fence),
            None,
        )
        said = endings[how % len(endings)]
        if said:
            self.say(incarnation, said)
        incarnation.over = True

    def wait(self, who: int, how: int) -> None:
        """An incarnation gives its slot back, for a time or a person; perhaps somebody decides before it is heard."""
        incarnation = pick(self.acting(), who)
        record = self.store.records.get(incarnation.agent_id) if incarnation else None
        if incarnation is None or record is None:
            return
        until = Instant(self.store.now + micros(timedelta(seconds=TIMES[how % len(TIMES)])))
        timer, asked = Waiting(until=until, sleeps=1), Waiting(WaitKind.APPROVAL, "q", decisions=record.decisions)
        if how % 5 == 4:
            self.store.decide(incarnation.agent_id)
        was_owner = self.owners.get(incarnation.agent_id) is incarnation
        self.say(incarnation, Wait(fence=incarnation.fence, waiting=timer if how % 2 else asked))
        incarnation.over = True
        if how % 10 == 4 and was_owner and self.store.runtime is RuntimeState.RUNNING:
            assert self.store.records[incarnation.agent_id].state is not AgentState.WAITING, "a decision was missed"

    def answer(self, who: int, _how: int) -> None:
        """A person decides."""
        agent_id = WHOM[who % len(WHOM)]
        if agent_id in self.store.records:
            self.store.decide(agent_id)

    def crash(self, who: int, _how: int) -> None:
        incarnation = pick(self.acting(), who)
        if incarnation:
            incarnation.over = True
            if incarnation.agent_id not in self.store.records:
                return
            try:
                self.do(incarnation.agent_id, Die("boom", epoch=incarnation.epoch, proof=True, itself=True))
            except StepsUnsettledError:
                self.park(incarnation)

    def renew(self, who: int, _how: int) -> None:
        host = pick(self.healthy(), who)
        if host:
            self.heartbeat(host)

    def heartbeat(self, process: Process) -> None:
        for incarnation in self.incarnations:
            if incarnation.process is process and not incarnation.over:
                incarnation.lease_until = self.store.renew(incarnation.agent_id, incarnation.fence)
                incarnation.over = not incarnation.lease_until

    def kill(self, who: int, _how: int) -> None:
        victim = pick(self.healthy(), who)
        if victim:
            victim.alive = False
            self.new_process()

    def lose_touch(self, who: int, how: int) -> None:
        """A process stands still; perhaps beyond its leases, so that the sweep takes them for lost."""
        incarnation = pick(self.acting(), who)
        if incarnation:
            incarnation.process.frozen = True
            self.new_process()
            if how % 2:
                self.store.advance(timedelta(seconds=9))
                self.sweep(0, 0)

    def thaw(self, _who: int, _how: int) -> None:
        for process in self.processes:
            process.frozen = False

    def new_process(self) -> None:
        self.processes.append(Process(f"p{len(self.processes)}"))

    def notice_exits(self, _who: int, how: int) -> None:
        cause = DeathCause.LOST if how % 2 else DeathCause.CO_TENANT
        for process in self.processes:
            if not process.alive and not process.noticed:
                process.noticed = True
                for agent_id in sorted(self.store.hosts[process.identity]):
                    self.do(agent_id, OwnerExited(identity=process.identity, cause=cause))

    # -- supervision --

    def let_time_pass(self, who: int, _how: int) -> None:
        self.store.advance(timedelta(seconds=TIMES[who % len(TIMES)]))

    def let_a_minute_pass(self, _who: int, _how: int) -> None:
        """With heartbeats: longer than any start may take and than any wait."""
        for _ in range(31):
            for process in self.healthy():
                self.heartbeat(process)
            self.store.advance(HEARTBEAT)

    def sweep(self, _who: int, how: int) -> None:
        """The group of an agent that waits for it lets it go on in the end, at times it has it ask again."""
        for agent_id, command in self.store.due():
            record = self.store.records.get(agent_id)
            lets_go = command.kind is Deadline.GROUP and record is not None and record.held and how % 4
            try:
                self.do(agent_id, GroupGo(epoch=record.epoch) if record and lets_go else command)
            except Conflict:
                continue

    def suspect(self, who: int, how: int) -> None:
        """A report of death without proof, of the one now alive, of the current epoch, or of an older one."""
        agent_id = WHOM[who % len(WHOM)]
        record = self.store.records.get(agent_id)
        if record:
            epoch = (None, record.epoch, Epoch(record.epoch - 1))[how % 3]
            self.do(agent_id, Die("is_alive said no", epoch=epoch, cause=DeathCause.UNHEALTHY))

    def group_asks(self, who: int, how: int) -> None:
        """The walk of a group's restart, perhaps of a sweeper that looked long ago."""
        agent_id = WHOM[who % len(WHOM)]
        record = self.store.records.get(agent_id)
        if record:
            epoch = record.epoch if how % 3 else Epoch(record.epoch - 1)
            kinds = (GroupStop("g", epoch=epoch), GroupStop("g", epoch=epoch), GroupGo(epoch=epoch))
            self.do(agent_id, GroupPark("g", epoch=epoch) if how % 11 == 10 else kinds[how % len(kinds)])

    # -- operators --

    def ask(self, who: int, how: int) -> None:
        agent_id = WHOM[who % len(WHOM)]
        try:
            self.do(agent_id, ASKED[how % len(ASKED)](agent_id))
        except REFUSALS as refusal:
            assert "?" not in str(refusal)  # noqa: PT017 - any of them may come

    def settle(self, who: int, how: int) -> None:
        """Somebody says what became of a step, and lives long enough to let the agent go on, or does not."""
        agent_id = WHOM[who % len(WHOM)]
        if self.store.settle(agent_id) and how % 2:
            self.do(agent_id, Reconcile())

    def ponder(self, who: int, how: int) -> None:
        """Somebody reads and decides, and commits much later."""
        agent_id = WHOM[who % len(WHOM)]
        read = self.store.read(agent_id)
        try:
            plan = decide(read, ASKED[how % len(ASKED)](agent_id), agent_id=agent_id)
        except REFUSALS:
            return
        self.pending.append((agent_id, plan, read))

    def conclude(self, _who: int, _how: int) -> None:
        if not self.pending:
            return
        agent_id, plan, read = self.pending.pop(0)
        try:
            self.store.commit(agent_id, plan, read)
        except Conflict:
            return
        self.account(agent_id)

    def set_runtime(self, _who: int, how: int) -> None:
        """Every agent has to agree with it; one after the other."""
        self.store.runtime = RuntimeState.STOPPED if how % 4 == 0 else RuntimeState.RUNNING
        self.to_reconcile = list(self.store.records)

    def reconcile(self, _who: int, _how: int) -> None:
        if self.to_reconcile:
            self.do(self.to_reconcile.pop(), Reconcile())

    # -- what always holds --

    def check(self) -> None:
        """At most one incarnation of an agent may act, and the record shows the fence of the last one let in."""
        for agent_id in set(WHOM):
            acting = [each.fence for each in self.of(agent_id) if each.may_act(self.store.now)]
            assert len(acting) <= 1, f"{agent_id}: {acting}"
        for agent_id, record in self.store.records.items():
            owner = self.owners.get(agent_id)
            assert record.fence == (owner.fence if owner else "")

    # -- what holds once the world is calm --

    def calm_down(self) -> None:
        """With healthy workers, every wish comes true and every death has its end."""
        self.thaw(0, 0)
        self.notice_exits(0, 1)
        self.processes.append(Process("last"))
        while self.to_reconcile:
            self.reconcile(0, 0)
        for _ in range(ROUNDS):
            self.calm_round()
            if self.is_calm():
                break
        for agent_id, record in self.store.records.items():
            self.assert_wish_came_true(agent_id, record)

    def calm_round(self) -> None:
        for process in self.healthy():
            self.heartbeat(process)
        self.bring_up(-1, 0)
        self.all_go_on(0, 0)
        for agent_id in [one.id for one in self.store.records.values() if one.state is AgentState.WAITING]:
            self.store.decide(agent_id)
        self.store.advance(HEARTBEAT)
        self.sweep(0, 1)
        self.check()

    def is_calm(self) -> bool:
        hosted = {each.agent_id for each in self.acting() if self.owners.get(each.agent_id) is each}
        return not any(
            record.state in {*BETWEEN, AgentState.WAITING}
            or (record.state is AgentState.RUNNING and record.id not in hosted)
            for record in self.store.records.values()
        )

    def assert_wish_came_true(self, agent_id: str, record: AgentRecord) -> None:
        assert record.state not in BETWEEN, f"{agent_id} stays {record.state}"
        assert not record.failover, "a failover without an end"
        runs = record.state is AgentState.RUNNING
        if record.desired is Desired.RUNNING and self.store.runtime is RuntimeState.RUNNING:
            assert runs or record.state is AgentState.PARKED
            assert runs or record.cause != "reconcile" or record.intents, "all is settled, and it does not go on"
        else:
            assert not runs
            assert not record.hosted


def pick(things: Sequence[T], number: int) -> T | None:
    """One of them; None where there is none."""
    return things[number % len(things)] if things else None


Move = Callable[[World, int, int], None]
#: Who makes which moves, each as often as it stands here.
WORKERS: Final[tuple[Move, ...]] = (
    *[World.bring_up] * 4,
    *[World.all_go_on] * 2,
    *[World.renew] * 2,
    *[World.deliver] * 3,
    World.go_on,
    *[World.begin_step] * 2,
    World.end,
    World.wait,
    World.crash,
)
FATE: Final[tuple[Move, ...]] = (
    *[World.lose_touch] * 2,
    *[World.thaw] * 2,
    World.kill,
    World.lose_message,
)
SUPERVISION: Final[tuple[Move, ...]] = (
    *[World.let_time_pass] * 3,
    *[World.sweep] * 3,
    World.let_a_minute_pass,
    World.notice_exits,
    World.suspect,
    World.group_asks,
)
OPERATORS: Final[tuple[Move, ...]] = (
    *[World.ask] * 8,
    *[World.reconcile] * 2,
    World.answer,
    World.settle,
    World.ponder,
    World.conclude,
    World.set_runtime,
)
