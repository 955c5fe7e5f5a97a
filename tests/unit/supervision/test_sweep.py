"""The sweep applies what is due, judges leases with care, and survives what goes wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from ares_celery.config import RuntimeConfig
from ares_celery.errors import UnreadableRecordError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import AgentSpec, AgentState, Desired, Owner, RuntimeState
from ares_celery.model.command import Deadline, DeadlineDue, Reconcile
from ares_celery.model.restart import Suspicion
from ares_celery.runtime.process_identity import ProcessIdentity
from ares_celery.supervision import sweep
from ares_celery.supervision.contact import ContactWindow
from ares_celery.supervision.health import Liveness, check_health, judge_liveness
from ares_celery.supervision.sweep import RUNTIME_MEMBER, Sweeper
from ares_celery.supervision.sweep_thread import SweepThread
from tests.unit.supervision.fakes import FakeCommitter, FakeStore, ManualClock, deadline, record_of

CONFIG = RuntimeConfig(heartbeat_interval=timedelta(seconds=1), lease_ttl=timedelta(seconds=4))
ME = ProcessIdentity("here", "boot", 1, 10, 100)


class World:
    """One sweeper over a fake store, with its contact window."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FakeStore(self.clock)
        self.committer = FakeCommitter(self.store)
        self.contact = ContactWindow(CONFIG.lease_ttl)
        store, committer = cast("Any", self.store), cast("Any", self.committer)
        self.sweeper = Sweeper(store, committer, CONFIG, contact=self.contact, clock=self.clock)
        self.thread = SweepThread(store, committer, CONFIG, ME, clock=self.clock)

    def keep_contact(self) -> None:
        """Speaks with the store for longer than a lease."""
        for _ in range(11):
            self.contact.sample(self.clock.server(), self.clock.monotonic())
            self.clock.advance(0.5)

    def host(self, identity: str, worker: str, *agent_ids: str, left: float = -0.5) -> None:
        """Agents of one process whose leases end in ``left`` seconds."""
        for agent_id in agent_ids:
            self.store.records[agent_id] = record_of(agent_id, Owner(identity, worker, "task"))
            self.store.lease_until[agent_id] = self.clock.server() + round(left * 1_000_000)
        self.store.reported[identity] = worker


@pytest.fixture
def world() -> World:
    """A world where time stands still."""
    return World()


def test_every_kind_of_deadline_is_applied_with_its_score_as_guard(world: World) -> None:
    """What must happen by a time happens."""
    kinds = [Deadline.NUDGE, Deadline.ATTEMPT, Deadline.STOP, Deadline.RECONCILE]
    world.store.waiting = [deadline(kind, f"a-{kind}") for kind in kinds]
    report = world.sweeper.sweep_once(judge_leases=False)
    assert report.applied == 4
    assert [kind for _, kind, _ in world.committer.due()] == kinds
    assert world.store.waiting == []


def test_a_lease_is_withheld_until_contact_was_unbroken(world: World) -> None:
    """The owner may only be waiting for the same store."""
    world.host("p1", "w1", "a")
    world.store.waiting = [deadline(Deadline.LEASE, "a")]
    assert world.sweeper.sweep_once(judge_leases=True).withheld == 1
    world.keep_contact()
    report = world.sweeper.sweep_once(judge_leases=True)
    assert (report.withheld, world.committer.due()) == (0, [("a", Deadline.LEASE, 1)])


@pytest.mark.parametrize("allowed", [2.0, 7.0])
def test_a_try_to_recover_has_all_its_time_with_the_store_at_hand(allowed: float, world: World) -> None:
    """What an outage took is given back: the verdict comes when contact was unbroken for as long as it may take."""
    world.keep_contact()
    world.host("p1", "w1", "a")
    due = world.clock.server()
    claimed = Instant(due - round(allowed * 1_000_000))
    world.store.records["a"] = replace(world.store.records["a"], claimed_at=claimed)
    world.store.waiting = [deadline(Deadline.HANG, "a", due)]
    world.contact.reset()
    for _ in range(round(allowed / 0.5)):
        assert world.sweeper.sweep_once(judge_leases=True).withheld == 1
        assert world.committer.due() == []
        world.clock.advance(0.5)
    assert world.sweeper.sweep_once(judge_leases=True).withheld == 0
    assert world.committer.due() == [("a", Deadline.HANG, 1)]


def test_a_try_that_hangs_is_judged_at_once_while_contact_is_unbroken(world: World) -> None:
    """Without an outage nothing is put off."""
    world.host("p1", "w1", "a")
    world.store.records["a"] = replace(world.store.records["a"], claimed_at=world.clock.server())
    world.keep_contact()
    world.store.waiting = [deadline(Deadline.HANG, "a", world.clock.server() - 1_000_000)]
    assert world.sweeper.sweep_once(judge_leases=True).applied == 1


def test_a_stop_is_not_put_off_by_an_outage(world: World) -> None:
    """It is a wish with a bound, and charges nobody."""
    world.host("p1", "w1", "a")
    world.store.waiting = [deadline(Deadline.STOP, "a")]
    assert world.sweeper.sweep_once(judge_leases=True).applied == 1


def nudges(world: World) -> list[tuple[str, bool]]:
    """Who was looked at, and whether its queue held messages enough."""
    return [
        (agent_id, command.crowded) for agent_id, command in world.committer.applied if isinstance(command, DeadlineDue)
    ]


@pytest.mark.parametrize(
    ("held", "sent"),
    [(None, 4), (0, 4), (1, 4), (4, 4), (6, 2), (8, 0), (900, 0)],
    ids=["unknown", "empty", "one", "one each", "room for two", "full", "overfull"],
)
def test_a_queue_takes_two_messages_for_each_waiting_agent_at_most(held: int | None, sent: int, world: World) -> None:
    """While no slot is free more messages help nobody; an empty queue has lost them all."""
    names = [f"a-{number}" for number in range(4)]
    for name in names:
        world.store.records[name] = record_of(name, state=AgentState.STARTING)
    world.store.waiting = [deadline(Deadline.NUDGE, name) for name in names]
    if held is not None:
        world.committer.queues["agents"] = held
    world.sweeper.sweep_once(judge_leases=False)
    assert nudges(world) == [(name, number >= sent) for number, name in enumerate(names)]


def test_one_full_queue_does_not_hold_back_another(world: World) -> None:
    """Each has workers of its own."""
    for name, queue in (("a", None), ("b", "gpu")):
        record = record_of(name, state=AgentState.STARTING)
        world.store.records[name] = replace(record, spec=AgentSpec(id=name, type="t", queue=queue))
    world.store.waiting = [deadline(Deadline.NUDGE, "a"), deadline(Deadline.NUDGE, "b")]
    world.committer.queues = {"agents": 4, "gpu": 0}
    world.sweeper.sweep_once(judge_leases=False)
    assert nudges(world) == [("a", True), ("b", False)]


def test_an_unreadable_record_is_named_without_a_traceback(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """And not at every sweep."""
    world.committer.fails["bad"] = UnreadableRecordError(agent_id="bad", problem="no hash")
    world.store.waiting = [deadline(Deadline.STOP, "bad"), deadline(Deadline.STOP, "good")]
    for _ in range(3):
        world.sweeper.sweep_once(judge_leases=True)
    assert [agent_id for agent_id, _ in world.committer.applied] == ["good"]
    said = [record for record in caplog.records if "'bad'" in record.getMessage()]
    assert [record.exc_info for record in said] == [None]


def test_a_single_look_never_judges(world: World) -> None:
    """ares.health_check has no history of contact."""
    world.keep_contact()
    world.host("p1", "w1", "a")
    world.store.waiting = [deadline(Deadline.LEASE, "a")]
    assert world.sweeper.sweep_once(judge_leases=False).withheld == 1
    assert world.committer.applied == []


def test_leases_of_one_process_that_ran_out_together_are_co_tenants(world: World) -> None:
    """The one that runs out a moment later counts, and is judged like the others in its turn."""
    world.keep_contact()
    world.host("p1", "w1", "a", "b")
    world.host("p1", "w1", "c", left=0.2)
    world.host("p2", "w2", "d")
    world.store.waiting = [deadline(Deadline.LEASE, name) for name in ("a", "b", "d")]
    world.sweeper.sweep_once(judge_leases=True)
    assert {name: tenants for name, _, tenants in world.committer.due()} == {"a": 3, "b": 3, "d": 1}

    del world.store.records["a"], world.store.records["b"]
    world.store.waiting = [deadline(Deadline.LEASE, "c")]
    world.sweeper.sweep_once(judge_leases=True)
    assert world.committer.due()[-1] == ("c", Deadline.LEASE, 3)


def lose(world: World, losses: dict[str, int], *, identities: dict[str, str]) -> dict[str, Suspicion]:
    """Agents whose leases ran out together, lost together so often before; who is suspected."""
    world.keep_contact()
    now = world.clock.server()
    for agent_id, count in losses.items():
        world.host(identities.get(agent_id, "p1"), "w1", agent_id)
        record = world.store.records[agent_id]
        world.store.records[agent_id] = replace(record, lost_together=(Instant(now - 1),) * count)
    world.store.waiting = [deadline(Deadline.LEASE, agent_id) for agent_id in losses]
    world.sweeper.sweep_once(judge_leases=True)
    return {one: command.suspicion for one, command in world.committer.applied if isinstance(command, DeadlineDue)}


def test_who_was_lost_with_others_most_often_is_suspected(world: World) -> None:
    """A straggler of the same process is judged like the first."""
    world.host("p1", "w1", "late", left=0.2)
    found = lose(world, {"a": 2, "b": 3}, identities={})
    assert found == {"a": Suspicion.NONE, "b": Suspicion.PRIME}
    del world.store.records["a"], world.store.records["b"]
    world.store.waiting = [deadline(Deadline.LEASE, "late")]
    world.sweeper.sweep_once(judge_leases=True)
    assert [command.suspicion for one, command in world.committer.applied if one == "late"] == [Suspicion.NONE]  # type: ignore[attr-defined]


def test_nobody_is_suspected_of_the_loss_of_several_processes(world: World) -> None:
    """Whatever ended the worker, it was outside of them."""
    found = lose(world, {"a": 3, "b": 2}, identities={"b": "p2"})
    assert found == {"a": Suspicion.NONE, "b": Suspicion.NONE}


def test_pool_children_of_one_lost_worker_are_co_tenants(world: World) -> None:
    """Each hosted one agent; the loss is that of their worker."""
    world.keep_contact()
    world.host("child-1", "w1", "a")
    world.host("child-2", "w1", "b")
    world.store.waiting = [deadline(Deadline.LEASE, "a")]
    world.sweeper.sweep_once(judge_leases=True)
    assert world.committer.due() == [("a", Deadline.LEASE, 2)]


def test_one_lost_pool_child_is_alone_while_its_siblings_renew(world: World) -> None:
    """Their leases are fresh."""
    world.keep_contact()
    world.host("child-1", "w1", "a")
    world.host("child-2", "w1", "b", left=3.5)
    world.store.waiting = [deadline(Deadline.LEASE, "a")]
    world.sweeper.sweep_once(judge_leases=True)
    assert world.committer.due() == [("a", Deadline.LEASE, 1)]


def test_one_failing_agent_never_keeps_the_others_from_their_deadlines(world: World) -> None:
    """It is tried again later and later, not at every sweep."""
    world.committer.fails["bad"] = RuntimeError("bug")
    world.store.waiting = [deadline(Deadline.NUDGE, "bad"), deadline(Deadline.NUDGE, "good")]
    report = world.sweeper.sweep_once(judge_leases=False)
    assert (report.failed, report.applied) == (1, 1)
    del world.committer.fails["bad"]
    assert world.sweeper.sweep_once(judge_leases=False).failed == 1, "put off"
    world.clock.advance(1.1)
    assert world.sweeper.sweep_once(judge_leases=False).applied == 1


def test_a_group_that_cannot_be_read_keeps_nobody_else_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is tried again later and later."""

    def broken(name: str) -> None:
        raise ValueError(f"group {name} is no JSON")

    monkeypatch.setattr(world.store, "read_group", broken, raising=False)
    world.store.waiting = [deadline(Deadline.GROUP, "@g"), deadline(Deadline.STOP, "good")]
    reports = [world.sweeper.sweep_once(judge_leases=True) for _ in range(3)]
    assert [agent_id for agent_id, _ in world.committer.applied] == ["good"]
    assert [(report.applied, report.failed) for report in reports] == [(1, 1), (0, 1), (0, 1)]
    assert sum("could not be applied" in line for line in caplog.messages) == 1


def test_kinds_of_later_versions_stay_and_are_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Left as they are; no hot loop, no flood of lines."""
    monkeypatch.setattr(sweep, "_KNOWN", frozenset({Deadline.STOP}))
    world.store.waiting = [deadline(Deadline.TIMER, "a"), deadline(Deadline.APPROVAL, "a")]
    reports = [world.sweeper.sweep_once(judge_leases=False) for _ in range(5)]
    assert [(report.unknown, report.more) for report in reports] == [(2, False)] * 5
    assert sum("does not handle" in line for line in caplog.messages) == 2
    assert len(world.store.waiting) == 2


def test_what_stays_due_does_not_hide_what_lies_behind_it(world: World) -> None:
    """A page full of leases that may not be judged yet grows until the nudge behind them is seen."""
    world.store.waiting = [deadline(Deadline.LEASE, f"a{n}") for n in range(150)] + [deadline(Deadline.NUDGE, "late")]
    first = world.sweeper.sweep_once(judge_leases=False)
    assert first.more
    world.sweeper.sweep_once(judge_leases=False)
    assert ("late", Deadline.NUDGE, 1) in world.committer.due()


def test_an_unfinished_change_of_the_runtime_is_finished(world: World) -> None:
    """Its author died between the home shard and the others."""
    world.store.waiting = [deadline(Deadline.RECONCILE, RUNTIME_MEMBER)]
    world.sweeper.sweep_once(judge_leases=False)
    assert (world.store.copied, world.committer.applied) == (1, [])


def test_the_report_says_how_long_to_sleep(world: World) -> None:
    """Until the earliest deadline."""
    world.store.next_in = 0.125
    assert world.sweeper.sweep_once(judge_leases=False).next_in == timedelta(milliseconds=125)


# -- the thread --------------------------------------------------------------------------------------------------------


def test_the_elected_sleeps_until_the_earliest_deadline_and_never_longer_than_its_interval(world: World) -> None:
    """0.25 s at most."""
    world.thread.turn()
    assert world.thread.turn() == pytest.approx(0.25)
    world.store.next_in = 0.1
    assert world.thread.turn() == pytest.approx(0.1)
    assert world.store.sweeps == 3


def test_the_others_only_look_and_keep_contact(world: World) -> None:
    """When the elected one dies they may judge at once."""
    world.store.elected = False
    world.host("p1", "w1", "a")
    world.store.waiting = [deadline(Deadline.LEASE, "a")]
    for _ in range(12):
        world.clock.advance(world.thread.turn())
    assert world.store.limits == []
    world.store.elected = True
    world.thread.turn()
    assert world.committer.due() == [("a", Deadline.LEASE, 1)]


def test_a_sweep_that_is_overdue_is_done_by_whoever_sees_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The elected one keeps its place and is stuck."""
    world.store.elected = False
    world.store.sweep_age = 60_000
    world.store.waiting = [deadline(Deadline.NUDGE, "a")]
    world.thread.turn()
    assert world.committer.due() == [("a", Deadline.NUDGE, 1)]
    assert "although a sweeper is elected" in caplog.text


def test_an_outage_is_survived_and_begins_contact_anew(world: World) -> None:
    """Leases that ran out meanwhile are not judged right after it."""
    for _ in range(30):
        world.clock.advance(world.thread.turn())
    world.store.away = True
    world.host("p1", "w1", "a")
    world.store.waiting = [deadline(Deadline.LEASE, "a")]
    for _ in range(4):
        world.clock.advance(world.thread.turn())
    world.store.away = False
    world.clock.advance(world.thread.turn())
    assert world.committer.due() == []
    for _ in range(30):
        world.clock.advance(world.thread.turn())
    assert world.committer.due() == [("a", Deadline.LEASE, 1)]


def test_a_changed_runtime_is_brought_to_every_agent_whoever_changed_it(world: World) -> None:
    """Page by page, and once for each change."""
    for number in range(450):
        world.store.records[f"a{number:03}"] = record_of(f"a{number:03}", state=AgentState.STOPPED)
    world.store.records["off"] = record_of("off", state=AgentState.STOPPED, desired=Desired.STOPPED)
    world.store.records["up"] = record_of("up")
    pauses = [world.thread.turn() for _ in range(3)]
    assert pauses[:2] == [0.0, 0.0]
    assert {name for name, _ in world.committer.applied} == {f"a{number:03}" for number in range(450)}

    world.committer.applied.clear()
    world.store.runtime_state, world.store.generation = RuntimeState.STOPPED, 2
    world.clock.advance(2)
    for _ in range(4):
        world.thread.turn()
    assert [(name, type(command)) for name, command in world.committer.applied] == [("up", Reconcile)]


# -- health ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "expected"), [(3.0, Liveness.ALIVE), (1.0, Liveness.SILENT), (-0.1, Liveness.EXPIRED)]
)
def test_the_lease_says_whether_an_owner_is_heard_of(left: float, expected: Liveness, world: World) -> None:
    """Silent is not dead: only a judged lease is."""
    world.host("p1", "w1", "a", left=left)
    assert judge_liveness(world.store.read(AgentId("a")), CONFIG) is expected
    assert judge_liveness(world.store.read(AgentId("nobody")), CONFIG) is Liveness.UNHOSTED


def test_a_health_check_sweeps_and_says_how_the_namespace_is(world: World) -> None:
    """Beat's alarm clock does the work of a sweep, but for leases."""
    store = cast("Any", world.store)
    store.count_by_state = lambda: {AgentState.RUNNING: 2}
    world.store.sweep_age = 77
    world.store.waiting = [deadline(Deadline.NUDGE, "a")]
    health = check_health(store, Sweeper(store, cast("Any", world.committer), CONFIG))
    assert (health.agents, health.sweep_age_ms, health.applied) == ({"running": 2}, 77, 1)
