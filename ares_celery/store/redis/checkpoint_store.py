"""Executions and their checkpoints in Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from ares_celery.errors import AgentNotFoundError, InvalidSettingError, UnreadableCheckpointError
from ares_celery.ids import AgentId, check_agent_id, check_execution_id
from ares_celery.model.execution import (
    Execution,
    ExecutionCommand,
    ExecutionPlan,
    ExecutionState,
    Expire,
    decide_execution,
    decide_expiry,
)
from ares_celery.store.base import CommitConflict
from ares_celery.store.redis import checkpoint_calls
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.checkpoint_calls import ExecutionRead, Move
from ares_celery.store.redis.replies import fenced
from ares_celery.store.redis.stored_events import encode_events, lifecycle_events
from ares_celery.store.redis.stored_executions import change_of

__all__ = ["RedisCheckpointStore"]

log: Final = logging.getLogger(__name__)

#: A conflict means that somebody else got on, so many in a row mean a bug, not bad luck.
_MOST_CONFLICTS: Final = 100
#: Executions of one round trip: more would only make the answers wait in memory.
_PER_TRIP: Final = 500


def _check_fence(fence: object) -> None:
    """Refuses what is no incarnation's fence, so that nobody takes a slip for the end of an incarnation."""
    epoch, bar, token = fence.partition("|") if isinstance(fence, str) else ("", "", "")
    if not (epoch.isdecimal() and bar and token):
        problem = "is no fence of an incarnation; show ctx.fence"
        raise InvalidSettingError(
            field="fence", value=fence if isinstance(fence, str) else repr(fence), problem=problem
        )


class RedisCheckpointStore(Part):
    """Implements :class:`~ares_celery.store.checkpoints.CheckpointStore`, whose docstrings say what is guaranteed."""

    def load(self, agent_id: str, execution_id: str) -> Execution | None:
        """One execution; None when there is none."""
        return self._read(check_agent_id(agent_id), check_execution_id(execution_id)).execution()

    def list_executions(self, agent_id: str) -> tuple[Execution, ...]:
        """All unfinished executions of an agent and the last finished ones, sorted by id."""
        return tuple(sorted(self._readable(check_agent_id(agent_id)), key=lambda execution: execution.id))

    def apply(
        self, agent_id: str, execution_id: str, *commands: ExecutionCommand, fence: str, op: str
    ) -> Execution | None:
        """Applies commands, one after the other, all or none."""
        checked, name = check_agent_id(agent_id), check_execution_id(execution_id)
        _check_fence(fence)
        for _ in range(_MOST_CONFLICTS):
            read = self._read(checked, name)
            if read.fence is None:
                raise AgentNotFoundError(agent_id=checked)
            if read.fence != fence:
                raise fenced(checked, fence)
            execution = read.execution()
            if execution is not None and execution.op == op:
                return execution
            plan = decide_execution(
                execution, *commands, agent_id=checked, execution_id=name, fence=fence, now=read.now
            )
            if not plan.changes:
                return plan.after
            try:
                return self._write(plan, fence, op)
            except CommitConflict:  # also: this very op got through meanwhile, which the next read tells
                continue
        raise CommitConflict(agent_id=checked, changed=f"execution {name}")

    def recover(self, agent_id: str, *, fence: str, op: str, lost: bool = True) -> tuple[Execution, ...]:
        """Gives back what earlier incarnations of the agent held."""
        checked = check_agent_id(agent_id)
        _check_fence(fence)
        plans = [
            plan
            for execution in self._readable(checked, fence)
            if (plan := decide_expiry(execution, fence, lost=lost)).changes
        ]
        given_back: list[Execution] = []
        for start in range(0, len(plans), _PER_TRIP):
            given_back += self._requeue(checked, plans[start : start + _PER_TRIP], Expire(lost), fence=fence, op=op)
        return tuple(given_back)

    def _requeue(
        self, agent_id: AgentId, plans: Sequence[ExecutionPlan], command: Expire, *, fence: str, op: str
    ) -> list[Execution]:
        try:
            return self._bound.client.run_many(self._call(plan, fence, op) for plan in plans)
        except CommitConflict:
            # Somebody else of this incarnation got on with one of them: each by itself, those done are known by the op.
            befores = [plan.before for plan in plans if plan.before is not None]
            done = (self.apply(agent_id, before.id, command, fence=fence, op=op) for before in befores)
            return [execution for execution in done if execution is not None]

    # -- inside -----------------------------------------------------------------------------------------------------

    def _read(self, agent_id: AgentId, execution_id: str) -> ExecutionRead:
        bound = self._bound
        call = checkpoint_calls.read_execution(bound.keys, agent_id=agent_id, execution_id=execution_id)
        return bound.client.run(call)

    def _readable(self, agent_id: AgentId, fence: str | None = None) -> Iterator[Execution]:
        """The executions of an agent, perhaps only for the holder of its fence; logs and leaves what cannot be read."""
        bound = self._bound
        listed = bound.client.run(checkpoint_calls.list_executions(bound.keys, agent_id=agent_id))
        for start in range(0, len(listed), _PER_TRIP):
            some = listed[start : start + _PER_TRIP]
            reads = bound.client.run_many(
                checkpoint_calls.read_execution(bound.keys, agent_id=agent_id, execution_id=name) for name, _ in some
            )
            for read, (name, unfinished) in zip(reads, some, strict=True):
                if fence is not None and read.fence != fence:
                    raise fenced(agent_id, fence)
                try:
                    execution = read.execution()
                except UnreadableCheckpointError as error:
                    log.error("%s; the others are not held up by it", error, extra={"agent_id": agent_id})  # noqa: TRY400 - the sentence says it all
                    continue
                if execution is not None:
                    yield execution
                elif unfinished:
                    log.error(
                        "execution %r of agent %s is listed but not stored; it is skipped",
                        name,
                        agent_id,
                        extra={"agent_id": agent_id},
                    )

    def _write(self, plan: ExecutionPlan, fence: str, op: str) -> Execution | None:
        bound = self._bound
        if plan.after is None:
            assert plan.before is not None  # noqa: S101 - else nothing would change
            bound.client.run(checkpoint_calls.delete_execution(bound.keys, execution=plan.before, fence=fence))
            return None
        return bound.client.run(self._call(plan, fence, op))

    def _call(self, plan: ExecutionPlan, fence: str, op: str) -> Call[Execution]:
        bound, after = self._bound, plan.after
        assert after is not None  # noqa: S101 - else it is a deletion
        limit = bound.config.max_event_bytes
        events = encode_events(after.agent_id, lifecycle_events(plan.events), epoch=0, limit=limit)
        move = Move(plan, change_of(plan, limit=limit), events, fence, op)
        given_back = after.state is ExecutionState.READY and move.change.clear == ("fence",)
        if given_back and set(move.change.put) == {"state"}:
            # Nothing grows by it, so it works at maxmemory too: recovery must not fail there.
            return checkpoint_calls.requeue_execution(bound.keys, move=move)
        return checkpoint_calls.move_execution(bound.keys, move=move, retention=bound.config.checkpoint_retention)
