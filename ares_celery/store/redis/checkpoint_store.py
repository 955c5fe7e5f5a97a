"""Executions and their checkpoints in Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from ares_celery.errors import InvalidSettingError, UnreadableCheckpointError
from ares_celery.ids import AgentId, check_agent_id, check_execution_id
from ares_celery.model.execution import (
    Execution,
    ExecutionCommand,
    ExecutionPlan,
    Expire,
    decide_expiry,
)
from ares_celery.store.base import CommitConflict
from ares_celery.store.redis import checkpoint_calls
from ares_celery.store.redis.checkpoint_calls import ExecutionRead
from ares_celery.store.redis.execution_flows import applying, move_of, run_flow
from ares_celery.store.redis.replies import fenced
from ares_celery.store.redis.step_store import RedisStepReader

__all__ = ["RedisCheckpointStore"]

log: Final = logging.getLogger(__name__)

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


class RedisCheckpointStore(RedisStepReader):
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
        flow = applying(self._bound, checked, name, *commands, fence=fence, op=op)
        return run_flow(self._bound.client, flow)

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
            return self._bound.client.run_many(move_of(self._bound, plan, fence, op) for plan in plans)
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
