"""An execution's life: the table, and the decision for each command in each state."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest

from ares_celery.clock import micros
from ares_celery.errors import (
    AresError,
    CheckpointSchemaVersionError,
    ExecutionNotFoundError,
    ExecutionStateError,
    UnreadableCheckpointError,
)
from ares_celery.ids import AgentId, Instant
from ares_celery.model.checkpoint import CheckpointEnvelope
from ares_celery.model.execution import (
    FINISHED,
    HELD,
    TRANSITIONS,
    Acquire,
    Complete,
    Create,
    Delete,
    Execution,
    ExecutionCommand,
    ExecutionPlan,
    ExecutionState,
    Expire,
    Fail,
    Release,
    RetryPolicy,
    Save,
    Start,
    Suspend,
    decide_execution,
)

AGENT = AgentId("counter-1")
NOW = Instant(1_790_000_000_000_000)
MINE, OTHER = "7|mine", "5|other"
S = ExecutionState
#: The table as the statement has it, written down once more.
ALLOWED = {
    (S.READY, S.LEASED),
    (S.READY, S.FAILED),
    (S.LEASED, S.RUNNING),
    (S.LEASED, S.READY),
    (S.RUNNING, S.COMPLETED),
    (S.RUNNING, S.FAILED),
    (S.RUNNING, S.SUSPENDED),
    (S.RUNNING, S.READY),
    (S.SUSPENDED, S.LEASED),
    (S.SUSPENDED, S.READY),
}
COMMANDS: tuple[ExecutionCommand, ...] = (
    Acquire(),
    Start(),
    Save(1),
    Suspend(),
    Complete(),
    Fail("why", retryable=False),
    Fail("why"),
    Release(),
    Expire(),
    Delete(),
)


def execution(state: ExecutionState = S.RUNNING, *, fence: str = MINE, **fields: Any) -> Execution:
    """One in a state, held by this incarnation where somebody has to hold it."""
    made = Execution(
        AGENT,
        "e1",
        state=state,
        fence=fence if state in HELD else "",
        retry=RetryPolicy(3, timedelta(seconds=2), timedelta(seconds=30)),
        revision=4,
        changed_at=Instant(NOW - 1_000_000),
        checkpoint=b'{"schema_version": 5, "step_checkpoint": {"row": 3}, "input_tokens": 10}',
    )
    return replace(made, **fields)


def decide(
    before: Execution | None, *commands: ExecutionCommand, fence: str = MINE, now: Instant = NOW
) -> ExecutionPlan:
    """What this incarnation's commands come to."""
    return decide_execution(before, *commands, agent_id=AGENT, execution_id="e1", fence=fence, now=now)


def after(before: Execution | None, *commands: ExecutionCommand, fence: str = MINE, now: Instant = NOW) -> Execution:
    """The execution that they lead to."""
    found = decide(before, *commands, fence=fence, now=now).after
    assert found is not None
    return found


@pytest.mark.spec(119)
@pytest.mark.parametrize(("source", "target"), list(product(S, S)), ids=lambda state: state.value)
def test_each_pair_of_states_is_allowed_or_not_as_the_table_says(source: S, target: S) -> None:
    """And no command of anybody makes a move that is not in it."""
    assert (target in TRANSITIONS[source]) == ((source, target) in ALLOWED)
    reached: set[S] = set()
    for command, fence in product(COMMANDS, (MINE, OTHER)):
        try:
            found = decide(execution(source), command, fence=fence).after
        except AresError:
            continue
        if found is not None and found.state is not source:
            reached.add(found.state)
    assert (target in reached) == ((source, target) in ALLOWED)


@pytest.mark.spec(119)
def test_finished_ones_refuse_everything_but_to_be_forgotten() -> None:
    """With the state, the operation and the reason in the error; a late expiry changes nothing."""
    for state in FINISHED:
        for command in COMMANDS:
            if isinstance(command, Delete):
                assert decide(execution(state), command).after is None
            elif isinstance(command, Expire):
                assert not decide(execution(state), command).changes
            else:
                with pytest.raises(ExecutionStateError, match=f"is {state.value}: ") as refused:
                    decide(execution(state), command)
                assert refused.value.operation == type(command).__name__.lower()


@pytest.mark.spec(120)
@pytest.mark.parametrize("state", sorted(HELD))
@pytest.mark.parametrize(
    "command",
    [Start(), Save(1), Suspend(), Complete(), Fail("x"), Fail("x", retryable=False), Release(), Acquire()],
    ids=repr,
)
def test_what_another_incarnation_holds_is_not_touched(state: S, command: ExecutionCommand) -> None:
    """Neither an old owner's nor a new one's that has not taken it over."""
    with pytest.raises(ExecutionStateError):
        decide(execution(state, fence=OTHER), command)


def test_what_does_not_exist_can_only_be_made_or_forgotten() -> None:
    """Making it twice changes nothing, neither envelope nor policy."""
    for command in COMMANDS:
        if not isinstance(command, Delete):
            with pytest.raises(ExecutionNotFoundError):
                decide(None, command)
    assert not decide(None, Delete()).changes
    first = CheckpointEnvelope(payload={"n": 1}, strategy_id="greedy")
    made = after(None, Create(first, RetryPolicy(2)))
    assert (made.state, made.envelope, made.retry.max_attempts, made.fence) == (S.READY, first, 2, "")
    assert not decide(made, Create(CheckpointEnvelope(strategy_id="patient"), RetryPolicy(9))).changes


def test_commands_are_applied_one_after_the_other() -> None:
    """As one plan: what begins an execution is one write."""
    begun = after(None, Create(), Acquire(), Start())
    assert (begun.state, begun.fence, begun.epoch) == (S.RUNNING, MINE, 7)
    plan = decide(begun, Save({"row": 4}), Suspend(), Acquire(), Start(), Complete())
    assert plan.after is not None
    assert (plan.after.state, plan.after.fence) == (S.COMPLETED, "")
    assert [event.type for event in plan.events] == ["execution.completed"]
    with pytest.raises(ExecutionStateError):
        decide(begun, Save(1), Start())


@pytest.mark.spec(117)
def test_three_steps_that_report_10_nothing_and_5_tokens_show_15() -> None:
    """Whatever the steps do next: go on, wait or end."""
    begun = after(None, Create(), Acquire(), Start())
    saved = after(begun, Save({"row": 1}, {"input_tokens": 10, "output_tokens": 2}))
    waiting = after(saved, Suspend({"row": 2}, {}))
    plan = decide(waiting, Acquire(), Start(), Complete(report={"input_tokens": 5, "output_tokens": "many"}))
    assert plan.after is not None
    envelope = plan.after.envelope
    assert (envelope.input_tokens, envelope.output_tokens, envelope.step_checkpoint) == (15, 2, {"row": 2})
    (event,) = plan.events
    assert event.payload == {"agent_id": AGENT, "execution": "e1", "input_tokens": 15, "output_tokens": 2}


def test_only_tokens_that_were_used_are_told() -> None:
    """And a failure tells none."""
    begun = after(None, Create(), Acquire(), Start())
    assert set(decide(begun, Complete()).events[0].payload) == {"agent_id", "execution"}
    assert set(decide(begun, Complete(report={"output_tokens": 1})).events[0].payload) == {
        "agent_id",
        "execution",
        "output_tokens",
    }
    failed = decide(execution(), Fail("why", retryable=False))
    assert set(failed.events[0].payload) == {"agent_id", "execution", "cause", "retryable", "attempts"}


@pytest.mark.spec(118)
def test_only_a_failure_for_good_with_a_cause_sets_the_last_error() -> None:
    """A try again, a release, an expiry, a failure without a cause leave the very bytes that are stored."""
    before = execution()
    for_good = after(before, Fail("no such table", retryable=False))
    assert (for_good.state, for_good.envelope.last_error) == (S.FAILED, "no such table")
    assert for_good.envelope == before.envelope.with_failure("no such table")
    for command, fence in (
        (Fail("later"), MINE),
        (Fail("", retryable=False), MINE),
        (Release(), MINE),
        (Suspend(), MINE),
        (Expire(), OTHER),
    ):
        assert after(before, command, fence=fence).checkpoint is before.checkpoint


def test_a_checkpoint_that_cannot_be_read_is_replaced_by_the_cause_alone() -> None:
    """Its bytes are put aside; nothing else but a failure goes on without reading it."""
    broken = execution(checkpoint=b'{"schema_version": 5,')
    plan = decide(broken, Fail("it is broken", retryable=False))
    assert plan.after is not None
    assert plan.after.envelope == CheckpointEnvelope(last_error="it is broken")
    assert plan.aside == b'{"schema_version": 5,'
    for command in (Save(1), Suspend(1), Complete()):
        with pytest.raises(UnreadableCheckpointError, match="'e1' of agent 'counter-1'"):
            decide(broken, command)
    assert after(broken, Suspend()).checkpoint is broken.checkpoint
    ready = replace(broken, state=S.READY, fence="")
    assert after(ready, Acquire()).state is S.LEASED
    with pytest.raises(UnreadableCheckpointError):
        _ = replace(broken, checkpoint=b"[" * 100_000).envelope


@pytest.mark.spec(115)
def test_what_a_newer_version_wrote_is_neither_taken_nor_changed() -> None:
    """It waits for a worker of that version, as it is."""
    newer = execution(S.READY, checkpoint=b'{"schema_version": 6}')
    with pytest.raises(CheckpointSchemaVersionError, match="schema 6") as refused:
        decide(newer, Acquire())
    assert refused.value.execution == "e1"
    running = replace(newer, state=S.RUNNING, fence=MINE)
    for command in (Save(1), Complete(), Fail("why", retryable=False)):
        with pytest.raises(CheckpointSchemaVersionError):
            decide(running, command)
    assert after(running, Release()).checkpoint is newer.checkpoint


@pytest.mark.spec(121)
def test_three_attempts_wait_once_and_twice_the_base_and_then_it_has_failed() -> None:
    """Each failure counts; the wait stands between the attempts, and is capped."""
    first = after(execution(), Fail("one"))
    assert (first.state, first.attempts, first.next_attempt_at) == (S.READY, 1, NOW + 2_000_000)
    with pytest.raises(ExecutionStateError, match="its next attempt is due in 2s"):
        decide(first, Acquire())
    later = Instant(first.next_attempt_at)
    second = after(first, Acquire(), Start(), Fail("two"), now=later)
    assert (second.state, second.attempts, second.next_attempt_at) == (S.READY, 2, later + 4_000_000)
    last = after(second, Acquire(), Start(), Fail("three"), now=Instant(second.next_attempt_at))
    assert (last.state, last.attempts, last.next_attempt_at) == (S.FAILED, 3, 0)
    assert last.envelope.last_error == "three"
    policy = RetryPolicy(100, timedelta(seconds=2), timedelta(seconds=30))
    assert [policy.delay(attempts).total_seconds() for attempts in (1, 2, 3, 4, 5, 99)] == [2, 4, 8, 16, 30, 30]
    assert RetryPolicy(2, timedelta(days=10_000), timedelta(days=900_000)).delay(99) == timedelta(days=900_000)


@pytest.mark.spec(121)
@pytest.mark.parametrize("most", [0, -1])
def test_no_attempts_mean_no_retry(most: int) -> None:
    """The first failure is the last, like one that cannot be retried."""
    failed = after(execution(retry=RetryPolicy(most)), Fail("one"))
    assert (failed.state, failed.attempts, failed.envelope.last_error) == (S.FAILED, 1, "one")
    assert after(execution(), Fail("one", retryable=False)).state is S.FAILED


def test_a_wait_that_a_step_of_the_clock_has_made_longer_is_over() -> None:
    """The clock stands before the failure itself."""
    waiting = replace(execution(S.READY), next_attempt_at=Instant(NOW + 3_600_000_000), changed_at=NOW)
    with pytest.raises(ExecutionStateError):
        decide(waiting, Acquire(), now=NOW)
    assert after(waiting, Acquire(), now=Instant(NOW - 1)).state is S.LEASED


@pytest.mark.spec(125)
@pytest.mark.parametrize("state", sorted(HELD))
def test_a_release_costs_no_attempt(state: S) -> None:
    """Cancelled or shut down: ready at once, nobody's, nothing counted, nothing stamped, no event."""
    plan = decide(execution(state, attempts=2), Release())
    assert plan.after is not None
    assert (plan.after.state, plan.after.fence, plan.after.attempts) == (S.READY, "", 2)
    assert plan.after.next_attempt_at == 0
    assert plan.after.envelope.last_error == ""
    assert plan.events == ()


@pytest.mark.spec(122)
@pytest.mark.parametrize("state", sorted(HELD))
def test_what_a_lost_incarnation_held_is_ready_again_with_its_checkpoint(state: S) -> None:
    """The event says whose it was; what this incarnation holds itself is left alone."""
    before = execution(state, fence=OTHER, attempts=1)
    plan = decide(before, Expire())
    assert plan.after == replace(before, state=S.READY, fence="")
    (event,) = plan.events
    assert event.type == "execution.expired"
    assert event.payload == {
        "agent_id": AGENT,
        "execution": "e1",
        "attempts": 1,
        "epoch": 5,
        "state": state.value,
    }
    assert not decide(execution(state), Expire()).changes
    released = decide(before, Expire(lost=False))
    assert (released.after, released.events) == (plan.after, ())


def test_what_is_held_is_not_forgotten() -> None:
    """Ready and finished ones are."""
    for state in S:
        if state in HELD:
            with pytest.raises(ExecutionStateError, match="release it first"):
                decide(execution(state), Delete())
        else:
            assert decide(execution(state), Delete()).after is None


def test_a_ready_one_can_be_given_up() -> None:
    """Nobody has tried it: no attempt is counted, whatever the policy."""
    given_up = after(execution(S.READY, next_attempt_at=Instant(NOW + 5)), Fail("not wanted"))
    assert (given_up.state, given_up.attempts, given_up.next_attempt_at) == (S.FAILED, 0, 0)
    assert given_up.envelope.last_error == "not wanted"


def test_delays_are_whole_microseconds() -> None:
    """Redis counts in them."""
    assert micros(RetryPolicy(3, timedelta(microseconds=3)).delay(2)) == 6
