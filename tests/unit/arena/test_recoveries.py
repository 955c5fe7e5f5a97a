"""Returns that hold and those that do not, and which death is whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ares_celery.arena.verdict.invariants import Judged
from ares_celery.arena.verdict.journal import ActivityReport
from ares_celery.arena.verdict.judge import verdict_of
from ares_celery.arena.verdict.verdict import Verdict
from tests.unit.arena.histories import Stream, action, report


def verdict(stream: Stream, *actions: ActivityReport, **more: Any) -> Verdict:
    """Of a run against one agent."""
    return verdict_of(report(*(actions or (action("k", 9),)), **more), [Judged(stream.agent_id, stream.events)])


def looping(times: int, stays: float = 0.02) -> Stream:
    """An agent that comes back a second after each death, for so long."""
    stream, moment = Stream().add(0, "agent.started"), 10.0
    for number in range(1, times + 1):
        stream.death(moment, 1.0, incarnation=number)
        moment += 1.0 + stays
    return stream


@pytest.mark.spec(146)
def test_a_life_that_ends_at_once_is_no_recovery() -> None:
    """One death with relapses; its time counts from the first death to the return that held."""
    found = verdict(looping(3))
    assert (found.deaths, found.recovered, found.relapses) == (1, 1, 2)
    assert found.times is not None
    assert found.times.to_json() == dict.fromkeys(("min", "avg", "p95", "max", "last"), pytest.approx(3.04)) | {
        "count": 1
    }
    (effect,) = found.effects
    assert (effect.deaths, effect.relapses) == (1, 2)
    assert effect.recovered == pytest.approx(4.04)
    assert (found.reasons(), found.to_json()["relapses"]) == ((), 2)


def test_who_stays_up_for_long_enough_has_died_anew() -> None:
    """The time is a setting of the run."""
    assert (verdict(looping(3, stays=2)).deaths, verdict(looping(3, stays=2)).relapses) == (3, 0)
    longer = verdict(looping(3, stays=2), steady=2.5)
    assert (longer.deaths, longer.recovered) == (1, 1)


def test_who_has_just_come_back_when_the_run_ends_has_not_recovered() -> None:
    """Unless its stream shows later that it stayed; a stop that somebody wants ends a life in order."""
    late = verdict(looping(2), seconds=12.5)
    assert (late.deaths, late.recovered, late.score) == (1, 0, 63.6)
    assert late.reasons() == (
        "a died (crash) and again 1 times right after it came back: it had just come back when the run ended",
    )
    assert late.failovers[0].end == "unsteady"
    assert verdict(looping(2).add(15, "tick"), seconds=12.5).recovered == 1
    assert verdict(looping(2).add(12.1, "agent.stopped", reason="stop"), seconds=12.5).recovered == 1


@pytest.mark.parametrize("word", ["agent.exhausted", "agent.parked"])
def test_who_is_given_up_on_right_after_a_return_is_lost(word: str) -> None:
    """There is no failover of that last death."""
    found = verdict(looping(2).add(12.04, word, cause="cap"))
    assert (found.deaths, found.recovered, found.relapses) == (1, 0, 2)
    assert found.reasons() == (
        "a died (crash) and again 2 times right after it came back: it did not come back for good",
    )
    failed = Stream().add(0, "agent.started").death(10, None).add(11, "failover.failed").add(11, word)
    assert (verdict(failed).relapses, verdict(failed).failovers[0].end) == (0, "failed")


def test_a_death_after_which_nobody_brings_it_back_is_one() -> None:
    """It has no failover: its restarts were used up, or it is to run only once."""
    stream = Stream().add(0, "agent.started", incarnation=4).add(10, "agent.stopped", auto_restore=False, cause="lost")
    found = verdict(stream, kill("k", 9, incarnations={"a": 4}))
    assert (found.deaths, found.recovered, found.relapses, found.availability) == (1, 0, 0, 10.0)
    assert found.reasons() == ("a died (lost): it did not come back for good",)
    assert [(one.deaths, one.detected, one.recovered) for one in found.effects] == [(1, 1.0, None)]
    again = looping(1).add(11.5, "agent.stopped", auto_restore=False, cause="crash").add(11.5, "agent.exhausted")
    assert (verdict(again).deaths, verdict(again).relapses, verdict(again).recovered) == (1, 1, 0)
    killed = kill("again", 11.2, incarnations={"a": 2})
    both = verdict(again, kill("k", 9, incarnations={"a": 1}), killed)
    assert (both.deaths, both.relapses, both.recovered) == (2, 0, 1)


def test_a_death_while_it_comes_back_belongs_to_the_same_recovery() -> None:
    """It was aborted by the next one; one that somebody aborted is no loss."""
    stream = Stream().add(0, "agent.started").death(10, None).add(11, "failover.aborted").death(11, 1.0, incarnation=2)
    found = verdict(stream)
    assert (found.deaths, found.recovered, found.relapses) == (1, 1, 1)
    stopped = Stream().death(10, None).add(11, "failover.aborted").add(11, "agent.stopped", reason="stop")
    assert (verdict(stopped).recovered, verdict(stopped).reasons()) == (0, ())


@pytest.mark.parametrize("cause", ["restore", "drain"])
def test_what_is_asked_for_is_no_relapse(cause: str) -> None:
    """A restore, and a worker that is shut down in order."""
    stream = Stream().add(0, "agent.started").death(10, 1.0).death(11.5, 1.0, cause=cause, incarnation=2)
    assert (verdict(stream).relapses, verdict(stream).failovers[0].end) == (0, "completed")


def kill(name: str, seconds: float, target: str = "a", **output: Any) -> ActivityReport:
    """A kill with what it gave."""
    return replace(action(name, seconds, target=target), output=output)


def test_a_second_kill_is_no_relapse() -> None:
    """It says which life it ended; whatever else came in between, a death of the agent's own is one."""
    stream = Stream().add(0, "agent.started").death(10, 1.0).death(11.5, 1.0, incarnation=2)
    first = kill("first", 10, incarnations={"a": 1})
    again = kill("again", 11.4, incarnations={"a": 2})
    found = verdict(stream, first, again)
    assert (found.deaths, found.relapses) == (2, 0)
    assert [(one.name, one.deaths) for one in found.effects] == [("first", 1), ("again", 1)]
    assert [one.recovered for one in found.effects] == [pytest.approx(1.0), pytest.approx(1.1)]
    slow = replace(action("slow", 11.2), fault="slow_agent")
    assert (verdict(stream, first, slow).deaths, verdict(stream, first, slow).relapses) == (1, 1)
    # Somebody else's function, which does not say what it ended.
    other = replace(action("die", 11.4), fault="die")
    assert (verdict(stream, first, other).deaths, verdict(stream, first, other).relapses) == (2, 0)


def test_a_death_belongs_to_the_action_that_ended_that_life() -> None:
    """Not to the fault before it, nor to one that failed behind it, however late it is found."""
    a = Stream("a").add(0, "agent.started").death(14, 1.0, cause="co_tenant", incarnation=1)
    b = Stream("b").add(0, "agent.started").death(14, 1.0, cause="co_tenant", incarnation=4)
    partition = replace(
        action("partition", 10), fault="partition_network", output={"incarnations": {"a": 1}, "id": "f"}
    )
    killed = kill("kill b", 11, "b", agent_id="b", co_tenants=["a"], incarnations={"a": 1, "b": 4})
    refused = replace(
        kill("again", 12, "b"), outcome=action("x", 1, fails=True).outcome, output={"code": "not_running"}
    )
    judged = [Judged("a", a.events), Judged("b", b.events)]
    effects = {one.name: one for one in verdict_of(report(partition, killed, refused), judged).effects}
    assert (effects["partition"].deaths, effects["partition"].cause) == (0, "")
    assert (effects["kill b"].deaths, effects["kill b"].cause, effects["kill b"].agents) == (2, "killed", ("a", "b"))
    assert (effects["again"].deaths, effects["again"].agents, dict(effects["again"].felt)) == (0, (), {})
    assert effects["kill b"].felt["failover.completed"] == 2


def test_an_action_that_failed_after_its_deed_says_what_it_did() -> None:
    """A kill that waited in vain."""
    gone = Stream().add(0, "agent.started").death(10, None)
    waited = kill("k", 9, code="activity_failed", did={"agent_id": "a", "incarnations": {"a": 1}})
    (effect,) = verdict(gone, replace(waited, outcome=action("x", 1, fails=True).outcome)).effects
    assert (effect.deaths, effect.detected, effect.recovered) == (1, 1.0, None)


def test_how_much_of_a_recovery_was_backoff_is_told() -> None:
    """Summed up over relapses."""
    stream = Stream().add(0, "agent.started")
    for number, (moment, wait) in enumerate(((10, 500), (12, 1500)), 1):
        stream.add(moment, "failover.triggered", cause="crash", incarnation=number, delay_ms=wait)
        stream.add(moment + 1, "failover.completed", incarnation=number + 1)
    (effect,) = verdict(stream).effects
    assert (effect.backoff, effect.recovered) == (2.0, 4.0)
    assert effect.to_json()["backoff"] == 2.0


def test_what_went_on_before_a_run_is_not_of_the_run() -> None:
    """A death within it is one of its own, though it is a relapse of an earlier one."""
    stream = Stream().death(-2, 1.5).death(0.5, 1.0, incarnation=2)
    found = verdict(stream)
    assert [(one.triggered.second, one.relapses) for one in found.failovers] == [(0, 0)]
    assert (found.deaths, found.recovered) == (1, 1)


def test_without_an_action_that_succeeded_there_is_no_score() -> None:
    """What was refused shows nothing, however well the agents are."""
    calm = Stream().add(0, "agent.started")
    found = verdict(calm, action("typo", 5, fails=True))
    assert (found.score, found.grade, found.to_json()["score"]) == (None, "no data", "no data")
    assert found.go is not None
    assert found.go.score < 100
