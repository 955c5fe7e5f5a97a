"""Between a request and its end: who may come next, and when."""

from __future__ import annotations

import pytest

from ares_celery.errors import AgentNotRunningError, FencedError, VersionConflictError
from ares_celery.model.agent import AgentState, Desired, Request, RuntimeState
from ares_celery.model.command import (
    Command,
    Complete,
    Deadline,
    DeadlineDue,
    Die,
    Pause,
    Reconcile,
    Restart,
    Restore,
    Resume,
    Start,
    Stop,
)
from tests.unit.model.life import ID, SPEC, Life


def test_a_start_while_it_stops_runs_it_again_after_the_release() -> None:
    """The newest wish wins, at the moment of the end."""
    life = Life().start().run()
    life.do(Stop())
    life.do(Start())
    assert (life.state, life.record.desired) == (AgentState.STOPPING, Desired.RUNNING)
    life.release()
    life.run()
    assert life.told()[-2:] == ["agent.stopped(explicit_stop)", "agent.started(start)"]


def test_a_stop_while_it_starts_again_holds() -> None:
    """Stop, start, stop: it does not run."""
    life = Life().start().run()
    for wish in (Stop(), Start(), Stop()):
        life.do(wish)
    life.release()
    assert (life.state, life.record.desired) == (AgentState.STOPPED, Desired.STOPPED)


def test_a_stop_during_a_resurrection_nobody_claimed_ends_it() -> None:
    """The message under way loses; the failover is closed as aborted."""
    life = Life().start().run()
    life.crash()
    epoch = life.record.epoch
    life.do(Stop())
    assert life.state is AgentState.STOPPED
    assert life.told()[-2:] == ["failover.aborted(aborted by explicit_stop)", "agent.stopped(explicit_stop)"]
    with pytest.raises(FencedError):
        life.claim(epoch=epoch)


def test_a_stop_during_a_recovery_ends_it_in_order() -> None:
    """It is asked; its release stops it, its failover is aborted once."""
    life = Life().start().run()
    life.crash()
    life.claim()
    life.do(Stop())
    assert life.record.request is Request.STOP
    life.release()
    assert life.state is AgentState.STOPPED
    assert [word for word in life.told() if word.startswith("failover")] == [
        "failover.triggered(boom)",
        "failover.aborted(aborted by explicit_stop)",
    ]


def test_a_recovery_that_fails_after_a_stop_was_asked_is_simply_over() -> None:
    """No retry of what nobody wants."""
    life = Life().start().run()
    life.crash()
    life.claim()
    life.do(Stop())
    life.fail_attempt()
    assert life.state is AgentState.STOPPED


@pytest.mark.parametrize("end", ["exit", "crash", "lease"])
def test_an_end_without_a_release_obeys_the_same_wish(end: str) -> None:
    """Its seen exit, its own report or the judged lease end a stop as well."""
    life = Life().start().run()
    life.do(Stop())
    match end:
        case "exit":
            life.exit()
        case "crash":
            life.crash()
        case _:
            life.let_pass(Deadline.LEASE)
    assert life.state is AgentState.STOPPED
    assert life.told()[-1] == "agent.stopped(explicit_stop)"


def test_a_crash_while_a_restart_was_asked_is_that_restart() -> None:
    """It would have ended anyway: counted by hand, not charged."""
    life = Life().start().run()
    life.do(Restart())
    life.exit()
    assert (life.state, life.record.manual_restarts, life.record.charged) == (AgentState.STARTING, 1, 0)


def test_the_stop_deadline_fences_and_the_next_one_waits_for_the_lease() -> None:
    """It did not end in time: over for the store, not yet proven over outside."""
    life = Life().start().run()
    fence = life.record.fence
    life.do(Restart())
    life.wait(9)
    lease = life.store.renew(ID, fence)
    life.let_pass(Deadline.STOP)
    assert life.state is AgentState.STARTING
    assert not life.store.accepts(ID, fence)
    assert life.record.claimable_after == lease
    assert life.deadline(Deadline.ATTEMPT) == 7
    with pytest.raises(FencedError, match="is over"):
        life.claim("p2")


def fenced_in_restart(life: Life) -> Life:
    """A restart whose incarnation did not end in time, on p1; its lease runs for 7 s more."""
    life.start().run("p1")
    life.do(Restart())
    life.wait(9)
    life.store.renew(ID, life.record.fence)
    life.let_pass(Deadline.STOP)
    return life


def test_a_later_exit_of_the_fenced_process_makes_it_claimable_now() -> None:
    """Proof came early: no need to wait for the lease."""
    life = fenced_in_restart(Life())
    plan = life.exit("p1")
    assert plan.nudge
    assert life.deadline(Deadline.ATTEMPT) is None
    life.run("p2")
    assert life.state is AgentState.RUNNING
    assert life.store.hosts["p1"] == set()


def test_a_later_exit_makes_a_restart_claimable_now_also_after_failures_in_a_row() -> None:
    """A restart has no backoff to wait for."""
    life = Life().start()
    for _ in range(3):
        life.run("p0")
        life.crash()
        if life.deadline(Deadline.ATTEMPT) is not None:
            life.let_pass(Deadline.ATTEMPT)
    life.run("p1")
    life.do(Pause())
    life.do(Resume())
    life.wait(9)
    life.store.renew(ID, life.record.fence)
    life.let_pass(Deadline.STOP)
    assert life.exit("p1").nudge


def test_an_exit_does_not_shorten_a_backoff() -> None:
    """The next try is due when it is due."""
    life = Life().start().run().wait(1)
    life.crash()
    life.claim("p2")
    life.let_pass(Deadline.HANG)
    plan = life.exit("p2")
    assert not plan.nudge
    assert life.deadline(Deadline.ATTEMPT) == 1


def test_a_stop_of_the_runtime_does_not_forget_that_an_old_process_may_still_act() -> None:
    """Stopped and started again within the lease: still nobody is claimable before it ends."""
    life = fenced_in_restart(Life())
    until = life.record.claimable_after
    life.set_runtime(RuntimeState.STOPPED)
    assert (life.state, life.record.claimable_after) == (AgentState.STOPPED, until)
    life.set_runtime(RuntimeState.RUNNING)
    assert life.deadline(Deadline.ATTEMPT) == 7
    assert life.record.claimable_after == until


@pytest.mark.parametrize(
    "between", [[Stop(), Start()], [Pause(), Resume()], [Restart()]], ids=["stop", "pause", "restart"]
)
def test_no_command_forgets_that_an_old_process_may_still_act(between: list[Command]) -> None:
    """Whatever is asked while it waits."""
    life = fenced_in_restart(Life())
    until = life.record.claimable_after
    for command in between:
        life.do(command)
        assert life.record.claimable_after == until
    assert life.deadline(Deadline.ATTEMPT) == 7


def test_a_process_is_forgotten_once_its_lease_is_over() -> None:
    """The index of hosts keeps nobody for ever."""
    life = fenced_in_restart(Life())
    life.do(Stop())
    assert life.store.hosts["p1"] == {ID}
    life.wait(60)
    life.do(Start())
    assert life.record.owner is None
    assert life.store.hosts["p1"] == set()


def test_completion_wins_over_a_stop() -> None:
    """It was done before it was told."""
    life = Life().start().run()
    life.do(Stop())
    life.do(Complete(fence=life.record.fence))
    assert life.state is AgentState.COMPLETED
    assert life.do(Stop()).ignored


def test_a_late_write_after_the_end_is_refused() -> None:
    """Stopped, completed, parked or resurrecting: the old fence is worth nothing."""
    life = Life().start().run()
    fence = life.record.fence
    life.do(Stop())
    life.release()
    with pytest.raises(FencedError):
        life.do(Complete(fence=fence))
    assert not life.store.accepts(ID, fence)


def test_before_the_runtime_runs_a_start_is_kept_and_nothing_is_sent() -> None:
    """No event, no message; start() of the runtime launches it, once."""
    life = Life(runtime=RuntimeState.NEW)
    plan = life.do(Start(spec=SPEC))
    assert (life.state, life.record.desired) == (AgentState.REGISTERED, Desired.RUNNING)
    assert not plan.nudge
    assert life.told() == []
    life.set_runtime(RuntimeState.RUNNING)
    assert life.do(Reconcile()).ignored
    assert len(life.store.messages) == 1
    life.run()
    assert life.told() == ["agent.started(start)"]


def test_what_is_stopped_before_the_runtime_runs_is_not_launched() -> None:
    """Registered, stopped in between: it stays stopped."""
    life = Life(runtime=RuntimeState.NEW)
    life.do(Start(spec=SPEC))
    life.do(Stop())
    life.set_runtime(RuntimeState.RUNNING)
    assert life.state is AgentState.STOPPED


def test_a_stopped_runtime_ends_its_agents_in_order_and_a_started_one_brings_them_back() -> None:
    """agent.stopped(shutdown), once; what operators wanted is unchanged."""
    life = Life().start().run()
    life.set_runtime(RuntimeState.STOPPED)
    assert life.record.request is Request.SHUTDOWN
    life.release()
    assert (life.state, life.record.desired) == (AgentState.STOPPED, Desired.RUNNING)
    assert life.told()[-1] == "agent.stopped(shutdown)"
    life.set_runtime(RuntimeState.RUNNING)
    life.run()
    assert (life.state, life.record.restarts, life.record.manual_restarts) == (AgentState.RUNNING, 0, 0)


def test_a_runtime_that_starts_again_before_the_end_keeps_its_agent() -> None:
    """The release looks at the runtime of that moment."""
    life = Life().start().run()
    life.set_runtime(RuntimeState.STOPPED)
    life.set_runtime(RuntimeState.RUNNING)
    life.release()
    assert life.state is AgentState.STARTING


def test_a_stopped_runtime_ends_resurrections_that_wait() -> None:
    """Nothing is started afterwards, and the failover is closed."""
    life = Life().start().run()
    life.crash()
    life.set_runtime(RuntimeState.STOPPED)
    assert life.state is AgentState.STOPPED
    assert life.told()[-2:] == ["failover.aborted(aborted by shutdown)", "agent.stopped(shutdown)"]


def test_a_message_that_is_due_after_the_runtime_stopped_stops_the_agent() -> None:
    """The sweep may come before the reconcile."""
    life = Life().start()
    life.store.runtime = RuntimeState.STOPPED
    plan = life.let_pass(Deadline.NUDGE)
    assert not plan.nudge
    assert life.state is AgentState.STOPPED


def test_what_an_operator_paused_or_stopped_stays_so_when_the_runtime_starts() -> None:
    """Nothing that restarts brings back what an operator stopped."""
    for wish, state in ((Pause(), AgentState.PAUSED), (Stop(), AgentState.STOPPED)):
        life = Life().start().run()
        life.do(wish)
        life.release()
        life.set_runtime(RuntimeState.STOPPED)
        life.set_runtime(RuntimeState.RUNNING)
        assert life.state is state


CHAIN: list[Command] = [Stop(), Pause(), Restart(), Restore(), Die("ill", epoch=None)]
REFUSED = {(Stop, Pause), (Stop, Restore), (Pause, Restore), (Restart, Restore), (Restore, Restore), (Die, Restore)}


@pytest.mark.parametrize("last", [*CHAIN[:4]], ids=type)
@pytest.mark.parametrize("first", CHAIN, ids=type)
def test_of_two_requests_the_later_wish_decides(first: Command, last: Command) -> None:
    """The stop deadline of the first one stands, so that repeating a request cannot put it off."""
    life = Life().start().run().wait(5)
    life.do(first)
    life.wait(4)
    if (type(first), type(last)) in REFUSED:
        with pytest.raises((AgentNotRunningError, VersionConflictError)):
            life.do(last)
        return
    life.do(last)
    assert life.deadline(Deadline.STOP) == 6
    life.release()
    expected: dict[type[Command], AgentState] = {
        Stop: AgentState.STOPPED,
        Pause: AgentState.PAUSED,
        Restart: AgentState.STARTING,
        Restore: AgentState.RESURRECTING,
    }
    assert life.state is expected[type(last)]


def test_a_reconcile_that_is_due_goes_away_when_all_agrees() -> None:
    """Due work that is done is no work."""
    life = Life().start().run()
    assert life.do(DeadlineDue(kind=Deadline.RECONCILE)).deadlines == {Deadline.RECONCILE: None}
    assert life.state is AgentState.RUNNING
