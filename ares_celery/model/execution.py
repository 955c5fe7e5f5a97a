"""An execution: one piece of work inside an agent that goes on where it was, whatever dies meanwhile.

Its life is a small table and one pure function, like an agent's: :func:`decide_execution` says what a command does,
the store applies all of it or nothing. Who may do something is not a question of a lease of its own: an execution is
held by the incarnation whose fence it carries, and lost with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, assert_never

from ares_celery.clock import micros
from ares_celery.errors import (
    CheckpointSchemaVersionError,
    ExecutionNotFoundError,
    ExecutionStateError,
    UnreadableCheckpointError,
    UnserialisableError,
)
from ares_celery.ids import AgentId, Epoch, Instant
from ares_celery.model.checkpoint import CheckpointEnvelope, read_checkpoint
from ares_celery.model.durations import format_duration
from ares_celery.model.event import RUNTIME_MODULE, EventType, NewEvent

__all__ = [
    "FINISHED",
    "HELD",
    "TRANSITIONS",
    "Acquire",
    "Complete",
    "Create",
    "Delete",
    "Execution",
    "ExecutionCommand",
    "ExecutionPlan",
    "ExecutionState",
    "Expire",
    "Fail",
    "Release",
    "RetryPolicy",
    "Save",
    "Start",
    "Suspend",
    "decide_execution",
    "decide_expiry",
]


class ExecutionState(StrEnum):
    """What an execution does now."""

    READY = "ready"
    LEASED = "leased"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"


#: Where each state may lead.
TRANSITIONS: Final[Mapping[ExecutionState, frozenset[ExecutionState]]] = MappingProxyType(
    {
        ExecutionState.READY: frozenset({ExecutionState.LEASED, ExecutionState.FAILED}),
        ExecutionState.LEASED: frozenset({ExecutionState.RUNNING, ExecutionState.READY}),
        ExecutionState.RUNNING: frozenset(
            {ExecutionState.COMPLETED, ExecutionState.FAILED, ExecutionState.SUSPENDED, ExecutionState.READY}
        ),
        ExecutionState.SUSPENDED: frozenset({ExecutionState.LEASED, ExecutionState.READY}),
        ExecutionState.COMPLETED: frozenset(),
        ExecutionState.FAILED: frozenset(),
    }
)
#: States in which an incarnation holds the execution.
HELD: Final = frozenset({ExecutionState.LEASED, ExecutionState.RUNNING, ExecutionState.SUSPENDED})
#: States that nothing leaves.
FINISHED: Final = frozenset({ExecutionState.COMPLETED, ExecutionState.FAILED})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a failed execution is tried again, and how long it waits before.

    Attributes:
        max_attempts: Attempts in all, the first included; 0 or less: the first failure is the last.
        base: Wait after the first failure; doubled after each.
        longest: Longest wait.

    Example:
        >>> [RetryPolicy(max_attempts=9).delay(attempts).seconds for attempts in (1, 2, 3, 6)]
        [1, 2, 4, 30]
    """

    max_attempts: int = 0
    base: timedelta = timedelta(seconds=1)
    longest: timedelta = timedelta(seconds=30)

    def delay(self, attempts: int) -> timedelta:
        """How long the next attempt waits after so many failed ones."""
        # As integers: a timedelta overflows where a long wait is doubled often.
        return timedelta(microseconds=min(micros(self.base) << min(max(attempts - 1, 0), 64), micros(self.longest)))


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution as the store holds it; a value.

    Attributes:
        agent_id: Whose it is.
        id: Its id, unique within the agent.
        state: What it does now.
        fence: Of the incarnation that holds it; empty when none does.
        attempts: Failed attempts so far.
        retry: Whether and when it is tried again.
        next_attempt_at: Not before then; 0 = at once.
        revision: Grows with each change.
        created_at: When it was made, by the clock of Redis.
        changed_at: When it was last changed.
        now: Redis TIME of the read.
        checkpoint: Its envelope, as it is stored or as it shall be.
        op: The operation id that changed it last.
    """

    agent_id: AgentId
    id: str
    state: ExecutionState = ExecutionState.READY
    fence: str = field(default="", repr=False)
    attempts: int = 0
    retry: RetryPolicy = RetryPolicy()
    next_attempt_at: Instant = Instant(0)
    revision: int = 0
    created_at: Instant = Instant(0)
    changed_at: Instant = Instant(0)
    now: Instant = Instant(0)
    checkpoint: bytes | CheckpointEnvelope = field(default=b"null", repr=False)
    op: str = ""

    @property
    def epoch(self) -> Epoch:
        """The epoch of the incarnation that holds it; 0 when none does."""
        return Epoch(int(self.fence.partition("|")[0] or 0))

    @property
    def finished(self) -> bool:
        """Nothing more will happen to it."""
        return self.state in FINISHED

    @property
    def envelope(self) -> CheckpointEnvelope:
        """Its checkpoint, read.

        Raises:
            CheckpointSchemaVersionError: A newer version wrote it; it stays as it is.
            UnreadableCheckpointError: Its bytes are damaged; they stay as they are.
        """
        if isinstance(self.checkpoint, CheckpointEnvelope):
            return self.checkpoint
        whose = {"agent_id": self.agent_id, "execution": self.id}
        try:
            return read_checkpoint(self.checkpoint)
        except CheckpointSchemaVersionError as error:
            raise CheckpointSchemaVersionError(found=error.found, known=error.known, **whose) from None
        except (ValueError, RecursionError, UnserialisableError) as error:
            raise UnreadableCheckpointError(problem=str(error), **whose) from error


# -- commands ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Create:
    """Makes it, ready; one that exists is left as it is."""

    envelope: CheckpointEnvelope = field(default_factory=CheckpointEnvelope)
    retry: RetryPolicy = RetryPolicy()


@dataclass(frozen=True, slots=True)
class Acquire:
    """Takes it for this incarnation: a ready one that does not wait, or its own suspended one."""


@dataclass(frozen=True, slots=True)
class Start:
    """Begins, or goes on with, its steps."""


@dataclass(frozen=True, slots=True)
class Save:
    """Keeps what a step left behind and adds the tokens that it reported; it goes on running."""

    checkpoint: Any = None
    report: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Suspend:
    """Stops between two steps; the incarnation keeps it. Without a checkpoint the old one stays."""

    checkpoint: Any = None
    report: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Complete:
    """Ends it well, for good."""

    checkpoint: Any = None
    report: Mapping[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Counts a failed attempt: ready again after a wait while the policy allows it, else failed for good.

    A ready one, which nobody has begun, is given up for good.
    """

    cause: str = ""
    retryable: bool = True


@dataclass(frozen=True, slots=True)
class Release:
    """Gives it back, ready, without counting anything: a cancelled step, a worker that shuts down."""


@dataclass(frozen=True, slots=True)
class Expire:
    """Takes it from an incarnation that is over: ready again, with its checkpoint, nothing counted.

    Attributes:
        lost: That incarnation has died, which an event tells.
    """

    lost: bool = True


@dataclass(frozen=True, slots=True)
class Delete:
    """Forgets it; one that is held is not forgotten."""


ExecutionCommand = Create | Acquire | Start | Save | Suspend | Complete | Fail | Release | Expire | Delete


@dataclass(frozen=True, slots=True)
class ExecutionPlan:
    """What commands come to.

    Attributes:
        before: The execution that was decided on; None when it did not exist.
        after: What it shall be; None when it shall not exist.
        events: What is written into the agent's stream with it.
        aside: Bytes of a checkpoint that could not be read and was replaced; kept beside the new one.
    """

    before: Execution | None
    after: Execution | None
    events: tuple[NewEvent, ...] = ()
    aside: bytes = b""

    @property
    def changes(self) -> bool:
        """There is something to write."""
        return self.before != self.after


def decide_execution(
    execution: Execution | None,
    *commands: ExecutionCommand,
    agent_id: AgentId,
    execution_id: str,
    fence: str,
    now: Instant,
) -> ExecutionPlan:
    """Decides what commands of one incarnation, one after the other, do to an execution. Pure.

    Args:
        execution: As it is stored; None when it does not exist.
        commands: Applied together or not at all.
        agent_id: Whose it is.
        execution_id: Its id.
        fence: Of the incarnation that asks.
        now: Redis TIME.

    Raises:
        ExecutionNotFoundError: It does not exist.
        ExecutionStateError: The state, or who holds it, does not allow it.
        CheckpointSchemaVersionError, UnreadableCheckpointError: Its checkpoint would have to be read and cannot.
    """
    events: tuple[NewEvent, ...] = ()
    after, aside = execution, b""
    for command in commands:
        if after is None and not isinstance(command, Create | Delete):
            raise ExecutionNotFoundError(agent_id=agent_id, execution=execution_id)
        if isinstance(command, Create):
            after = after or Execution(agent_id, execution_id, retry=command.retry, checkpoint=command.envelope)
        elif after is not None:
            plan = _decide(after, command, fence, now)
            after, events, aside = plan.after, events + plan.events, aside or plan.aside
    return ExecutionPlan(execution, after, events, aside)


def _decide(  # noqa: PLR0911 - one line a command
    execution: Execution, command: ExecutionCommand, fence: str, now: Instant
) -> ExecutionPlan:
    match command:
        case Create():
            return ExecutionPlan(execution, execution)
        case Acquire():
            return _acquire(execution, command, fence, now)
        case Start():
            _demand_own(execution, command, fence)
            return ExecutionPlan(execution, _moved(execution, command, ExecutionState.RUNNING))
        case Save() | Suspend() | Complete():
            return _step(execution, command, fence)
        case Fail():
            return _fail(execution, command, fence, now)
        case Release():
            _demand_own(execution, command, fence)
            return ExecutionPlan(execution, _moved(execution, command, ExecutionState.READY))
        case Expire():
            return decide_expiry(execution, fence, lost=command.lost)
        case Delete():
            if execution.state in HELD:
                raise _refused(execution, command, "it is held; release it first")
            return ExecutionPlan(execution, None)
        case _ as unreachable:
            assert_never(unreachable)


def _acquire(execution: Execution, command: Acquire, fence: str, now: Instant) -> ExecutionPlan:
    if execution.state is ExecutionState.SUSPENDED:
        _demand_own(execution, command, fence)
    after = _moved(execution, command, ExecutionState.LEASED)
    # A clock that stands before the last change has gone back: the wait is over rather than hours longer.
    if execution.next_attempt_at > now >= execution.changed_at:
        wait = timedelta(microseconds=execution.next_attempt_at - now)
        raise _refused(execution, command, f"its next attempt is due in {format_duration(wait)}")
    # What a newer version has written waits for a worker of that version; what is damaged can still fail.
    with contextlib.suppress(UnreadableCheckpointError):
        _ = execution.envelope
    return ExecutionPlan(execution, replace(after, fence=fence, next_attempt_at=Instant(0)))


def _step(execution: Execution, command: Save | Suspend | Complete, fence: str) -> ExecutionPlan:
    _demand_own(execution, command, fence)
    if not isinstance(command, Save):
        leads_to = ExecutionState.SUSPENDED if isinstance(command, Suspend) else ExecutionState.COMPLETED
        after = _moved(execution, command, leads_to)
    elif execution.state is ExecutionState.RUNNING:
        after = execution
    else:
        raise _refused(execution, command, "only a running one has steps")
    if command.checkpoint is not None or command.report is not None:
        after = replace(after, checkpoint=execution.envelope.with_step(command.checkpoint).with_tokens(command.report))
    if not isinstance(command, Complete):
        return ExecutionPlan(execution, after)
    envelope = after.envelope
    tokens = {"input_tokens": envelope.input_tokens, "output_tokens": envelope.output_tokens}
    used = {name: count for name, count in tokens.items() if count > 0}
    return ExecutionPlan(execution, after, (_event(EventType.EXECUTION_COMPLETED, execution, **used),))


def _fail(execution: Execution, command: Fail, fence: str, now: Instant) -> ExecutionPlan:
    if execution.state is ExecutionState.READY:
        return _failed(execution, command, execution.attempts)
    _demand_own(execution, command, fence)
    if execution.state is not ExecutionState.RUNNING:
        raise _refused(execution, command, "only a running or a ready one can fail")
    attempts = execution.attempts + 1
    if not command.retryable or attempts >= execution.retry.max_attempts:
        return _failed(execution, command, attempts)
    wait = execution.retry.delay(attempts)
    after = replace(
        _moved(execution, command, ExecutionState.READY),
        attempts=attempts,
        next_attempt_at=Instant(now + micros(wait)),
    )
    told = {"cause": command.cause, "retryable": True, "attempts": attempts, "retry_in": wait.total_seconds()}
    return ExecutionPlan(execution, after, (_event(EventType.EXECUTION_FAILED, execution, **told),))


def _failed(execution: Execution, command: Fail, attempts: int) -> ExecutionPlan:
    """It has failed for good; only then the checkpoint says why."""
    after = replace(_moved(execution, command, ExecutionState.FAILED), attempts=attempts, next_attempt_at=Instant(0))
    told = {"cause": command.cause, "retryable": False, "attempts": attempts}
    events = (_event(EventType.EXECUTION_FAILED, execution, **told),)
    if not command.cause:
        return ExecutionPlan(execution, after, events)
    aside = b""
    try:
        envelope = execution.envelope
    except UnreadableCheckpointError:
        envelope = CheckpointEnvelope()
        aside = execution.checkpoint if isinstance(execution.checkpoint, bytes) else b""
    return ExecutionPlan(
        execution, replace(after, checkpoint=envelope.with_failure(command.cause)), events, aside=aside
    )


def decide_expiry(execution: Execution, fence: str, *, lost: bool = True) -> ExecutionPlan:
    """Decides what becomes of an execution when the incarnation of ``fence`` is the one that runs now.

    Args:
        execution: As it is stored.
        fence: Of the incarnation that runs.
        lost: The one before has died; an execution that it held is said to have expired. After an end in order it is
            only released.
    """
    if execution.state not in HELD or execution.fence == fence:
        return ExecutionPlan(execution, execution)
    after = _moved(execution, Expire(), ExecutionState.READY)
    if not lost:
        return ExecutionPlan(execution, after)
    told = {"attempts": execution.attempts, "epoch": execution.epoch, "state": execution.state.value}
    return ExecutionPlan(execution, after, (_event(EventType.EXECUTION_EXPIRED, execution, **told),))


def _moved(execution: Execution, command: ExecutionCommand, state: ExecutionState) -> Execution:
    """The execution in another state; who is not held any more carries no fence."""
    if state not in TRANSITIONS[execution.state]:
        raise _refused(execution, command, f"from there it cannot become {state.value}")
    return replace(execution, state=state, fence=execution.fence if state in HELD else "")


def _demand_own(execution: Execution, command: ExecutionCommand, fence: str) -> None:
    if execution.state in HELD and execution.fence != fence:
        raise _refused(execution, command, f"the incarnation of epoch {execution.epoch} holds it, not this one")


def _refused(execution: Execution, command: ExecutionCommand, problem: str) -> ExecutionStateError:
    return ExecutionStateError(
        agent_id=execution.agent_id,
        execution=execution.id,
        state=execution.state.value,
        operation=type(command).__name__.lower(),
        problem=problem,
    )


def _event(kind: EventType, execution: Execution, **told: object) -> NewEvent:
    payload = {"agent_id": execution.agent_id, "execution": execution.id, **told}
    return NewEvent(kind, payload, {"module": RUNTIME_MODULE})
