"""What agents ask people, in Redis: for incarnations, awaited or not, and for those who decide."""

from __future__ import annotations

from typing import Any, Final

from ares_celery.clock import to_datetime
from ares_celery.errors import (
    AgentNotFoundError,
    InterruptNotFoundError,
    InterruptOpenError,
    InterruptResolvedError,
    OperationIdReusedError,
)
from ares_celery.ids import AgentId, Instant
from ares_celery.model.waits import InterruptInfo, InterruptState
from ares_celery.store.base import CommitConflict
from ares_celery.store.interrupts import Decided, InterruptLook, Question, Ruling
from ares_celery.store.redis import checkpoint_calls, interrupt_calls, namespace_calls
from ares_celery.store.redis.bound import Bound, Part
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.checkpoint_calls import ExecutionRead
from ares_celery.store.redis.client import AsyncRedisClient
from ares_celery.store.redis.confirming import confirm
from ares_celery.store.redis.interrupt_calls import APPROVE
from ares_celery.store.redis.replies import epoch_of

__all__ = ["AsyncRedisInterruptStore", "RedisInterruptDesk", "RedisInterruptStore"]

#: The question may be another one when the decision comes: so often in a row means a bug.
_MOST_TRIES: Final = 20


def _open(bound: Bound, agent_id: AgentId, fence: str, question: Question, replaces: str = "") -> Call[InterruptLook]:
    epoch_of(agent_id, fence)
    limit = bound.config.max_event_bytes
    return interrupt_calls.open_interrupt(
        bound.keys, agent_id=agent_id, fence=fence, question=question, replaces=replaces, limit=limit
    )


def _holder(bound: Bound, agent_id: AgentId, error: InterruptOpenError) -> Call[ExecutionRead]:
    """Reads the execution that holds the name."""
    other = str(error.fields["other"])
    return checkpoint_calls.read_execution(bound.keys, agent_id=agent_id, execution_id=other)


def _is_over(read: ExecutionRead, question: Question, error: InterruptOpenError) -> bool:
    """The execution that holds the name has ended, so that nobody waits for the answer any more."""
    if error.fields["other"] == question.execution:
        return False
    held = read.execution()
    return held is None or held.finished


def _look(bound: Bound, agent_id: AgentId, fence: str, name: str, interrupt_id: str) -> Call[InterruptLook | None]:
    epoch_of(agent_id, fence)
    return interrupt_calls.look_interrupt(
        bound.keys, agent_id=agent_id, fence=fence, name=name, interrupt_id=interrupt_id
    )


class RedisInterruptStore(Part):
    """Implements :class:`~ares_celery.store.interrupts.InterruptStore`."""

    def open_interrupt(self, agent_id: AgentId, fence: str, question: Question) -> InterruptLook:
        """Asks, or finds what this step has asked under this name before."""
        client = self._bound.client
        try:
            return client.run(_open(self._bound, agent_id, fence, question))
        except InterruptOpenError as error:
            if not _is_over(client.run(_holder(self._bound, agent_id, error)), question, error):
                raise
            return client.run(_open(self._bound, agent_id, fence, question, str(error.fields["interrupt_id"])))

    def look_interrupt(self, agent_id: AgentId, fence: str, name: str, interrupt_id: str) -> InterruptLook | None:
        """How the question stands; None when it is known no longer."""
        return self._bound.client.run(_look(self._bound, agent_id, fence, name, interrupt_id))


class AsyncRedisInterruptStore:
    """Implements :class:`~ares_celery.store.interrupts.AsyncInterruptStore`."""

    _bound: Bound
    _client: AsyncRedisClient

    async def open_interrupt(self, agent_id: AgentId, fence: str, question: Question) -> InterruptLook:
        """Asks, or finds what this step has asked under this name before."""
        try:
            return await self._client.run(_open(self._bound, agent_id, fence, question))
        except InterruptOpenError as error:
            if not _is_over(await self._client.run(_holder(self._bound, agent_id, error)), question, error):
                raise
            again = _open(self._bound, agent_id, fence, question, str(error.fields["interrupt_id"]))
            return await self._client.run(again)

    async def look_interrupt(self, agent_id: AgentId, fence: str, name: str, interrupt_id: str) -> InterruptLook | None:
        """How the question stands; None when it is known no longer."""
        return await self._client.run(_look(self._bound, agent_id, fence, name, interrupt_id))


class RedisInterruptDesk(Part):
    """Implements :class:`~ares_celery.store.interrupts.InterruptDesk`."""

    def interrupts(self, agent_id: AgentId) -> list[InterruptInfo]:
        """What the agent asks and has asked, open questions first, each oldest first."""
        found, now = self._known(agent_id)
        shown = [_at(one, now) for one in found.values()]
        return sorted(shown, key=lambda one: (one.state is not InterruptState.OPEN, one.created_at, one.name))

    def _known(self, agent_id: AgentId) -> tuple[dict[str, InterruptInfo], Instant]:
        keys, client = self._bound.keys, self._bound.client
        found = client.run(interrupt_calls.read_interrupts(keys, agent_id=agent_id))
        return found, client.run(namespace_calls.server_time())

    def decide_interrupt(  # noqa: PLR0913 - the parts of one decision
        self,
        agent_id: AgentId,
        name: str,
        *,
        decision: str | bool,
        answer: Any,  # noqa: ANN401 - a JSON value
        interrupt_id: str | None,
        actor: str,
        reason: str,
        op: str,
    ) -> Ruling:
        """Decides, once for each question."""
        bound = self._bound
        decided = Decided(InterruptState.RESOLVED, Instant(0), decision, answer, actor, reason)
        for _ in range(_MOST_TRIES):
            known, now = self._known(agent_id)
            found = known.get(name)
            wanted = interrupt_id or (found.id if found else "")
            call = interrupt_calls.decide_interrupt(
                bound.keys,
                agent_id=agent_id,
                name=name,
                interrupt_id=wanted or "-",
                decided=decided,
                op=op,
                limit=bound.config.max_event_bytes,
            )
            word, operation, due = interrupt_calls.ruling_of(bound.client.run(call))
            if operation not in ("", APPROVE):
                raise OperationIdReusedError(
                    op=op, subject=f"agent {agent_id!r}", used_for=operation, operation=APPROVE
                )
            if word == "missing":
                raise AgentNotFoundError(agent_id=agent_id)
            if word == "changed" and (found is None or interrupt_id):
                raise _not_found(agent_id, name, interrupt_id, known)
            if word == "changed":
                continue
            confirm(bound, bound.keys.shard_of(agent_id))
            after = self._known(agent_id)[0].get(name, found)
            if after is None:
                raise _not_found(agent_id, name, interrupt_id, known)
            if word in ("decided", "late"):
                raise _resolved(_at(after, now) if word == "decided" else _late(after))
            return Ruling(after, due, repeated=word == "repeated")
        raise CommitConflict(agent_id=agent_id, changed=f"interrupt {name}")


def _at(info: InterruptInfo, now: Instant) -> InterruptInfo:
    """As it stands at a moment: what nobody can decide any more is not open, though its agent has not noticed yet."""
    is_late = info.state is InterruptState.OPEN and info.expires_at is not None and info.expires_at <= to_datetime(now)
    return _late(info) if is_late else info


def _late(info: InterruptInfo) -> InterruptInfo:
    return info.model_copy(update={"state": InterruptState.TIMEOUT, "decided_at": info.expires_at})


def _not_found(
    agent_id: AgentId, name: str, interrupt_id: str | None, known: dict[str, InterruptInfo]
) -> InterruptNotFoundError:
    names = sorted(one.name for one in known.values() if one.state is InterruptState.OPEN)
    fields: dict[str, object] = {"agent_id": agent_id, "name": name, "open": names}
    found = known.get(name)
    if interrupt_id and found is not None:
        told = f"agent {agent_id!r} asks {name!r} under another id now, {found.id}; look at it before you decide"
        return InterruptNotFoundError(fields, interrupt_id=found.id, message=told)
    if not names:
        nothing = (
            f"agent {agent_id!r} has asked nothing named {name!r} that is to be decided, and asks nothing else now"
        )
        return InterruptNotFoundError(fields, message=nothing)
    return InterruptNotFoundError(fields)


def _resolved(info: InterruptInfo) -> InterruptResolvedError:
    moment = info.decided_at.isoformat() if info.decided_at else ""
    fields: dict[str, object] = {
        "agent_id": info.agent_id,
        "name": info.name,
        "interrupt_id": info.id,
        "state": info.state.value,
        "decision": info.decision,
        "actor": info.actor,
        "reason": info.reason,
        "decided_at": moment,
    }
    if info.state is InterruptState.RESOLVED:
        return InterruptResolvedError(fields)
    why = "nobody decided in time" if info.state is InterruptState.TIMEOUT else "the execution that asked is over"
    told = f"{info.name!r} of agent {info.agent_id!r} can be decided no longer: {why}"
    return InterruptResolvedError(fields, message=told)
