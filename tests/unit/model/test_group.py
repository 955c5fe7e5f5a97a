"""Supervision groups: whom a death takes along, in which order, how often, and what operators' wishes mean for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ares_celery.errors import FencedError
from ares_celery.model.agent import AgentState, Owner, RestartType
from ares_celery.model.command import Complete, Deadline, DeadlineDue, Pause, Restart, Resume, Start
from ares_celery.model.group import Group, Phase, Report, Strategy, take_report
from ares_celery.model.restart import DeathCause
from tests.property.group_world import GroupWorld, default_policy

ALL, REST, ONE = Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE, Strategy.ONE_FOR_ONE


def after_death(world: GroupWorld, agent_id: str, cause: DeathCause = DeathCause.CRASH) -> list[str]:
    """What is told from a death on until all is calm."""
    world.told.clear()
    world.die(agent_id, cause)
    world.calm(until=world.is_settled)
    assert world.is_settled(), world.group
    return world.told


def test_members_keep_the_order_in_which_they_were_started_first() -> None:
    """Whatever is restarted later; one that is deleted and made anew comes last."""
    world = GroupWorld(ALL).begin("c", "a", "b")
    orders = [world.known.order]
    after_death(world, "a")
    orders.append(world.known.order)
    world.stop("c")
    world.calm(10)
    world.delete("c")
    world.calm(10)
    orders.append(world.known.order)
    world.add("c")
    orders.append(world.known.order)
    assert orders == [("c", "a", "b"), ("c", "a", "b"), ("a", "b"), ("a", "b", "c")]


def test_one_for_one_restarts_only_the_one_that_died() -> None:
    """The others never notice."""
    world = GroupWorld(ONE).begin("a", "b", "c")
    assert after_death(world, "b") == ["die b", "start b"]
    assert {record.incarnation for record in world.store.records.values()} == {1, 2}
    assert world.counters == {"group_restarts": 1}


@pytest.mark.parametrize("dead", ["a", "b", "c"])
def test_one_for_all_stops_the_others_in_reverse_and_starts_all_in_order(dead: str) -> None:
    """As OTP does; the others are charged nothing."""
    world = GroupWorld(ALL).begin("a", "b", "c")
    others = [one for one in "cba" if one != dead]
    assert after_death(world, dead) == [
        f"die {dead}",
        *(f"stop {one}" for one in others),
        *(f"start {one}" for one in "abc"),
    ]
    assert {one: world.record(one).charged for one in "abc"} == {one: int(one == dead) for one in "abc"}
    assert {one: world.record(one).restarts for one in "abc"} == {one: int(one == dead) for one in "abc"}


@pytest.mark.parametrize(
    ("dead", "expected"),
    [
        ("a", ["die a", "stop c", "stop b", "start a", "start b", "start c"]),
        ("b", ["die b", "stop c", "start b", "start c"]),
        ("c", ["die c", "start c"]),
    ],
)
def test_rest_for_one_takes_along_those_that_were_started_after_it(dead: str, expected: list[str]) -> None:
    """Those before it run on."""
    world = GroupWorld(REST).begin("a", "b", "c")
    assert after_death(world, dead) == expected


def test_who_waits_for_the_group_is_offered_to_nobody() -> None:
    """Whatever message turns up with the right epoch, and whatever deadline was left over."""
    world = GroupWorld(ALL).begin("a", "b")
    world.die("a")
    held = world.record("a")
    with pytest.raises(FencedError) as caught:
        world.store.claim("a", held.epoch, "k", Owner("p", "w", "t"))
    assert caught.value.fields["reason"] == "held"
    for kind in (Deadline.NUDGE, Deadline.ATTEMPT):
        assert not world.store.do("a", DeadlineDue(kind=kind)).nudge
    assert world.record("a").held


def test_the_start_of_one_waits_until_the_one_before_it_runs() -> None:
    """Its own backoff included: the third crash of a waits a while, and nobody after it starts sooner."""
    world = GroupWorld(ALL).begin("a", "b")
    for _ in range(3):
        told = after_death(world, "a")
        assert told == ["die a", "stop b", "start a", "start b"]
    assert world.record("a").failures == 3


def test_a_member_that_never_runs_holds_the_others_up_for_its_start_timeout_only() -> None:
    """Nobody takes its message."""
    world = GroupWorld(ALL).begin("a", "b")
    world.told.clear()
    world.die("a")
    began = world.store.now
    for _ in range(2000):
        world.sweep()
        world.store.messages = [one for one in world.store.messages if one.agent_id != "a"]
        world.work()
        world.wait(0.1)
        if world.record("b").state is AgentState.RUNNING and world.record("b").incarnation == 2:
            break
    assert world.told == ["die a", "stop b", "start b"]
    assert 60 <= (world.store.now - began) / 1_000_000 < 65


def test_more_than_max_restarts_in_the_period_stop_and_park_the_whole_group() -> None:
    """The third death within a minute: all are stopped in reverse order and parked, agent.exhausted (group_cap)."""
    world = GroupWorld(ALL, max_restarts=2).begin("a", "b", "c")
    for _ in range(2):
        after_death(world, "b")
    assert after_death(world, "b") == ["die b", "stop c", "park c", "park b", "stop a", "park a"]
    for agent_id in "abc":
        record = world.record(agent_id)
        assert (record.state, record.cause) == (AgentState.PARKED, "group_cap")
        last = world.store.events[agent_id][-1]
        assert (last.type, last.payload["reason"], last.payload["detail"]) == (
            "agent.exhausted",
            "group_cap",
            "b: boom",
        )
    assert world.counters == {"group_restarts": 2, "groups_exhausted": 1}
    assert (world.known.phase, world.known.counted) == (Phase.IDLE, ())


@pytest.mark.parametrize("strategy", list(Strategy))
def test_restarts_apart_by_more_than_the_period_never_park(strategy: Strategy) -> None:
    """The window of the group's own."""
    world = GroupWorld(strategy, max_restarts=1).begin("a", "b")
    for _ in range(5):
        world.calm(601)
        after_death(world, "b")
    assert set(world.states().values()) == {"running"}


def test_restarts_that_are_nobodys_fault_do_not_count() -> None:
    """A model that refuses all day does not park the group; it restarts it nevertheless."""
    world = GroupWorld(ALL, max_restarts=1).begin("a", "b")
    for _ in range(4):
        assert after_death(world, "a", DeathCause.LLM)[-2:] == ["start a", "start b"]
    assert world.known.counted == ()
    assert world.counters == {"group_restarts": 4}


def test_one_for_one_counts_the_restarts_of_all_members_together() -> None:
    """Also those of different members; the group is parked as a whole."""
    world = GroupWorld(ONE, max_restarts=2).begin("a", "b", "c")
    after_death(world, "a")
    after_death(world, "b")
    after_death(world, "c")
    assert set(world.states().values()) == {"parked"}


def test_a_parked_group_has_its_budget_again_when_a_person_restarts_its_members() -> None:
    """Each is un-parked by itself."""
    world = GroupWorld(ALL, max_restarts=1).begin("a", "b")
    after_death(world, "a")
    after_death(world, "a")
    assert set(world.states().values()) == {"parked"}
    for agent_id in "ab":
        world.do(agent_id, Restart())
    world.calm(20)
    assert after_death(world, "a")[-2:] == ["start a", "start b"]


@pytest.mark.parametrize("wish", ["stopped", "paused"])
def test_what_an_operator_stopped_or_paused_is_not_started_by_a_restart(wish: str) -> None:
    """Neither before nor in the middle of it."""
    world = GroupWorld(ALL).begin("a", "b", "c", "d")
    world.do("b", Pause()) if wish == "paused" else world.stop("b")
    world.calm(10)
    world.told.clear()
    world.die("a")
    world.calm(until=lambda: world.known.phase is Phase.STARTING)
    assert world.record("c").held
    world.do("c", Pause()) if wish == "paused" else world.stop("c")
    world.calm(until=world.is_settled)
    assert world.told == ["die a", "stop d", "stop c", "start a", "start d"]
    assert world.states() == {"a": "running", "b": wish, "c": wish, "d": "running"}


def test_an_operators_stop_pause_or_restart_and_a_completion_restart_nobody_else() -> None:
    """Only deaths do."""
    world = GroupWorld(ALL).begin("a", "b", "c", "d")
    world.told.clear()
    world.stop("a")
    world.do("b", Pause())
    world.do("c", Restart())
    world.do("d", Complete(fence=world.record("d").fence))
    world.calm(50)
    assert world.states() == {"a": "stopped", "b": "paused", "c": "running", "d": "completed"}
    assert world.told == ["start c"]
    world.do("b", Resume())
    world.do("a", Start())
    world.calm(20)
    assert (world.told, world.counters) == (["start c", "start b", "start a"], {})


def test_a_temporary_member_restarts_nobody_and_is_not_started_again() -> None:
    """It is stopped with the others."""
    world = GroupWorld(ALL).begin("a", "b")
    world.add("t", restart=RestartType.TEMPORARY)
    assert after_death(world, "t") == ["die t"]
    assert world.counters == {}
    world.do("t", Start())
    world.calm(20)
    assert after_death(world, "a") == ["die a", "stop t", "stop b", "start a", "start b"]
    assert world.states() == {"a": "running", "b": "running", "t": "stopped"}


def test_a_death_of_another_member_in_a_restart_is_part_of_it() -> None:
    """Both deaths at once, a worker's loss: one restart."""
    world = GroupWorld(ALL, max_restarts=1).begin("a", "b", "c")
    world.told.clear()
    world.die("a")
    world.die("c")
    world.calm(until=world.is_settled)
    assert world.told == ["die a", "die c", "stop b", "start a", "start b", "start c"]
    assert (world.counters, world.known.restarts) == ({"group_restarts": 1}, 1)


def test_an_earlier_member_that_dies_in_a_restart_takes_the_restart_along() -> None:
    """rest_for_one: c died, then a while b and c wait: one restart from a on."""
    world = GroupWorld(REST, max_restarts=1).begin("a", "b", "c", "d")
    world.told.clear()
    world.die("c")
    world.calm(until=lambda: world.known.phase is Phase.STARTING)
    world.die("a")
    world.calm(until=world.is_settled)
    assert world.told[0] == "die c"
    assert world.told[-4:] == ["start a", "start b", "start c", "start d"]
    assert world.told.count("start b") == 1
    assert (world.counters, world.known.restarts) == ({"group_restarts": 1}, 1)


def test_a_member_that_dies_again_after_its_restart_begins_another_one() -> None:
    """It counts: a group whose first member always crashes is parked, although the others never come up."""
    world = GroupWorld(ALL, max_restarts=2).begin("a", "b")
    world.told.clear()
    world.die("a")
    for _ in range(3000):
        world.sweep()
        world.work()
        if world.record("a").state is AgentState.RUNNING:
            world.die("a")
        world.wait(0.1)
        if set(world.states().values()) == {"parked"}:
            break
    assert set(world.states().values()) == {"parked"}
    assert world.told.count("die a") == 3


def test_a_member_given_up_by_its_own_cap_restarts_nobody() -> None:
    """It will not be resurrected; the others run on."""
    world = GroupWorld(ALL).begin("a", "b", a=replace(default_policy(), max_restarts=1))
    after_death(world, "a")
    assert after_death(world, "a") == ["die a", "park a"]
    assert world.states() == {"a": "parked", "b": "running"}


def test_a_group_that_is_gone_leaves_nobody_waiting() -> None:
    """Members go on by themselves."""
    world = GroupWorld(ALL).begin("a", "b", "c")
    world.die("a")
    world.calm(until=lambda: world.known.phase is Phase.STARTING)
    world.group = None
    world.calm(60)
    assert set(world.states().values()) == {"running"}


def test_the_same_news_again_change_nothing() -> None:
    """A sweeper that died before it could clear the member's deadline."""
    group = take_report(Group("g", ALL, 1, timedelta(minutes=1)), Report("a", 1), 10).after
    first = take_report(group, Report("a", 1, died=7, charged=True, reason="x"), 20)
    assert (first.waits, first.begins, first.after.restarts) == (True, True, 1)
    second = take_report(first.after, Report("a", 1, died=7, charged=True, reason="x"), 30)
    assert (second.after, second.begins, dict(second.counters)) == (first.after, False, {})
    assert second.waits


@pytest.mark.parametrize("where", ["tell", "ask"])
@pytest.mark.parametrize("strategy", list(Strategy))
def test_a_restart_goes_on_wherever_a_sweeper_died(strategy: Strategy, where: str) -> None:
    """After every single step the sweeper dies before it could write how far it came; another one goes on."""
    whole = GroupWorld(strategy).begin("a", "b", "c")
    expected = after_death(whole, "b")
    world = GroupWorld(strategy).begin("a", "b", "c")
    world.told.clear()
    world.die("b")
    for _ in range(400):
        world.sweep(dies_after=where)
        world.work()
        world.wait(0.05)
        world.sweep()
        world.work()
        world.wait(0.05)
        if world.is_settled():
            break
    assert world.told == expected
    assert world.counters == {"group_restarts": 1}
