"""A recovery plug-in's no is part of the verdict: decided purely, for deaths and for tries that failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ares_celery.model.agent import AgentState
from ares_celery.model.command import (
    AttemptFailed,
    Command,
    Deadline,
    DeadlineDue,
    Die,
    OwnerExited,
    Restart,
    Restore,
    Stop,
)
from ares_celery.model.event import EventType
from ares_celery.model.failure import Failure
from ares_celery.model.plan import Plan
from ares_celery.model.restart import DeathCause
from tests.unit.model.life import ID, Life


def refused(life: Life, command: Command) -> Plan:
    """Applies a command as it is when a plug-in was asked and said no."""
    return life.do(replace(command, refused_by="audit"))


def crash(life: Life) -> Command:
    """Its own process reports the end of the incarnation now alive."""
    return Die("ValueError: x", epoch=life.record.epoch, cause=DeathCause.CRASH, proof=True)


def test_a_death_that_is_answered_carries_what_plugins_are_asked_about() -> None:
    """Everything but a death or a failed try carries nothing, so nobody is asked."""
    life = Life().start().run()
    plan = life.do(crash(life))
    assert plan.failure == Failure(
        ID, "counter", "death", "crash", "ValueError: x", incarnation=1, attempt=0, failures=1, restarts=0
    )
    life.claim()
    plan = life.fail_attempt("no disk")
    assert plan.failure is not None
    assert (plan.failure.stage, plan.failure.incarnation, plan.failure.attempt) == ("attempt", 2, 1)
    assert (plan.failure.reason, plan.failure.failures, plan.failure.restarts) == ("no disk", 2, 1)
    life = Life().start().run().wait(5)
    assert life.do(Restore()).failure is None
    assert life.release().failure is None, "a fail-over on purpose is no failure"
    life = Life().start().run()
    life.do(Stop())
    assert life.do(crash(life)).failure is None, "it should not run any more"


def test_a_refused_death_parks_the_agent_for_a_person() -> None:
    """Told by state, cause, events and counters; no failover is opened, and its writes are fenced."""
    life = Life().start().run()
    fence = life.record.fence
    plan = refused(life, crash(life))
    assert life.state is AgentState.PARKED
    assert life.record.cause == "plugin"
    assert life.record.reason == "ValueError: x (plug-in audit refuses to recover it)"
    assert life.told()[-2:] == ["agent.stopped(ValueError: x)", "agent.parked(plugin)"]
    assert life.payload(EventType.AGENT_STOPPED)["auto_restore"] is False
    assert not life.record.failover
    assert (life.record.restarts, life.record.charged) == (0, 0)
    assert (life.store.counters["deaths"], life.store.counters["parked"], life.store.counters["restarts"]) == (1, 1, 0)
    assert plan.failure is None
    assert not plan.nudge
    assert not life.store.accepts(ID, fence)
    life.do(Restart())
    assert (life.state, life.record.cause) == (AgentState.STARTING, "")


def test_a_refused_try_closes_the_failover_and_parks_the_agent() -> None:
    """Each failover.triggered has its one failover.failed."""
    life = Life().start().run()
    life.crash("ValueError: x")
    life.claim()
    refused(life, AttemptFailed("no disk", fence=life.record.fence))
    assert (life.state, life.record.cause) == (AgentState.PARKED, "plugin")
    assert life.told()[-3:] == [
        "failover.triggered(ValueError: x)",
        "failover.failed(no disk)",
        "agent.parked(plugin)",
    ]
    assert life.store.counters["parked"] == 1
    assert life.store.counters["deaths"] == 1


@pytest.mark.parametrize("how", ["exit", "lease"])
def test_a_refused_loss_parks_the_agent_too(how: str) -> None:
    """Whoever found the death: a seen exit, a lease that ran out."""
    life = Life().start().run()
    if how == "exit":
        refused(life, OwnerExited("process lost", identity="p1"))
    else:
        at = life.store.deadlines[ID, Deadline.LEASE]
        life.store.now = at
        refused(life, DeadlineDue(kind=Deadline.LEASE, score=at))
    assert (life.state, life.record.cause) == (AgentState.PARKED, "plugin")
    assert life.told()[-1] == "agent.parked(plugin)"


def test_a_refusal_means_nothing_where_the_agent_would_not_come_back_anyway() -> None:
    """An agent that was asked to stop is stopped; one at its cap is parked for that."""
    life = Life().start().run()
    life.do(Stop())
    refused(life, crash(life))
    assert life.state is AgentState.STOPPED
    life = Life(max_restarts=1).start().run()
    life.crash()
    life.run()
    refused(life, crash(life))
    assert (life.state, life.record.cause) == (AgentState.PARKED, "cap")
