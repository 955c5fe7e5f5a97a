"""What an agent's life has to do with those that it spawned, and with the one that spawned it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ares_celery.errors import RuntimeStoppedError
from ares_celery.model.agent import AgentSpec, AgentState, Desired, RuntimeState
from ares_celery.model.audit import note_of
from ares_celery.model.birth import Birth
from ares_celery.model.command import Complete, Deadline, DeadlineDue, Pause, Restart, Spawn, Start, Stop, Update
from ares_celery.model.plan import Plan
from tests.unit.model.life import ID, Life

SPEC = AgentSpec(id=ID, type="counter", parent="p")
BIRTH = Birth("call-1", 1, 0, 0, reports=True)
SPAWN = Spawn(actor="agent p", spec=SPEC, birth=BIRTH, root="top")


def born(**changes: Any) -> Life:
    """A child that runs; with other fields of its record."""
    life = Life()
    life.do(SPAWN)
    life.run()
    if changes:
        life.store.records[ID] = replace(life.record, **changes)
    return life


def test_a_birth_is_looked_after_at_once_and_audited() -> None:
    """Its parent may have been stopped by somebody who could not see it yet."""
    life = Life()
    plan = life.do(SPAWN)
    assert plan.nudge
    assert plan.deadlines[Deadline.CHILDREN] == life.store.now
    assert (life.state, life.record.root, life.record.birth) == (AgentState.STARTING, "top", BIRTH)
    note = note_of(plan, "op")
    assert note is not None
    assert (note.operation, note.actor) == ("spawn", "agent p")
    life.run()
    assert life.told() == ["agent.started(spawn)"]


def test_one_of_a_parent_that_stops_is_born_stopped_also_where_nothing_starts() -> None:
    """It never is claimable, and nobody is told of its end."""
    for runtime in (RuntimeState.RUNNING, RuntimeState.STOPPED):
        life = Life(runtime=runtime)
        plan = life.do(replace(SPAWN, stillborn=True))
        assert not plan.nudge
        assert not plan.deadlines
        assert (life.state, life.record.desired, life.record.reason) == ("stopped", "stopped", "parent_stopped")
        assert life.told() == ["agent.stopped(parent_stopped)"]


def test_nothing_is_spawned_in_a_stopped_runtime() -> None:
    """A new one as little as one that rests."""
    with pytest.raises(RuntimeStoppedError):
        Life(runtime=RuntimeState.STOPPED).do(SPAWN)


def test_a_repeat_of_a_birth_is_recognised_for_ever() -> None:
    """By the call that is kept in the record, whatever the agent does since: no operation id lives as long."""
    life = born()
    assert life.do(SPAWN).ignored == "spawned already"
    life.do(Stop())
    life.release()
    assert life.do(SPAWN).ignored == "spawned already"
    assert life.state is AgentState.STOPPED


def test_another_call_starts_one_that_rests_and_counts_from_zero() -> None:
    """With the new call's spec; so does the same call of a parent that was started anew."""
    for birth in (replace(BIRTH, key="call-2", number=2), replace(BIRTH, starts=1)):
        life = born(restarts=3, charged=2)
        life.do(Complete(fence=life.record.fence, result="1"))
        spec = SPEC.model_copy(update={"config": {"step": 2}})
        plan = life.do(replace(SPAWN, spec=spec, birth=birth))
        assert plan.nudge
        record = life.record
        assert (record.state, record.spec, record.birth, record.result) == (AgentState.STARTING, spec, birth, "")
        assert (record.restarts, record.charged, record.starts) == (0, 0, 1)


def test_a_stop_of_an_agent_with_children_arms_the_cascade_and_counts() -> None:
    """Asked, forced, called off or resting: always; without children never."""
    ways: list[tuple[Callable[[Life], object], Stop]] = [
        (lambda _: None, Stop()),
        (lambda _: None, Stop(force=True)),
        (lambda life: life.crash(), Stop()),
        (lambda life: life.do(Complete(fence=life.record.fence)), Stop()),
    ]
    for before, stop in ways:
        for children in (0, 2):
            life = born(children=children)
            before(life)
            plan = life.do(stop)
            assert (plan.deadlines.get(Deadline.CHILDREN) == life.store.now) is bool(children), (stop, children)
            assert life.record.stops == bool(children)


def test_a_repeated_stop_of_one_that_ends_counts_once() -> None:
    """The cascade of the first one goes on."""
    life = born(children=1)
    life.do(Stop())
    assert life.do(Stop()).ignored == "stopping already"
    assert life.record.stops == 1


@pytest.mark.parametrize("wish", [Pause(), Restart()])
def test_nothing_but_a_stop_reaches_the_children(wish: Pause | Restart) -> None:
    """They are agents of their own."""
    life = born(children=1)
    plan = life.do(wish)
    assert Deadline.CHILDREN not in plan.deadlines
    assert life.record.stops == 0


def test_a_completion_leaves_the_children_alone() -> None:
    """And the one that completed is told to its own parent."""
    life = born(children=1)
    plan = life.do(Complete(fence=life.record.fence))
    assert Deadline.CHILDREN not in plan.deadlines
    assert plan.deadlines[Deadline.REPORT] == life.store.now


def reported(plan: Plan) -> bool:
    """The plan has somebody told."""
    return plan.deadlines.get(Deadline.REPORT) is not None


def test_each_end_for_good_is_reported_once_and_no_other() -> None:
    """A stop when it has ended, not when it is asked; a pause, an update at rest: not at all."""
    life = born()
    assert not reported(life.do(Pause()))
    life.release()
    assert reported(life.do(Stop()))
    assert not reported(life.do(Update(config={"step": 3})))
    assert not reported(life.do(Start()))
    life.run()
    assert not reported(life.do(Stop()))
    assert reported(life.release())
    silent = born(birth=replace(BIRTH, reports=False))
    assert not reported(silent.do(Complete(fence=silent.record.fence)))


def test_a_shutdown_is_no_end_to_report() -> None:
    """The agent goes on with the runtime."""
    life = born()
    life.store.runtime = RuntimeState.STOPPED
    plan = life.release()
    assert (life.state, life.record.desired) == (AgentState.STOPPED, Desired.RUNNING)
    assert not reported(plan)


def test_a_report_that_nobody_gets_is_an_event() -> None:
    """The deadline is cleared with it."""
    life = born()
    life.do(Complete(fence=life.record.fence))
    plan = life.do(DeadlineDue(kind=Deadline.REPORT, dropped="agent 'p' does not exist"))
    assert plan.deadlines == {Deadline.REPORT: None}
    (event,) = plan.events
    assert event.type == "child.report_dropped"
    assert event.payload == {
        "agent_id": ID,
        "parent": "p",
        "state": "completed",
        "reason": "agent 'p' does not exist",
    }
