"""What people ask of an agent: contract.md's sentences about starting, stopping, pausing and the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ares_celery.errors import (
    AgentAlreadyRegisteredError,
    AgentNotRunningError,
    AgentParkedError,
    FencedError,
    OperationNotSupportedError,
    RuntimeStoppedError,
    VersionConflictError,
)
from ares_celery.ids import Version
from ares_celery.model.agent import AgentSpec, AgentState, Desired, Request, RestartType, RuntimeState
from ares_celery.model.audit import note_of
from ares_celery.model.command import (
    Claim,
    Command,
    Complete,
    Deadline,
    Delete,
    Die,
    Park,
    Pause,
    Register,
    Restart,
    Restore,
    Resume,
    Start,
    Stop,
    Unpark,
    Update,
)
from ares_celery.model.event import RUNTIME_MODULE, EventType
from ares_celery.model.restart import DeathCause
from tests.unit.model.life import ID, SPEC, Life

LATE = "late"
NEWER = AgentSpec(id=ID, type="counter", config={"step": 2})


def test_a_first_start_makes_the_agent_claimable_and_sends_its_message() -> None:
    """start_agent: desired and state are written, the message goes out, and goes out again unless it is claimed."""
    life = Life()
    plan = life.do(Start("for the demo", "ann@desk", spec=SPEC))
    assert (life.state, life.record.desired) == (AgentState.STARTING, Desired.RUNNING)
    assert (life.record.reason, life.record.actor) == ("for the demo", "ann@desk")
    assert plan.nudge
    assert life.deadline(Deadline.NUDGE) == 2


def test_a_started_agent_says_why_it_started_once_its_code_begins() -> None:
    """agent.started carries the true type and the reason apart, and is marked as the runtime's own."""
    life = Life().start().run()
    assert life.state is AgentState.RUNNING
    assert life.payload(EventType.AGENT_STARTED) == {
        "agent_id": ID,
        "type": "counter",
        "reason": "start",
        "incarnation": 1,
    }
    assert life.store.events[ID][0].metadata == {"module": RUNTIME_MODULE}


def test_starting_a_running_agent_again_is_refused() -> None:
    """The default of if_exists; the error says what to do instead."""
    life = Life().start().run()
    with pytest.raises(AgentAlreadyRegisteredError, match="if_exists"):
        life.do(Start(spec=SPEC))


def test_a_paused_agent_exists_too() -> None:
    """An agent exists when it is meant to run or to pause."""
    life = Life().start().run()
    life.do(Pause())
    with pytest.raises(AgentAlreadyRegisteredError):
        life.do(Start(spec=SPEC))
    life.release()
    with pytest.raises(AgentAlreadyRegisteredError):
        life.do(Start(spec=SPEC))


def test_if_exists_return_changes_nothing() -> None:
    """The caller gets the agent as it is, even with another spec in hand."""
    life = Life().start().run()
    before = life.record
    assert life.do(Start(spec=NEWER, if_exists="return")).ignored
    assert life.record is before


def test_if_exists_update_replaces_the_spec_and_leaves_the_incarnation_alone() -> None:
    """The next incarnation gets the new spec."""
    life = Life().start().run()
    fence = life.record.fence
    life.do(Start(spec=NEWER, if_exists="update"))
    assert (life.record.spec, life.state, life.record.fence) == (NEWER, AgentState.RUNNING, fence)
    assert life.do(Start(spec=NEWER, if_exists="update")).ignored


def test_if_exists_restart_is_a_restart_by_hand() -> None:
    """The running incarnation ends in order, the next one begins."""
    life = Life().start().run()
    life.do(Start(if_exists="restart"))
    assert life.record.request is Request.RESTART
    life.release()
    assert (life.state, life.record.manual_restarts) == (AgentState.STARTING, 1)


@pytest.mark.parametrize("ending", ["stopped", "completed", "registered"])
def test_a_resting_agent_is_simply_started_with_its_history_and_fresh_counters(ending: str) -> None:
    """State (the stream) is kept, counters are 0."""
    life = Life()
    if ending == "registered":
        life.do(Register(spec=SPEC))
    else:
        life.start().run()
        life.crash()
        life.run()
        life.do(Restart())
        life.release()
        life.run()
    if ending == "stopped":
        life.do(Stop())
        life.release()
    if ending == "completed":
        life.do(Complete(fence=life.record.fence, result="42"))
    version, epoch, incarnation = life.record.version, life.record.epoch, life.record.incarnation
    assert life.state.value == ending
    life.do(Start())
    record = life.record
    assert (record.state, record.desired, record.version) == (AgentState.STARTING, Desired.RUNNING, version)
    assert (record.restarts, record.charged, record.manual_restarts, record.failures) == (0, 0, 0, 0)
    assert (record.result, record.incarnation) == ("", incarnation)
    assert record.epoch > epoch


def test_a_registered_agent_rests_until_it_is_started() -> None:
    """register_agent while the runtime runs: state registered, desired stopped."""
    life = Life()
    plan = life.do(Register(spec=SPEC))
    assert (life.state, life.record.desired) == (AgentState.REGISTERED, Desired.STOPPED)
    assert not plan.nudge
    assert not plan.events


def test_registering_again_changes_nothing() -> None:
    """The entry stays; the newest factory of its type serves the next incarnation anyway."""
    life = Life().start().run()
    before = life.record
    assert life.do(Register(spec=NEWER)).ignored
    assert life.record is before


def test_a_stop_asks_first_and_the_release_stops() -> None:
    """The owner may still snapshot: the request raises no epoch, the release does."""
    life = Life().start().run()
    epoch, fence = life.record.epoch, life.record.fence
    plan = life.do(Stop(actor="ann@desk"))
    assert (life.state, life.record.desired) == (AgentState.STOPPING, Desired.STOPPED)
    assert (life.record.request, life.record.epoch, life.record.fence) == (Request.STOP, epoch, fence)
    assert (life.record.reason, life.record.actor) == ("explicit_stop", "ann@desk")
    assert plan.wake_owner
    assert life.deadline(Deadline.STOP) == 10
    life.release()
    assert (life.state, life.record.fence) == (AgentState.STOPPED, "")
    assert life.record.epoch > epoch
    assert life.told()[-1] == "agent.stopped(explicit_stop)"


def test_stopping_a_stopped_agent_again_succeeds_without_a_second_event() -> None:
    """A repeat is no error and no news."""
    life = Life().start().run()
    life.do(Stop())
    assert life.do(Stop()).ignored
    life.release()
    assert life.do(Stop()).ignored
    assert life.told().count("agent.stopped(explicit_stop)") == 1


def test_an_agent_that_nobody_claimed_is_called_off_at_once() -> None:
    """Stopped before any worker came: the message that is still under way loses its claim."""
    life = Life().start()
    epoch = life.record.epoch
    life.do(Stop())
    assert life.state is AgentState.STOPPED
    with pytest.raises(FencedError):
        life.claim(epoch=epoch)


def test_a_forced_stop_fences_at_once() -> None:
    """--now: the incarnation is over; the next one waits for its exit or the end of its lease."""
    life = Life().start().run()
    fence = life.record.fence
    life.do(Stop(force=True))
    assert life.state is AgentState.STOPPED
    assert not life.store.accepts(ID, fence)
    life.do(Start())
    assert life.deadline(Deadline.ATTEMPT) == 8


def test_a_paused_agent_can_be_stopped_and_is_then_only_stopped() -> None:
    """One enum, one value: never both."""
    life = Life().start().run()
    life.do(Pause())
    life.release()
    assert life.state is AgentState.PAUSED
    life.do(Stop())
    assert (life.state, life.record.desired) == (AgentState.STOPPED, Desired.STOPPED)


def test_a_stopped_agent_cannot_be_paused() -> None:
    """Nor one that is about to stop."""
    life = Life().start().run()
    life.do(Stop())
    with pytest.raises(AgentNotRunningError, match="stopping"):
        life.do(Pause())
    life.release()
    with pytest.raises(AgentNotRunningError, match="stopped"):
        life.do(Pause())


def test_pause_and_resume_keep_the_state_and_count_nothing() -> None:
    """The slot is free while it rests; resume is not a restart."""
    life = Life().start().run()
    life.do(Pause())
    life.release()
    assert life.told()[-1] == "agent.stopped(pause)"
    before = len(life.told())
    life.do(Pause())
    assert (life.state, len(life.told())) == ("paused", before)
    life.do(Resume())
    life.run()
    assert life.told()[-1] == "agent.started(resume)"
    assert (life.record.restarts, life.record.manual_restarts, life.record.charged) == (0, 0, 0)


def test_resuming_while_it_is_still_ending_runs_it_again() -> None:
    """The wish is written at once; the release obeys the newest wish."""
    life = Life().start().run()
    life.do(Pause())
    life.do(Resume())
    assert life.state is AgentState.STOPPING
    life.release()
    life.run()
    assert life.told()[-1] == "agent.started(resume)"


def test_resume_never_overrules_a_stop() -> None:
    """Not paused: success without effect."""
    life = Life().start().run()
    life.do(Stop())
    assert life.do(Resume()).ignored
    life.release()
    assert life.do(Resume()).ignored
    assert life.state is AgentState.STOPPED


def test_a_pause_calls_off_a_resurrection_that_waits() -> None:
    """Paused agents are not resurrected; the failover is closed."""
    life = Life().start().run()
    life.crash()
    life.do(Pause())
    assert life.state is AgentState.PAUSED
    assert life.told()[-2:] == ["failover.aborted(aborted by pause)", "agent.stopped(pause)"]


def test_a_restart_ends_the_old_incarnation_before_the_new_one_may_begin() -> None:
    """agent.stopped(restart), then agent.started(restart); its own counter, not the automatic budget."""
    life = Life().start().run()
    life.do(Restart())
    assert (life.state, life.record.request, life.record.reason) == (AgentState.STOPPING, Request.RESTART, "restart")
    life.release()
    life.run()
    assert life.told()[-2:] == ["agent.stopped(restart)", "agent.started(restart)"]
    assert (life.record.manual_restarts, life.record.restarts, life.record.charged) == (1, 0, 0)
    assert life.store.counters["manual_restarts"] == 1


@pytest.mark.parametrize("ending", [Stop(), Pause()], ids=["stopped", "paused"])
def test_a_restart_starts_a_resting_agent(ending: Stop | Pause) -> None:
    """It is then meant to run."""
    life = Life().start().run()
    life.do(ending)
    life.release()
    life.do(Restart())
    assert (life.state, life.record.desired) == (AgentState.STARTING, Desired.RUNNING)


def test_a_restart_replaces_a_pending_resurrection() -> None:
    """Exactly one incarnation follows: the newer; the older one's message loses."""
    life = Life().start().run()
    life.crash()
    old = life.record.epoch
    life.do(Restart())
    assert life.told()[-1] == "failover.aborted(restart)"
    with pytest.raises(FencedError):
        life.claim(epoch=old)
    life.run()
    assert life.told()[-1] == "agent.started(restart)"


def test_a_restart_by_hand_forgets_failures_in_a_row_whether_hosted_or_not() -> None:
    """A person looked at it: the next death is the first of a row."""
    life = Life().start().run()
    life.crash()
    life.run()
    life.do(Restart())
    life.release()
    assert life.record.failures == 0


def test_a_restart_un_parks_and_fills_the_budget() -> None:
    """restart_agent is how a person lets a parked agent try again."""
    life = Life(max_restarts=1).start().run()
    life.crash()
    life.run()
    life.crash()
    assert life.record.cause == "cap"
    life.do(Restart())
    assert (life.state, life.record.charged, life.record.cause) == (AgentState.STARTING, 0, "")
    life.run()
    life.crash()
    assert life.state is AgentState.RESURRECTING


@pytest.mark.parametrize("command", [Restart(), Unpark()], ids=type)
@pytest.mark.parametrize("cause", ["reconcile", "integrity"])
def test_what_must_be_settled_first_stays_parked(cause: str, command: Command) -> None:
    """An open intent or a damaged history is not waved through by a restart."""
    life = Life().start().run()
    assert life.store.begin_step(ID, life.record.fence)
    life.do(Park("look at version 7", fence=life.record.fence, cause=cause))
    with pytest.raises(AgentParkedError, match="look at version 7"):
        life.do(command)
    assert life.state is AgentState.PARKED


def damaged() -> Life:
    """Parked, as its history is damaged at version 7."""
    life = Life().start().run()
    life.do(Park("damaged at version 7", fence=life.record.fence, cause="integrity"))
    return life


@pytest.mark.parametrize("command", [Start(), Restart(), Unpark()], ids=type)
def test_the_refusal_of_a_damaged_agent_names_the_position_and_the_ways_out(command: Command) -> None:
    """Go on without what is lost, or forget the agent; a restart is not among them."""
    with pytest.raises(AgentParkedError) as refused:
        damaged().do(command)
    text = str(refused.value)
    ways = ("damaged at version 7", f"`ares agents unpark {ID} --accept-loss`", f"`ares agents rm {ID}`")
    assert [way for way in ways if way not in text] == []
    assert "ares agents restart" not in text
    assert str(AgentParkedError(refused.value.args[0])) == text


def test_accepting_a_loss_unparks_and_notes_up_to_where() -> None:
    """The record's version by then; the budget is full again, the message goes out, and the audit entry says it."""
    life = damaged()
    life.store.records[ID] = replace(life.record, charged=3, version=Version(9))
    plan = life.do(Unpark("backup is gone", "ann", accept_loss=True))
    record = life.record
    assert (record.state, record.cause, record.charged, record.manual_restarts) == (AgentState.STARTING, "", 0, 1)
    assert (record.accepted_version, record.begin_anew, plan.nudge is not None) == (9, True, True)
    note = note_of(plan, "op")
    assert note is not None
    assert (note.operation, note.actor, note.changed) == ("unpark", "ann", ("accept_loss",))


def test_what_was_accepted_stays_so_and_new_damage_is_accepted_anew() -> None:
    """Over later lives; damaged snapshots alone only until an incarnation runs, which will take new ones."""
    life = damaged()
    life.do(Unpark(accept_loss=True))
    accepted = life.record.accepted_version
    assert accepted > 0
    life.claim()
    life.fail_attempt()
    assert (life.record.accepted_version, life.record.begin_anew) == (accepted, True)
    life.run()
    assert (life.record.accepted_version, life.record.begin_anew) == (accepted, False)
    life.do(Stop())
    life.release()
    life.do(Start())
    life.run()
    assert life.record.accepted_version == accepted
    life.do(Park("damaged at version 99", fence=life.record.fence, cause="integrity"))
    with pytest.raises(AgentParkedError):
        life.do(Unpark())
    life.do(Unpark(accept_loss=True))
    assert life.record.accepted_version > accepted


@pytest.mark.parametrize("cause", ["reconcile", "manual"])
def test_no_loss_is_accepted_where_none_was_found(cause: str) -> None:
    """Of another cause: refused, with what to do; nothing is noted."""
    life = Life().start().run()
    life.do(Park("look", fence=life.record.fence, cause=cause))
    with pytest.raises(OperationNotSupportedError, match="leave accept_loss out"):
        life.do(Unpark(accept_loss=True))
    assert (life.state, life.record.accepted_version, life.record.begin_anew) == (AgentState.PARKED, 0, False)


def test_in_a_stopped_runtime_no_loss_is_accepted() -> None:
    """Refused as a restart is; nothing is noted."""
    life = damaged()
    life.store.runtime = RuntimeState.STOPPED
    with pytest.raises(RuntimeStoppedError):
        life.do(Unpark(accept_loss=True))
    assert (life.state, life.record.accepted_version) == (AgentState.PARKED, 0)


def test_a_parked_agent_is_neither_started_nor_paused_nor_restored() -> None:
    """It waits for a person; the error says how to go on."""
    life = Life().start().run()
    life.do(Park("tool unknown", fence=life.record.fence, cause="manual"))
    for command in (Start(), Start(if_exists="restart"), Pause(), Restore()):
        with pytest.raises(AgentParkedError, match="ares agents restart"):
            life.do(command)
    life.do(Stop())
    assert (life.state, life.record.desired) == (AgentState.PARKED, Desired.STOPPED)


def test_a_restore_fails_over_on_purpose_and_counts_no_restart() -> None:
    """agent.stopped, failover.triggered, then failover.completed; total restarts unchanged."""
    life = Life().start().run()
    life.do(Restore())
    life.release()
    assert life.state is AgentState.RESURRECTING
    assert life.deadline(Deadline.NUDGE) == 2
    life.run()
    assert life.told()[-3:] == ["agent.stopped(restore)", "failover.triggered(restore)", "failover.completed"]
    assert (life.record.restarts, life.record.charged, life.record.manual_restarts) == (0, 0, 0)
    assert life.payload(EventType.FAILOVER_COMPLETED)["type"] == "counter"


def test_a_failover_on_purpose_is_told_as_whole_as_a_death() -> None:
    """Whoever follows failovers finds each field, and sees by the cause that it was somebody's wish."""
    life = Life().start().run()
    life.crash()
    life.run()
    life.do(Restore("a look at it", actor="ann"))
    life.release()
    assert life.payload(EventType.FAILOVER_TRIGGERED) == {
        "agent_id": "counter-1",
        "reason": "restore",
        "cause": "restore",
        "charged": False,
        "restarts": 1,
        "incarnation": 2,
        "delay_ms": 0,
    }


def test_reason_actor_and_cause_are_of_the_same_end() -> None:
    """A death is nobody's wish, and a wish has nothing to do with an earlier death."""

    def told(life: Life) -> tuple[str, str, str]:
        return life.record.reason, life.record.actor, life.record.cause

    life = Life()
    life.do(Start(spec=SPEC, reason="go", actor="ann"))
    life.run()
    life.crash("boom")
    assert told(life) == ("boom", "", "crash")
    life.run()
    life.do(Restore("a look at it", actor="ben"))
    life.release()
    assert told(life) == ("a look at it", "ben", "")
    life.run().wait(5)
    life.do(Die("no pulse", actor="health", cause=DeathCause.UNHEALTHY))
    life.release()
    assert told(life) == ("no pulse", "health", "unhealthy")


def test_of_two_restores_at_once_one_wins_and_the_other_gets_a_conflict() -> None:
    """Both while the first is asked for and while it recovers."""
    life = Life().start().run()
    life.do(Restore())
    with pytest.raises(VersionConflictError):
        life.do(Restore())
    life.release()
    with pytest.raises(VersionConflictError):
        life.do(Restore())


@pytest.mark.parametrize("ending", [Stop(), Pause()], ids=["stopped", "paused"])
def test_a_restore_of_what_an_operator_ended_is_an_error(ending: Stop | Pause) -> None:
    """Not a silent success, and nothing runs."""
    life = Life().start().run()
    life.do(ending)
    with pytest.raises(AgentNotRunningError):
        life.do(Restore())
    life.release()
    with pytest.raises(AgentNotRunningError):
        life.do(Restore())


def test_an_update_waits_for_the_next_incarnation() -> None:
    """No epoch, no request: the running one is left alone."""
    life = Life().start().run()
    fence = life.record.fence
    life.do(Update(spec=NEWER))
    assert (life.record.spec, life.record.fence, life.state) == (NEWER, fence, AgentState.RUNNING)
    assert life.do(Update(spec=NEWER)).ignored


def test_a_live_agent_is_not_deleted_and_a_resting_one_is_gone() -> None:
    """Stop it first; afterwards late claims and writes find nothing."""
    life = Life().start().run()
    fence, epoch = life.record.fence, life.record.epoch
    with pytest.raises(OperationNotSupportedError, match="stop it first"):
        life.do(Delete())
    life.do(Stop())
    life.release()
    life.do(Delete())
    assert not life.exists
    assert not life.store.accepts(ID, fence)
    with pytest.raises(FencedError):
        life.do(Claim(epoch=epoch, token=LATE))


@pytest.mark.parametrize("kind", list(RestartType))
def test_completion_is_final_for_every_restart_type(kind: RestartType) -> None:
    """ctx.complete: nothing brings it back but a start."""
    life = Life(restart=kind).start().run()
    life.do(Complete("all files read", fence=life.record.fence, result="[1]"))
    record = life.record
    assert (record.state, record.desired, record.result) == (AgentState.COMPLETED, Desired.STOPPED, "[1]")
    assert life.told()[-1] == "agent.completed"
    assert life.store.counters["completed"] == 1


@pytest.mark.parametrize("asked", [Stop(), Pause(), Restart(), Restore()], ids=type)
def test_completion_wins_over_what_was_asked_meanwhile(asked: Stop | Pause | Restart | Restore) -> None:
    """It had nothing left to do when it was asked."""
    life = Life().start().run()
    life.do(asked)
    life.do(Complete(fence=life.record.fence))
    assert life.state is AgentState.COMPLETED


def test_every_command_of_a_person_leaves_reason_and_actor_in_the_record() -> None:
    """Who and why is part of what is kept."""
    life = Life().start().run()
    for command in (Pause("night", "eve"), Resume("day", "eve"), Restart("new key", "ann"), Stop("enough", "bob")):
        life.do(command)
        assert life.record.actor == command.actor
    assert life.record.reason == "enough"


@pytest.mark.parametrize("merge", [False, True])
def test_a_config_is_replaced_or_merged_with_what_is_there_by_then(merge: bool) -> None:  # noqa: FBT001 - a case
    """Not with what its caller had read."""
    life = Life()
    life.do(Start(spec=AgentSpec(id=ID, type="counter", config={"step": 1, "unit": "m"}, labels={"a": "b"})))
    life.do(Update("faster", "ann", config={"step": 5}, merge=merge))
    assert life.record.spec.config == ({"step": 5, "unit": "m"} if merge else {"step": 5})
    assert (life.record.spec.labels, life.record.actor, life.record.incarnation) == ({"a": "b"}, "ann", 0)


def test_an_update_applied_by_restart_is_one_step() -> None:
    """The incarnation is asked to end in the same commit; the next one gets the new config, charged to nobody."""
    life = Life().start().run()
    plan = life.do(Update("faster", "ann", config={"step": 5}, restart=True))
    assert (life.state, life.record.request, life.record.spec.config) == (
        AgentState.STOPPING,
        Request.RESTART,
        {"step": 5},
    )
    assert plan.wake_owner
    life.release()
    assert (life.state, life.record.manual_restarts, life.record.charged) == (AgentState.STARTING, 1, 0)
    # The very same again restarts too: nobody knows which config the incarnation was made with.
    life.run()
    assert life.do(Update(config={"step": 5}, restart=True)).after is not None
    assert life.state is AgentState.STOPPING


def test_an_update_starts_nothing_that_does_not_run() -> None:
    """A stopped or paused agent gets the config when somebody starts it; an unclaimed one with its claim."""
    for command in (Stop(force=True), Pause()):
        life = Life().start()
        life.do(command)
        state = life.state
        life.do(Update(config={"step": 5}, restart=True))
        assert (life.state, life.record.spec.config) == (state, {"step": 5})
    life = Life().start()
    epoch = life.record.epoch
    life.do(Update(config={"step": 5}, restart=True))
    assert (life.state, life.record.epoch, life.record.spec.config) == (AgentState.STARTING, epoch, {"step": 5})


def test_an_update_while_the_runtime_stops_only_changes_the_spec() -> None:
    """Nothing begins there."""
    life = Life().start().run()
    life.store.runtime = RuntimeState.STOPPED
    life.do(Update(config={"step": 5}, restart=True))
    assert (life.state, life.record.spec.config) == (AgentState.RUNNING, {"step": 5})


def test_a_restore_as_another_type_is_one_step() -> None:
    """A refused one changes no type."""
    life = Life().start().run()
    life.do(Restore("try", "ann", type="counter2"))
    assert (life.state, life.record.spec.type) == (AgentState.STOPPING, "counter2")
    with pytest.raises(VersionConflictError):
        life.do(Restore(type="counter3"))
    assert life.record.spec.type == "counter2"
