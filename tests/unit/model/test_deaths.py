"""Deaths: who may report them, what they cost, when the agent comes back, and when it is given up."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ares_celery.model.agent import AgentState, Desired, Request, RestartType, RuntimeState
from ares_celery.model.command import (
    AttemptFailed,
    Deadline,
    DeadlineDue,
    Die,
    OwnerExited,
    Park,
    Pause,
    Restore,
    Start,
    Stop,
)
from ares_celery.model.event import EventType
from ares_celery.model.restart import CHARGED, DeathCause
from tests.unit.model.life import ID, Life

DAY = 86_400


def suspect(cause: DeathCause = DeathCause.UNHEALTHY) -> Die:
    """A report without proof about the incarnation now alive."""
    return Die("is_alive said no", cause=cause)


def test_a_proven_death_is_told_counted_and_answered_at_once() -> None:
    """agent.stopped(auto_restore) precedes failover.triggered; the first resurrection does not wait."""
    life = Life().start().run()
    fence = life.record.fence
    plan = life.crash("ValueError: x")
    assert life.state is AgentState.RESURRECTING
    assert life.told()[-2:] == ["agent.stopped(ValueError: x)", "failover.triggered(ValueError: x)"]
    assert life.payload(EventType.AGENT_STOPPED)["auto_restore"] is True
    assert plan.nudge
    assert (life.record.restarts, life.record.charged, life.record.failures) == (1, 1, 1)
    assert (life.record.last_error, life.record.cause) == ("ValueError: x", "crash")
    assert life.store.counters == {"deaths": 1, "deaths.crash": 1, "restarts": 1}
    assert life.record.deaths == {"crash": 1}
    assert not life.store.accepts(ID, fence)
    life.run()
    assert life.told()[-1] == "failover.completed"
    assert not life.record.failover


def test_a_report_about_an_older_incarnation_is_stale() -> None:
    """One death for each epoch, however often it is reported."""
    life = Life().start().run()
    epoch = life.record.epoch
    life.crash()
    life.run()
    assert life.do(Die("late", epoch=epoch, proof=True)).ignored == "stale"
    assert life.state is AgentState.RUNNING


def test_a_report_without_epoch_never_means_an_incarnation_younger_than_a_second() -> None:
    """It was written about the one before."""
    life = Life().start().run()
    life.wait(0.999)
    assert life.do(suspect()).ignored == "too young"
    life.wait(0.001)
    assert not life.do(suspect()).ignored


def test_a_report_without_proof_asks_the_incarnation_to_give_up_and_its_release_is_the_death() -> None:
    """No epoch rises before the end is proven; then the death is charged with the cause that was reported."""
    life = Life().start().run().wait(5)
    epoch = life.record.epoch
    life.do(suspect())
    assert (life.state, life.record.request, life.record.epoch) == (AgentState.STOPPING, Request.DIE, epoch)
    assert life.told()[-1] == "agent.started(start)"
    life.release()
    assert (life.state, life.record.charged, life.record.cause) == (AgentState.RESURRECTING, 1, "unhealthy")
    assert life.told()[-2:] == ["agent.stopped(is_alive said no)", "failover.triggered(is_alive said no)"]


def test_a_report_without_proof_keeps_its_cause() -> None:
    """What is never charged is not charged because it was reported from afar."""
    life = Life().start().run().wait(5)
    life.do(suspect(DeathCause.STORE_ROLLED_BACK))
    life.release()
    assert (life.record.cause, life.record.charged, life.record.restarts) == ("store_rolled_back", 0, 1)


def test_an_incarnation_that_ignores_the_report_is_fenced_by_the_stop_deadline() -> None:
    """The next one waits until its lease ends."""
    life = Life().start().run().wait(5)
    life.do(suspect())
    life.wait(7)
    life.store.renew(ID, life.record.fence)
    fence = life.record.fence
    life.let_pass(Deadline.STOP)
    assert life.state is AgentState.RESURRECTING
    assert not life.store.accepts(ID, fence)
    assert life.deadline(Deadline.ATTEMPT) == 5
    assert life.record.charged == 1


def test_a_report_about_a_recovering_incarnation_uses_up_a_try_and_no_budget() -> None:
    """It never ran; asked or proven, the failover goes on and its tries are not forgotten."""
    life = Life().start().run()
    life.crash()
    life.claim()
    life.wait(2)
    life.do(suspect())
    life.release()
    assert (life.state, life.record.attempt, life.record.charged) == (AgentState.RESURRECTING, 1, 1)
    assert life.record.failover
    assert life.told().count("failover.triggered(boom)") == 1


@pytest.mark.parametrize("wish", [Stop(), Pause()], ids=["stopped", "paused"])
def test_a_death_of_what_should_not_run_is_no_death(wish: Stop | Pause) -> None:
    """Intended ends are not resurrected, reported or not."""
    life = Life().start().run().wait(5)
    life.do(wish)
    assert life.do(suspect()).ignored
    life.crash()
    assert life.state.value == life.record.desired.value
    assert life.record.restarts == 0
    assert "failover" not in " ".join(life.told())


def test_a_report_in_a_stopped_runtime_starts_nothing() -> None:
    """Nothing happens and nothing fails."""
    life = Life().start().run().wait(5)
    life.store.runtime = RuntimeState.STOPPED
    assert life.do(suspect()).ignored
    life.crash()
    assert life.state is AgentState.STOPPED
    assert life.record.desired is Desired.RUNNING


@pytest.mark.spec(37)
@pytest.mark.spec(38)
@pytest.mark.parametrize("count", [5, 10])
def test_simultaneous_reports_are_one_death(count: int) -> None:
    """One resurrection, one restart counted."""
    life = Life(max_restarts=3).start().run().wait(5)
    for _ in range(count):
        life.do(suspect())
    life.release()
    for _ in range(count):
        life.do(suspect())
    life.run()
    for _ in range(count):
        life.do(suspect())
    assert (life.state, life.record.restarts) == (AgentState.RUNNING, 1)


@pytest.mark.parametrize("cause", list(DeathCause))
def test_only_what_can_be_blamed_on_the_agent_uses_up_its_budget(cause: DeathCause) -> None:
    """A drain, a rolled back store and a lost host with several tenants are nobody's fault."""
    life = Life().start().run()
    life.crash(cause=cause)
    assert life.record.charged == (cause in CHARGED)
    assert life.record.restarts == 1


def test_a_cap_of_one_permits_one_resurrection() -> None:
    """The second death parks: exhausted, listed, counted, with the reason cap."""
    life = Life(max_restarts=1).start().run()
    life.crash()
    life.run()
    plan = life.crash("again")
    assert (life.state, life.record.cause, life.record.reason) == (AgentState.PARKED, "cap", "again")
    assert not plan.nudge
    assert life.told()[-2:] == ["agent.stopped(again)", "agent.exhausted(cap)"]
    assert life.payload(EventType.AGENT_STOPPED)["auto_restore"] is False
    assert life.store.counters["parked"] == 1
    assert life.record.charged == 1


def test_uncharged_deaths_never_park() -> None:
    """Losing hosts all day long is not the agent's fault."""
    life = Life(max_restarts=1).start()
    for _ in range(12):
        life.run()
        life.let_pass(Deadline.LEASE, tenants=7)
        if life.deadline(Deadline.ATTEMPT) is not None:
            life.let_pass(Deadline.ATTEMPT)
    assert (life.state, life.record.charged, life.record.restarts) == (AgentState.RESURRECTING, 0, 12)


def test_without_a_cap_it_comes_back_every_time() -> None:
    """0 = unlimited: twelve deaths, twelve resurrections."""
    life = Life(max_restarts=0).start().run()
    for _ in range(12):
        life.crash()
        life.run()
    assert (life.state, life.record.restarts) == (AgentState.RUNNING, 12)


def test_dying_two_seconds_after_every_start_is_spaced_and_ends_parked_at_the_fourth_death() -> None:
    """Cap 3: resurrected after 0, 1 and 2 s."""
    life = Life(max_restarts=3).start()
    delays: list[float] = []
    for _ in range(4):
        life.run().wait(2)
        life.crash()
        if life.state is AgentState.RESURRECTING:
            delay = life.deadline(Deadline.ATTEMPT) or 0.0
            delays.append(delay)
            if delay:
                life.let_pass(Deadline.ATTEMPT)
    assert delays == [0, 1, 2]
    assert (life.state, life.record.restarts) == (AgentState.PARKED, 3)


def test_running_for_a_stable_while_forgets_failures_in_a_row() -> None:
    """The next death is the first of a row again."""
    life = Life().start().run().wait(2)
    life.crash()
    life.run().wait(10)
    life.crash()
    assert life.record.failures == 1
    assert life.deadline(Deadline.ATTEMPT) is None


def test_a_stable_run_that_ends_in_a_hand_over_forgets_them_too() -> None:
    """The next incarnation does not inherit failures that its predecessor had outlived."""
    life = Life().start().run().wait(2)
    life.crash()
    life.run().wait(60)
    life.release()
    life.run().wait(2)
    life.crash()
    assert life.record.failures == 1


@pytest.mark.pain("P10")
def test_a_crash_two_seconds_after_each_good_start_trips_the_cap_with_a_window_too() -> None:
    """A good start forgives nothing: the fourth crash within a day parks."""
    life = Life(max_restarts=3, restart_period=timedelta(days=1)).start()
    for crash in range(4):
        assert life.state is not AgentState.PARKED, f"parked before crash {crash}"
        if life.deadline(Deadline.ATTEMPT) is not None:
            life.let_pass(Deadline.ATTEMPT)
        life.run().wait(2)
        life.crash()
    assert (life.state, life.record.cause, life.record.charged) == (AgentState.PARKED, "cap", 3)


UNCHARGED = [DeathCause.LLM, DeathCause.MCP, DeathCause.CO_TENANT, DeathCause.DRAIN, DeathCause.STORE_ROLLED_BACK]


@pytest.mark.pain("P10")
@pytest.mark.parametrize("cause", UNCHARGED)
def test_what_is_never_charged_backs_off_and_never_parks(cause: DeathCause) -> None:
    """Twelve in a row with a cap of one: none charged, all counted apart, and the waits grow to thirty seconds."""
    life = Life(max_restarts=1).start()
    waits: list[float] = []
    for _ in range(12):
        if life.deadline(Deadline.ATTEMPT) is not None:
            life.let_pass(Deadline.ATTEMPT)
        life.run().wait(1)
        life.crash(cause=cause)
        waits.append(life.deadline(Deadline.ATTEMPT) or 0)
    assert waits == [0, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30]
    assert (life.state, life.record.charged, life.record.restarts) == (AgentState.RESURRECTING, 0, 12)
    assert dict(life.record.deaths) == {cause.value: 12}
    assert life.store.counters == {"deaths": 12, f"deaths.{cause}": 12, "restarts": 12}


@pytest.mark.pain("P10")
def test_a_redeploy_is_not_counted() -> None:
    """Twelve drains: the next incarnation begins at once, nothing is charged, no death is told."""
    life = Life(max_restarts=1).start()
    for _ in range(12):
        life.run().wait(1)
        life.release()
        assert life.deadline(Deadline.ATTEMPT) is None
    assert (life.state, life.record.charged, life.record.restarts, dict(life.record.deaths)) == (
        AgentState.STARTING,
        0,
        0,
        {},
    )


def test_deaths_are_counted_by_cause_until_a_person_starts_the_agent_anew() -> None:
    """Each cause apart; a restart by hand keeps them, a start after a stop does not."""
    life = Life(max_restarts=0).start()
    for cause in (DeathCause.CRASH, DeathCause.LLM, DeathCause.CRASH, DeathCause.HUNG):
        life.run().wait(60)
        life.crash(cause=cause)
    assert dict(life.record.deaths) == {"crash": 2, "llm": 1, "hung": 1}
    life.do(Stop())
    life.do(Start())
    assert dict(life.record.deaths) == {}


def test_a_recovery_that_a_model_refuses_uses_up_no_try_and_waits_longer_each_time() -> None:
    """Ten in a row: 1, 2, 4 … 30 s, and not parked; the next real failure is the first."""
    life = Life(restore_attempts=2).start().run()
    life.crash()
    waits: list[float] = []
    for _ in range(10):
        fence = life.claim()
        life.do(AttemptFailed("429", fence=fence, cause=DeathCause.LLM))
        waits.append(life.deadline(Deadline.ATTEMPT) or 0)
        life.let_pass(Deadline.ATTEMPT)
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]
    life.claim()
    life.fail_attempt()
    assert (life.state, life.record.attempt) == (AgentState.RESURRECTING, 1)
    life.claim()
    life.fail_attempt()
    assert life.state is AgentState.PARKED


@pytest.mark.pain("P10")
@pytest.mark.spec(58)
def test_five_crashes_a_day_apart_never_park_in_a_window_of_an_hour() -> None:
    """Deaths older than restart_period no longer count; charged shows what the cap looks at."""
    life = Life(max_restarts=2, restart_period=timedelta(hours=1)).start().run()
    for _ in range(5):
        life.wait(DAY)
        life.crash()
        assert life.record.charged == 1
        life.run()
    assert (life.state, life.record.restarts) == (AgentState.RUNNING, 5)


def test_three_crashes_within_the_window_park() -> None:
    """The same budget, used up at once."""
    life = Life(max_restarts=2, restart_period=timedelta(hours=1), backoff=timedelta(0)).start().run()
    for _ in range(3):
        life.crash()
        if life.state is AgentState.RESURRECTING:
            life.run()
    assert (life.state, life.record.cause) == (AgentState.PARKED, "cap")


@pytest.mark.spec(58)
def test_without_a_window_deaths_never_age() -> None:
    """Two crashes a year apart use up a cap of one."""
    life = Life(max_restarts=1).start().run()
    life.crash()
    life.run().wait(365 * DAY)
    life.crash()
    assert life.state is AgentState.PARKED


def fail_all_attempts(life: Life) -> list[float]:
    """Claims and fails until it is given up; returns the waits between the tries."""
    waits: list[float] = []
    while life.state is AgentState.RESURRECTING:
        life.claim()
        life.fail_attempt()
        wait = life.deadline(Deadline.ATTEMPT)
        if wait is not None:
            waits.append(wait)
            assert life.let_pass(Deadline.ATTEMPT).nudge
    return waits


@pytest.mark.spec(5)
@pytest.mark.spec(43)
def test_a_recovery_that_always_fails_is_tried_five_times_and_parked() -> None:
    """Waits 1, 2, 4, 8 s; one death; failover.failed, then agent.exhausted(attempts)."""
    life = Life().start().run()
    life.crash()
    assert fail_all_attempts(life) == [1, 2, 4, 8]
    assert (life.state, life.record.cause) == (AgentState.PARKED, "attempts")
    assert life.told()[-2:] == ["failover.failed(cannot recover)", "agent.exhausted(attempts)"]
    assert life.payload(EventType.FAILOVER_FAILED)["attempts"] == 5
    assert (life.record.restarts, life.record.charged, life.record.incarnation) == (1, 1, 6)
    life.wait(DAY)
    assert life.store.due() == [], "then it stops"
    assert life.store.messages == [] or life.store.messages[-1].epoch < life.record.epoch


@pytest.mark.spec(44)
def test_with_eight_attempts_the_waits_grow_to_thirty_seconds_and_no_further() -> None:
    """1, 2, 4, 8, 16, 30, 30 s."""
    life = Life(restore_attempts=8).start().run()
    life.crash()
    assert fail_all_attempts(life) == [1, 2, 4, 8, 16, 30, 30]


def test_the_tries_of_a_restore_on_purpose_wait_just_as_long() -> None:
    """Also when the incarnation before it had run well for long."""
    life = Life().start().run().wait(60)
    life.do(Restore())
    life.release()
    assert fail_all_attempts(life) == [1, 2, 4, 8]
    assert life.state is AgentState.PARKED


@pytest.mark.spec(45)
def test_failing_twice_then_succeeding_costs_one_restart() -> None:
    """The counter counts deaths, not tries."""
    life = Life().start().run()
    life.crash()
    for wait in (1, 2):
        life.claim()
        life.fail_attempt()
        assert life.deadline(Deadline.ATTEMPT) == wait
        life.let_pass(Deadline.ATTEMPT)
    life.run()
    assert (life.state, life.record.restarts, life.record.attempt) == (AgentState.RUNNING, 1, 0)


def test_a_worker_that_dies_while_it_recovers_uses_up_a_try_and_is_on_time() -> None:
    """Its exit is a failed attempt, not another charged death."""
    life = Life().start().run()
    life.crash()
    life.claim("p2")
    life.exit("p2")
    assert (life.record.charged, life.record.attempt) == (1, 1)
    assert life.deadline(Deadline.ATTEMPT) == 1


def test_a_first_start_that_fails_is_a_death() -> None:
    """It is charged, under a cause of its own, and the next tries are those of a failover."""
    life = Life().start()
    life.claim()
    life.fail_attempt("no such file")
    assert (life.state, life.record.charged, life.record.cause) == (AgentState.RESURRECTING, 1, "restore_failed")
    assert life.store.counters["deaths.restore_failed"] == 1
    assert life.told() == ["agent.stopped(no such file)", "failover.triggered(no such file)"]


def test_a_start_that_hangs_is_a_charged_death_and_the_next_waits_for_the_lease() -> None:
    """Its process was not seen to end."""
    life = Life().start()
    fence = life.claim()
    life.wait(57)
    life.store.renew(ID, fence)
    life.let_pass(Deadline.HANG)
    assert (life.state, life.record.cause, life.record.charged) == (AgentState.RESURRECTING, "hung", 1)
    assert life.deadline(Deadline.ATTEMPT) == 5
    assert not life.store.accepts(ID, fence)


def test_a_recovery_that_hangs_is_one_failed_try() -> None:
    """start_timeout ends it; the failover goes on."""
    life = Life().start().run()
    life.crash()
    life.claim()
    life.let_pass(Deadline.HANG)
    assert (life.state, life.record.charged, life.record.attempt) == (AgentState.RESURRECTING, 1, 1)


def test_a_lease_that_ran_out_is_proof() -> None:
    """Nobody renewed: charged as lost, and claimable at once."""
    life = Life().start().run()
    life.let_pass(Deadline.LEASE)
    assert (life.state, life.record.cause, life.record.charged) == (AgentState.RESURRECTING, "lost", 1)
    assert life.deadline(Deadline.NUDGE) == 2


def test_the_exit_of_the_owner_is_proof_and_another_exit_is_nothing() -> None:
    """Identity decides, not the worker's name."""
    life = Life().start().run("p1")
    assert life.exit("p2").ignored
    plan = life.exit("p1")
    assert (life.state, life.record.cause) == (AgentState.RESURRECTING, "lost")
    assert plan.free_host
    assert life.store.hosts["p1"] == set()


def test_the_exit_of_a_process_with_several_tenants_is_not_charged() -> None:
    """Who watches the process names the cause."""
    life = Life().start().run()
    life.do(OwnerExited(identity="p1", cause=DeathCause.CO_TENANT))
    assert (life.record.charged, life.record.restarts) == (0, 1)


def test_a_temporary_agent_is_never_resurrected_but_handed_over() -> None:
    """A death stops it; a drain does not."""
    life = Life(restart=RestartType.TEMPORARY).start().run()
    life.release()
    assert life.state is AgentState.STARTING
    life.run()
    life.crash()
    assert (life.state, life.record.desired) == (AgentState.STOPPED, Desired.STOPPED)
    assert life.payload(EventType.AGENT_STOPPED)["auto_restore"] is False
    assert "failover" not in " ".join(life.told())


@pytest.mark.parametrize("kind", [RestartType.TRANSIENT, RestartType.PERMANENT])
def test_other_restart_types_survive_a_death(kind: RestartType) -> None:
    """They differ in what an orderly return means, which the runner reports as a completion or a death."""
    life = Life(restart=kind).start().run()
    life.crash()
    assert life.state is AgentState.RESURRECTING


def test_a_drain_hands_over_without_a_charge() -> None:
    """Released by a worker that shuts down: starting again, nothing counted."""
    life = Life().start().run()
    plan = life.release()
    assert (life.state, life.record.restarts, life.record.charged) == (AgentState.STARTING, 0, 0)
    assert plan.nudge
    assert life.told()[-1] == "agent.stopped(drain)"
    life.run("p2")
    assert life.told()[-1] == "agent.started(drain)"


def test_a_drain_in_the_middle_of_a_recovery_closes_the_failover() -> None:
    """Each trigger has exactly one end."""
    life = Life().start().run()
    life.crash()
    life.claim()
    life.release()
    assert life.told()[-2:] == ["failover.aborted(drain)", "agent.stopped(drain)"]


def test_an_incarnation_can_park_itself() -> None:
    """What only a person can settle: the failover failed, the cause is kept."""
    life = Life().start().run()
    life.crash()
    life.claim()
    life.do(Park("gap after version 7", fence=life.record.fence, cause="integrity"))
    assert (life.state, life.record.cause) == (AgentState.PARKED, "integrity")
    assert life.told()[-2:] == ["failover.failed(gap after version 7)", "agent.parked(integrity)"]


def test_a_deadline_of_an_earlier_incarnation_only_goes_away() -> None:
    """It has outlived its reason."""
    life = Life().start().run()
    before = life.record
    plan = life.do(DeadlineDue(kind=Deadline.STOP))
    assert plan.deadlines == {Deadline.STOP: None}
    assert life.record.epoch == before.epoch
    assert life.state is AgentState.RUNNING
