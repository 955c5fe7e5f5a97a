"""What is done to executions in several calls, written once for threads and for an event loop.

A flow is a generator: it yields calls and gets their answers, or the errors that the answers stand for.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, TypeVar

from ares_celery.errors import AgentNotFoundError, AresError
from ares_celery.ids import AgentId
from ares_celery.model.execution import (
    Acquire,
    Complete,
    Create,
    Delete,
    Execution,
    ExecutionCommand,
    ExecutionPlan,
    ExecutionState,
    Expire,
    Release,
    Start,
    decide_execution,
)
from ares_celery.model.step import RecordedSteps
from ares_celery.store.base import CommitConflict
from ares_celery.store.redis import checkpoint_calls, step_calls
from ares_celery.store.redis.bound import Bound
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.checkpoint_calls import ExecutionRead, Move
from ares_celery.store.redis.client import AsyncRedisClient, RedisClient
from ares_celery.store.redis.replies import fenced
from ares_celery.store.redis.step_calls import StepsRead
from ares_celery.store.redis.stored_events import encode_events, lifecycle_events
from ares_celery.store.redis.stored_executions import change_of
from ares_celery.store.steps import OpenExecution

__all__ = ["Flow", "applying", "closing", "move_of", "opening", "reading", "run_flow", "run_flow_async"]

T = TypeVar("T")
Flow = Generator[Call[Any], Any, T]

#: A conflict means that somebody else got on, so many in a row mean a bug, not bad luck.
_MOST_CONFLICTS: Final = 100


def run_flow(client: RedisClient, flow: Flow[T]) -> T:
    """Runs a flow in this thread."""
    try:
        call = next(flow)
        while True:
            try:
                answer = client.run(call)
            except AresError as error:
                call = flow.throw(error)
            else:
                call = flow.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


async def run_flow_async(client: AsyncRedisClient, flow: Flow[T]) -> T:
    """Runs a flow on the event loop."""
    try:
        call = next(flow)
        while True:
            try:
                answer = await client.run(call)
            except AresError as error:
                call = flow.throw(error)
            else:
                call = flow.send(answer)
    except StopIteration as end:
        value: T = end.value
        return value


def applying(
    bound: Bound, agent_id: AgentId, execution_id: str, *commands: ExecutionCommand, fence: str, op: str
) -> Flow[Execution | None]:
    """Applies commands, one after the other, all or none."""
    for _ in range(_MOST_CONFLICTS):
        read: ExecutionRead = yield checkpoint_calls.read_execution(
            bound.keys, agent_id=agent_id, execution_id=execution_id
        )
        execution = _held(read, fence)
        if execution is not None and execution.op == op:
            return execution
        plan = _decided(read, execution, commands, fence)
        if not plan.changes:
            return plan.after
        try:
            after: Execution | None = yield _written(bound, plan, fence, op)
        except CommitConflict:  # also: this very op got through meanwhile, which the next read tells
            continue
        return after
    raise CommitConflict(agent_id=agent_id, changed=f"execution {execution_id}")


def opening(
    bound: Bound, agent_id: AgentId, execution_id: str, *, fence: str, op: str, anew: bool
) -> Flow[OpenExecution]:
    """Makes, takes and starts an execution as far as that is needed, and reads what its steps recorded."""
    for _ in range(_MOST_CONFLICTS):
        read: StepsRead = yield step_calls.open_execution(bound.keys, agent_id=agent_id, execution_id=execution_id)
        execution = _held(read.execution, fence)
        try:
            if anew and execution is not None and execution.finished:
                yield _written(bound, _decided(read.execution, execution, [Delete()], fence), fence, op)
                continue
            plan = _decided(read.execution, execution, _to_open(execution, fence), fence)
            after: Execution | None = plan.after
            if plan.changes:
                after = yield _written(bound, plan, fence, op)
        except CommitConflict:
            continue
        assert after is not None  # noqa: S101 - it was made, or was there
        return OpenExecution(after, (yield from _recorded(bound, read)))
    raise CommitConflict(agent_id=agent_id, changed=f"execution {execution_id}")


def reading(bound: Bound, agent_id: AgentId, execution_id: str) -> Flow[RecordedSteps]:
    """Reads what the steps of an execution recorded."""
    read: StepsRead = yield step_calls.open_execution(bound.keys, agent_id=agent_id, execution_id=execution_id)
    return (yield from _recorded(bound, read))


def _recorded(bound: Bound, read: StepsRead) -> Flow[RecordedSteps]:
    """The steps, decoded when they are asked for."""
    agent_id, execution_id, stored = read.execution.agent_id, read.execution.execution_id, read.steps
    if stored is None:
        # Nobody but the incarnation that has opened it records steps, so that this is what there was a moment ago.
        stored = yield step_calls.read_steps(bound.keys, agent_id=agent_id, execution_id=execution_id)
    return RecordedSteps(agent_id, execution_id, stored)


def _to_open(execution: Execution | None, fence: str) -> Sequence[ExecutionCommand]:
    """What leads to a running execution of this incarnation; nothing for a finished one."""
    if execution is None:
        return Create(), Acquire(), Start()
    if execution.finished:
        return ()
    is_own = execution.fence == fence
    if is_own and execution.state is ExecutionState.RUNNING:
        return ()
    if is_own and execution.state is ExecutionState.LEASED:
        return (Start(),)
    # Another incarnation's, which its successor has not given back: that one is over, as this one has the fence.
    return Expire(), Acquire(), Start()


def closing(
    bound: Bound, agent_id: AgentId, execution_id: str, *, fence: str, op: str, completed: bool
) -> Flow[Execution | None]:
    """Completes an execution, or gives it back."""
    for _ in range(_MOST_CONFLICTS):
        read: ExecutionRead = yield checkpoint_calls.read_execution(
            bound.keys, agent_id=agent_id, execution_id=execution_id
        )
        execution = _held(read, fence)
        if execution is None or execution.op == op:
            return execution
        plan = _decided(read, execution, _to_close(execution, completed=completed), fence)
        try:
            if not plan.changes:
                return plan.after
            after: Execution | None = yield _written(bound, plan, fence, op)
        except CommitConflict:
            continue
        return after
    raise CommitConflict(agent_id=agent_id, changed=f"execution {execution_id}")


def _to_close(execution: Execution, *, completed: bool) -> Sequence[ExecutionCommand]:
    if execution.finished or (execution.state is ExecutionState.READY and not completed):
        return ()
    if not completed:
        return (Release(),)
    match execution.state:
        case ExecutionState.LEASED:
            return Start(), Complete()
        case ExecutionState.SUSPENDED:
            return Acquire(), Start(), Complete()
        case _:
            return (Complete(),)


def _held(read: ExecutionRead, fence: str) -> Execution | None:
    """The execution in a read, for the holder of the agent's fence alone."""
    if read.fence is None:
        raise AgentNotFoundError(agent_id=read.agent_id)
    if read.fence != fence:
        raise fenced(read.agent_id, fence)
    return read.execution()


def _decided(
    read: ExecutionRead, execution: Execution | None, commands: Sequence[ExecutionCommand], fence: str
) -> ExecutionPlan:
    return decide_execution(
        execution, *commands, agent_id=read.agent_id, execution_id=read.execution_id, fence=fence, now=read.now
    )


def _written(bound: Bound, plan: ExecutionPlan, fence: str, op: str) -> Call[Any]:
    """What writes a plan that changes something; a deletion gives None."""
    if plan.after is None:
        assert plan.before is not None  # noqa: S101 - else nothing would change
        return checkpoint_calls.delete_execution(bound.keys, execution=plan.before, fence=fence)
    return move_of(bound, plan, fence, op)


def move_of(bound: Bound, plan: ExecutionPlan, fence: str, op: str) -> Call[Execution]:
    """What writes a plan that leaves an execution."""
    after = plan.after
    assert after is not None  # noqa: S101 - else it is a deletion
    limit = bound.config.max_event_bytes
    events = encode_events(after.agent_id, lifecycle_events(plan.events), epoch=0, limit=limit)
    move = Move(plan, change_of(plan, limit=limit), events, fence, op)
    given_back = after.state is ExecutionState.READY and move.change.clear == ("fence",)
    if given_back and set(move.change.put) == {"state"}:
        # Nothing grows by it, so it works at maxmemory too: recovery must not fail there.
        return checkpoint_calls.requeue_execution(bound.keys, move=move)
    return checkpoint_calls.move_execution(bound.keys, move=move, retention=bound.config.checkpoint_retention)
