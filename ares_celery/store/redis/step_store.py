"""Durable steps in Redis, for threads and for an event loop: the same calls, awaited or not."""

from __future__ import annotations

from ares_celery.ids import AgentId, Version, check_agent_id, check_execution_id, check_step_id
from ares_celery.model.event import NewEvent
from ares_celery.model.execution import Execution
from ares_celery.model.step import StepIntent, StepRecord
from ares_celery.store.redis import step_calls
from ares_celery.store.redis.bound import Bound, Part
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.client import AsyncRedisClient
from ares_celery.store.redis.confirming import confirm, confirm_async
from ares_celery.store.redis.execution_flows import closing, opening, reading, run_flow, run_flow_async
from ares_celery.store.redis.replies import epoch_of
from ares_celery.store.redis.step_calls import Holder
from ares_celery.store.steps import NOT_SEEN, Begun, OpenExecution, Recorded

__all__ = ["AsyncRedisStepStore", "RedisStepReader", "RedisStepStore"]


def _record(  # noqa: PLR0913 - the parts of one write
    bound: Bound,
    holder: Holder,
    record: StepRecord,
    *,
    op: str,
    closes_intent: bool,
    told: bool,
    took_ms: int,
    event: NewEvent | None,
    begun: str,
) -> Call[Recorded]:
    check_step_id(record.id)
    config = bound.config
    step = step_calls.encode_recorded(
        holder,
        record,
        op=op,
        told=(told and config.step_events) or record.error is not None or record.replay == "never",
        took_ms=took_ms,
        limit=config.max_event_bytes,
        event=event,
    )
    return step_calls.record_step(bound.keys, holder=holder, step=step, closes_intent=closes_intent, begun=begun)


def _begin(bound: Bound, holder: Holder, intent: StepIntent, op: str) -> Call[Begun]:
    check_step_id(intent.step)
    encoded = step_calls.encode_begun(holder, intent, op=op, limit=bound.config.max_event_bytes)
    return step_calls.record_intent(bound.keys, holder=holder, intent=encoded)


def _holder(agent_id: AgentId, fence: str, execution_id: str, expected: Version) -> Holder:
    epoch_of(agent_id, fence)
    return Holder(agent_id, fence, execution_id, expected)


class RedisStepReader(Part):
    """Implements :class:`~ares_celery.store.steps.StepReader`."""

    def steps(self, agent_id: str, execution_id: str) -> tuple[StepRecord, ...]:
        """What an execution has recorded, in the order of recording."""
        flow = reading(self._bound, check_agent_id(agent_id), check_execution_id(execution_id))
        recorded = run_flow(self._bound.client, flow)
        return tuple(sorted(recorded.values(), key=lambda record: (record.number, record.id)))

    def intents(self, agent_id: str) -> tuple[StepIntent, ...]:
        """The steps that were begun, must not be repeated, and whose outcome is not known, oldest first."""
        return self._bound.client.run(step_calls.read_intents(self._bound.keys, agent_id=check_agent_id(agent_id)))


class RedisStepStore(RedisStepReader):
    """Implements :class:`~ares_celery.store.steps.StepStore`, whose docstrings say what is guaranteed."""

    def open_steps(
        self, agent_id: AgentId, execution_id: str, *, fence: str, op: str, anew: bool = False
    ) -> OpenExecution:
        """Makes the execution if need be, takes and starts it, and reads all that its steps have recorded."""
        epoch_of(agent_id, fence)
        name = check_execution_id(execution_id)
        return run_flow(self._bound.client, opening(self._bound, agent_id, name, fence=fence, op=op, anew=anew))

    def record_step(  # noqa: PLR0913 - the parts of one write
        self,
        agent_id: AgentId,
        fence: str,
        execution_id: str,
        record: StepRecord,
        *,
        op: str,
        closes_intent: bool = False,
        told: bool = True,
        took_ms: int = 0,
        expected: Version = NOT_SEEN,
        event: NewEvent | None = None,
        begun: str = "",
    ) -> Recorded:
        """Records what a step came to; one round trip."""
        call = _record(
            self._bound,
            _holder(agent_id, fence, execution_id, expected),
            record,
            op=op,
            closes_intent=closes_intent,
            told=told,
            took_ms=took_ms,
            event=event,
            begun=begun,
        )
        return self._bound.client.run(call)

    def record_intent(
        self,
        agent_id: AgentId,
        fence: str,
        execution_id: str,
        intent: StepIntent,
        *,
        op: str,
        expected: Version = NOT_SEEN,
    ) -> Begun:
        """Notes that a step is begun which must not be repeated; one round trip, two where it is to be confirmed."""
        begun = self._bound.client.run(
            _begin(self._bound, _holder(agent_id, fence, execution_id, expected), intent, op)
        )
        confirm(self._bound, self._bound.keys.shard_of(agent_id))
        return begun

    def close_steps(
        self, agent_id: AgentId, execution_id: str, *, fence: str, op: str, completed: bool
    ) -> Execution | None:
        """Completes an execution, or gives it back ready with nothing counted; None when there is none."""
        epoch_of(agent_id, fence)
        flow = closing(self._bound, agent_id, execution_id, fence=fence, op=op, completed=completed)
        return run_flow(self._bound.client, flow)


class AsyncRedisStepStore:
    """Implements :class:`~ares_celery.store.steps.AsyncStepStore`."""

    _bound: Bound
    _client: AsyncRedisClient

    async def open_steps(
        self, agent_id: AgentId, execution_id: str, *, fence: str, op: str, anew: bool = False
    ) -> OpenExecution:
        """Makes the execution if need be, takes and starts it, and reads all that its steps have recorded."""
        epoch_of(agent_id, fence)
        name = check_execution_id(execution_id)
        flow = opening(self._bound, agent_id, name, fence=fence, op=op, anew=anew)
        return await run_flow_async(self._client, flow)

    async def record_step(  # noqa: PLR0913 - the parts of one write
        self,
        agent_id: AgentId,
        fence: str,
        execution_id: str,
        record: StepRecord,
        *,
        op: str,
        closes_intent: bool = False,
        told: bool = True,
        took_ms: int = 0,
        expected: Version = NOT_SEEN,
        event: NewEvent | None = None,
        begun: str = "",
    ) -> Recorded:
        """Records what a step came to; one round trip."""
        call = _record(
            self._bound,
            _holder(agent_id, fence, execution_id, expected),
            record,
            op=op,
            closes_intent=closes_intent,
            told=told,
            took_ms=took_ms,
            event=event,
            begun=begun,
        )
        return await self._client.run(call)

    async def record_intent(
        self,
        agent_id: AgentId,
        fence: str,
        execution_id: str,
        intent: StepIntent,
        *,
        op: str,
        expected: Version = NOT_SEEN,
    ) -> Begun:
        """Notes that a step is begun which must not be repeated; one round trip, two where it is to be confirmed."""
        begun = await self._client.run(
            _begin(self._bound, _holder(agent_id, fence, execution_id, expected), intent, op)
        )
        await confirm_async(self._bound, self._client, self._bound.keys.shard_of(agent_id))
        return begun

    async def close_steps(
        self, agent_id: AgentId, execution_id: str, *, fence: str, op: str, completed: bool
    ) -> Execution | None:
        """Completes an execution, or gives it back ready with nothing counted; None when there is none."""
        epoch_of(agent_id, fence)
        flow = closing(self._bound, agent_id, execution_id, fence=fence, op=op, completed=completed)
        return await run_flow_async(self._client, flow)
