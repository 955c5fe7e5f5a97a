"""Steps whose outcome nobody knows: who may not go on, who is asked, and what happens when it is settled."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ares_celery.errors import AgentParkedError, StepsUnsettledError
from ares_celery.ids import AgentId, Instant
from ares_celery.model.agent import AgentState, Desired, RuntimeState
from ares_celery.model.command import (
    Command,
    Complete,
    Deadline,
    Die,
    MarkRunning,
    Park,
    Pause,
    Reconcile,
    Release,
    Restart,
    Start,
    Stop,
    Unpark,
)
from ares_celery.model.event import EventType
from ares_celery.model.step import StepIntent
from ares_celery.model.unsettled import call_of, why_parked
from tests.unit.model.life import ID, Life

S = AgentState


def begun(**numbers: Any) -> Life:
    """An agent that runs and is in a step that must not be repeated."""
    life = Life(**numbers).start().run()
    assert life.store.begin_step(ID, life.record.fence)
    return life


def park(life: Life, *first: Command) -> Life:
    """It ends, and a person is asked."""
    for command in first:
        life.do(command)
    life.do(Park("charge?", fence=life.record.fence, cause="reconcile"))
    return life


@pytest.mark.parametrize("asked", [None, Stop(), Pause(), Restart()], ids=str)
@pytest.mark.parametrize("kind", [Release, Complete, None])
def test_an_incarnation_with_a_step_of_unknown_outcome_cannot_end_as_if_it_were_known(
    kind: type[Release | Complete] | None, asked: Command | None
) -> None:
    """Neither in order nor by its own death, whatever was asked of it; nothing is changed by the refusal."""
    life = begun()
    if asked is not None:
        life.do(asked)
    before, record = life.told(), life.record
    command: Command = Die("boom", epoch=record.epoch, proof=True, itself=True)
    if kind is not None:
        command = kind(fence=record.fence)
    with pytest.raises(StepsUnsettledError) as refused:
        life.do(command)
    assert (refused.value.agent_id, refused.value.intents) == (ID, 1)
    assert (life.record, life.told()) == (record, before)
    life.store.end_step(ID, record.fence)
    life.do(command)
    assert not life.record.hosted


def test_what_others_find_out_ends_it_all_the_same_and_its_next_life_does_not_begin() -> None:
    """An exit that was seen, a lease, a deadline: the next incarnation may be claimed, and no code of it runs."""
    life = begun()
    life.exit()
    assert (life.state, life.record.intents) == (S.RESURRECTING, 1)
    fence = life.claim("p2")
    with pytest.raises(StepsUnsettledError):
        life.do(MarkRunning(fence=fence))
    park(life)
    assert life.state is S.PARKED


def test_to_be_parked_for_it_is_not_charged() -> None:
    """The death was, as any; that a person is asked uses up nothing, and closes the failover."""
    life = begun(max_restarts=1)
    life.exit()
    charged = life.record.charged
    life.claim("p2")
    park(life)
    assert (life.record.charged, life.record.failover, life.record.cause) == (charged, False, "reconcile")
    assert life.told()[-2:] == ["failover.failed(charge?)", "agent.parked(reconcile)"]
    assert life.payload(EventType.AGENT_PARKED)["detail"] == "charge?"


def test_when_the_last_one_is_settled_it_goes_on_uncharged() -> None:
    """Not before; the budget is as it was, the message goes out, and the event says why it starts."""
    life = begun(max_restarts=3)
    life.store.begin_step(ID, life.record.fence)
    park(life)
    life.let_pass(Deadline.RECONCILE)
    assert (life.state, life.deadline(Deadline.RECONCILE)) == (S.PARKED, None)
    life.store.settle(ID)
    assert life.do(Reconcile()).ignored
    assert life.deadline(Deadline.RECONCILE) is None
    life.store.settle(ID)
    charged, restarts, manual = life.record.charged, life.record.restarts, life.record.manual_restarts
    plan = life.do(Reconcile())
    assert (life.state, plan.nudge, life.record.cause, life.record.last_error) == (S.STARTING, True, "", "")
    assert (life.record.charged, life.record.restarts, life.record.manual_restarts) == (charged, restarts, manual)
    assert life.deadline(Deadline.RECONCILE) is None
    life.run()
    assert life.told()[-1] == "agent.started(reconciled)"


def test_it_goes_on_although_whoever_settled_it_has_died() -> None:
    """What was said has left a deadline that is due at once."""
    life = park(begun())
    life.let_pass(Deadline.RECONCILE)
    life.store.settle(ID)
    assert life.deadline(Deadline.RECONCILE) == 0
    life.let_pass(Deadline.RECONCILE)
    assert (life.state, life.deadline(Deadline.RECONCILE)) == (S.STARTING, None)


def test_a_step_that_ends_while_its_agent_is_being_parked_does_not_leave_it_parked() -> None:
    """Its thread was faster than the commit: nobody would ever be asked, so the sweep looks once."""
    life = begun()
    life.store.end_step(ID, life.record.fence)
    park(life)
    assert life.deadline(Deadline.RECONCILE) == 0
    life.let_pass(Deadline.RECONCILE)
    assert life.state is S.STARTING


@pytest.mark.parametrize(
    ("first", "runtime", "state", "reason"),
    [
        (Stop(), RuntimeState.RUNNING, S.STOPPED, "explicit_stop"),
        (Pause(), RuntimeState.RUNNING, S.PAUSED, "pause"),
        (Restart(), RuntimeState.STOPPED, S.STOPPED, "shutdown"),
    ],
)
def test_one_that_is_not_meant_to_run_rests_when_all_is_settled(
    first: Command, runtime: RuntimeState, state: AgentState, reason: str
) -> None:
    """Stopped or paused as its operator wished, or until the runtime runs again."""
    life = park(begun(), first)
    life.store.runtime = runtime
    life.store.settle(ID)
    life.let_pass(Deadline.RECONCILE)
    assert (life.state, life.record.cause, life.told()[-1]) == (state, "", f"agent.stopped({reason})")
    if life.record.desired is Desired.RUNNING:
        life.set_runtime(RuntimeState.RUNNING)
        assert life.state is S.STARTING


@pytest.mark.parametrize("command", [Restart("by hand"), Unpark("by hand")], ids=type)
def test_a_restart_is_refused_while_steps_are_open_and_allowed_afterwards(command: Command) -> None:
    """The refusal says what happened and how to settle it; then a person may be faster than the sweep."""
    life = park(begun())
    with pytest.raises(AgentParkedError) as refused:
        life.do(command)
    assert (refused.value.cause, refused.value.intents) == ("reconcile", 1)
    assert "charge?" in str(refused.value)
    assert f"`ares agents reconcile {ID}`" in str(refused.value)
    assert "ares agents restart" not in str(refused.value)
    life.store.settle(ID)
    life.do(command)
    assert life.state is S.STARTING


def test_start_names_the_restart_once_all_is_settled() -> None:
    """A start never un-parks; what it tells to do is what works."""
    life = park(begun())
    life.store.settle(ID)
    with pytest.raises(AgentParkedError, match="ares agents restart"):
        life.do(Start())


@pytest.mark.parametrize("cause", ["integrity", "cap", "manual"])
def test_of_another_cause_nothing_is_decided_by_a_settled_step(cause: str) -> None:
    """It waits for somebody who settles that."""
    life = begun()
    life.do(Park("why", fence=life.record.fence, cause=cause))
    life.store.settle(ID)
    life.let_pass(Deadline.RECONCILE)
    assert (life.state, life.record.cause) == (S.PARKED, cause)


def test_the_reason_names_step_execution_call_time_life_and_cure() -> None:
    """One sentence a person can act on; with ids that a shell takes as they are meant."""
    at = Instant(int(timedelta(days=20_000).total_seconds()) * 1_000_000)
    intent = StepIntent(
        "msg:a b", "charge:7", "Tools.charge", "never", {"args": [7], "kwargs": {"x": "y" * 500}}, 3, at
    )
    text = why_parked(AgentId("a"), [intent])
    parts = ("'charge:7'", "'msg:a b'", "Tools.charge(7, x=", "2024-10-04T00:00:00+00:00", "incarnation 3", "--retry")
    assert [part for part in parts if part not in text] == []
    assert "ares agents reconcile a --execution 'msg:a b' --step charge:7 --done RESULT" in text
    assert len(text) < 600
    assert "y" * 201 not in text


def test_a_reason_does_not_grow_with_the_steps() -> None:
    """Three in full, the others by number; without any it says where to look."""
    many = [StepIntent("main", f"s{number}", "f") for number in range(50)]
    text = why_parked(AgentId("a"), many)
    assert "'s2'" in text
    assert "'s3'" not in text
    assert "47 more" in text
    assert "ares agents show a" in why_parked(AgentId("a"), [])


@pytest.mark.parametrize("arguments", [None, [], {"args": None}, {"kwargs": []}, {"args": "x", "kwargs": None}])
def test_whatever_was_noted_of_the_arguments_can_be_shown(arguments: object) -> None:
    """Of a newer version, or of nobody: a reason must not fail because of it."""
    assert call_of(StepIntent("main", "s", "f", arguments=arguments)).startswith("f(")
