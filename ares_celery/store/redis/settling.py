"""Settling steps in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from ares_celery.errors import (
    AresError,
    OperationIdReusedError,
    UnreadableCheckpointError,
)
from ares_celery.ids import AgentId
from ares_celery.model.agent import AgentState
from ares_celery.model.audit import AuditNote
from ares_celery.model.event import RUNTIME_MODULE, EventType, NewEvent
from ares_celery.model.settlement import DONE, RETRY, Done, Settlement, intent_not_found, not_parked, settled_already
from ares_celery.model.step import StepIntent, StepRecord, decode_intent
from ares_celery.store.base import CommitConflict
from ares_celery.store.redis import agent_calls, settling_calls, step_calls
from ares_celery.store.redis.bound import Part
from ares_celery.store.redis.confirming import confirm
from ares_celery.store.redis.records import safe_text
from ares_celery.store.redis.stored_events import EncodedEvent, encode_events, lifecycle_events

__all__ = ["RedisSettling"]

#: A conflict means that somebody else got on, so many in a row mean a bug, not bad luck.
_MOST_CONFLICTS: Final = 100
#: Bytes of the event: names, and texts that are cut.
_EVENT_BYTES: Final = 1 << 20
#: Characters of a reason that is kept with a settlement.
_LONGEST: Final = 1_000


class RedisSettling(Part):
    """Implements :class:`~ares_celery.store.settling.SettlingStore`, whose docstrings say what is guaranteed."""

    def settlements(self, agent_id: AgentId) -> tuple[Settlement, ...]:
        """What was settled lately, newest first."""
        return self._bound.client.run(settling_calls.read_settlements(self._bound.keys, agent_id=agent_id))

    def settle_intent(  # noqa: PLR0913 - the parts of one write
        self,
        agent_id: AgentId,
        execution_id: str,
        step_id: str,
        *,
        done: Done | None,
        actor: str,
        reason: str,
        op: str,
    ) -> Settlement:
        """Settles one step, once."""
        said = Settlement(
            execution_id,
            step_id,
            RETRY if done is None else DONE,
            safe_text(actor, _LONGEST),
            safe_text(reason, _LONGEST),
            op=op,
        )
        bound = self._bound
        for _ in range(_MOST_CONFLICTS):
            stored = bound.client.run(
                settling_calls.read_intent(bound.keys, agent_id=agent_id, execution_id=execution_id, step_id=step_id)
            )
            # In this order: an intent that was begun after this very op had settled the step is never read with it.
            earlier = self.settlements(agent_id)
            repeated = next((one for one in earlier if one.op == op), None)
            if repeated is not None:
                confirm(bound, bound.keys.shard_of(agent_id))
                return _same(agent_id, repeated, said)
            if stored is None:
                raise self._refusal(agent_id, said, earlier)
            try:
                return self._settle(agent_id, stored, said, done)
            except CommitConflict:
                continue
        raise CommitConflict(agent_id=agent_id, changed=f"step {step_id} of execution {execution_id}")

    def _settle(self, agent_id: AgentId, stored: bytes, said: Settlement, done: Done | None) -> Settlement:
        bound, intent, record = self._bound, _intent_of(stored), b""
        if done is not None:
            if intent is None:
                problem = f"what is noted of step {said.step!r} is damaged; it can only run again (--retry)"
                raise UnreadableCheckpointError(agent_id=agent_id, execution=said.execution, problem=problem)
            record = self._record_of(agent_id, intent, said, done)
        settled = msgspec.structs.replace(said, function=intent.function if intent else "")
        call = settling_calls.settle_intent(
            bound.keys,
            agent_id=agent_id,
            stored=stored,
            settlement=settled,
            record=record,
            event=_event_of(agent_id, settled, intent),
            note=AuditNote(
                operation="reconcile",
                agent_id=agent_id,
                actor=said.actor,
                reason=said.reason,
                state=AgentState.PARKED.value,
                op=said.op,
                changed=(said.outcome, said.execution, said.step),
            ),
            retention=bound.config.checkpoint_retention,
        )
        settlement = bound.client.run(call)
        confirm(bound, bound.keys.shard_of(agent_id))
        return settlement

    def _record_of(self, agent_id: AgentId, intent: StepIntent, said: Settlement, done: Done) -> bytes:
        holder = step_calls.Holder(agent_id, "", said.execution)
        record = StepRecord(said.step, intent.function, intent.replay, done.value, actor=said.actor)
        limit = self._bound.config.max_event_bytes
        return step_calls.encode_recorded(holder, record, op=said.op, told=False, took_ms=0, limit=limit).data

    def _refusal(self, agent_id: AgentId, said: Settlement, earlier: Sequence[Settlement]) -> AresError:
        """Why a step without an open intent cannot be settled."""
        for one in earlier:
            if (one.execution, one.step) == (said.execution, said.step):
                return settled_already(agent_id, one)
        bound = self._bound
        state = bound.client.run(agent_calls.read_state(bound.keys, agent_id=agent_id))
        if state != AgentState.PARKED.value:
            return not_parked(agent_id, state)
        open_ = bound.client.run(step_calls.read_intents(bound.keys, agent_id=agent_id))
        return intent_not_found(agent_id, f"step {said.step!r} of execution {said.execution!r}", open_)


def _intent_of(stored: bytes) -> StepIntent | None:
    try:
        return decode_intent(stored)
    except (ValueError, RecursionError):
        return None


def _same(agent_id: AgentId, repeated: Settlement, said: Settlement) -> Settlement:
    """The first outcome of an operation id, which is for one step and one word."""
    if (repeated.execution, repeated.step, repeated.outcome) == (said.execution, said.step, said.outcome):
        return repeated
    raise OperationIdReusedError(
        op=said.op,
        subject=f"agent {agent_id!r}",
        used_for=f"step {repeated.step} of {repeated.execution}: {repeated.outcome}",
        operation=f"step {said.step} of {said.execution}: {said.outcome}",
    )


def _event_of(agent_id: AgentId, settled: Settlement, intent: StepIntent | None) -> EncodedEvent:
    payload = {
        "agent_id": agent_id,
        "execution": settled.execution,
        "step": settled.step,
        "function": settled.function,
        "replay": intent.replay if intent else "never",
        "outcome": settled.outcome,
        "actor": settled.actor,
        "reason": settled.reason,
    }
    told = lifecycle_events([NewEvent(EventType.STEP_RECONCILED, payload, {"module": RUNTIME_MODULE})])
    (event,) = encode_events(agent_id, told, epoch=0, limit=_EVENT_BYTES)
    return event
