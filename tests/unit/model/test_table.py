"""The transition table against the handlers that it names: every cell, with every kind of record that can be in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from ares_celery.errors import (
    AgentAlreadyRegisteredError,
    AgentForkingError,
    AgentNotFoundError,
    AgentNotParkedError,
    AgentNotRunningError,
    AgentParkedError,
    AresError,
    FencedError,
    OperationNotSupportedError,
    RuntimeStoppedError,
    VersionConflictError,
)
from ares_celery.ids import AgentId, Epoch, Instant, Version
from ares_celery.model import command as commands
from ares_celery.model.agent import (
    AgentRecord,
    AgentSpec,
    AgentState,
    Desired,
    Held,
    Owner,
    Request,
    RestartType,
    RuntimeState,
)
from ares_celery.model.birth import Birth
from ares_celery.model.command import Command, Deadline, DeadlineDue, Operation
from ares_celery.model.fork import ForkOrigin
from ares_celery.model.lifecycle import TABLE, decide, operation_of
from ares_celery.model.plan import Situation
from ares_celery.model.restart import DeathCause
from ares_celery.model.waits import Waiting
from tests.property.lifecycle_store import BEGINNING, default_policy

S = AgentState
NOW = Instant(BEGINNING)
EPOCH = Epoch(BEGINNING - 60_000_000)
MINE, OLD = "mine", "old"
FENCE = f"{EPOCH}|{MINE}"
OWNER = Owner("p1", "w@host", "task-1")
ORIGIN = ForkOrigin(AgentId("b"), Version(4), Instant(7))
SPEC = AgentSpec(id="a", type="t", parent="p")
OTHER_SPEC = AgentSpec(id="a", type="t", config={"step": 2}, parent="p")
BIRTH = Birth("call-1", 1, 0, 0, reports=True)
POLICY = replace(default_policy(), max_restarts=1)
CELLS = [(operation, state) for operation in Operation for state in S]

COMMANDS: dict[Operation, tuple[Command, ...]] = {
    Operation.REGISTER: (commands.Register(spec=SPEC),),
    Operation.START: (
        commands.Start(),
        commands.Start(spec=OTHER_SPEC, if_exists="return"),
        commands.Start(if_exists="restart"),
        commands.Start(spec=OTHER_SPEC, if_exists="update"),
    ),
    Operation.SPAWN: tuple(
        commands.Spawn(spec=spec, birth=birth, root="p", stillborn=stillborn)
        for spec in (SPEC, AgentSpec(id="a", type="t", parent="q"))
        for birth in (BIRTH, replace(BIRTH, starts=1), replace(BIRTH, key="call-2"))
        for stillborn in (False, True)
    ),
    Operation.STOP: (commands.Stop(), commands.Stop(force=True)),
    Operation.PAUSE: (commands.Pause(), commands.Pause(lasts=timedelta(seconds=5))),
    Operation.RESUME: (commands.Resume(),),
    Operation.RESTART: (commands.Restart(),),
    Operation.RESTORE: (commands.Restore(), commands.Restore(type="other")),
    Operation.UPDATE: (
        commands.Update(spec=OTHER_SPEC),
        commands.Update(),
        commands.Update(config={"step": 2}, restart=True),
    ),
    Operation.UNPARK: (commands.Unpark(), commands.Unpark(accept_loss=True)),
    Operation.DELETE: (commands.Delete(),),
    Operation.CLAIM: (
        commands.Claim(epoch=EPOCH, token=MINE, owner=OWNER),
        commands.Claim(epoch=Epoch(1), token=OLD, owner=OWNER),
    ),
    Operation.MARK_RUNNING: (commands.MarkRunning(fence=FENCE), commands.MarkRunning(fence="1|old")),
    Operation.RELEASE: (commands.Release(fence=FENCE), commands.Release()),
    Operation.COMPLETE: (commands.Complete(fence=FENCE), commands.Complete(fence="1|old")),
    Operation.PARK: (commands.Park("gap at 4", fence=FENCE, cause="integrity"), commands.Park(fence="1|old")),
    Operation.WAIT: (
        commands.Wait(fence=FENCE, waiting=Waiting(until=Instant(NOW + 60_000_000))),
        commands.Wait(fence=FENCE, waiting=Waiting(until=NOW)),
        commands.Wait(fence="1|old"),
    ),
    Operation.ATTEMPT_FAILED: (commands.AttemptFailed("no", fence=FENCE), commands.AttemptFailed(fence="1|old")),
    Operation.DIE: tuple(
        commands.Die("gone", epoch=epoch, proof=proof, cause=cause)
        for epoch in (None, EPOCH, Epoch(1))
        for proof in (True, False)
        for cause in (DeathCause.CRASH, DeathCause.CO_TENANT)
    ),
    Operation.OWNER_EXITED: (commands.OwnerExited(identity="p1"), commands.OwnerExited(identity="p2")),
    Operation.LEASE_DUE: (
        DeadlineDue(kind=Deadline.LEASE),
        DeadlineDue(kind=Deadline.LEASE, tenants=2),
    ),
    Operation.STOP_DUE: (DeadlineDue(kind=Deadline.STOP),),
    Operation.HANG_DUE: (DeadlineDue(kind=Deadline.HANG),),
    Operation.NUDGE_DUE: (DeadlineDue(kind=Deadline.NUDGE),),
    Operation.ATTEMPT_DUE: (DeadlineDue(kind=Deadline.ATTEMPT),),
    Operation.WAIT_DUE: (DeadlineDue(kind=Deadline.TIMER), DeadlineDue(kind=Deadline.APPROVAL)),
    Operation.RESUME_DUE: (DeadlineDue(kind=Deadline.RESUME),),
    Operation.RECONCILE: (commands.Reconcile(), DeadlineDue(kind=Deadline.RECONCILE)),
    Operation.GROUP_STOP: (commands.GroupStop("g", epoch=EPOCH), commands.GroupStop("g", epoch=Epoch(1))),
    Operation.GROUP_GO: (commands.GroupGo(epoch=EPOCH), commands.GroupGo(epoch=Epoch(1))),
    Operation.GROUP_PARK: (commands.GroupPark("g", epoch=EPOCH), commands.GroupPark("g", epoch=Epoch(1))),
    Operation.GROUP_DUE: (DeadlineDue(kind=Deadline.GROUP),),
    Operation.FORK: (
        commands.Fork(spec=SPEC, origin=ORIGIN),
        commands.Fork(spec=SPEC, origin=replace(ORIGIN, at=Version(3))),
    ),
    Operation.FORK_DONE: (commands.ForkDone(), commands.ForkDone(start=False)),
    Operation.CHILDREN_DUE: (
        DeadlineDue(kind=Deadline.CHILDREN),
        DeadlineDue(kind=Deadline.CHILDREN, again=timedelta(seconds=1)),
    ),
    Operation.REPORT_DUE: (
        DeadlineDue(kind=Deadline.REPORT),
        DeadlineDue(kind=Deadline.REPORT, again=timedelta(seconds=1)),
        DeadlineDue(kind=Deadline.REPORT, dropped="the parent is gone"),
    ),
}

#: What a state can look like: desired, request, failover, and whether an incarnation holds the fence.
_RUN, _REST, _STOP = Desired.RUNNING, Desired.PAUSED, Desired.STOPPED
_STOPPING = (
    (_STOP, Request.STOP),
    (_RUN, Request.STOP),
    (_REST, Request.PAUSE),
    (_RUN, Request.PAUSE),
    (_RUN, Request.RESTART),
    (_RUN, Request.RESTORE),
    (_RUN, Request.SHUTDOWN),
    (_RUN, Request.DIE),
    (_RUN, Request.GROUP),
)
_RESTING: dict[AgentState, tuple[Desired, ...]] = {
    S.REGISTERED: (_RUN, _STOP),
    S.STOPPED: (_RUN, _STOP),
    S.PAUSED: (_REST,),
    S.COMPLETED: (_STOP,),
    S.PARKED: (_RUN, _REST, _STOP),
}


def shapes(state: AgentState) -> Iterator[AgentRecord]:
    """Yield the records that can be in a state."""
    base = AgentRecord(SPEC, _RUN, state, epoch=EPOCH, incarnation=1, root="p", birth=BIRTH, children=1)
    hosted = replace(base, fence=FENCE, owner=OWNER, attempt=1, claimed_at=Instant(NOW - 30_000_000))
    match state:
        case S.STARTING | S.RESURRECTING:
            failover = state is S.RESURRECTING
            yield replace(base, failover=failover)
            yield replace(base, failover=failover, held=Held.DIED if failover else Held.ASKED)
            yield replace(base, failover=failover, owner=OWNER, claimable_after=Instant(NOW + 5_000_000))
            yield from (
                replace(hosted, failover=failover, attempt=attempt, charged=charged)
                for attempt in (1, POLICY.restore_attempts)
                for charged in (0, POLICY.max_restarts)
            )
        case S.RUNNING:
            yield from (replace(hosted, charged=charged) for charged in (0, POLICY.max_restarts))
        case S.STOPPING:
            yield from (
                replace(
                    hosted,
                    desired=desired,
                    request=request,
                    failover=failover,
                    charged=charged,
                    attempt=attempt,
                    cause="unhealthy",
                )
                for desired, request in _STOPPING
                for failover in (False, True)
                for charged in (0, POLICY.max_restarts)
                for attempt in (1, POLICY.restore_attempts)
            )
        case S.WAITING:
            yield from (
                replace(base, waiting=Waiting(until=Instant(NOW + after)), owner=OWNER, claimable_after=until)
                for after in (60_000_000, -1)
                for until in (Instant(0), Instant(NOW + 5_000_000))
            )
        case _:
            for desired in _RESTING[state]:
                yield replace(base, desired=desired, cause="cap")
                yield replace(base, desired=desired, cause="integrity")
                yield from (replace(base, desired=desired, cause="reconcile", intents=intents) for intents in (0, 1))
                yield replace(base, desired=desired, owner=OWNER, claimable_after=Instant(NOW + 5_000_000))
            if state is S.REGISTERED:
                forking = replace(base, desired=_STOP, version=Version(4), forked_from=str(ORIGIN))
                yield replace(forking, forking="4|4")
                yield replace(forking, forking="4|2")


def situations(state: AgentState) -> Iterator[Situation]:
    """Yield what can be found when an agent in this state is read."""
    runtimes = [RuntimeState.RUNNING, RuntimeState.STOPPED]
    if state in {S.REGISTERED, S.STOPPED}:
        runtimes.append(RuntimeState.NEW)
    for record in shapes(state):
        for runtime in runtimes:
            for kind in RestartType:
                lease = Instant(NOW + 4_000_000 if record.hosted else 0)
                yield Situation(record, NOW, replace(POLICY, restart=kind), runtime, lease, "test")


def outcomes(operation: Operation, state: AgentState) -> Iterator[AgentState | AresError | None]:
    """Yield the state after each command in each situation; None when deleted, the error when refused."""
    for situation in situations(state):
        for command in COMMANDS[operation]:
            try:
                after = decide(situation, command, agent_id="a").after
            except AresError as error:
                yield error
            else:
                yield None if after is None else after.state


def test_every_operation_has_a_rule_for_every_state() -> None:
    """No command meets an agent for which nobody decided what happens."""
    assert set(TABLE) == set(Operation)
    assert {operation: set(row) for operation, row in TABLE.items()} == {operation: set(S) for operation in Operation}


def test_every_command_has_its_row() -> None:
    """The commands of this file cover the table."""
    assert set(COMMANDS) == set(Operation)
    for operation, variants in COMMANDS.items():
        assert {operation_of(command) for command in variants} == {operation}


@pytest.mark.parametrize(("operation", "state"), CELLS)
def test_a_cell_leads_to_the_states_it_names_and_to_no_other(operation: Operation, state: AgentState) -> None:
    """The table and the page made from it neither hide a transition nor promise one that cannot happen."""
    reached = {result for result in outcomes(operation, state) if isinstance(result, AgentState)}
    assert not reached or reached == set(TABLE[operation][state].to)


@pytest.mark.parametrize(("operation", "state"), CELLS)
def test_a_refusal_tells_all_that_its_sentence_needs(operation: Operation, state: AgentState) -> None:
    """An error names agent, state and cure; no template field stays unknown."""
    for result in outcomes(operation, state):
        if isinstance(result, AresError):
            assert "?" not in str(result)
            assert result.fields["code"] == type(result).code


#: The errors of each cell; a cell that is not named raises none while the runtime runs.
REFUSALS: dict[tuple[Operation, AgentState], set[type[AresError]]] = {
    # Registered may be a fork whose history is not whole.
    **{
        (operation, S.REGISTERED): {AgentForkingError}
        for operation in (Operation.START, Operation.STOP, Operation.RESUME, Operation.RESTART)
    },
    **{(Operation.START, state): {AgentAlreadyRegisteredError} for state in (S.STARTING, S.RUNNING, S.RESURRECTING)},
    **{(Operation.START, state): {AgentAlreadyRegisteredError} for state in (S.STOPPING, S.PAUSED, S.WAITING)},
    (Operation.START, S.PARKED): {AgentParkedError},
    (Operation.PAUSE, S.REGISTERED): {AgentNotRunningError, AgentForkingError},
    **{(Operation.PAUSE, state): {AgentNotRunningError} for state in (S.STOPPED, S.COMPLETED)},
    **{(Operation.SPAWN, state): {AgentAlreadyRegisteredError} for state in S if state is not S.PARKED},
    (Operation.SPAWN, S.PARKED): {AgentAlreadyRegisteredError, AgentParkedError},
    (Operation.PAUSE, S.STOPPING): {AgentNotRunningError},
    (Operation.PAUSE, S.PARKED): {AgentParkedError},
    (Operation.RESTART, S.PARKED): {AgentParkedError},
    (Operation.UNPARK, S.PARKED): {AgentParkedError, OperationNotSupportedError},
    **{(Operation.UNPARK, state): {AgentNotParkedError} for state in S if state is not S.PARKED},
    (Operation.UNPARK, S.REGISTERED): {AgentNotParkedError, AgentForkingError},
    **{(Operation.FORK, state): {AgentAlreadyRegisteredError} for state in S},
    (Operation.FORK, S.REGISTERED): {AgentAlreadyRegisteredError, AgentForkingError},
    (Operation.FORK_DONE, S.REGISTERED): {VersionConflictError},
    (Operation.RESTORE, S.REGISTERED): {AgentNotRunningError, AgentForkingError},
    **{(Operation.RESTORE, state): {AgentNotRunningError} for state in (S.STOPPED, S.COMPLETED)},
    **{(Operation.RESTORE, state): {AgentNotRunningError} for state in (S.PAUSED, S.WAITING)},
    (Operation.RESTORE, S.PARKED): {AgentParkedError},
    (Operation.RESTORE, S.RESURRECTING): {VersionConflictError},
    (Operation.RESTORE, S.STOPPING): {VersionConflictError, AgentNotRunningError},
    **{(Operation.DELETE, state): {OperationNotSupportedError} for state in (S.STARTING, S.RUNNING, S.RESURRECTING)},
    (Operation.DELETE, S.STOPPING): {OperationNotSupportedError},
    # A resting one whose last process was not seen to end, until its lease has.
    **{
        (Operation.DELETE, state): {OperationNotSupportedError}
        for state in (S.REGISTERED, S.STOPPED, S.PAUSED, S.WAITING, S.COMPLETED, S.PARKED)
    },
    **{(Operation.CLAIM, state): {FencedError} for state in S},
    **{
        (operation, state): {FencedError}
        for operation in (
            Operation.MARK_RUNNING,
            Operation.RELEASE,
            Operation.COMPLETE,
            Operation.PARK,
            Operation.WAIT,
            Operation.ATTEMPT_FAILED,
        )
        for state in S
    },
}


@pytest.mark.parametrize(("operation", "state"), CELLS)
def test_a_cell_refuses_with_its_documented_errors_and_with_no_other(operation: Operation, state: AgentState) -> None:
    """Callers can rely on the class of a refusal."""
    raised = set[type[AresError]]()
    for situation in situations(state):
        if situation.runtime is not RuntimeState.RUNNING:
            continue
        for command in COMMANDS[operation]:
            try:
                decide(situation, command)
            except AresError as error:
                raised.add(type(error))
    assert raised == REFUSALS.get((operation, state), set())


@pytest.mark.parametrize("state", list(S))
@pytest.mark.parametrize("command", [commands.Start(), commands.Restart(), commands.Resume()], ids=type)
def test_nothing_is_started_in_a_stopped_runtime(command: Command, state: AgentState) -> None:
    """Start, restart and resume say that the runtime is stopped, whatever the agent does; a parked one says that."""
    for record in shapes(state):
        for runtime in (RuntimeState.STOPPED, RuntimeState.FROZEN) if not record.forking else ():
            with pytest.raises((RuntimeStoppedError, AgentParkedError)) as caught:
                decide(Situation(record, NOW, POLICY, runtime), command)
            assert isinstance(caught.value, RuntimeStoppedError) or state is S.PARKED


@pytest.mark.parametrize("operation", list(Operation))
def test_a_due_deadline_never_stays_due(operation: Operation) -> None:
    """Whatever a deadline finds, acting on it moves or clears it: the sweep cannot spin on one that nobody wants."""
    for state in S:
        for situation in situations(state):
            for command in COMMANDS[operation]:
                if isinstance(command, DeadlineDue):
                    plan = decide(situation, command)
                    assert not plan.ignored
                    assert command.kind in plan.deadlines
                    at = plan.deadlines[command.kind]
                    assert at is None or at > NOW


WITHOUT_RECORD: list[tuple[Command, type[AresError]]] = [
    (commands.Start(), AgentNotFoundError),
    *[
        (command, AgentNotFoundError)
        for command in (
            commands.Stop(),
            commands.Pause(),
            commands.Resume(),
            commands.Restart(),
            commands.Restore(),
            commands.Update(spec=SPEC),
            commands.Delete(),
            commands.Die("gone"),
        )
    ],
    *[
        (command, FencedError)
        for command in (
            commands.Claim(epoch=EPOCH, token=MINE),
            commands.MarkRunning(fence=FENCE),
            commands.Release(fence=FENCE),
            commands.Complete(fence=FENCE),
            commands.Park(fence=FENCE),
            commands.Wait(fence=FENCE),
            commands.AttemptFailed(fence=FENCE),
        )
    ],
]


@pytest.mark.parametrize(("command", "error"), WITHOUT_RECORD, ids=[type(each).__name__ for each, _ in WITHOUT_RECORD])
def test_an_agent_that_does_not_exist_is_not_found_and_its_late_incarnations_are_fenced(
    command: Command, error: type[AresError]
) -> None:
    """People get AgentNotFoundError, incarnations of a deleted agent FencedError; both name the agent."""
    with pytest.raises(error) as caught:
        decide(Situation(None, NOW, POLICY), command, agent_id="a")
    assert caught.value.agent_id == "a"
    if error is FencedError:
        assert str(EPOCH) in str(caught.value)
        assert caught.value.reason == "deleted"


def test_reports_about_a_deleted_agent_are_ignored_and_its_deadlines_cleared() -> None:
    """A late exit, a reconcile or a deadline of an agent that is gone is no error."""
    gone = Situation(None, NOW, POLICY)
    assert decide(gone, commands.OwnerExited(identity="p1")).ignored
    assert decide(gone, commands.Reconcile()).ignored
    assert decide(gone, DeadlineDue(kind=Deadline.LEASE)).deadlines == {Deadline.LEASE: None}
