"""What one incarnation writes and reads in Redis, for threads and for an event loop: the same calls, awaited or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ares_celery.errors import UnreadableRecordError
from ares_celery.ids import AgentId, Instant, Version
from ares_celery.model.agent import AgentRecord
from ares_celery.model.event import Event, NewEvent, ReadOptions
from ares_celery.store.redis import agent_calls, event_calls, mailbox_calls, namespace_calls, state_calls
from ares_celery.store.redis.bound import Bound
from ares_celery.store.redis.budgets import AsyncRedisBudgets, RedisBudgets
from ares_celery.store.redis.call import Call
from ares_celery.store.redis.event_calls import Append
from ares_celery.store.redis.fault_store import AsyncRedisFaultStore, RedisFaultStore
from ares_celery.store.redis.host_mailbox import AsyncRedisHostMailbox, RedisHostMailbox
from ares_celery.store.redis.interrupt_store import AsyncRedisInterruptStore, RedisInterruptStore
from ares_celery.store.redis.limits import AsyncRedisLimits, RedisLimits
from ares_celery.store.redis.mailbox_calls import Outgoing
from ares_celery.store.redis.replies import epoch_of
from ares_celery.store.redis.step_store import AsyncRedisStepStore, RedisStepStore
from ares_celery.store.redis.stored_events import encode_events
from ares_celery.store.redis.stored_snapshots import EncodedState, encode_snapshot, encode_state

__all__ = ["AsyncRedisIncarnationStore", "RedisIncarnationStore"]

#: Events that one read of an incarnation brings at most: between two of its own events others write a handful.
_MOST_READ: Final = 10_000


def _append(
    bound: Bound, agent_id: AgentId, fence: str, events: Sequence[NewEvent], *, op: str, expected: Version
) -> Append:
    if not events:
        raise ValueError(f"append to agent {agent_id!r} needs at least one event")
    epoch = epoch_of(agent_id, fence)
    encoded = encode_events(agent_id, events, epoch=epoch, limit=bound.config.max_event_bytes)
    return Append(agent_id, fence, encoded, op, expected)


def _save(bound: Bound, agent_id: AgentId, fence: str, state: EncodedState, now: Instant) -> Call[None]:
    return state_calls.save_snapshot(
        bound.keys,
        agent_id=agent_id,
        fence=fence,
        state=state,
        blob=encode_snapshot(state, now),
        kept=bound.config.snapshots_kept,
    )


def _note(bound: Bound, agent_id: AgentId, fence: str, *, origin: str, schema: int, saved: str) -> Call[None]:
    epoch_of(agent_id, fence)
    return state_calls.note_state(bound.keys, agent_id=agent_id, fence=fence, origin=origin, schema=schema, saved=saved)


def _note_degraded(bound: Bound, agent_id: AgentId, fence: str, text: str) -> Call[None]:
    epoch_of(agent_id, fence)
    return state_calls.note_degraded(bound.keys, agent_id=agent_id, fence=fence, text=text)


class RedisIncarnationStore(
    RedisHostMailbox, RedisStepStore, RedisBudgets, RedisLimits, RedisInterruptStore, RedisFaultStore
):
    """Implements :class:`~ares_celery.store.base.IncarnationStore`.

    The appends of one incarnation are made one after the other: a repeat is recognised for the last one.
    """

    def append(
        self, agent_id: AgentId, fence: str, events: Sequence[NewEvent], *, op: str, expected: Version
    ) -> tuple[Event, ...]:
        """Appends events of an incarnation; all or none; with contiguous versions."""
        append = _append(self._bound, agent_id, fence, events, op=op, expected=expected)
        if len(events) == 1:
            stored = self._bound.client.run(event_calls.append_one(self._bound.keys, append=append))
            if stored is not None:
                return stored
        return self._bound.client.run(event_calls.append_batch(self._bound.keys, append=append))

    def save_snapshot(
        self,
        agent_id: AgentId,
        fence: str,
        state: Mapping[str, Any],
        *,
        version: Version,
        schema: int,
        origin: str = "",
    ) -> None:
        """Stores a snapshot and drops the oldest beyond ``snapshots_kept``."""
        epoch = epoch_of(agent_id, fence)
        encoded = encode_state(agent_id, state, version=version, epoch=epoch, schema=schema, origin=origin)
        now = self._bound.client.run(namespace_calls.server_time())
        self._bound.client.run(_save(self._bound, agent_id, fence, encoded, now))

    def note_degraded(self, agent_id: AgentId, fence: str, text: str) -> None:
        """Notes what the incarnation has to do without; empty: nothing."""
        self._bound.client.run(_note_degraded(self._bound, agent_id, fence, text))

    def note_state(self, agent_id: AgentId, fence: str, *, origin: str, schema: int, saved: str = "") -> None:
        """Notes what a state is that is saved elsewhere."""
        call = _note(self._bound, agent_id, fence, origin=origin, schema=schema, saved=saved)
        self._bound.client.run(call)


class AsyncRedisIncarnationStore(
    AsyncRedisHostMailbox,
    AsyncRedisStepStore,
    AsyncRedisBudgets,
    AsyncRedisLimits,
    AsyncRedisInterruptStore,
    AsyncRedisFaultStore,
):
    """Implements :class:`~ares_celery.store.base.AsyncIncarnationStore`; belongs to the event loop that first uses it.

    The appends of one incarnation are made one after the other: a repeat is recognised for the last one.
    """

    async def append(
        self, agent_id: AgentId, fence: str, events: Sequence[NewEvent], *, op: str, expected: Version
    ) -> tuple[Event, ...]:
        """Appends events of an incarnation; all or none; with contiguous versions."""
        append = _append(self._bound, agent_id, fence, events, op=op, expected=expected)
        if len(events) == 1:
            stored = await self._client.run(event_calls.append_one(self._bound.keys, append=append))
            if stored is not None:
                return stored
        return await self._client.run(event_calls.append_batch(self._bound.keys, append=append))

    async def save_snapshot(
        self,
        agent_id: AgentId,
        fence: str,
        state: Mapping[str, Any],
        *,
        version: Version,
        schema: int,
        origin: str = "",
    ) -> None:
        """Stores a snapshot and drops the oldest beyond ``snapshots_kept``."""
        epoch = epoch_of(agent_id, fence)
        encoded = encode_state(agent_id, state, version=version, epoch=epoch, schema=schema, origin=origin)
        now = await self._client.run(namespace_calls.server_time())
        await self._client.run(_save(self._bound, agent_id, fence, encoded, now))

    async def note_degraded(self, agent_id: AgentId, fence: str, text: str) -> None:
        """Notes what the incarnation has to do without; empty: nothing."""
        await self._client.run(_note_degraded(self._bound, agent_id, fence, text))

    async def note_state(self, agent_id: AgentId, fence: str, *, origin: str, schema: int, saved: str = "") -> None:
        """Notes what a state is that is saved elsewhere."""
        call = _note(self._bound, agent_id, fence, origin=origin, schema=schema, saved=saved)
        await self._client.run(call)

    async def send(self, agent_id: AgentId, body: object, *, message_id: str, wants_reply: bool) -> None:
        """Puts a message into another agent's inbox, once for each message id."""
        config = self._bound.config
        made = Outgoing.made(body, message_id=message_id, wants_reply=wants_reply, stream=False, detached=False)
        await self._client.run(
            mailbox_calls.send(
                self._bound.keys,
                agent_id=agent_id,
                message=made,
                limit=config.max_event_bytes,
                most=config.max_inbox,
            )
        )

    async def read_record(self, agent_id: AgentId) -> AgentRecord | None:
        """An agent as it is now; None when it does not exist."""
        read = await self._client.run(agent_calls.read_agent(self._bound.keys, agent_id=agent_id, op=""))
        if read.problem:
            raise UnreadableRecordError(agent_id=agent_id, problem=read.problem)
        return read.record

    async def read(self, stream_id: str, options: ReadOptions) -> tuple[Event, ...]:
        """Reads part of a stream by its bounds of versions, oldest first, in one round trip."""
        call = event_calls.read_events(
            self._bound.keys,
            stream_id=stream_id,
            first=str(options.from_version) if options.from_version > 0 else "-",
            last=str(options.to_version) if options.to_version > 0 else "+",
            limit=options.limit or _MOST_READ,
            newest_first=False,
        )
        events = await self._client.run(call)
        return tuple(events)

    async def server_time(self) -> Instant:
        """Redis TIME."""
        return await self._client.run(namespace_calls.server_time())

    async def aclose(self) -> None:
        """Closes the connections; idempotent."""
        await self._chunks.aclose()
