"""Pauses: until somebody resumes the agent, or for a time, whoever is left to end it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ares_celery.model.agent import AgentState, Desired, RuntimeState
from ares_celery.model.command import Deadline, Pause, Resume, Start, Stop
from tests.unit.model.life import SPEC, Life

SHORT = Pause(lasts=timedelta(seconds=5))


def paused(command: Pause = SHORT) -> Life:
    """One that ran and rests."""
    life = Life().start().run()
    life.do(command)
    life.release()
    assert life.state is AgentState.PAUSED
    return life


def test_a_pause_for_a_time_ends_by_itself() -> None:
    """As a resumption does: a new incarnation, and no restart."""
    life = paused()
    assert life.deadline(Deadline.RESUME) == 5
    life.let_pass(Deadline.RESUME)
    assert (life.state, life.record.desired, life.record.restarts) == (AgentState.STARTING, Desired.RUNNING, 0)
    assert life.deadline(Deadline.RESUME) is None
    life.run()
    assert life.told()[-1] == "agent.started(resume)"


def test_a_pause_without_a_time_has_no_end_of_its_own() -> None:
    """Also where an earlier one had: the wish of whoever asked last counts."""
    assert paused(Pause()).deadline(Deadline.RESUME) is None
    life = paused()
    life.do(Pause())
    assert life.deadline(Deadline.RESUME) is None
    assert life.state is AgentState.PAUSED
    ending = Life().start().run()
    ending.do(SHORT)
    ending.do(Pause())
    assert (ending.state, ending.deadline(Deadline.RESUME)) == (AgentState.STOPPING, None)


def test_a_pause_for_a_time_shortens_none_that_is_under_way() -> None:
    """One who rests until he is resumed rests on, and one with an end keeps that."""
    life = paused(Pause())
    life.do(SHORT)
    assert life.deadline(Deadline.RESUME) is None
    ending = Life().start().run()
    ending.do(Pause())
    ending.do(SHORT)
    assert ending.deadline(Deadline.RESUME) is None
    longer = paused(Pause(lasts=timedelta(hours=1)))
    longer.do(SHORT)
    assert longer.deadline(Deadline.RESUME) == 3600


def test_it_goes_on_at_once_when_its_time_is_over_before_it_has_ended() -> None:
    """What is desired when the incarnation ends counts."""
    life = Life().start().run()
    life.do(Pause(lasts=timedelta(milliseconds=1)))
    life.let_pass(Deadline.RESUME)
    assert (life.state, life.record.desired) == (AgentState.STOPPING, Desired.RUNNING)
    life.release()
    assert life.state is AgentState.STARTING


@pytest.mark.parametrize("by", [Resume(), Stop(), Start(spec=SPEC, if_exists="restart")])
def test_the_end_of_a_pause_that_is_over_wakes_nobody(by: Resume | Stop | Start) -> None:
    """Whatever somebody asked for meanwhile stays."""
    life = paused()
    life.do(by)
    state, desired = life.state, life.record.desired
    life.let_pass(Deadline.RESUME)
    assert (life.state, life.record.desired, life.deadline(Deadline.RESUME)) == (state, desired, None)


def test_in_a_runtime_that_is_stopped_it_is_looked_at_again() -> None:
    """And runs once that does."""
    life = paused()
    life.store.runtime = RuntimeState.STOPPED
    life.let_pass(Deadline.RESUME)
    assert (life.state, life.deadline(Deadline.RESUME)) == (AgentState.PAUSED, 60)
    life.store.runtime = RuntimeState.RUNNING
    life.let_pass(Deadline.RESUME)
    assert life.state is AgentState.STARTING
